#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# What `make run` ends with: serves MODEL on HOST:PORT in the foreground and, once a token can be
# produced, prints the address and a command to paste. Ctrl-C stops it.
set -eu

host=${HOST:-127.0.0.1}
port=${PORT:-8000}
model=${MODEL:-models/tern-poet}

case $port in
'' | *[!0-9]*)
    echo "make run: PORT=$port is not a port number" >&2
    exit 2
    ;;
esac
if (exec 3<>"/dev/tcp/$host/$port") 2>/dev/null; then
    echo "make run: port $port on $host is taken; choose another: make run PORT=$((port + 1))" >&2
    exit 1
fi
if [ ! -e "$model/config.json" ] && [ ! -f "$model" ]; then
    echo "make run: no model in $model (MODEL=… chooses another: a directory or a GGUF file)" >&2
    exit 1
fi

announce() {
    while kill -0 "$1" 2>/dev/null; do
        if curl -fs -o /dev/null --max-time 2 "http://$host:$port/health"; then
            page="Chat page: http://$host:$port/"
            curl -fs -o /dev/null --max-time 2 "http://$host:$port/" ||
                page="(built without Node.js and npm: there is no chat page)"
            cat <<TEXT

tern serves $(basename "$model") at http://$host:$port (Ctrl-C stops it).
$page
From another terminal:

curl -N http://$host:$port/v1/chat/completions -H 'Content-Type: application/json' -d '{"model":"$(basename "$model")","messages":[{"role":"user","content":"写一首七言绝句，题目是《春晓》。"}],"max_tokens":120,"stream":true}'

TEXT
            return
        fi
        sleep 0.2
    done
}
announce $$ &

exec build/tern serve "$model" --host "$host" --port "$port"
