/* SPDX-License-Identifier: Apache-2.0 */
/* quantization_config: what is understood, what is refused and in which words; and decoders of
 * quantized matrices against the dequantized values of another implementation (codecs of the shared
 * folder), bit for bit. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>

#include "base/json.h"
#include "model/quant.h"
#include "model/safetensors.h"
#include "model_rig.h"

/* ---- configurations ---- */

static int read_config(struct quant_config *q, const char *text, struct err *e)
{
    struct json *doc = NULL;
    if (json_parse(&doc, text, strlen(text), JSON_DEPTH_DEFAULT, e) < 0) {
        fail_msg("%s: %s", text, e->text);
    }
    int rc = quant_config_read(q, doc, "dir/config.json", "quantization_config", e);
    json_free(doc);
    return rc;
}

static struct quant_config good(const char *text)
{
    struct quant_config q;
    struct err e = {0};
    if (read_config(&q, text, &e) < 0) {
        fail_msg("%s: %s", text, e.text);
    }
    return q;
}

/* The line must name the file, the key and what was found. */
static void refused(const char *text, const char *key, const char *found)
{
    struct quant_config q;
    struct err e = {0};
    int rc = read_config(&q, text, &e);
    if (rc >= 0 || strstr(e.text, "dir/config.json") == NULL || strstr(e.text, key) == NULL ||
        strstr(e.text, found) == NULL) {
        fail_msg("%s: %d \"%s\", expected \"%s\" and \"%s\"", text, rc, e.text, key, found);
    }
}

#define AWQ  "\"quant_method\":\"awq\",\"bits\":4,\"group_size\":128,\"zero_point\":true"
#define GPTQ "\"quant_method\":\"gptq\",\"bits\":4,\"group_size\":128,\"sym\":true"
#define CT(format, weights, acts)                                                                  \
    "{\"quant_method\":\"compressed-tensors\",\"format\":\"" format                                \
    "\",\"ignore\":[\"lm_head\",\"re:.*mlp.gate$\"],\"config_groups\":{\"group_0\":{\"targets\":[" \
    "\"Linear\"],\"weights\":{" weights "},\"input_activations\":" acts "}}}"
#define W4 "\"num_bits\":4,\"type\":\"int\",\"strategy\":\"group\",\"group_size\":64"
#define W8 "\"num_bits\":8,\"type\":\"int\",\"symmetric\":true,\"strategy\":\"channel\""
#define F8 "\"num_bits\":8,\"type\":\"float\",\"symmetric\":true,\"strategy\":\"channel\""
#define A8 "{\"num_bits\":8,\"type\":\"int\",\"strategy\":\"token\",\"dynamic\":true}"
#define Q  "model.layers.0.self_attn.q_proj"

static void awq_layers_have_groups_and_zero_points(void **state)
{
    (void)state;
    struct quant_config q =
        good("{" AWQ ",\"version\":\"GEMM\",\"modules_to_not_convert\":[\"v_proj\"]}");
    const struct quant_scheme *s = quant_config_for(&q, Q);
    assert_non_null(s);
    assert_int_equal(s->layout, QUANT_AWQ_GEMM);
    assert_int_equal(s->group, 128);
    assert_null(quant_config_for(&q, "model.layers.7.self_attn.v_proj"));
    assert_null(quant_config_for(&q, "lm_head"));
    quant_config_fini(&q);
}

static void gptq_zero_points_are_one_less_in_the_first_version_only(void **state)
{
    (void)state;
    struct quant_config q = good("{" GPTQ "}");
    assert_int_equal(quant_config_for(&q, Q)->zero_offset, 1);
    assert_false(quant_config_for(&q, Q)->ordered);
    quant_config_fini(&q);
    q = good("{" GPTQ ",\"desc_act\":true,\"checkpoint_format\":\"gptq_v2\",\"lm_head\":true}");
    assert_int_equal(quant_config_for(&q, Q)->zero_offset, 0);
    assert_true(quant_config_for(&q, Q)->ordered);
    assert_non_null(quant_config_for(&q, "lm_head"));
    quant_config_fini(&q);
}

