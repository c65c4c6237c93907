/* SPDX-License-Identifier: Apache-2.0 */
/* The table of the level NEON with DotProd, I8MM and BF16: products by SMMLA and BFMLAL, all else
 * from NEON. Constant data only, so that reading it needs no such instruction. */
#include "kernels/arm/neon.h"

const struct kernels kernels_neonbf16 = {
    .level = CPU_NEON_BF16,
    .act =
        {
            [ACT_BF16] =
                {
                    .embed = neon_embed_bf16,
                    .rmsnorm = neon_rmsnorm_bf16,
                    .gemm = neonbf16_gemm_bf16,
                    .rope_store = neon_rope_store_bf16,
                    .attn_part = neonbf16_attn_part,
                    .attn_merge = neon_attn_merge_bf16,
                    .swiglu = neon_swiglu_bf16,
                    .add = neon_add_bf16,
                    .quantize = neon_quantize_bf16,
                    .gemm_add = neonbf16_gemm_add_bf16,
                    .gemm_swiglu = neonbf16_gemm_swiglu_bf16,
                    .gemm_qkv = neonbf16_gemm_qkv_bf16,
                },
            [ACT_F32] =
                {
                    .embed = neon_embed_f32,
                    .rmsnorm = neon_rmsnorm_f32,
                    .gemm = neonbf16_gemm_f32,
                    .rope_store = neon_rope_store_f32,
                    .attn_part = neon_attn_part_f32,
                    .attn_merge = neon_attn_merge_f32,
                    .swiglu = neon_swiglu_f32,
                    .add = neon_add_f32,
                    .quantize = neon_quantize_f32,
                    .gemm_add = neonbf16_gemm_add_f32,
                    .gemm_swiglu = neonbf16_gemm_swiglu_f32,
                    .gemm_qkv = neonbf16_gemm_qkv_f32,
                },
        },
    .pack = neon_pack,
    .attn_fold = neon_attn_fold,
    .argmax = neon_argmax,
    .logsumexp = neon_logsumexp,
    .weigh = neon_weigh,
};
