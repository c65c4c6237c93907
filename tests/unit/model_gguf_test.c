/* SPDX-License-Identifier: Apache-2.0 */
/* GGUF: a file of the same weights computes the same bits as its Hugging Face directory, its
 * tokenizer section gives the same ids, and no byte of a damaged file does more than have it
 * refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/buf.h"
#include "base/json.h"
#include "model/align.h"
#include "model/config.h"
#include "model/gguf.h"
#include "model/safetensors.h"
#include "model_rig.h"
#include "text/chat.h"
#include "text/tokenizer.h"

static struct rig_dir dir;

/* ---- writing ---- */

static void put(struct buf *b, uint64_t v, int n_bytes)
{
    for (int i = 0; i < n_bytes; i++) {
        buf_putc(b, (char)(v >> 8 * i));
    }
}

static void put_text(struct buf *b, const char *s)
{
    put(b, strlen(s), 8);
    buf_puts(b, s);
}

static void put_u32(struct buf *b, const char *key, uint32_t v)
{
    put_text(b, key);
    put(b, GGUF_U32, 4);
    put(b, v, 4);
}

static void put_f32(struct buf *b, const char *key, float v)
{
    uint32_t u;
    memcpy(&u, &v, 4);
    put_text(b, key);
    put(b, GGUF_F32, 4);
    put(b, u, 4);
}

static void put_string(struct buf *b, const char *key, const char *v)
{
    put_text(b, key);
    put(b, GGUF_STRING, 4);
    put_text(b, v);
}

static void put_header(struct buf *b, uint32_t version, uint64_t n_tensors, uint64_t n_fields)
{
    buf_init(b);
    buf_puts(b, "GGUF");
    put(b, version, 4);
    put(b, n_tensors, 8);
    put(b, n_fields, 8);
}

static void put_tensor(struct buf *b, const char *name, uint32_t n_dims, uint64_t d0, uint64_t d1,
                       uint32_t type, uint64_t offset)
{
    put_text(b, name);
    put(b, n_dims, 4);
    put(b, d0, 8);
    if (n_dims > 1) {
        put(b, d1, 8);
    }
    put(b, type, 4);
    put(b, offset, 8);
}

static void pad(struct buf *b, size_t to)
{
    while (b->len % to != 0) {
        buf_putc(b, 0);
    }
}

/* ---- the reader ---- */

/* A file of every value type and three tensors. */
static void small_file(struct buf *b)
{
    static const int sizes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    put_header(b, 3, 3, 15);
    for (int t = 0; t < GGUF_TYPE_COUNT; t++) {
        char key[16];
        if (t == GGUF_STRING || t == GGUF_ARRAY) {
            continue;
        }
        snprintf(key, sizeof key, "v.%d", t);
        put_text(b, key);
        put(b, (uint64_t)t, 4);
        put(b, t == GGUF_F32 ? 0x3f800000u : t == GGUF_F64 ? 0x3ff0000000000000u : 1, sizes[t]);
    }
    put_string(b, "v.text", "hello");
    put_text(b, "v.list");
    put(b, GGUF_ARRAY, 4);
    put(b, GGUF_STRING, 4);
    put(b, 2, 8);
    put_text(b, "ab");
    put_text(b, "");
    put_text(b, "v.numbers");
    put(b, GGUF_ARRAY, 4);
    put(b, GGUF_I16, 4);
    put(b, 3, 8);
    put(b, 0xfffe00010002u, 6);
    put_u32(b, "general.alignment", 64);
    put_tensor(b, "a", 2, 32, 2, 8, 0);   /* Q8_0: 68 bytes */
    put_tensor(b, "b", 1, 5, 0, 0, 128);  /* F32: 20 bytes */
    put_tensor(b, "c", 2, 3, 4, 30, 192); /* BF16: 24 bytes */
    pad(b, 64);
    for (int i = 0; i < 192 + 24; i++) {
        buf_putc(b, (char)i);
    }
}

static int parse(struct gguf **g, const struct buf *b, struct err *e)
{
    return gguf_parse(g, b->data, b->len, "x.gguf", e);
}

