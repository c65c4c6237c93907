/* SPDX-License-Identifier: Apache-2.0 */
/* The table of the level NEON with DotProd: products with int8 rows by SDOT, all else from NEON.
 * Constant data only, so that reading it needs no such instruction. */
#include "kernels/arm/neon.h"

const struct kernels kernels_neondot = {
    .level = CPU_NEON_DOT,
    .act =
        {
            [ACT_BF16] =
                {
                    .embed = neon_embed_bf16,
                    .rmsnorm = neon_rmsnorm_bf16,
                    .gemm = neondot_gemm_bf16,
                    .rope_store = neon_rope_store_bf16,
                    .attn_part = neon_attn_part_bf16,
                    .attn_merge = neon_attn_merge_bf16,
                    .swiglu = neon_swiglu_bf16,
                    .add = neon_add_bf16,
                    .quantize = neon_quantize_bf16,
                    .gemm_add = neondot_gemm_add_bf16,
                    .gemm_swiglu = neondot_gemm_swiglu_bf16,
                    .gemm_qkv = neondot_gemm_qkv_bf16,
                },
            [ACT_F32] =
                {
                    .embed = neon_embed_f32,
                    .rmsnorm = neon_rmsnorm_f32,
                    .gemm = neondot_gemm_f32,
                    .rope_store = neon_rope_store_f32,
                    .attn_part = neon_attn_part_f32,
                    .attn_merge = neon_attn_merge_f32,
                    .swiglu = neon_swiglu_f32,
                    .add = neon_add_f32,
                    .quantize = neon_quantize_f32,
                    .gemm_add = neondot_gemm_add_f32,
                    .gemm_swiglu = neondot_gemm_swiglu_f32,
                    .gemm_qkv = neondot_gemm_qkv_f32,
                },
        },
    .pack = neon_pack,
    .attn_fold = neon_attn_fold,
    .argmax = neon_argmax,
    .logsumexp = neon_logsumexp,
    .weigh = neon_weigh,
};
