/* SPDX-License-Identifier: Apache-2.0 */
/* The table of the AVX-512 BF16 level: products by VDPBF16PS and VPDPBUSD, all else from
 * AVX-512. Constant
 * data only, so that reading it needs no such instruction. */
#include "kernels/x86/x86.h"

const struct kernels kernels_avx512bf16 = {
    .level = CPU_AVX512_BF16,
    .act =
        {
            [ACT_BF16] =
                {
                    .embed = avx512_embed_bf16,
                    .rmsnorm = avx512_rmsnorm_bf16,
                    .gemm = avx512bf16_gemm_bf16,
                    .rope_store = avx512_rope_store_bf16,
                    .attn_part = avx512bf16_attn_part,
                    .attn_merge = avx512_attn_merge_bf16,
                    .swiglu = avx512_swiglu_bf16,
                    .add = avx512_add_bf16,
                    .quantize = avx512_quantize_bf16,
                    .gemm_add = avx512bf16_gemm_add_bf16,
                    .gemm_swiglu = avx512bf16_gemm_swiglu_bf16,
                    .gemm_qkv = avx512bf16_gemm_qkv_bf16,
                },
            [ACT_F32] =
                {
                    .embed = avx512_embed_f32,
                    .rmsnorm = avx512_rmsnorm_f32,
                    .gemm = avx512bf16_gemm_f32,
                    .rope_store = avx512_rope_store_f32,
                    .attn_part = avx512_attn_part_f32,
                    .attn_merge = avx512_attn_merge_f32,
                    .swiglu = avx512_swiglu_f32,
                    .add = avx512_add_f32,
                    .quantize = avx512_quantize_f32,
                    .gemm_add = avx512bf16_gemm_add_f32,
                    .gemm_swiglu = avx512bf16_gemm_swiglu_f32,
                    .gemm_qkv = avx512bf16_gemm_qkv_f32,
                },
        },
    .pack = avx512_pack,
    .attn_fold = avx512_attn_fold,
    .argmax = avx512_argmax,
    .logsumexp = avx512_logsumexp,
    .weigh = avx512_weigh,
};
