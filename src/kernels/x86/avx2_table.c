/* SPDX-License-Identifier: Apache-2.0 */
/* The table of the AVX2 level. Constant data only, so that
 * reading it needs no such instruction. */
#include "kernels/x86/x86.h"

const struct kernels kernels_avx2 = {
    .level = CPU_AVX2,
    .act =
        {
            [ACT_BF16] =
                {
                    .embed = avx2_embed_bf16,
                    .rmsnorm = avx2_rmsnorm_bf16,
                    .gemm = avx2_gemm_bf16,
                    .rope_store = avx2_rope_store_bf16,
                    .attn_part = avx2_attn_part_bf16,
                    .attn_merge = avx2_attn_merge_bf16,
                    .swiglu = avx2_swiglu_bf16,
                    .add = avx2_add_bf16,
                    .quantize = avx2_quantize_bf16,
                    .gemm_add = avx2_gemm_add_bf16,
                    .gemm_swiglu = avx2_gemm_swiglu_bf16,
                    .gemm_qkv = avx2_gemm_qkv_bf16,
                },
            [ACT_F32] =
                {
                    .embed = avx2_embed_f32,
                    .rmsnorm = avx2_rmsnorm_f32,
                    .gemm = avx2_gemm_f32,
                    .rope_store = avx2_rope_store_f32,
                    .attn_part = avx2_attn_part_f32,
                    .attn_merge = avx2_attn_merge_f32,
                    .swiglu = avx2_swiglu_f32,
                    .add = avx2_add_f32,
                    .quantize = avx2_quantize_f32,
                    .gemm_add = avx2_gemm_add_f32,
                    .gemm_swiglu = avx2_gemm_swiglu_f32,
                    .gemm_qkv = avx2_gemm_qkv_f32,
                },
        },
    .pack = avx2_pack,
    .attn_fold = avx2_attn_fold,
    .argmax = avx2_argmax,
    .logsumexp = avx2_logsumexp,
    .weigh = avx2_weigh,
};
