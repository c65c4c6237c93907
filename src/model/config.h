/* SPDX-License-Identifier: Apache-2.0 */
/* config.json and generation_config.json of a model directory, in all spellings that releases and
 * converters use. */
#ifndef TERN_MODEL_CONFIG_H
#define TERN_MODEL_CONFIG_H

#include "model/model.h"
#include "model/quant_config.h"

#define CONFIG_MAX_FILE_BYTES (4u << 20)

/* Upper bounds of sizes. Products of two stay under 2^40. */
#define MAX_VOCAB     (1 << 22)
#define MAX_WIDTH     (1 << 18)
#define MAX_LAYERS    1024
#define MAX_HEADS     1024
#define MAX_POSITIONS (1 << 24) /* a float counts exactly up to here */

/* Reads dir/config.json. *tie_stated: -1 when the file is silent (c->tied is then decided from the
 * checkpoint), else 0 or 1. */
int config_read(struct model_config *c, struct quant_config *q, int *tie_stated, const char *dir,
                struct err *e);
/* The same from the fields of a GGUF file (c->tied is decided from its tensors). */
struct gguf;
int config_read_gguf(struct model_config *c, struct quant_config *q, const struct gguf *g,
                     struct err *e);
/* Head sizes that the kernels take. */
int config_check(const struct model_config *c, const char *path, struct err *e);
/* Reads dir/generation_config.json; a missing file leaves everything unset. */
int config_read_generation(struct model_generation_config *g, const char *dir, struct err *e);

#endif