static void compressed_tensors_are_told_apart_by_format_and_type(void **state)
{
    (void)state;
    struct quant_config q = good(CT("pack-quantized", W4 ",\"symmetric\":false", "null"));
    const struct quant_scheme *s = quant_config_for(&q, Q);
    assert_int_equal(s->layout, QUANT_CT_PACKED);
    assert_int_equal(s->group, 64);
    assert_int_equal(s->act, QUANT_ACT_16);
    assert_false(s->symmetric);
    assert_null(quant_config_for(&q, "lm_head"));
    assert_null(quant_config_for(&q, "model.layers.3.mlp.gate"));
    assert_non_null(quant_config_for(&q, "model.layers.3.mlp.gate_proj"));
    quant_config_fini(&q);
    q = good(CT("int-quantized", W8, A8));
    assert_int_equal(quant_config_for(&q, Q)->layout, QUANT_CT_INT8);
    assert_int_equal(quant_config_for(&q, Q)->act, QUANT_ACT_INT8);
    quant_config_fini(&q);
    q = good(CT("naive-quantized", F8, "null"));
    assert_int_equal(quant_config_for(&q, Q)->layout, QUANT_CT_FP8);
    quant_config_fini(&q);
}

static void a_layer_named_by_a_group_leaves_the_group_of_all(void **state)
{
    (void)state;
    struct quant_config q =
        good("{\"quant_method\":\"compressed-tensors\",\"format\":\"mixed-precision\","
             "\"config_groups\":{\"a\":{\"targets\":[\"Linear\"],\"format\":\"int-quantized\","
             "\"weights\":{" W8 "}},\"b\":{\"targets\":[\"re:.*down_proj\"],"
             "\"format\":\"pack-quantized\",\"weights\":{" W4 "}}}}");
    assert_int_equal(quant_config_for(&q, Q)->layout, QUANT_CT_INT8);
    assert_int_equal(quant_config_for(&q, "model.layers.9.mlp.down_proj")->layout, QUANT_CT_PACKED);
    quant_config_fini(&q);
}

static void fastdeploy_names_quantize_while_loading(void **state)
{
    (void)state;
    struct quant_config q = good("{\"quantization\":\"wint8\"}");
    assert_int_equal(q.method, QUANT_WINT8);
    assert_null(quant_config_for(&q, Q));
    quant_config_fini(&q);
    q = good("{\"quantization\":\"mix_quant\",\"dense_quant_type\":\"block_wise_fp8\"}");
    assert_int_equal(q.method, QUANT_BLOCK_FP8);
    quant_config_fini(&q);
}

static void patterns_that_a_library_hangs_on_are_refused(void **state)
{
    static const char *const patterns[] = {"((((a{1,255}){1,255}){1,255}){1,255}){1,255}",
                                           ".*\\\\.x(.*)(.*)(.*)(.*)\\\\1\\\\2\\\\3\\\\4x",
                                           "a\\\\"};
    char text[512];
    (void)state;
    for (int i = 0; i < 3; i++) {
        snprintf(text, sizeof text,
                 "{\"quant_method\":\"compressed-tensors\",\"format\":\"int-quantized\","
                 "\"config_groups\":{\"g\":{\"targets\":[\"re:%s\"],\"weights\":{" W8 "}}}}",
                 patterns[i]);
        refused(text, "targets", "re:");
    }
}