static void every_value_and_tensor_is_found(void **state)
{
    (void)state;
    struct buf b;
    struct gguf *g;
    struct err e = {0};
    small_file(&b);
    if (parse(&g, &b, &e) < 0) {
        fail_msg("%s", e.text);
    }
    for (int t = 0; t < GGUF_TYPE_COUNT; t++) {
        char key[16];
        snprintf(key, sizeof key, "v.%d", t);
        const struct gguf_value *v = gguf_get(g, key);
        if (t != GGUF_STRING && t != GGUF_ARRAY) {
            assert_non_null(v);
            assert_true(v->type == (enum gguf_type)t && gguf_item(v, 0) == 1.0);
        }
    }
    const char *s;
    size_t n;
    assert_int_equal(gguf_string(g, "v.text", &s, &n, &e), 1);
    assert_memory_equal(s, "hello", n);
    assert_true(gguf_item(gguf_get(g, "v.numbers"), 2) == -2.0);
    const struct gguf_value *list = gguf_get(g, "v.list");
    const uint8_t *at = list->data;
    gguf_next_string(&at, &n);
    assert_int_equal(n, 2);
    gguf_next_string(&at, &n);
    assert_int_equal(n, 0);
    int64_t i;
    assert_int_equal(gguf_int(g, "v.none", &i, &e), 0);
    assert_true(gguf_int(g, "v.text", &i, &e) < 0);
    assert_non_null(strstr(e.text, "v.text"));
    assert_int_equal(gguf_n_tensors(g), 3);
    const struct tensor *c = gguf_tensor(g, 2);
    assert_true(c->type == TENSOR_BF16 && c->n_dims == 2 && c->shape[0] == 4 && c->shape[1] == 3);
    assert_int_equal(*(const uint8_t *)c->data, 192);
    gguf_close(g);
    buf_fini(&b);
}

static void a_file_cut_anywhere_is_refused(void **state)
{
    (void)state;
    struct buf b;
    small_file(&b);
    for (size_t n = 0; n < b.len; n++) {
        uint8_t *copy = malloc(n + 1); /* of its own, so that a sanitizer sees a read beyond */
        struct gguf *g;
        struct err e = {0};
        memcpy(copy, b.data, n);
        copy = realloc(copy, n > 0 ? n : 1);
        int rc = gguf_parse(&g, copy, n, "x.gguf", &e);
        if (rc >= 0 || strstr(e.text, "x.gguf") == NULL) {
            fail_msg("%zu bytes: %d %s", n, rc, e.text);
        }
        free(copy);
    }
    buf_fini(&b);
}

static void damaged_bytes_never_lead_outside(void **state)
{
    (void)state;
    struct buf b;
    small_file(&b);
    uint64_t seed = 1;
    for (int round = 0; round < 20000; round++) {
        struct buf c;
        buf_init(&c);
        buf_append(&c, b.data, b.len);
        for (int i = 0; i < 1 + round % 3; i++) {
            seed = seed * 6364136223846793005u + 1442695040888963407u;
            c.data[(seed >> 33) % (b.len - 216)] = (char)(seed >> 25);
        }
        struct gguf *g;
        struct err e = {0};
        if (parse(&g, &c, &e) >= 0) {
            for (size_t i = 0; i < gguf_n_tensors(g); i++) {
                const struct tensor *t = gguf_tensor(g, i);
                const char *p = t->data;
                assert_true(p >= c.data && p + t->n_bytes <= c.data + c.len);
            }
            gguf_close(g);
        } else {
            assert_true(e.text[0] != '\0');
        }
        buf_fini(&c);
    }
    buf_fini(&b);
}

static void refused(struct buf *b, const char *word)
{
    struct gguf *g;
    struct err e = {0};
    pad(b, 32);
    for (int i = 0; i < 256; i++) {
        buf_putc(b, 0);
    }
    int rc = parse(&g, b, &e);
    if (rc >= 0 || strstr(e.text, word) == NULL) {
        fail_msg("%d \"%s\" does not say \"%s\"", rc, e.text, word);
    }
    buf_fini(b);
}

