/* SPDX-License-Identifier: Apache-2.0 */
/* The options of commands, beside those of the engine (lib/args.h), and what every command does
 * with them. */
#ifndef TERN_CMD_ARGS_H
#define TERN_CMD_ARGS_H

#include "base/log.h"
#include "base/opt.h"
#include "lib/args.h"

struct args_server {
    const char *uds, *uds_mode, *ssl_certfile, *ssl_keyfile, *ssl_keyfile_password, *ssl_ca_certs,
        *ssl_ciphers;
    int64_t ssl_cert_reqs, max_headers, json_depth, max_connections, read_timeout_s,
        write_timeout_s, stall_timeout_s, max_num_queued_tokens, max_log_len;
    int enable_ssl_refresh, enable_log_outputs, enable_log_deltas;
    const char *host, *uvicorn_log_level, *root_path, *response_role, *default_chat_template_kwargs;
    const char *tool_call_parser, *reasoning_parser;
    const char *disable_access_log_for_endpoints, *allowed_origins, *allowed_methods,
        *allowed_headers;
    const char *ignored_text;
    int64_t port, keep_alive_s, shutdown_timeout_s, stream_interval, max_num_queued_reqs;
    int64_t max_n, max_prompts, max_stop_strings, max_header_bytes, max_body_bytes;
    double log_stats_interval_s;
    struct opt_list api_keys;
    int disable_access_log, allow_credentials, enable_request_id_headers,
        enable_prompt_tokens_details;
    int enable_force_include_usage, enable_server_load_tracking, return_tokens_as_token_ids,
        enable_log_requests;
    int enable_auto_tool_choice, exclude_tools_when_none;
    int disable_log_stats, dev_mode, disable_docs, enable_responses_store,
        enable_tokenizer_info_endpoint, trust_request_chat_template, enable_per_request_metrics;
};

/* Sampling of `tern generate`; unset fields take the model's generation_config.json. */
struct args_sampling {
    double temperature, top_p, min_p, repetition_penalty, presence_penalty, frequency_penalty;
    int64_t top_k, max_tokens, min_tokens, n, logprobs;
    struct opt_list stop, stop_token_ids;
    int ignore_eos, include_stop_str, skip_special_tokens;
};

struct opt_table args_server_table(struct args_server *a);
struct opt_table args_sampling_table(struct args_sampling *a);

/* Parses; on --help prints it and on a fault prints usage and one line. Returns -1 to go on, else
 * the exit code. */
int args_parse(struct opts *o, const char *command, int argc, char **argv);
/* More positional words than that are wrong usage. Returns -1 to go on, else the exit code. */
int args_words(const struct opts *o, const char *command, int max_words);
/* The model directory: the one positional word, else --model. Returns -1 to go on, else the exit
 * code. */
int args_model(const struct opts *o, const char *command, struct args_engine *a, int max_words);
/* A model that is no path but OWNER/NAME is looked up where `tern pull` puts it: a->model becomes
 * the directory, the name stays the one it is served by. Returns -1 to go on, else the exit code.
 */
int args_find_model(const char *command, struct args_engine *a);
/* The three together, for a command of one model. Returns -1 to go on, else the exit code. */
int args_parse_model(struct opts *o, const char *command, struct args_engine *a, int argc,
                     char **argv);
/* Log from --log-level (or VLLM_LOGGING_LEVEL) and --log-format; prefix is borrowed. Then the
 * warnings of the parser go to it. */
int args_log(const struct opts *o, const struct args_engine *a, const char *prefix,
             struct log *log);
/* The same for commands whose output is their result: warnings and worse, unless a level was asked
 * for. */
void args_quiet_log(const struct opts *o, const struct args_engine *a, struct log *log);
/* Writes a fault as the program's last word: "tern serve: error: …". Returns the exit code 1. */
int args_fail(const char *command, const struct err *e);

#define EXIT_FAULT 1
#define EXIT_USAGE 2

#endif
