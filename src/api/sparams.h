/* SPDX-License-Identifier: Apache-2.0 */
/* vLLM's SamplingParams as a JSON object, which two routes take (/inference/v1/generate, /generate)
 * and the render routes give. Names are those of the completion fields, defaults are neutral: what
 * is left out never comes from generation_config.json. */
#ifndef TERN_API_SPARAMS_H
#define TERN_API_SPARAMS_H

#include "api/gen.h"

/* Writes the members of `params` as fields of a completion request, neutral defaults included.
 * `skip`: members that are no parameters, NULL-terminated, or NULL. A member nobody knows is a 400
 * that names it with `prefix` before it. */
int sparams_to_fields(const struct json *params, const char *prefix, const char *const *skip,
                      struct json_writer *w, struct api_error *e);
/* The other way: the parameters of a parsed request, as one object. */
int sparams_write(const struct gen *g, const struct gen_prompt *p, struct json_writer *w,
                  struct api_error *e);
/* Replaces g->json by the document in b, which a dialect has translated from it; takes b. */
int sparams_replace_request(struct gen *g, struct buf *b, struct api_error *e);

#endif