static void what_is_not_understood_is_refused_by_key_and_value(void **state)
{
    (void)state;
    refused("{\"quant_method\":\"bitsandbytes\"}", "quant_method", "bitsandbytes");
    refused("{\"bits\":4}", "quant_method", "null");
    refused("{\"quant_method\":\"awq\",\"bits\":3,\"group_size\":128}", "bits", "3");
    refused("{\"quant_method\":\"awq\",\"bits\":4,\"group_size\":48}", "group_size", "48");
    refused("{\"quant_method\":\"awq\",\"bits\":4}", "group_size", "null");
    refused("{" AWQ ",\"version\":\"gemv\"}", "version", "gemv");
    refused("{\"quant_method\":\"awq\",\"bits\":4,\"group_size\":128,\"zero_point\":false}",
            "zero_point", "false");
    refused("{" AWQ ",\"modules_to_not_convert\":\"lm_head\"}", "modules_to_not_convert",
            "lm_head");
    refused("{" AWQ ",\"rotation\":\"hadamard\"}", "rotation", "hadamard");
    refused("{" GPTQ ",\"checkpoint_format\":\"marlin\"}", "checkpoint_format", "marlin");
    refused("{" GPTQ ",\"dynamic\":{\"-:.*down.*\":{}}}", "dynamic", "down");
    refused("{" GPTQ ",\"desc_act\":1}", "desc_act", "1");
    refused("{\"quant_method\":\"gptq\",\"bits\":3,\"group_size\":128}", "bits", "3");
    refused(CT("nvfp4-pack-quantized", W4, "null"), "format", "nvfp4-pack-quantized");
    refused(
        CT("pack-quantized", "\"num_bits\":2,\"type\":\"int\",\"strategy\":\"channel\"", "null"),
        "group_0.weights.num_bits", "2");
    refused(CT("float-quantized", W8, "null"), "group_0.weights.type", "int");
    refused(CT("int-quantized", W8 ",\"group_size\":64", "null"), "group_size", "64");
    refused(CT("int-quantized", W8,
               "{\"num_bits\":8,\"type\":\"int\",\"strategy\":\"token\",\"dynamic\":false}"),
            "group_0.input_activations.strategy", "token");
    refused(CT("int-quantized", W8, "{\"num_bits\":8,\"type\":\"int\",\"dynamic\":\"local\"}"),
            "group_0.input_activations.dynamic", "local");
    refused(CT("int-quantized", W8, "{\"num_bits\":4,\"type\":\"int\",\"dynamic\":true}"),
            "input_activations.num_bits", "4");
    refused("{\"quant_method\":\"compressed-tensors\",\"format\":\"int-quantized\"}",
            "config_groups", "null");
    refused("{\"quant_method\":\"fp8\",\"weight_block_size\":[64,128]}", "weight_block_size",
            "[64,128]");
    refused("{\"quant_method\":\"fp8\",\"activation_scheme\":\"static\","
            "\"weight_block_size\":[128,128]}",
            "activation_scheme", "static");
    refused("{\"quant_method\":\"fp8\",\"fmt\":\"e3m4\"}", "fmt", "e3m4");
    refused("{\"quantization\":\"wint2\"}", "quantization", "wint2");
    refused("{\"quantization\":\"wint8\",\"is_quantized\":true}", "is_quantized", "true");
}

static void the_flag_agrees_with_the_file_or_is_refused(void **state)
{
    (void)state;
    struct err e = {0};
    struct quant_config q = good("{" AWQ "}");
    assert_int_equal(quant_config_select(&q, "auto", "dir", &e), 0);
    assert_int_equal(quant_config_select(&q, NULL, "dir", &e), 0);
    assert_int_equal(quant_config_select(&q, "AWQ", "dir", &e), 0);
    assert_true(quant_config_select(&q, "gptq", "dir", &e) < 0);
    assert_non_null(strstr(e.text, "--quantization: dir: expected awq"));
    assert_true(quant_config_select(&q, "int8", "dir", &e) < 0);
    quant_config_fini(&q);
    memset(&q, 0, sizeof q);
    assert_int_equal(quant_config_select(&q, "int8", "dir", &e), 0);
    assert_int_equal(q.method, QUANT_WINT8);
    memset(&q, 0, sizeof q);
    assert_true(quant_config_select(&q, "gptq", "dir", &e) < 0);
    assert_int_equal(quant_config_select(&q, "awq", "dir", &e), 0);
    assert_int_equal(q.method, QUANT_INT4_128);
}

/* ---- codecs ---- */

static struct safetensors *codecs;

static struct tensor find(const char *name)
{
    const struct safetensors_tensor *from = safetensors_find(codecs, name);
    assert_non_null(from);
    struct tensor t = {.file = "codecs",
                       .name = from->name,
                       .type = (enum tensor_type)from->dtype,
                       .n_dims = from->n_dims,
                       .data = safetensors_data(codecs, from),
                       .n_bytes = from->end - from->begin};
    memcpy(t.shape, from->shape, sizeof t.shape);
    return t;
}

