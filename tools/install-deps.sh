#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Installs the Debian packages that are missing for the named groups: build page run test wheel bench lint
# fuzz arm64 package.
# As root (or with sudo that asks no password) it runs apt-get; otherwise it prints the one line to run
# and fails. Does nothing and needs nothing when all is there. TERN_SKIP_DEPS=1 skips it.
set -eu

if [ "${TERN_SKIP_DEPS:-}" = 1 ]; then
    exit 0
fi

has_node() { # a Node from any source will do, if it is new enough and brings npm
    command -v npm >/dev/null 2>&1 && command -v node >/dev/null 2>&1 &&
        [ "$(node -p 'process.versions.node.split(".")[0]' 2>/dev/null || echo 0)" -ge 18 ]
}

want=""
arm64=0
for group in "$@"; do
    case $group in
    build)
        want="$want gcc libc6-dev cmake ninja-build pkg-config libjson-c-dev libxxhash-dev"
        want="$want libevent-dev libssl-dev node-llhttp"
        want="$want libcurl4-openssl-dev libedit-dev"
        ;;
    page) has_node || want="$want nodejs npm" ;;
    run) want="$want curl" ;;
    test)
        want="$want libcmocka-dev python3 python3-pytest python3-sentencepiece python3-jinja2 python3-numpy"
        want="$want g++ valgrind python3-venv ca-certificates curl git openssl qemu-user libtest-json-schema-acceptance-perl"
        want="$want mandoc groff-base dpkg-dev systemd strace python3-yaml"
        has_node || want="$want nodejs npm"
        want="$want chromium nginx-light fonts-dejavu-core fonts-wqy-microhei"
        ;;
    wheel) want="$want python3 python3-venv" ;;
    bench) want="$want wrk util-linux" ;;
    lint) want="$want clang clang-format clang-tidy cppcheck shellcheck git" ;;
    package) want="$want dpkg-dev lintian debootstrap" ;;
    fuzz) want="$want clang libclang-rt-14-dev" ;;
    arm64)
        arm64=1
        want="$want gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user libjson-c-dev:arm64"
        want="$want libxxhash-dev:arm64 libcmocka-dev:arm64 libssl-dev:arm64"
        want="$want libevent-core-2.1-7:arm64 libevent-pthreads-2.1-7:arm64"
        ;;
    *)
        echo "install-deps: unknown group '$group' (build page run test wheel bench lint fuzz arm64 package)" >&2
        exit 2
        ;;
    esac
done

if ! command -v dpkg-query >/dev/null 2>&1; then
    echo "install-deps: no Debian system; make sure that these are installed, then set" \
        "TERN_SKIP_DEPS=1:$want" >&2
    exit 1
fi

missing=""
for package in $want; do
    status=$(dpkg-query -W -f='${db:Status-Abbrev}' "$package" 2>/dev/null || true)
    case $status in
    ii*) ;;
    *) missing="$missing $package" ;;
    esac
done
if [ -z "$missing" ]; then
    exit 0
fi

add=""
if [ "$arm64" = 1 ] && ! dpkg --print-foreign-architectures | grep -qx arm64; then
    add="dpkg --add-architecture arm64 && "
fi
line="${add}apt-get -q update && DEBIAN_FRONTEND=noninteractive apt-get -q -o Dpkg::Use-Pty=0 -o DPkg::Lock::Timeout=300 \
install -y --no-install-recommends$missing"

echo "install-deps: missing:$missing"
if [ "$(id -u)" = 0 ]; then
    sh -c "$line" </dev/null
elif command -v sudo >/dev/null 2>&1 && sudo -n true 2>/dev/null; then
    sudo -n sh -c "$line" </dev/null
else
    echo "install-deps: not root, and sudo would ask for a password. Run this, then try again:" >&2
    echo "sudo sh -c '$line'" >&2
    exit 1
fi
