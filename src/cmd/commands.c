/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/commands.h"
#include "cmd/bench.h"
#include "cmd/cmd.h"
#include <stddef.h>
#include <string.h>

#define G_SERVE   "Serving"
#define G_TEXT    "Text, with or without a server"
#define G_MODELS  "Models"
#define G_MEASURE "Checks and measurements"

const struct command commands[] = {
    {"serve", G_SERVE, cmd_serve, "serve a model over an OpenAI-compatible HTTP API",
     "Loads a model and answers HTTP requests with the routes, fields, log lines and metrics of "
     "vLLM's server, and Ollama's routes. Everything that can be refused is refused before the "
     "port is bound; until a token can be produced /health answers 503.\n\n"
     "SIGTERM and SIGINT end it; running requests get --shutdown-timeout seconds. Under systemd it "
     "tells when it is ready (Type=notify) and gives signs of life (WatchdogSec=) as long as the "
     "engine moves.",
     "tern serve models/tern-poet --port 8000\n"
     "tern serve baidu/ERNIE-4.5-0.3B-PT --max-model-len 8192\n"
     "tern serve --config /etc/tern/tern.yaml"},
    {"run-batch", G_SERVE, cmd_run_batch, "answer the requests of an OpenAI batch file",
     "Reads one request a line and appends one answer a line. Started again with the same files it "
     "goes on where it was ended.",
     "tern run-batch -i requests.jsonl -o answers.jsonl --model models/tern-poet"},
    {"health", G_SERVE, cmd_health, "ask a running server whether it can answer",
     "Asks /health and ends with 0 when a token can be produced, else with 1 and one line that "
     "says why. Made for the health checks of containers: it needs nothing beside itself for http "
     "and unix sockets.",
     "tern health --port 8000\n"
     "tern health --uds /run/tern/tern.sock --timeout 2"},
    {"generate", G_TEXT, cmd_generate, "generate text from prompts, without a server",
     "Prompts come from the command line, a file, standard input or as token ids; texts go to "
     "standard output as they grow.",
     "tern generate models/tern-poet --chat -p '写一首七言绝句，题目是《春晓》。'\n"
     "tern generate MODEL --prompt-ids 1,2,3 --temperature 0 --json"},
    {"chat", G_TEXT, cmd_chat, "talk to a model or to an OpenAI-compatible server",
     "A conversation on the terminal with any OpenAI-compatible server (--url), or with a model "
     "directory that is loaded into this process. /help names the commands; Ctrl-C stops an "
     "answer.",
     "tern chat --url http://127.0.0.1:8000\n"
     "tern chat models/tern-poet -q '以《秋夜》为题写一首五言律诗。'"},
    {"complete", G_TEXT, cmd_complete, "let a model or a server go on with lines of text",
     "As tern chat, for text that is to be continued and not answered.",
     "tern complete --url http://127.0.0.1:8000"},
    {"pull", G_MODELS, cmd_pull, "fetch a model from Hugging Face or ModelScope",
     "Files come in parallel pieces, are checked against the hub's hashes, resumed after a break, "
     "and appear only when whole, in the directory that the hub's own client uses. The other "
     "commands then find the model by its OWNER/NAME.",
     "tern pull baidu/ERNIE-4.5-0.3B-PT\n"
     "tern pull --hub modelscope PaddlePaddle/ERNIE-4.5-0.3B-Base-Paddle"},
    {"quantize", G_MODELS, cmd_quantize, "write a quantized copy of a model: int8, int4, fp8 or w2",
     "Reads a 16-bit model and writes a directory in a format that vLLM reads too; prints the "
     "error of every matrix.",
     "tern quantize MODEL OUT --scheme int4"},
    {"info", G_MODELS, cmd_info, "say what a model holds and needs, and whether it fits here",
     "Prints what was recognised in the files and the memory plan that tern serve would make with "
     "the same options, without loading the weights.",
     "tern info baidu/ERNIE-4.5-0.3B-PT --max-model-len 8192"},
    {"tokenize", G_MODELS, cmd_tokenize, "text to token ids and back",
     "Reads lines from standard input and writes one JSON array of token ids a line; --decode goes "
     "the other way.",
     "echo 'hello' | tern tokenize models/tern-poet"},
    {"align", G_MEASURE, cmd_align,
     "compare the compiled plan with eager execution, bit by bit, and with stored logits",
     "Runs the model both ways and compares every logit; with --golden also with logits that "
     "another "
     "implementation stored. Prints the numerics id: equal ids promise equal bits.",
     "tern align models/tern-poet"},
    {"eval", G_MEASURE, cmd_eval, "perplexity, multiple choice, GSM8K, BLEU and ROUGE-L of a model",
     "Scores a model directory or an OpenAI-compatible server on texts, C-Eval, CMMLU, MMLU, GSM8K "
     "or reference texts.",
     "tern eval MODEL --perplexity text.txt\n"
     "tern eval --base-url http://127.0.0.1:8000 --tasks ceval --data DIR"},
    {"bench", G_MEASURE, cmd_bench, "latency, throughput and serving benchmarks, as vLLM's",
     "Leads to benchmarks with the names, defaults, tables and JSON of vLLM's, and to those of the "
     "machine and the kernels.",
     "tern bench throughput MODEL\n"
     "tern bench serve --base-url http://127.0.0.1:8000 --dataset-name random"},
    {"bench serve", G_MEASURE, bench_serve, "requests over HTTP against a running server",
     "Sends requests to any OpenAI-compatible server at a rate and reports throughput and "
     "latencies.",
     "tern bench serve --base-url http://127.0.0.1:8000 --dataset-name random"},
    {"bench latency", G_MEASURE, bench_latency, "one batch after the other, without a server",
     "Times one batch of requests again and again, in this process.", "tern bench latency MODEL"},
    {"bench throughput", G_MEASURE, bench_throughput, "many requests at once, without a server",
     "Gives all requests to the engine at once, in this process, and counts tokens a second.",
     "tern bench throughput MODEL --num-prompts 100"},
    {"bench sweep", G_MEASURE, bench_sweep, "throughput for several limits of the scheduler",
     "Runs the same requests once for each pair of --sweep-batched-tokens and --sweep-seqs and "
     "prints a line of rates and latencies for each.",
     "tern bench sweep MODEL --num-prompts 64 --sweep-batched-tokens 512 2048 --sweep-seqs 8 32"},
    {"bench kernels", G_MEASURE, bench_kernels, "speed of each kernel beside the machine's limits",
     "Times every kernel on the shapes of ERNIE-4.5-0.3B, alternating with the machine's own "
     "limits.",
     "tern bench kernels --only step"},
    {"bench machine", G_MEASURE, bench_machine, "what the machine reads and computes a second",
     "Measures reads of memory and multiply-adds on registers, on one thread and on all.",
     "tern bench machine"},
    {NULL, NULL, NULL, NULL, NULL, NULL},
};

const struct command *command_find(const char *name)
{
    name += strncmp(name, "tern ", 5) == 0 ? 5 : 0;
    for (const struct command *c = commands; c->name; c++) {
        if (strcmp(c->name, name) == 0) {
            return c;
        }
    }
    return NULL;
}