static float fp8_value(uint8_t c)
{
    int exponent = c >> 3 & 15, mantissa = c & 7;
    float v = exponent == 0 ? (float)mantissa * 0x1p-9f
                            : (float)(8 + mantissa) * (float)(1 << exponent) * 0x1p-10f;
    return c & 0x80 ? -v : v;
}

/* Packs a matrix with scales in two levels and takes its rows out as an embedding does. */
static float *elements(struct weight *w, const struct quant_matrix *m)
{
    const size_t cols = (size_t)m->cols, groups = (size_t)weight_groups(w);
    const size_t supers = (size_t)weight_supers(w);
    uint8_t *codes = malloc(16 * cols);
    float *scales = malloc(16 * supers * sizeof *scales);
    struct weight_levels l = {malloc(16 * groups), malloc(16 * groups),
                              malloc(16 * supers * sizeof(float)), malloc(32 * sizeof(float))};
    float *out = malloc((size_t)m->rows * cols * sizeof *out);
    int32_t *ids = malloc((size_t)m->rows * sizeof *ids);
    struct err e = {0};
    w->data = aligned_alloc(64, weight_bytes(w));
    for (int row = 0; row < m->rows; row += 16) {
        int n = m->rows - row < 16 ? m->rows - row : 16;
        if (quant_read_rows(m, w, row, n, codes, scales, NULL, &e) < 0 ||
            quant_read_levels(m, w, row, n, &l, &e) < 0) {
            fail_msg("%s", e.text);
        }
        weight_pack_tile(w, row / 16, codes, cols, scales, supers, NULL, 0, n);
        weight_pack_levels(w, row / 16, &l, n);
    }
    for (int i = 0; i < m->rows; i++) {
        ids[i] = i;
    }
    kernels_get(CPU_SCALAR)->act[ACT_F32].embed(out, cols, w, ids, m->rows);
    free((void *)(uintptr_t)w->data);
    free(codes);
    free(scales);
    free(l.sub);
    free(l.sub_offset);
    free(l.offset);
    free(l.grid);
    free(ids);
    return out;
}

static void check_levels(const struct quant_matrix *m, const struct weight *like,
                         const float *expected)
{
    struct weight w = {.n = m->rows, .k = m->cols};
    assert_true(quant_fit(&w, m, 1));
    if (like != NULL) {
        w = *like;
    }
    assert_null(weight_unsupported(&w));
    float *got = elements(&w, m);
    for (int i = 0; i < m->rows * m->cols; i++) {
        if (got[i] != expected[i]) {
            fail_msg("row %d, column %d: %a, expected %a", i / m->cols, i % m->cols, (double)got[i],
                     (double)expected[i]);
        }
    }
    free(got);
}

/* Reads all rows as a packed matrix would get them and compares code by code with CASE.expected
 * [rows, cols]. */
static void check_codec(const struct quant_matrix *m, const char *expected_name)
{
    struct tensor expected = find(expected_name);
    struct weight w = {.n = m->rows, .k = m->cols};
    assert_true(quant_fit(&w, m, 1));
    assert_null(weight_unsupported(&w));
    int groups = weight_groups(&w);
    uint8_t *codes = malloc(16 * (size_t)m->cols), *zeros = malloc(16 * (size_t)groups);
    float *scales = malloc(16 * (size_t)groups * sizeof *scales);
    struct err e = {0};
    for (int row = 0; row < m->rows; row += 16) {
        int n = m->rows - row < 16 ? m->rows - row : 16;
        if (quant_read_rows(m, &w, row, n, codes, scales, zeros, &e) < 0) {
            fail_msg("%s", e.text);
        }
        for (int r = 0; r < n; r++) {
            for (int j = 0; j < m->cols; j++) {
                uint8_t c = codes[r * m->cols + j];
                int g = r * groups + j / w.group;
                float v = w.format == WEIGHT_F8_E4M3 ? fp8_value(c)
                          : w.format == WEIGHT_I8    ? (float)(c - 128)
                          : w.has_zero               ? (float)(c - zeros[g])
                                                     : (float)(c - 8);
                int col = m->order != NULL ? m->order[j] : j;
                float want =
                    tensor_float(&expected, (size_t)(row + r) * (size_t)m->cols + (size_t)col);
                if (scales[g] * v != want) {
                    fail_msg("%s: row %d, column %d: %a, expected %a", expected_name, row + r, col,
                             (double)(scales[g] * v), (double)want);
                }
            }
        }
    }
    free(codes);
    free(zeros);
    free(scales);
}