static void what_is_no_sound_gguf_is_refused_by_name(void **state)
{
    (void)state;
    struct buf b;
    put_header(&b, 1, 0, 0);
    refused(&b, "version 1");
    put_header(&b, 0x03000000, 0, 0);
    refused(&b, "big-endian");
    put_header(&b, 3, 1ull << 60, 0);
    refused(&b, "tensors");
    put_header(&b, 3, 200000, 0);
    refused(&b, "tensor list");
    put_header(&b, 3, 0, 2);
    put_u32(&b, "twice", 1);
    put_u32(&b, "twice", 1);
    refused(&b, "field twice: occurs twice");
    put_header(&b, 3, 0, 1);
    put_text(&b, "nest");
    put(&b, GGUF_ARRAY, 4);
    put(&b, GGUF_ARRAY, 4);
    put(&b, 1, 8);
    refused(&b, "field nest: unsupported array of arrays");
    put_header(&b, 3, 0, 1);
    put_text(&b, "kind");
    put(&b, 13, 4);
    refused(&b, "field kind: unknown value type 13");
    put_header(&b, 3, 0, 1);
    put_text(&b, "long");
    put(&b, GGUF_ARRAY, 4);
    put(&b, GGUF_U64, 4);
    put(&b, UINT64_MAX / 8 + 2, 8);
    refused(&b, "truncated in long");
    put_header(&b, 3, 0, 1);
    put_u32(&b, "general.alignment", 24);
    refused(&b, "general.alignment: 24");
    put_header(&b, 3, 2, 0);
    put_tensor(&b, "same", 1, 4, 0, 0, 0);
    put_tensor(&b, "same", 1, 4, 0, 0, 32);
    refused(&b, "tensor same: occurs twice");
    put_header(&b, 3, 2, 0);
    put_tensor(&b, "low", 1, 12, 0, 0, 0);
    put_tensor(&b, "high", 1, 4, 0, 0, 32);
    refused(&b, "tensor high: overlaps tensor low");
    put_header(&b, 3, 1, 0);
    put_tensor(&b, "odd", 1, 4, 0, 0, 8);
    refused(&b, "tensor odd: offset 8");
    put_header(&b, 3, 1, 0);
    put_tensor(&b, "far", 1, 4, 0, 0, 1ull << 63);
    refused(&b, "tensor far ends past the file");
    put_header(&b, 3, 1, 0);
    put_tensor(&b, "huge", 2, 1ull << 32, 1ull << 32, 0, 0);
    refused(&b, "tensor huge: a size of");
    put_header(&b, 3, 1, 0);
    put_tensor(&b, "iq", 1, 256, 0, 16, 0);
    refused(&b, "tensor iq: unsupported type 16 (IQ2_XXS)");
    put_header(&b, 3, 1, 0);
    put_tensor(&b, "row", 2, 48, 2, 2, 0);
    refused(&b, "tensor row: rows of 48 elements");
    put_header(&b, 3, 1, 0);
    put_tensor(&b, "flat", 0, 48, 2, 2, 0);
    refused(&b, "tensor flat: 0 dimensions");
}

/* ---- configuration ---- */

static void config_file(struct buf *b, const char *arch, const char *left_out, uint32_t experts)
{
    static const struct {
        const char *key;
        uint32_t value;
    } ints[] = {{"ernie4_5.block_count", 1},          {"ernie4_5.context_length", 4096},
                {"ernie4_5.embedding_length", 32},    {"ernie4_5.feed_forward_length", 48},
                {"ernie4_5.attention.head_count", 2}, {"ernie4_5.attention.head_count_kv", 1},
                {"ernie4_5.vocab_size", 64}};
    int n = 0;
    struct buf body;
    buf_init(&body);
    for (size_t i = 0; i < sizeof ints / sizeof ints[0]; i++) {
        if (left_out == NULL || strcmp(left_out, ints[i].key) != 0) {
            put_u32(&body, ints[i].key, ints[i].value);
            n++;
        }
    }
    put_string(&body, "general.architecture", arch);
    put_f32(&body, "ernie4_5.attention.layer_norm_rms_epsilon", 1e-5f);
    put_f32(&body, "ernie4_5.rope.freq_base", 500000.0f);
    put_u32(&body, "ernie4_5.expert_count", experts);
    put_header(b, 3, 0, (uint64_t)n + 4);
    buf_append(b, body.data, body.len);
    buf_fini(&body);
}

static int config_of(struct buf *b, struct model_config *c, struct err *e)
{
    struct gguf *g;
    struct quant_config q;
    if (parse(&g, b, e) < 0) {
        fail_msg("%s", e->text);
    }
    int rc = config_read_gguf(c, &q, g, e);
    gguf_close(g);
    buf_fini(b);
    return rc;
}

