/* SPDX-License-Identifier: Apache-2.0 */
/* The error object of the API: {"error":{"message","type","param","code"}}. `code` is the HTTP
 * status as an integer, except where an OpenAI client looks for a word (context_length_exceeded).
 */
#ifndef TERN_API_ERROR_H
#define TERN_API_ERROR_H

#include "base/buf.h"
#include "base/err.h"
#include "base/json.h"

#define TYPE_SCHEMA                                                                                \
    "Bad Request" /* malformed JSON, wrong field type, failing range in the schema */
#define TYPE_BAD "BadRequestError" /* found later: sampling parameters, lengths, templates */

struct api_error {
    int status; /* 0: none */
    const char *type;
    const char *code; /* word instead of the status, or NULL */
    char param[128];  /* "" writes null */
    char message[1024];
};

/* All return -1. param may be NULL. */
int api_fail(struct api_error *e, int status, const char *type, const char *param, const char *fmt,
             ...) TERN_PRINTF(5, 6);
/* A schema error in vLLM's layout: "1 validation error:" and the record of one field. input may be
 * NULL (missing). */
int api_fail_field(struct api_error *e, const char *field, const char *kind,
                   const struct json *input, const char *fmt, ...) TERN_PRINTF(5, 6);
/* A parameter error found after the schema: "… (parameter=NAME, value=V)". */
int api_fail_param(struct api_error *e, const char *param, const struct json *value,
                   const char *fmt, ...) TERN_PRINTF(4, 5);
/* From a module's error: 400 BadRequestError for what the client caused, else 500 or 503. */
int api_fail_err(struct api_error *e, const struct err *cause);
void api_error_write(const struct api_error *e, struct buf *out); /* the JSON body */

#endif