#define NEED_CODECS                                                                                \
    if (codecs == NULL) {                                                                          \
        print_message("SKIPPED: no codecs fixture\n");                                             \
        skip();                                                                                    \
    }

static void awq_words_decode_to_the_expected_values(void **state)
{
    (void)state;
    NEED_CODECS
    struct tensor q = find("awq.qweight"), z = find("awq.qzeros"), s = find("awq.scales");
    struct quant_matrix m = {.layout = QUANT_AWQ_GEMM,
                             .rows = 48,
                             .cols = 96,
                             .group = 32,
                             .format = WEIGHT_I4,
                             .scale_type = DTYPE_F16,
                             .codes = &q,
                             .zeros = &z,
                             .scales = &s};
    check_codec(&m, "awq.expected");
}

static void gptq_words_in_act_order_decode_to_the_expected_values(void **state)
{
    (void)state;
    NEED_CODECS
    for (int v1 = 0; v1 < 2; v1++) {
        const char *names[2][5] = {{"gptq_v2.qweight", "gptq_v2.qzeros", "gptq_v2.scales",
                                    "gptq_v2.g_idx", "gptq_v2.expected"},
                                   {"gptq_v1.qweight", "gptq_v1.qzeros", "gptq_v1.scales",
                                    "gptq_v1.g_idx", "gptq_v1.expected"}};
        struct tensor q = find(names[v1][0]), z = find(names[v1][1]), s = find(names[v1][2]),
                      g = find(names[v1][3]);
        int32_t order[96];
        int n = 0;
        for (int group = 0; group < 3; group++) {
            for (int k = 0; k < 96; k++) {
                if (((const int32_t *)g.data)[k] == group) {
                    order[n++] = k;
                }
            }
        }
        struct quant_matrix m = {.layout = QUANT_GPTQ_ROWS,
                                 .rows = 48,
                                 .cols = 96,
                                 .group = 32,
                                 .format = WEIGHT_I4,
                                 .scale_type = DTYPE_F16,
                                 .codes = &q,
                                 .zeros = &z,
                                 .scales = &s,
                                 .order = order,
                                 .zero_offset = v1};
        check_codec(&m, names[v1][4]);
    }
}

static void compressed_words_with_zero_points_decode_to_the_expected_values(void **state)
{
    (void)state;
    NEED_CODECS
    struct tensor q = find("ct_w4a16_zp.weight_packed"), z = find("ct_w4a16_zp.weight_zero_point"),
                  s = find("ct_w4a16_zp.weight_scale");
    struct quant_matrix m = {.layout = QUANT_CT_PACKED,
                             .rows = 48,
                             .cols = 96,
                             .group = 32,
                             .format = WEIGHT_I4,
                             .scale_type = DTYPE_BF16,
                             .codes = &q,
                             .zeros = &z,
                             .scales = &s};
    check_codec(&m, "ct_w4a16_zp.expected");
}

static void fp8_blocks_with_partial_edges_decode_to_the_expected_values(void **state)
{
    (void)state;
    NEED_CODECS
    struct tensor q = find("fp8_block.weight"), s = find("fp8_block.weight_scale_inv");
    struct quant_matrix m = {.layout = QUANT_FP8_BLOCK,
                             .rows = 140,
                             .cols = 160,
                             .group = 128,
                             .format = WEIGHT_F8_E4M3,
                             .scale_type = DTYPE_F32,
                             .codes = &q,
                             .scales = &s};
    check_codec(&m, "fp8_block.expected");
}