static void fields_become_the_configuration(void **state)
{
    (void)state;
    struct buf b;
    struct model_config c;
    struct err e = {0};
    config_file(&b, "ernie4_5", NULL, 0);
    if (config_of(&b, &c, &e) < 0) {
        fail_msg("%s", e.text);
    }
    assert_true(c.head_dim == 16 && c.n_kv_heads == 1 && c.vocab_size == 64 && c.n_layers == 1);
    assert_true(c.rms_norm_eps == 1e-5f && c.rope_theta == 500000.0);
    assert_int_equal(c.eos_ids[0], 2);
}

static void another_architecture_or_a_missing_field_is_refused(void **state)
{
    (void)state;
    struct buf b;
    struct model_config c;
    struct err e = {0};
    config_file(&b, "ernie4_5-moe", NULL, 0);
    assert_true(config_of(&b, &c, &e) < 0);
    assert_non_null(strstr(e.text, "unsupported general.architecture \"ernie4_5-moe\""));
    config_file(&b, "ernie4_5", "ernie4_5.block_count", 0);
    assert_true(config_of(&b, &c, &e) < 0);
    assert_non_null(strstr(e.text, "ernie4_5.block_count is missing"));
    config_file(&b, "ernie4_5", NULL, 8);
    assert_true(config_of(&b, &c, &e) < 0);
    assert_non_null(strstr(e.text, "ernie4_5.expert_count: expected 0, found 8"));
}

/* ---- the same weights ---- */

static const char *gguf_name(char *out, size_t n_bytes, const char *hf)
{
    static const char *const parts[][2] = {{"input_layernorm.weight", "attn_norm.weight"},
                                           {"post_attention_layernorm.weight", "ffn_norm.weight"},
                                           {"self_attn.q_proj.weight", "attn_q.weight"},
                                           {"self_attn.k_proj.weight", "attn_k.weight"},
                                           {"self_attn.v_proj.weight", "attn_v.weight"},
                                           {"self_attn.o_proj.weight", "attn_output.weight"},
                                           {"mlp.gate_proj.weight", "ffn_gate.weight"},
                                           {"mlp.up_proj.weight", "ffn_up.weight"},
                                           {"mlp.down_proj.weight", "ffn_down.weight"}};
    int layer, n = 0;
    if (sscanf(hf, "model.layers.%d.%n", &layer, &n) == 1 && n > 0) {
        for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
            if (strcmp(hf + n, parts[i][0]) == 0) {
                snprintf(out, n_bytes, "blk.%d.%s", layer, parts[i][1]);
                return out;
            }
        }
    }
    return strcmp(hf, "model.embed_tokens.weight") == 0 ? "token_embd.weight"
           : strcmp(hf, "model.norm.weight") == 0       ? "output_norm.weight"
                                                        : "output.weight";
}

/* dense-hf's tensors as a BF16 GGUF file. */
static void write_gguf(const char *path, const struct safetensors *st)
{
    static const struct {
        const char *key;
        uint32_t value;
    } ints[] = {{"ernie4_5.block_count", 3},           {"ernie4_5.context_length", 131072},
                {"ernie4_5.embedding_length", 128},    {"ernie4_5.feed_forward_length", 352},
                {"ernie4_5.attention.head_count", 4},  {"ernie4_5.attention.head_count_kv", 2},
                {"ernie4_5.attention.key_length", 64}, {"ernie4_5.attention.value_length", 64},
                {"ernie4_5.rope.dimension_count", 64}, {"ernie4_5.vocab_size", 1152}};
    size_t n = safetensors_count(st), n_ints = sizeof ints / sizeof ints[0];
    struct buf b, data;
    put_header(&b, 3, n, n_ints + 3);
    put_string(&b, "general.architecture", "ernie4_5");
    put_f32(&b, "ernie4_5.attention.layer_norm_rms_epsilon", 1e-5f);
    put_f32(&b, "ernie4_5.rope.freq_base", 500000.0f);
    for (size_t i = 0; i < n_ints; i++) {
        put_u32(&b, ints[i].key, ints[i].value);
    }
    buf_init(&data);
    for (size_t i = 0; i < n; i++) {
        const struct safetensors_tensor *t = safetensors_at(st, i);
        char name[128];
        put_tensor(&b, gguf_name(name, sizeof name, t->name), (uint32_t)t->n_dims,
                   (uint64_t)t->shape[t->n_dims - 1], (uint64_t)t->shape[0], 30, data.len);
        buf_append(&data, safetensors_data(st, t), (size_t)(t->end - t->begin));
        pad(&data, 32);
    }
    pad(&b, 32);
    buf_append(&b, data.data, data.len);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(b.data, 1, b.len, f), b.len);
    fclose(f);
    buf_fini(&b);
    buf_fini(&data);
}

