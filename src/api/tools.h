/* SPDX-License-Identifier: Apache-2.0 */
/* What a request says about tools, in the form of chat completions ({"type":"function",
 * "function":{…}}; dialects with another form translate theirs into it first), and what that asks
 * of the answer. "required" and "named" are promises that a grammar keeps, whatever the model:
 *
 *     required   [{"name": "f", "parameters": {…}}, …]   one of the tools each, its schema
 *     named      {…}                                      the arguments alone
 *
 * "auto" leaves the model free and looks for the calls it marks. */
#ifndef TERN_API_TOOLS_H
#define TERN_API_TOOLS_H

#include "api/fields.h"
#include "api/server.h"
#include "text/answer.h"
#include "text/grammar.h"

struct grammar_cache;

struct tool_plan {
    const struct json *tools; /* the list; NULL: none. Lives as long as the request's JSON */
    enum answer_tools mode;   /* how the answer is read */
    size_t chosen;            /* ANSWER_TOOLS_ONE: place in the list */
    int one_call;             /* parallel_tool_calls was false */
};

/* Reads tools, tool_choice and parallel_tool_calls. */
int tools_read(const struct server_options *o, const struct fields *f, struct tool_plan *out);
/* Shape of a list of tools: objects of type function, each with a name. */
int tools_check(const struct json *tools, struct api_error *e);
const struct json *tools_function(const struct json *tools, size_t i); /* name, parameters, … */
/* What the answer must match, for ANSWER_TOOLS_LIST and _ONE: a reference in *out. */
int tools_grammar(struct grammar_cache *s, const struct tool_plan *p, struct grammar **out,
                  struct api_error *e);

#endif
