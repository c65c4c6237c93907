/* SPDX-License-Identifier: Apache-2.0 */
/* config.json and generation_config.json of a model directory, in all spellings that releases and
 * converters use. */
#ifndef TERN_MODEL_CONFIG_H
#define TERN_MODEL_CONFIG_H

#include "model/model.h"

#define CONFIG_MAX_FILE_BYTES (4u << 20)

/* Reads dir/config.json. *tie_stated: -1 when the file is silent (c->tied is then decided from the
 * checkpoint), else 0 or 1. */
int config_read(struct model_config *c, int *tie_stated, const char *dir, struct err *e);
/* Reads dir/generation_config.json; a missing file leaves everything unset. */
int config_read_generation(struct model_generation_config *g, const char *dir, struct err *e);

#endif
