/* SPDX-License-Identifier: Apache-2.0 */
/* config.json in its spellings, and what is refused by name. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "model/config.h"
#include "model_rig.h"

static struct rig_dir dir;

#define SIZES                                                                                      \
    "\"vocab_size\":1152,\"hidden_size\":128,\"intermediate_size\":352,\"num_hidden_layers\":3,"   \
    "\"num_attention_heads\":4,\"num_key_value_heads\":2"
#define HEAD "\"architectures\":[\"Ernie4_5ForCausalLM\"],\"model_type\":\"ernie4_5\""

static void write_config(const char *name, const char *text)
{
    char path[600];
    snprintf(path, sizeof path, "%s/%s", dir.path, name);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static struct model_config read_ok(const char *text, int *tie)
{
    struct model_config c;
    struct quant_config q;
    struct err e = {0};
    write_config("config.json", text);
    if (config_read(&c, &q, tie, dir.path, &e) < 0) {
        fail_msg("%s: %s", text, e.text);
    }
    quant_config_fini(&q);
    return c;
}

static void assert_refused(const char *text, int code, const char *word, const char *word2)
{
    struct model_config c;
    struct quant_config q;
    struct err e = {0};
    int tie;
    write_config("config.json", text);
    int rc = config_read(&c, &q, &tie, dir.path, &e);
    if (rc != code || strstr(e.text, "config.json") == NULL || strstr(e.text, word) == NULL ||
        strstr(e.text, word2) == NULL) {
        fail_msg("%s: %d \"%s\", expected %d with \"%s\" and \"%s\"", text, rc, e.text, code, word,
                 word2);
    }
}

static void missing_optional_fields_get_their_defaults(void **state)
{
    (void)state;
    int tie;
    struct model_config c = read_ok("{" HEAD "," SIZES "}", &tie);
    assert_int_equal(c.head_dim, 32);
    assert_int_equal(c.max_position_embeddings, 131072);
    assert_true(c.rope_theta == 500000.0 && c.compression_ratio == 1.0);
    assert_true(c.rms_norm_eps == 1e-5f);
    assert_int_equal(tie, -1);
    assert_int_equal(c.bos_id, 1);
    assert_int_equal(c.eos_ids[0], 2);
    assert_int_equal(c.n_eos_ids, 1);
    assert_int_equal(c.stored, DTYPE_BF16);
}

static void every_spelling_of_the_same_model_is_read(void **state)
{
    (void)state;
    int tie;
    struct model_config c = read_ok(
        "{\"architectures\":[\"Ernie4_5_ForCausalLM\"],\"model_type\":\"ernie4_5\"," SIZES
        ",\"head_dim\":64,\"rope_theta\":10000,\"torch_dtype\":\"float16\",\"tie_word_embeddings\":"
        "false,"
        "\"rope_scaling\":null,\"use_bias\":false,\"hidden_act\":\"silu\",\"eos_token_id\":[2,5],"
        "\"auto_map\":{\"AutoConfig\":\"x\"}}",
        &tie);
    assert_string_equal(c.architecture, "Ernie4_5_ForCausalLM");
    assert_int_equal(c.head_dim, 64);
    assert_true(c.rope_theta == 10000.0);
    assert_int_equal(c.stored, DTYPE_F16);
    assert_int_equal(tie, 0);
    assert_int_equal(c.n_eos_ids, 2);
    assert_int_equal(c.eos_ids[1], 5);
    c = read_ok("{" HEAD "," SIZES
                ",\"rope_parameters\":{\"rope_type\":\"default\",\"rope_theta\":20000.0},"
                "\"dtype\":\"float32\",\"tie_word_embeddings\":true,\"compression_ratio\":2.0}",
                &tie);
    assert_true(c.rope_theta == 20000.0 && c.compression_ratio == 2.0);
    assert_int_equal(c.stored, DTYPE_F32);
    assert_int_equal(tie, 1);
    c = read_ok("{\"architectures\":null,\"model_type\":\"ernie4_5\"," SIZES "}", &tie);
    assert_string_equal(c.architecture, "Ernie4_5ForCausalLM");
    c = read_ok("{\"model_type\":\"ernie4_5\"," SIZES "}", &tie);
    assert_string_equal(c.architecture, "Ernie4_5ForCausalLM");
}

static void what_is_not_supported_is_refused_by_name(void **state)
{
    (void)state;
    assert_refused(
        "{\"architectures\":[\"Ernie4_5_MoeForCausalLM\"],\"model_type\":\"ernie4_5_moe\"," SIZES
        "}",
        ERR_UNSUPPORTED, "Ernie4_5_MoeForCausalLM", "Ernie4_5ForCausalLM, Ernie4_5_ForCausalLM");
    assert_refused("{\"architectures\":[\"LlamaForCausalLM\"]," SIZES "}", ERR_UNSUPPORTED,
                   "LlamaForCausalLM", "supported");
    static const char *const lists[] = {"[]", "\"Ernie4_5ForCausalLM\"", "[7]", "{}"};
    for (int i = 0; i < 4; i++) {
        char text[600];
        snprintf(text, sizeof text, "{\"architectures\":%s,\"model_type\":\"ernie4_5\"," SIZES "}",
                 lists[i]);
        assert_refused(text, ERR_FORMAT, "architectures", "a list that begins with a name");
    }
    assert_refused(
        "{\"architectures\":[\"Ernie4_5ForCausalLM\"],\"model_type\":\"ernie4_5_vl\"," SIZES "}",
        ERR_UNSUPPORTED, "ernie4_5_vl", "supported");
    assert_refused("{" HEAD "," SIZES ",\"rope_scaling\":{\"type\":\"yarn\",\"factor\":4}}",
                   ERR_UNSUPPORTED, "rope_scaling", "yarn");
    assert_refused("{" HEAD "," SIZES ",\"rope_parameters\":{\"rope_type\":\"linear\"}}",
                   ERR_UNSUPPORTED, "rope_parameters", "linear");
    assert_refused("{" HEAD "," SIZES ",\"use_bias\":true}", ERR_UNSUPPORTED, "use_bias",
                   "supported: false");
    assert_refused("{" HEAD "," SIZES ",\"hidden_act\":\"gelu\"}", ERR_UNSUPPORTED, "hidden_act",
                   "gelu");
    assert_refused("{" HEAD "," SIZES ",\"quantization_config\":{\"quant_method\":\"secret\"}}",
                   ERR_UNSUPPORTED, "quantization_config", "secret");
    assert_refused("{" HEAD "," SIZES ",\"torch_dtype\":\"float8_e4m3fn\"}", ERR_UNSUPPORTED,
                   "torch_dtype", "float8_e4m3fn");
    assert_refused("{" HEAD "," SIZES ",\"head_dim\":40}", ERR_UNSUPPORTED, "head_dim 40",
                   "multiples of 16");
}

static void hostile_numbers_are_refused(void **state)
{
    (void)state;
    static const char *const bad[] = {"0",     "-1", "9223372036854775807", "1e300", "1.5",
                                      "\"8\"", "[1]"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        char text[600];
        snprintf(text, sizeof text,
                 "{" HEAD ",\"vocab_size\":1152,\"hidden_size\":%s,\"intermediate_size\":352,"
                 "\"num_hidden_layers\":3,\"num_attention_heads\":4,\"num_key_value_heads\":2}",
                 bad[i]);
        assert_refused(text, ERR_FORMAT, "hidden_size", "");
    }
    assert_refused("{" HEAD ",\"vocab_size\":10}", ERR_FORMAT, "hidden_size is missing", "");
    assert_refused("{" HEAD "," SIZES ",\"rope_theta\":-1}", ERR_FORMAT, "rope_theta", "");
    assert_refused("{" HEAD "," SIZES ",\"rms_norm_eps\":\"x\"}", ERR_FORMAT, "rms_norm_eps", "");
    assert_refused("{" HEAD "," SIZES ",\"eos_token_id\":99999}", ERR_FORMAT, "eos_token_id",
                   "1152");
    assert_refused("[]", ERR_FORMAT, "object", "");
    assert_refused("{\"a\":", ERR_FORMAT, "", "");
    assert_refused(
        "{" HEAD
        ",\"vocab_size\":8,\"hidden_size\":128,\"intermediate_size\":352,\"num_hidden_layers\":3,"
        "\"num_attention_heads\":4,\"num_key_value_heads\":3}",
        ERR_UNSUPPORTED, "num_key_value_heads", "");
}

static void generation_config_sets_only_what_it_names(void **state)
{
    (void)state;
    struct model_generation_config g;
    struct err e = {0};
    char path[600];
    snprintf(path, sizeof path, "%s/generation_config.json", dir.path);
    unlink(path);
    assert_int_equal(config_read_generation(&g, dir.path, &e), 0);
    assert_false(g.has_temperature || g.has_top_p || g.has_top_k || g.has_max_new_tokens);
    assert_int_equal(g.n_eos_ids, 0);
    write_config("generation_config.json",
                 "{\"do_sample\":true,\"top_p\":0.8,\"temperature\":0.8,\"eos_token_id\":[2,7],"
                 "\"top_k\":null,\"max_new_tokens\":32}");
    assert_int_equal(config_read_generation(&g, dir.path, &e), 0);
    assert_true(g.has_temperature && g.temperature == 0.8 && g.has_top_p && g.top_p == 0.8);
    assert_false(g.has_top_k || g.has_repetition_penalty);
    assert_true(g.has_max_new_tokens && g.max_new_tokens == 32);
    assert_int_equal(g.n_eos_ids, 2);
    write_config("generation_config.json", "{\"top_p\":\"high\"}");
    assert_int_equal(config_read_generation(&g, dir.path, &e), ERR_FORMAT);
    assert_non_null(strstr(e.text, "top_p"));
}

static int make_dir(void **state)
{
    (void)state;
    rig_dir_make(&dir);
    return 0;
}

static int remove_dir(void **state)
{
    (void)state;
    rig_dir_remove(&dir);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(missing_optional_fields_get_their_defaults),
        cmocka_unit_test(every_spelling_of_the_same_model_is_read),
        cmocka_unit_test(what_is_not_supported_is_refused_by_name),
        cmocka_unit_test(hostile_numbers_are_refused),
        cmocka_unit_test(generation_config_sets_only_what_it_names),
    };
    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
