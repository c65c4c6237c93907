/* SPDX-License-Identifier: Apache-2.0 */
/* What a struct model is made of: for the files of src/model only. */
#ifndef TERN_MODEL_INTERNAL_H
#define TERN_MODEL_INTERNAL_H

#include "model/config.h"
#include "model/model.h"
#include "model/weights.h"

struct pack;

struct model {
    char *path; /* no trailing slash */
    enum act_type act;
    enum kv_format kv;
    const struct log *log;
    struct model_config config;
    struct model_generation_config generation;
    struct quant_config quant;
    struct weights_options options;
    struct checkpoint checkpoint; /* closed by model_load */
    struct pack *pack;            /* instead of checkpoint; the weights lie in it */
    struct weights weights;
    int n_files;
    enum checkpoint_names names;
    uint64_t file_bytes;
    const char *stored; /* type of the embedding, as found */
};

#endif
