/* SPDX-License-Identifier: Apache-2.0 */
/* What chat requests of every route share: the messages' shape, template arguments, the prompt, and
 * how the answer is split into reasoning, content and tool calls. A dialect with another form of
 * request translates it into chat's JSON, calls messages_parse (or all of chat_dialect.parse), and
 * reads its samples with messages_split. */
#ifndef TERN_API_MESSAGES_H
#define TERN_API_MESSAGES_H

#include "api/gen.h"

struct chat_template;

int messages_check(const struct json *messages, struct api_error *e);
/* --default-chat-template-kwargs, what reasoning_effort says of enable_thinking,
 * chat_template_kwargs, and the fields enable_thinking and reasoning_effort at top level merged
 * into one object, later ones winning. Free it. */
int messages_kwargs(const struct json *defaults, const struct json *body, struct json **out,
                    struct api_error *e);
/* The request's own chat_template, compiled: close it. NULL when there is none; refused unless the
 * server trusts requests' templates. */
int messages_template(const struct server *s, const struct json *body, struct chat_template **out,
                      struct api_error *e);

/* Reads what belongs to messages and tools from the object, renders and tokenizes one prompt, and
 * decides how the answer is read (f.answer) and constrained (f.grammar). After gen_parse_common. */
int messages_parse(struct gen *g, const struct fields *f);

/* Feeds a sample's new text, and at its end the end, to s->answer: take the events from there. */
void messages_split(struct gen_sample *s, const char *text, size_t n_bytes);
/* "tool_calls" for a sample that ended by itself with complete calls, unless the client named the
 * function; else the engine's word: a cut stays visible as "length". NULL while it runs. */
const char *messages_finish_reason(const struct gen_sample *s);

#endif