static void the_same_weights_pack_to_the_same_bytes_as_from_safetensors(void **state)
{
    (void)state;
    char hf[1024], file[1100], gguf[600];
    struct safetensors *st;
    struct err e = {0};
    if (!rig_fixture(hf, sizeof hf, "dense-hf")) {
        print_message("SKIPPED: no fixture dense-hf\n");
        skip();
    }
    snprintf(file, sizeof file, "%s/model.safetensors", hf);
    snprintf(gguf, sizeof gguf, "%s/same.gguf", dir.path);
    assert_int_equal(safetensors_open(&st, file, &e), 0);
    write_gguf(gguf, st);
    safetensors_close(st);
    const struct kernels *k = rig_best_kernels();
    struct cpu_pool *pool = rig_pool(2);
    static const char *const methods[] = {NULL, "int8", "int4", "awq", "fp8"};
    for (int i = 0; i < 5; i++) {
        struct model_options o = {
            .path = hf, .act = ACT_BF16, .quantization = methods[i], .head_bits = i > 2 ? 8 : 0};
        struct model *a = rig_load_with(&o, k, pool);
        o.path = gguf;
        struct model *b = rig_load_with(&o, k, pool);
        assert_string_equal(model_numerics_id(a), model_numerics_id(b));
        assert_string_equal(model_layout_name(b), "GGUF");
        assert_string_equal(model_quantization(b), i == 0 ? "gguf" : model_quantization(a));
        assert_true(model_config(b)->tied);
        model_close(a);
        model_close(b);
    }
    cpu_pool_close(pool);
}

/* ---- the tokenizer section ---- */

static void the_tokenizer_section_gives_the_ids_of_the_directory(void **state)
{
    (void)state;
    char from[1024], gguf[1024], golden[1024];
    if (!rig_fixture(from, sizeof from, "tokenizer") ||
        !rig_fixture(gguf, sizeof gguf, "dense-gguf-q8_0/model.gguf")) {
        print_message("SKIPPED: no tokenizer fixture\n");
        skip();
    }
    rig_fixture(golden, sizeof golden, "tokenizer/golden.json");
    struct tokenizer *a, *b;
    struct chat_template *chat;
    struct json *doc;
    struct err e = {0};
    if (tokenizer_open(&a, from, &e) < 0 || tokenizer_open(&b, gguf, &e) < 0 ||
        json_parse_file(&doc, golden, 1 << 24, &e) < 0) {
        fail_msg("%s", e.text);
    }
    assert_int_equal(tokenizer_n_ids(a), tokenizer_n_ids(b));
    assert_int_equal(tokenizer_eos_id(a), tokenizer_eos_id(b));
    struct buf text;
    buf_init(&text);
    json_dump(doc, &text); /* long, and full of odd characters */
    struct token_ids x = {0}, y = {0};
    assert_int_equal(tokenizer_encode(a, text.data, text.len, 1, &x, &e), 0);
    assert_int_equal(tokenizer_encode(b, text.data, text.len, 1, &y, &e), 0);
    assert_true(x.n > 1000);
    assert_int_equal(x.n, y.n);
    assert_memory_equal(x.ids, y.ids, x.n * sizeof *x.ids);
    assert_int_equal(chat_template_open(&chat, gguf, NULL, b, &e), 0);
    assert_true(chat_template_is_fallback(chat));
    chat_template_close(chat);
    token_ids_fini(&x);
    token_ids_fini(&y);
    buf_fini(&text);
    json_free(doc);
    tokenizer_close(a);
    tokenizer_close(b);
}

/* ---- a tokenizer of 300 pieces ---- */

static void put_list(struct buf *b, const char *key, enum gguf_type type, uint64_t n)
{
    put_text(b, key);
    put(b, GGUF_ARRAY, 4);
    put(b, type, 4);
    put(b, n, 8);
}

