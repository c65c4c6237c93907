/* SPDX-License-Identifier: Apache-2.0 */
/* Messages -> prompt, rendered from the model's own Jinja template (tokenizer_config.json
 * "chat_template", chat_template.jinja, or --chat-template), or from the ERNIE template when the
 * model has none. Text that came from messages is marked, so that it never becomes a special token.
 */
#ifndef TERN_TEXT_CHAT_H
#define TERN_TEXT_CHAT_H

#include "base/buf.h"
#include "base/json.h"
#include "text/tokenizer.h"

struct chat_template;

/* override: NULL, a path, or literal Jinja. ERR_FORMAT with line and reason for a template that
 * does not parse. */
int chat_template_open(struct chat_template **out, const char *model_dir, const char *override,
                       const struct tokenizer *t, struct err *e);
/* A template that a request brought: text only, never a path. */
int chat_template_compile(struct chat_template **out, const char *source, size_t n_bytes,
                          const struct tokenizer *t, struct err *e);
void chat_template_close(struct chat_template *c);
const char *chat_template_source(const struct chat_template *c); /* the Jinja text */
int chat_template_is_fallback(const struct chat_template *c);    /* the model shipped none */
int chat_template_wants_parts(
    const struct chat_template *c); /* iterates over content parts ("openai" format) */

struct chat_render_options {
    int add_generation_prompt;    /* 1, 0, or -1: leave undefined (the template's default) */
    int continue_final_message;   /* cut the render after the last message's content */
    const struct json *tools;     /* array or NULL */
    const struct json *documents; /* array or NULL */
    const struct json *kwargs;    /* chat_template_kwargs object or NULL */
};
/* messages: the request's array, as received (content: string, list of {"type":"text"} parts, null
 * or missing). Renders text and its marks (one byte per text byte, non-zero where the template
 * itself wrote it). Limits on steps, output and depth; a template failure (raise_exception, missing
 * key) is ERR_INVALID with the template's message. */
int chat_render(const struct chat_template *c, const struct json *messages,
                const struct chat_render_options *o, struct buf *text, struct buf *marks,
                struct err *e);
/* chat_render + tokenizer_encode_marked. text may be NULL. */
int chat_encode(const struct chat_template *c, const struct json *messages,
                const struct chat_render_options *o, struct token_ids *out, struct buf *text,
                struct err *e);

/* The prompt of a user's message, after a system message if there is one (system NULL: none), that
 * an answer is to follow. text may be NULL. */
int chat_encode_user(const struct chat_template *c, const char *system, const char *user,
                     size_t user_bytes, struct token_ids *out, struct buf *text, struct err *e);

#endif
