/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels of the x86 levels. */
#ifndef TERN_KERNELS_X86_X86_H
#define TERN_KERNELS_X86_X86_H

#include "kernels/kernels.h"

extern const struct kernels kernels_avx2, kernels_avx512, kernels_avx512bf16;

#endif
