/* SPDX-License-Identifier: Apache-2.0 */
/* From directories to packed weights: layouts that hold the same weights give the same packed bytes
 * (numerics_id is a hash of them), and every fault is refused with a line that names file and
 * tensor. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/buf.h"
#include "model/align.h"
#include "model_rig.h"

static struct rig_dir dir;
static struct cpu_pool *pool;
#define SHAPE                                                                                      \
    "--hidden 64 --layers 2 --heads 4 --kv-heads 2 --head-dim 32 --intermediate 88 --vocab 300 "

/* ---- a checkpoint written tensor by tensor, all elements from a counter ---- */

struct tensor {
    const char *name, *dtype;
    int d0, d1; /* d1 0: a vector */
};

static const struct tensor plain[] = {
    {"model.embed_tokens.weight", "BF16", 64, 32},
    {"model.layers.0.input_layernorm.weight", "BF16", 32, 0},
    {"model.layers.0.self_attn.q_proj.weight", "BF16", 32, 32},
    {"model.layers.0.self_attn.k_proj.weight", "BF16", 16, 32},
    {"model.layers.0.self_attn.v_proj.weight", "BF16", 16, 32},
    {"model.layers.0.self_attn.o_proj.weight", "BF16", 32, 32},
    {"model.layers.0.post_attention_layernorm.weight", "BF16", 32, 0},
    {"model.layers.0.mlp.gate_proj.weight", "BF16", 48, 32},
    {"model.layers.0.mlp.up_proj.weight", "BF16", 48, 32},
    {"model.layers.0.mlp.down_proj.weight", "BF16", 32, 48},
    {"model.norm.weight", "BF16", 32, 0},
};
#define N_PLAIN ((int)(sizeof plain / sizeof plain[0]))

static size_t tensor_bytes(const struct tensor *t)
{
    size_t e = strcmp(t->dtype, "F32") == 0 ? 4 : strcmp(t->dtype, "F8_E4M3") == 0 ? 1 : 2;
    return e * (size_t)t->d0 * (size_t)(t->d1 > 0 ? t->d1 : 1);
}

