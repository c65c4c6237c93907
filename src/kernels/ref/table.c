/* SPDX-License-Identifier: Apache-2.0 */
/* The table of the reference level. */
#include "kernels/ref/ref.h"

const struct kernels kernels_ref = {
    .level = CPU_SCALAR,
    .act =
        {
            [ACT_BF16] =
                {
                    .embed = ref_embed_bf16,
                    .rmsnorm = ref_rmsnorm_bf16,
                    .gemm = ref_gemm_bf16,
                    .rope_store = ref_rope_store_bf16,
                    .attn_part = ref_attn_part_bf16,
                    .attn_merge = ref_attn_merge_bf16,
                    .swiglu = ref_swiglu_bf16,
                    .add = ref_add_bf16,
                    .quantize = ref_quantize_bf16,
                    .gemm_add = ref_gemm_add_bf16,
                    .gemm_swiglu = ref_gemm_swiglu_bf16,
                    .gemm_qkv = ref_gemm_qkv_bf16,
                },
            [ACT_F32] =
                {
                    .embed = ref_embed_f32,
                    .rmsnorm = ref_rmsnorm_f32,
                    .gemm = ref_gemm_f32,
                    .rope_store = ref_rope_store_f32,
                    .attn_part = ref_attn_part_f32,
                    .attn_merge = ref_attn_merge_f32,
                    .swiglu = ref_swiglu_f32,
                    .add = ref_add_f32,
                    .quantize = ref_quantize_f32,
                    .gemm_add = ref_gemm_add_f32,
                    .gemm_swiglu = ref_gemm_swiglu_f32,
                    .gemm_qkv = ref_gemm_qkv_f32,
                },
        },
    .pack = ref_pack,
    .attn_fold = ref_attn_fold,
    .argmax = ref_argmax,
    .logsumexp = ref_logsumexp,
    .weigh = ref_weigh,
};