static void gguf_blocks_decode_to_the_expected_values(void **state)
{
    (void)state;
    NEED_CODECS
    struct tensor q = find("gguf_q8_0.blocks");
    q.type = TENSOR_Q8_0;
    struct quant_matrix m = {.layout = QUANT_BLOCKS,
                             .rows = 3,
                             .cols = 512,
                             .group = 32,
                             .format = WEIGHT_I8,
                             .scale_type = DTYPE_F16,
                             .codes = &q};
    check_codec(&m, "gguf_q8_0.expected");
    q = find("gguf_q4_0.blocks");
    q.type = TENSOR_Q4_0;
    m.format = WEIGHT_I4;
    check_codec(&m, "gguf_q4_0.expected");
    struct tensor expected = find("gguf_q4_k.expected");
    float *values = malloc(3 * 512 * sizeof *values);
    for (size_t i = 0; i < 3 * 512; i++) {
        values[i] = tensor_float(&expected, i);
    }
    q = find("gguf_q4_k.blocks");
    q.type = TENSOR_Q4_K;
    m.super = 256;
    m.has_offset = 1;
    check_levels(&m, NULL, values);
    /* beside a part of Q6_K: 6 bits, groups of 16 */
    struct quant_matrix six = m;
    six.format = WEIGHT_I6;
    six.group = 16;
    six.has_offset = 0;
    struct weight w = {.n = 3, .k = 512};
    assert_true(quant_fit(&w, &six, 1) && quant_fit(&w, &m, 0));
    assert_int_equal(w.format, WEIGHT_I6);
    assert_int_equal(w.group, 16);
    check_levels(&m, &w, values);
    free(values);
}

/* Stored [in, out], as Paddle's matrices are. */
static void the_two_bit_code_decodes_to_the_expected_values(void **state)
{
    (void)state;
    NEED_CODECS
    static const struct {
        const char *name;
        int cols;
    } cases[] = {{"ccq_k128", 128}, {"ccq_k192", 192}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        static const char *const suffixes[] = {"quant_weight", "super_scales", "weight_scale",
                                               "code_scale",   "code_zp",      "expected"};
        struct tensor t[6];
        char name[64];
        for (int j = 0; j < 6; j++) {
            snprintf(name, sizeof name, "%s.%s", cases[i].name, suffixes[j]);
            t[j] = find(name);
        }
        const int rows = 16, cols = cases[i].cols;
        struct quant_matrix m = {.layout = QUANT_WINT2,
                                 .rows = rows,
                                 .cols = cols,
                                 .codes = &t[0],
                                 .scales = &t[1],
                                 .subs = &t[2],
                                 .grid = {&t[3], &t[4]},
                                 .format = WEIGHT_C2,
                                 .scale_type = DTYPE_BF16,
                                 .group = 64,
                                 .super = cols};
        float *expected = malloc((size_t)(rows * cols) * sizeof *expected);
        for (int r = 0; r < rows; r++) {
            for (int k = 0; k < cols; k++) {
                expected[r * cols + k] = tensor_float(&t[5], (size_t)(k * rows + r));
            }
        }
        check_levels(&m, NULL, expected);
        free(expected);
    }
}

/* Blocks made from values chosen first. */
static void q5_k_blocks_give_back_what_was_put_in(void **state)
{
    (void)state;
    uint8_t block[176] = {0};
    float expected[256];
    const float d = f16_to_f32(0x2c03), minimum = f16_to_f32(0x2807);
    const uint16_t halves[2] = {0x2c03, 0x2807};
    memcpy(block, halves, 4);
    for (int j = 0; j < 8; j++) {
        const int scale = (j * 23 + 9) % 64, low = (j * 37 + 5) % 64;
        if (j < 4) {
            block[4 + j] |= (uint8_t)scale;
            block[8 + j] |= (uint8_t)low;
        } else {
            block[8 + j] |= (uint8_t)((scale & 15) | (low & 15) << 4);
            block[j] |= (uint8_t)(scale >> 4 << 6);
            block[4 + j] |= (uint8_t)(low >> 4 << 6);
        }
        for (int l = 0; l < 32; l++) {
            const int q = (j * 31 + l * 7) % 32;
            block[48 + j / 2 * 32 + l] |= (uint8_t)((q & 15) << j % 2 * 4);
            block[16 + l] |= (uint8_t)((q >> 4) << j);
            expected[j * 32 + l] = d * (float)scale * (float)q - minimum * (float)low;
        }
    }
    struct tensor t = {.file = "f", .name = "w", .type = TENSOR_Q5_K, .data = block};
    struct quant_matrix m = {.layout = QUANT_BLOCKS,
                             .rows = 1,
                             .cols = 256,
                             .group = 32,
                             .super = 256,
                             .has_offset = 1,
                             .format = WEIGHT_I6,
                             .scale_type = DTYPE_F16,
                             .codes = &t};
    check_levels(&m, NULL, expected);
}