static void tokenizer_file(const char *path, const char *flag, const char *template)
{
    struct buf b;
    int n = 3 + 256 + 3;
    put_header(&b, 3, 0, 4 + (flag != NULL) + (template != NULL));
    put_string(&b, "tokenizer.ggml.model", "llama");
    put_list(&b, "tokenizer.ggml.tokens", GGUF_STRING, (uint64_t)n);
    for (int i = 0; i < n; i++) {
        char piece[16];
        static const char *const ends[] = {"a", "b", "[PAD261]"};
        static const char *const begins[] = {"<unk>", "<s>", "</s>"};
        snprintf(piece, sizeof piece, "<0x%02X>", (unsigned)(i - 3) & 255);
        put_text(&b, i < 3 ? begins[i] : i < 259 ? piece : ends[i - 259]);
    }
    put_list(&b, "tokenizer.ggml.scores", GGUF_F32, (uint64_t)n);
    for (int i = 0; i < n; i++) {
        put(&b, 0, 4);
    }
    put_list(&b, "tokenizer.ggml.token_type", GGUF_I32, (uint64_t)n);
    for (int i = 0; i < n; i++) {
        put(&b, i == 0 ? 2 : i < 3 ? 3 : i < 259 ? 6 : i < 261 ? 1 : 5, 4);
    }
    if (flag != NULL) {
        put_text(&b, flag);
        put(&b, GGUF_BOOL, 4);
        put(&b, 1, 1);
    }
    if (template != NULL) {
        put_string(&b, "tokenizer.chat_template", template);
    }
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    fwrite(b.data, 1, b.len, f);
    fclose(f);
    buf_fini(&b);
}

static void a_template_in_the_file_is_used_and_padding_has_no_ids(void **state)
{
    (void)state;
    char path[600];
    struct tokenizer *t;
    struct chat_template *chat;
    struct err e = {0};
    snprintf(path, sizeof path, "%s/tok.gguf", dir.path);
    tokenizer_file(path, NULL, "{{ messages[0].content }}!");
    if (tokenizer_open(&t, path, &e) < 0 || chat_template_open(&chat, path, NULL, t, &e) < 0) {
        fail_msg("%s", e.text);
    }
    assert_false(chat_template_is_fallback(chat));
    assert_string_equal(chat_template_source(chat), "{{ messages[0].content }}!");
    assert_int_equal(tokenizer_n_ids(t), 261);
    assert_int_equal(tokenizer_id(t, "[PAD261]"), -1);
    chat_template_close(chat);
    tokenizer_close(t);
}

static void text_that_would_be_changed_before_encoding_is_refused(void **state)
{
    (void)state;
    static const char *const flags[] = {
        "tokenizer.ggml.add_bos_token", "tokenizer.ggml.add_eos_token",
        "tokenizer.ggml.add_space_prefix", "tokenizer.ggml.remove_extra_whitespaces"};
    char path[600];
    snprintf(path, sizeof path, "%s/tok.gguf", dir.path);
    for (size_t i = 0; i < sizeof flags / sizeof flags[0]; i++) {
        struct tokenizer *t;
        struct err e = {0};
        tokenizer_file(path, flags[i], NULL);
        assert_true(tokenizer_open(&t, path, &e) < 0);
        assert_non_null(strstr(e.text, flags[i]));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_value_and_tensor_is_found),
        cmocka_unit_test(a_file_cut_anywhere_is_refused),
        cmocka_unit_test(damaged_bytes_never_lead_outside),
        cmocka_unit_test(what_is_no_sound_gguf_is_refused_by_name),
        cmocka_unit_test(fields_become_the_configuration),
        cmocka_unit_test(another_architecture_or_a_missing_field_is_refused),
        cmocka_unit_test(the_same_weights_pack_to_the_same_bytes_as_from_safetensors),
        cmocka_unit_test(the_tokenizer_section_gives_the_ids_of_the_directory),
        cmocka_unit_test(a_template_in_the_file_is_used_and_padding_has_no_ids),
        cmocka_unit_test(text_that_would_be_changed_before_encoding_is_refused),
    };
    rig_dir_make(&dir);
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    rig_dir_remove(&dir);
    return rc;
}
