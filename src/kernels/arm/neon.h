/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels of the arm64 level. */
#ifndef TERN_KERNELS_ARM_NEON_H
#define TERN_KERNELS_ARM_NEON_H

#include "kernels/kernels.h"

extern const struct kernels kernels_neon;

#endif