/* Blocks made from values chosen first, put together as the format's description has it. */
static void q6_k_blocks_give_back_what_was_put_in(void **state)
{
    (void)state;
    uint8_t blocks[2 * 210] = {0};
    float expected[2 * 256];
    for (int r = 0; r < 2; r++) {
        uint8_t *ql = blocks + r * 210, *qh = ql + 128, *sc = qh + 64;
        for (int half = 0; half < 2; half++) {
            for (int l = 0; l < 32; l++) {
                int q[4];
                for (int i = 0; i < 4; i++) {
                    q[i] = (half * 128 + i * 32 + l + r * 7) * 11 % 64;
                }
                ql[half * 64 + l] = (uint8_t)((q[0] & 15) | (q[2] & 15) << 4);
                ql[half * 64 + l + 32] = (uint8_t)((q[1] & 15) | (q[3] & 15) << 4);
                qh[half * 32 + l] =
                    (uint8_t)(q[0] >> 4 | (q[1] >> 4) << 2 | (q[2] >> 4) << 4 | (q[3] >> 4) << 6);
            }
        }
        for (int g = 0; g < 16; g++) {
            sc[g] = (uint8_t)(int8_t)(g * 15 - 110 + r);
        }
        sc[16] = 0x01; /* f16 0x2e01 */
        sc[17] = 0x2e;
    }
    struct tensor t = {.file = "f", .name = "w", .type = TENSOR_Q6_K, .data = blocks};
    struct quant_matrix m = {.layout = QUANT_BLOCKS,
                             .rows = 2,
                             .cols = 256,
                             .group = 16,
                             .super = 256,
                             .format = WEIGHT_I6,
                             .scale_type = DTYPE_F16,
                             .codes = &t};
    for (int i = 0; i < 2 * 256; i++) {
        const int r = i / 256, scale = i % 256 / 16 * 15 - 110 + r;
        expected[i] = f16_to_f32(0x2e01) * (float)scale * (float)((i % 256 + r * 7) * 11 % 64 - 32);
    }
    check_levels(&m, NULL, expected);
    /* beside a part of Q8_0: 8 bits, scales of one level */
    struct quant_matrix eight = m;
    struct weight w = {.n = 2, .k = 256};
    uint8_t codes[2 * 256], zeros[2 * 16];
    float scales[2 * 16];
    struct err e = {0};
    eight.format = WEIGHT_I8;
    eight.group = 32;
    eight.super = 0;
    assert_true(quant_fit(&w, &m, 1) && quant_fit(&w, &eight, 0));
    assert_int_equal(w.group, 16);
    assert_int_equal(w.super, 0);
    assert_null(weight_unsupported(&w));
    assert_int_equal(quant_read_rows(&m, &w, 0, 2, codes, scales, zeros, &e), 0);
    for (int i = 0; i < 2 * 256; i++) {
        assert_true(scales[i / 16] * (float)(codes[i] - 128) == expected[i]);
    }
}

/* ---- what a fused matrix becomes ---- */

