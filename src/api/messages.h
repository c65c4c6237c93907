/* SPDX-License-Identifier: Apache-2.0 */
/* What chat requests of every route share: the messages' shape, template arguments, tools.
 * Implemented in chat.c. */
#ifndef TERN_API_MESSAGES_H
#define TERN_API_MESSAGES_H
#include "api/fields.h"
int messages_check(const struct json *messages, struct api_error *e);
/* --default-chat-template-kwargs, chat_template_kwargs, and the fields enable_thinking and
 * reasoning_effort at top level merged into one object, later ones winning. Free it. */
int messages_kwargs(const struct json *defaults, const struct json *body, struct json **out,
                    struct api_error *e);
/* The request's own chat_template, compiled: close it. NULL when there is none; refused unless the
 * server trusts requests' templates. */
struct server;
struct chat_template;
int messages_template(const struct server *s, const struct json *body, struct chat_template **out,
                      struct api_error *e);
/* tools with tool_choice: only what needs no parser. *tools stays NULL when absent. */
int messages_tools(const struct fields *f, const struct json **tools);
#endif
