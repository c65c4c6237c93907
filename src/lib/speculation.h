/* SPDX-License-Identifier: Apache-2.0 */
/* --speculative-config and its short forms --> struct speculation. */
#ifndef TERN_LIB_SPECULATION_H
#define TERN_LIB_SPECULATION_H

#include "engine/engine.h"
#include "lib/args.h"

/* out->n_tokens is 0 without any of the options. ERR_INVALID or ERR_UNSUPPORTED names the option or
 * the key. */
int speculation_read(const struct args_engine *a, struct speculation *out, struct err *e);

#endif