static void parts_of_a_fused_matrix_get_a_format_that_holds_them_all(void **state)
{
    (void)state;
    const struct tensor any = {.type = TENSOR_I32};
    struct quant_matrix four = {.rows = 16,
                                .cols = 512,
                                .group = 128,
                                .format = WEIGHT_I4,
                                .scale_type = DTYPE_F16},
                        zero = four, eight = four, fp8 = four;
    zero.zeros = &any;
    zero.group = 32;
    zero.scale_type = DTYPE_BF16;
    eight.format = WEIGHT_I8;
    fp8.format = WEIGHT_F8_E4M3;
    struct weight w = {.k = 512};
    assert_true(quant_fit(&w, &four, 1) && quant_fit(&w, &zero, 0));
    assert_int_equal(w.format, WEIGHT_I4);
    assert_int_equal(w.group, 32);
    assert_int_equal(w.has_zero, 1);
    assert_int_equal(w.scale_type, DTYPE_F32);
    assert_true(quant_fit(&w, &eight, 0));
    assert_int_equal(w.format, WEIGHT_I8);
    assert_int_equal(w.has_zero, 0);
    assert_false(quant_fit(&w, &fp8, 0));
}

static void a_scale_or_a_code_that_is_no_number_is_refused_by_place(void **state)
{
    (void)state;
    uint8_t bytes[2 * 32] = {0};
    float scale_values[2] = {1, (float)INFINITY}, out[2];
    uint8_t codes[64], zeros[2];
    struct err e = {0};
    struct tensor q = {.file = "f", .name = "w", .type = TENSOR_F8_E4M3, .data = bytes},
                  s = {.file = "f", .name = "s", .type = TENSOR_F32, .data = scale_values};
    struct quant_matrix m = {.layout = QUANT_CT_FP8,
                             .rows = 2,
                             .cols = 32,
                             .group = 32,
                             .format = WEIGHT_F8_E4M3,
                             .codes = &q,
                             .scales = &s};
    struct weight w = {.n = 2, .k = 32};
    assert_true(quant_fit(&w, &m, 1));
    assert_true(quant_read_rows(&m, &w, 0, 2, codes, out, zeros, &e) < 0);
    assert_non_null(strstr(e.text, "tensor s: the scale of row 1"));
    scale_values[1] = 1;
    assert_int_equal(quant_read_rows(&m, &w, 0, 2, codes, out, zeros, &e), 0);
    bytes[32 + 5] = 0xff;
    assert_true(quant_read_rows(&m, &w, 0, 2, codes, out, zeros, &e) < 0);
    assert_non_null(strstr(e.text, "tensor w: row 1, column 5 is NaN"));
}

int main(void)
{
    char path[1024];
    struct err e = {0};
    if (rig_fixture(path, sizeof path, "codecs/codecs.safetensors") &&
        safetensors_open(&codecs, path, &e) < 0) {
        fprintf(stderr, "%s\n", e.text);
        return 1;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(awq_layers_have_groups_and_zero_points),
        cmocka_unit_test(gptq_zero_points_are_one_less_in_the_first_version_only),
        cmocka_unit_test(compressed_tensors_are_told_apart_by_format_and_type),
        cmocka_unit_test(a_layer_named_by_a_group_leaves_the_group_of_all),
        cmocka_unit_test(fastdeploy_names_quantize_while_loading),
        cmocka_unit_test(patterns_that_a_library_hangs_on_are_refused),
        cmocka_unit_test(what_is_not_understood_is_refused_by_key_and_value),
        cmocka_unit_test(the_flag_agrees_with_the_file_or_is_refused),
        cmocka_unit_test(awq_words_decode_to_the_expected_values),
        cmocka_unit_test(gptq_words_in_act_order_decode_to_the_expected_values),
        cmocka_unit_test(compressed_words_with_zero_points_decode_to_the_expected_values),
        cmocka_unit_test(fp8_blocks_with_partial_edges_decode_to_the_expected_values),
        cmocka_unit_test(gguf_blocks_decode_to_the_expected_values),
        cmocka_unit_test(the_two_bit_code_decodes_to_the_expected_values),
        cmocka_unit_test(q5_k_blocks_give_back_what_was_put_in),
        cmocka_unit_test(q6_k_blocks_give_back_what_was_put_in),
        cmocka_unit_test(parts_of_a_fused_matrix_get_a_format_that_holds_them_all),
        cmocka_unit_test(a_scale_or_a_code_that_is_no_number_is_refused_by_place),
    };
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    safetensors_close(codecs);
    return rc;
}