static void write_text(const char *path, const char *text)
{
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static void make_path(char *out, size_t n, const char *name, const char *file)
{
    snprintf(out, n, "%s/%s%s%s", dir.path, name, file != NULL ? "/" : "",
             file != NULL ? file : "");
}

/* pad: extra blanks in the header, to move the data to an odd address. */
static void write_tensors(const char *path, const struct tensor *t, int n, int pad)
{
    struct buf header, data;
    buf_init(&header);
    buf_init(&data);
    buf_putc(&header, '{');
    for (int i = 0; i < n; i++) {
        size_t bytes = tensor_bytes(&t[i]);
        buf_printf(&header, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[%d", i > 0 ? "," : "", t[i].name,
                   t[i].dtype, t[i].d0);
        if (t[i].d1 > 0) {
            buf_printf(&header, ",%d", t[i].d1);
        }
        buf_printf(&header, "],\"data_offsets\":[%zu,%zu]}", data.len, data.len + bytes);
        for (size_t b = 0; b < bytes; b++) {
            buf_putc(&data, b % 2 == 0 ? (char)(b / 2 * 37 + 11) : 0x3c); /* bf16 around 0.01 */
        }
    }
    buf_putc(&header, '}');
    while (header.len % 8 != 0) {
        buf_putc(&header, ' ');
    }
    for (int i = 0; i < pad; i++) {
        buf_putc(&header, ' ');
    }
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    uint64_t len = header.len;
    fwrite(&len, 8, 1, f);
    fwrite(header.data, 1, header.len, f);
    fwrite(data.data, 1, data.len, f);
    fclose(f);
    buf_fini(&header);
    buf_fini(&data);
}

static void write_model(const char *name, const struct tensor *t, int n, const char *more_config,
                        int pad)
{
    char path[700], config[1000];
    make_path(path, sizeof path, name, NULL);
    mkdir(path, 0777);
    make_path(path, sizeof path, name, "config.json");
    snprintf(config, sizeof config,
             "{\"architectures\":[\"Ernie4_5ForCausalLM\"],\"vocab_size\":64,\"hidden_size\":32,"
             "\"intermediate_size\":48,\"num_hidden_layers\":1,\"num_attention_heads\":2,\"num_key_"
             "value_heads\":1,"
             "\"head_dim\":16%s}",
             more_config);
    write_text(path, config);
    make_path(path, sizeof path, name, "model.safetensors");
    write_tensors(path, t, n, pad);
}

static int open_model(struct model **m, const char *name, enum act_type act, struct err *e)
{
    char path[700];
    make_path(path, sizeof path, name, NULL);
    struct model_options o = {.path = path, .act = act};
    return model_open(m, &o, e);
}

static void assert_refused_(const char *name, int code, const char *const *words)
{
    struct model *m = (struct model *)1;
    struct err e = {0};
    int rc = open_model(&m, name, ACT_BF16, &e);
    if (rc != code) {
        fail_msg("%s: code %d, expected %d: %s", name, rc, code, e.text);
    }
    assert_null(m);
    for (; *words != NULL; words++) {
        if (strstr(e.text, *words) == NULL) {
            fail_msg("\"%s\" does not say \"%s\"", e.text, *words);
        }
    }
}
#define REFUSED(name, code, ...)                                                                   \
    assert_refused_(name, code, (const char *const[]){__VA_ARGS__, NULL})

/* Loads and returns numerics_id; checks the tie and the layout. */
static void load_id(const char *name, enum act_type act, char id[33], int tied)
{
    char path[700];
    make_path(path, sizeof path, name, NULL);
    struct model *m = rig_load(path, act, rig_best_kernels(), pool);
    assert_int_equal(model_config(m)->tied, tied);
    assert_int_equal(strlen(model_numerics_id(m)), 32);
    memcpy(id, model_numerics_id(m), 33);
    model_close(m);
}

static uint64_t logits_hash(const char *name, enum act_type act)
{
    char path[700];
    make_path(path, sizeof path, name, NULL);
    struct model *m = rig_load(path, act, rig_best_kernels(), pool);
    const int32_t ids[] = {5, 30, 7};
    struct align_prompt prompt = {ids, 3};
    struct align_options o = {.model = m,
                              .kernels = rig_best_kernels(),
                              .pool = pool,
                              .prompts = &prompt,
                              .n_prompts = 1,
                              .n_tokens = 4};
    struct align_result *r = calloc(1, sizeof *r);
    assert_int_equal(align_run(&o, r, NULL), 0);
    uint64_t hash = r->logits_hash;
    free(r);
    model_close(m);
    return hash;
}

static void make_or_skip(const char *name, const char *options)
{
    char all[512];
    snprintf(all, sizeof all, SHAPE "%s", options);
    if (rig_make_model(&dir, name, all) != 0) {
        print_message("SKIPPED: no python3 to make models with\n");
        skip();
    }
}

/* ---- the same weights in every layout ---- */

static void every_layout_of_the_same_weights_packs_to_the_same_bytes(void **state)
{
    (void)state;
    static const struct {
        const char *name, *options;
    } layouts[] = {{"hf", ""},
                   {"hf-shards", "--shards 3"},
                   {"paddle", "--paddle"},
                   {"paddle-shards", "--paddle --shards 2"},
                   {"paddle-bf16", "--paddle --bf16-label"}};
    for (int act = 0; act < ACT_TYPE_COUNT; act++) {
        char first[33], id[33];
        for (int i = 0; i < 5; i++) {
            make_or_skip(layouts[i].name, layouts[i].options);
            load_id(layouts[i].name, (enum act_type)act, i == 0 ? first : id, 1);
            if (i > 0) {
                assert_string_equal(id, first);
            }
        }
    }
    char hf[33], paddle[33];
    make_or_skip("hf-untied", "--untied");
    make_or_skip("paddle-untied", "--untied --paddle");
    load_id("hf-untied", ACT_BF16, hf, 0);
    load_id("paddle-untied", ACT_BF16, paddle, 0);
    assert_string_equal(hf, paddle);
}

static void float32_files_with_bf16_values_give_the_same_logits(void **state)
{
    (void)state;
    make_or_skip("hf", "");
    make_or_skip("hf-f32", "--dtype f32");
    make_or_skip("paddle-f32", "--dtype f32 --paddle");
    char a[33], b[33];
    load_id("hf", ACT_BF16, a, 1);
    load_id("hf-f32", ACT_BF16, b, 1); /* rounded to bf16: nothing to round */
    assert_string_equal(a, b);
    assert_true(logits_hash("hf", ACT_F32) == logits_hash("hf-f32", ACT_F32));
    assert_true(logits_hash("hf", ACT_F32) == logits_hash("paddle-f32", ACT_F32));
}

static void float16_files_load(void **state)
{
    (void)state;
    make_or_skip("hf-f16", "--dtype f16");
    make_or_skip("paddle-f16", "--dtype f16 --paddle");
    assert_true(logits_hash("hf-f16", ACT_F32) == logits_hash("paddle-f16", ACT_F32));
    assert_true(logits_hash("hf-f16", ACT_BF16) == logits_hash("paddle-f16", ACT_BF16));
}

static void names_without_a_prefix_are_accepted(void **state)
{
    (void)state;
    struct tensor t[N_PLAIN];
    char a[33], b[33];
    write_model("prefix", plain, N_PLAIN, "", 0);
    load_id("prefix", ACT_BF16, a, 1);
    for (int i = 0; i < N_PLAIN; i++) {
        t[i] = plain[i];
        t[i].name += strlen("model.");
    }
    write_model("no-prefix", t, N_PLAIN, "", 0);
    load_id("no-prefix", ACT_BF16, b, 1);
    assert_string_equal(a, b);
}

static void data_at_odd_addresses_loads(void **state)
{
    (void)state;
    char a[33], b[33];
    write_model("even", plain, N_PLAIN, "", 0);
    write_model("odd", plain, N_PLAIN, "", 1);
    load_id("even", ACT_BF16, a, 1);
    load_id("odd", ACT_BF16, b, 1);
    assert_string_equal(a, b);
}

static void any_directory_name_works(void **state)
{
    (void)state;
    static const char *const names[] = {"v1.0.dots", "with  spaces", "\xe6\xa8\xa1\xe5\x9e\x8b"};
    char id[33], path[700], link_path[700];
    for (int i = 0; i < 3; i++) {
        write_model(names[i], plain, N_PLAIN, "", 0);
        load_id(names[i], ACT_BF16, id, 1);
    }
    make_path(path, sizeof path, names[2], NULL);
    make_path(link_path, sizeof link_path, "link", NULL);
    assert_int_equal(symlink(path, link_path), 0);
    load_id("link", ACT_BF16, id, 1);
    load_id("link///", ACT_BF16, id, 1);
    char slashes[800];
    snprintf(slashes, sizeof slashes, "%s//", path);
    struct model *m = rig_load(slashes, ACT_BF16, rig_best_kernels(), pool);
    assert_string_equal(model_path(m), path);
    model_close(m);
}

/* ---- the head ---- */

static void a_tied_model_may_store_its_head(void **state)
{
    (void)state;
    struct tensor t[N_PLAIN + 1];
    memcpy(t, plain, sizeof plain);
    t[N_PLAIN] = (struct tensor){"lm_head.weight", "BF16", 64, 32};
    char a[33], b[33];
    write_model("no-head", plain, N_PLAIN, ",\"tie_word_embeddings\":true", 0);
    write_model("head", t, N_PLAIN + 1, ",\"tie_word_embeddings\":true", 0);
    load_id("no-head", ACT_BF16, a, 1);
    load_id("head", ACT_BF16, b, 1);
    assert_string_equal(a, b);
    write_model("silent", t, N_PLAIN + 1, "", 0); /* equal bytes: tied */
    load_id("silent", ACT_BF16, b, 1);
    assert_string_equal(a, b);
    write_model("untied", t, N_PLAIN + 1, ",\"tie_word_embeddings\":false", 0);
    load_id("untied", ACT_BF16, b, 0);
    t[N_PLAIN].d0 = 63;
    write_model("short-head", t, N_PLAIN + 1, ",\"tie_word_embeddings\":true", 0);
    REFUSED("short-head", ERR_FORMAT, "lm_head.weight", "expected [64, 32]", "found [63, 32]");
    write_model("no-untied-head", plain, N_PLAIN, ",\"tie_word_embeddings\":false", 0);
    REFUSED("no-untied-head", ERR_FORMAT, "missing tensor: lm_head.weight");
}

/* ---- faults ---- */

static void missing_and_unknown_tensors_are_listed(void **state)
{
    (void)state;
    struct tensor t[N_PLAIN + 8];
    write_model("missing", plain, 3, "", 0);
    REFUSED("missing", ERR_FORMAT, "model.safetensors", "missing tensors",
            "layers.0.self_attn.k_proj.weight", "and 4 more");
    memcpy(t, plain, sizeof plain);
    t[N_PLAIN] = (struct tensor){"model.layers.1.input_layernorm.weight", "BF16", 32, 0};
    t[N_PLAIN + 1] = (struct tensor){"model.layers.0.self_attn.q_proj.bias", "BF16", 32, 0};
    write_model("unknown", t, N_PLAIN + 2, "", 0);
    REFUSED("unknown", ERR_FORMAT, "model.safetensors", "unknown tensors",
            "model.layers.1.input_layernorm.weight", "q_proj.bias");
    t[N_PLAIN] = (struct tensor){"model.layers.0.self_attn.rotary_emb.inv_freq", "F32", 8, 0};
    write_model("inv-freq", t, N_PLAIN + 1, "", 0);
    char id[33];
    load_id("inv-freq", ACT_BF16, id, 1);
}

static void wrong_shapes_and_dtypes_are_refused(void **state)
{
    (void)state;
    struct tensor t[N_PLAIN];
    memcpy(t, plain, sizeof plain);
    t[9].d1 = 50;
    write_model("shape", t, N_PLAIN, "", 0);
    REFUSED("shape", ERR_FORMAT, "model.safetensors", "down_proj.weight", "expected [32, 48]",
            "found [32, 50]");
    memcpy(t, plain, sizeof plain);
    t[4].dtype = "F8_E4M3";
    write_model("dtype", t, N_PLAIN, "", 0);
    REFUSED("dtype", ERR_UNSUPPORTED, "model.safetensors", "v_proj.weight", "F8_E4M3",
            "supported: BF16");
    memcpy(t, plain, sizeof plain);
    t[1].d1 = 1;
    write_model("rank", t, N_PLAIN, "", 0);
    REFUSED("rank", ERR_FORMAT, "input_layernorm.weight", "expected [32]", "found [32, 1]");
}

static void faults_of_sharded_models_are_refused(void **state)
{
    (void)state;
    char path[700];
    make_or_skip("shards", "--shards 3");
    make_path(path, sizeof path, "shards",
              "model-extra.safetensors"); /* not named by the index: never read */
    write_text(path, "rubbish");
    char id[33];
    load_id("shards", ACT_BF16, id, 1);
    make_path(path, sizeof path, "shards", "model-00002-of-00003.safetensors");
    write_text(path, "version https://git-lfs.github.com/spec/v1\n");
    REFUSED("shards", ERR_FORMAT, "model-00002-of-00003.safetensors", "is a Git LFS pointer");
    unlink(path);
    REFUSED("shards", ERR_NOT_FOUND, "model-00002-of-00003.safetensors", "no such file",
            "places tensor");
    make_path(path, sizeof path, "shards", "model.safetensors.index.json");
    write_text(path, "{\"weight_map\":{\"model.norm.weight\":\"../x.safetensors\"}}");
    REFUSED("shards", ERR_FORMAT, "index.json", "model.norm.weight", "in this directory");
    write_text(path,
               "{\"weight_map\":{\"model.norm.weight\":\"model-00001-of-00003.safetensors\"}}");
    REFUSED("shards", ERR_FORMAT, "model-00001-of-00003.safetensors", "model.norm.weight",
            "missing");
    write_text(path, "{\"weight_map\":{}}");
    REFUSED("shards", ERR_FORMAT, "weight_map");
    unlink(path);
    REFUSED("shards", ERR_NOT_FOUND, "model-00002-of-00003.safetensors", "no such file");
}

static void directories_without_a_model_are_refused(void **state)
{
    (void)state;
    char path[700];
    REFUSED("nowhere", ERR_NOT_FOUND, "nowhere");
    write_model("bare", plain, N_PLAIN, "", 0);
    make_path(path, sizeof path, "bare", "model.safetensors");
    unlink(path);
    REFUSED("bare", ERR_NOT_FOUND, "no weights", "model.safetensors");
    make_path(path, sizeof path, "bare", "model.gguf");
    write_text(path, "GGUF");
    REFUSED("bare", ERR_UNSUPPORTED, "model.gguf", "supported");
    make_path(path, sizeof path, "bare", "config.json");
    REFUSED("bare/config.json", ERR_INVALID, "expected a model directory");
    unlink(path);
    REFUSED("bare", ERR_NOT_FOUND, "config.json");
}

static void sizes_and_parameters_are_counted(void **state)
{
    (void)state;
    struct model *m;
    struct err e = {0};
    write_model("count", plain, N_PLAIN, "", 0);
    assert_int_equal(open_model(&m, "count", ACT_BF16, &e), 0);
    size_t n = 0, bytes = 0;
    for (int i = 0; i < N_PLAIN; i++) {
        n += tensor_bytes(&plain[i]) / 2;
        bytes += plain[i].d1 > 0 ? tensor_bytes(&plain[i]) : 0;
    }
    assert_int_equal(model_n_params(m), n);
    assert_int_equal(model_weight_bytes(m), bytes); /* all sizes are whole tiles here */
    assert_int_equal(model_weight_bytes_per_token(m), bytes);
    assert_string_equal(model_layout_name(m), "Hugging Face");
    assert_string_equal(model_numerics_id(m), "");
    struct buf text;
    buf_init(&text);
    model_describe(m, &text, 1);
    assert_non_null(strstr(text.data, "\"parameters\":"));
    buf_fini(&text);
    model_close(m);
}

static int set_up(void **state)
{
    (void)state;
    rig_dir_make(&dir);
    pool = rig_pool(2);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    cpu_pool_close(pool);
    rig_dir_remove(&dir);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_layout_of_the_same_weights_packs_to_the_same_bytes),
        cmocka_unit_test(float32_files_with_bf16_values_give_the_same_logits),
        cmocka_unit_test(float16_files_load),
        cmocka_unit_test(names_without_a_prefix_are_accepted),
        cmocka_unit_test(data_at_odd_addresses_loads),
        cmocka_unit_test(any_directory_name_works),
        cmocka_unit_test(a_tied_model_may_store_its_head),
        cmocka_unit_test(missing_and_unknown_tensors_are_listed),
        cmocka_unit_test(wrong_shapes_and_dtypes_are_refused),
        cmocka_unit_test(faults_of_sharded_models_are_refused),
        cmocka_unit_test(directories_without_a_model_are_refused),
        cmocka_unit_test(sizes_and_parameters_are_counted),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
