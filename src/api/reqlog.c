/* SPDX-License-Identifier: Apache-2.0 */
/* What --enable-log-requests and --enable-log-outputs write. Parameters go out at INFO, the prompt
 * itself only at DEBUG, both cut to --max-log-len; headers, and thus keys, never. */
#include "api/gen.h"

/* At most n characters of text: a length in bytes. */
static size_t cut(const char *text, size_t n_bytes, int max_chars)
{
    size_t at = 0;
    for (int n = 0; at < n_bytes && (max_chars < 0 || n < max_chars); n++) {
        do {
            at++;
        } while (at < n_bytes && ((unsigned char)text[at] & 0xC0) == 0x80);
    }
    return at;
}

static void log_prompt(const struct gen *g, const struct gen_prompt *p)
{
    const struct server *s = g->server;
    struct buf text, ids;
    buf_init(&text);
    buf_init(&ids);
    int n = s->o.max_log_len < 0 || p->n < s->o.max_log_len ? p->n : s->o.max_log_len;
    tokenizer_decode(s->model.tokenizer, p->ids, (size_t)n, 0, &text);
    for (int i = 0; i < n; i++) {
        buf_printf(&ids, "%s%d", i ? ", " : "", p->ids[i]);
    }
    log_debug(s->log, "Request %s details: prompt: '%.*s', prompt_token_ids: [%s].", g->id,
              (int)cut(text.data ? text.data : "", text.len, s->o.max_log_len),
              text.data ? text.data : "", ids.data ? ids.data : "");
    buf_fini(&text);
    buf_fini(&ids);
}

void reqlog_request(const struct gen *g)
{
    const struct sampling_params *p = &g->f.sp;
    const struct log *log = g->server->log;
    log_info(log,
             "Received request %s: params: SamplingParams(n=%d, presence_penalty=%g, "
             "frequency_penalty=%g, repetition_penalty=%g, temperature=%g, top_p=%g, top_k=%d, "
             "min_p=%g, seed=%lld, ignore_eos=%s, max_tokens=%d, min_tokens=%d, logprobs=%d), "
             "prompt tokens: %d, lora_request: None.",
             g->id, p->n, p->presence_penalty, p->frequency_penalty, p->repetition_penalty,
             p->temperature, p->top_p, p->top_k, p->min_p, p->has_seed ? (long long)p->seed : -1,
             p->ignore_eos ? "True" : "False", p->max_tokens, p->min_tokens, p->n_logprobs,
             gen_prompt_tokens(g));
    for (int i = 0; log->level <= LOG_DEBUG && i < g->n_prompts; i++) {
        log_prompt(g, &g->prompts[i]);
    }
}

void reqlog_delta(const struct gen *g, const struct gen_sample *s, const char *text, size_t n_bytes)
{
    log_info(g->server->log, "Generated response %s (streaming delta): index: %d, output: '%.*s'",
             g->id, s->choice, (int)cut(text, n_bytes, g->server->o.max_log_len), text);
}

void reqlog_output(const struct gen *g, const struct gen_sample *s)
{
    const char *text = s->out.text.data ? s->out.text.data : "";
    log_info(g->server->log,
             "Generated response %s%s: index: %d, output: '%.*s', output tokens: %d, "
             "finish_reason: %s",
             g->id, g->f.stream ? " (streaming complete)" : "", s->choice,
             (int)cut(text, s->out.text.len, g->server->o.max_log_len), text, s->n_tokens,
             finish_reason_name(s->finish));
}
