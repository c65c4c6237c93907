/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the Ollama dialect share. */
#ifndef TERN_API_OLLAMA_H
#define TERN_API_OLLAMA_H

#include "api/state.h"

/* "name:latest" is how Ollama's clients call "name": the tag is cut off when the server doesn't
 * serve a model of the whole name. Writes the name as a JSON string, or null. */
void ollama_write_model(const struct server *s, const struct json *name, struct json_writer *w);
void ollama_write_time(struct json_writer *w, const char *key, int64_t seconds, long ns);
void ollama_write_now(struct json_writer *w, const char *key);

#endif
