/* SPDX-License-Identifier: Apache-2.0 */
/* Grammars for structured output: what each front end accepts and refuses, masks against a walk of
 * every token of the vocabulary, and that hostile texts end in an error soon. */
#include "text/grammar.h"

#include "base/buf.h"
#include "base/clock.h"
#include "base/utf8.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <time.h>

#include <cmocka.h>

#include "text_model.h"

#define S(...)    #__VA_ARGS__
#define WITHIN_NS 2000000000ull

static struct tokenizer *tok;
static struct grammar_vocab *vocab;

static int set_up(void **state)
{
    (void)state;
    struct err e = {0};
    return tokenizer_open(&tok, TERN_SOURCE_DIR "/models/tern-poet", &e) != 0 ||
           grammar_vocab_open(&vocab, tok, tokenizer_n_ids(tok), &e) != 0;
}

static int tear_down(void **state)
{
    (void)state;
    grammar_vocab_close(vocab);
    tokenizer_close(tok);
    return 0;
}

static struct grammar *compile(enum grammar_kind kind, const char *text)
{
    struct grammar *g;
    struct err e = {0};
    if (grammar_compile(&g, kind, text, strlen(text), NULL, vocab, &e) != 0) {
        fail_msg("%s: %s", text, e.text);
    }
    return g;
}

static int accepts(struct grammar *g, const char *s)
{
    return grammar_can_stop(g, grammar_step_bytes(g, grammar_start(g), s, strlen(s)));
}

struct table {
    const char *text;
    const char *yes[10], *no[12];
};

static void check_table(enum grammar_kind kind, const struct table *t, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        struct grammar *g = compile(kind, t[i].text);
        for (int k = 0; t[i].yes[k] != NULL; k++) {
            if (!accepts(g, t[i].yes[k])) {
                fail_msg("%s must accept %s", t[i].text, t[i].yes[k]);
            }
        }
        for (int k = 0; t[i].no[k] != NULL; k++) {
            if (accepts(g, t[i].no[k])) {
                fail_msg("%s must not accept %s", t[i].text, t[i].no[k]);
            }
        }
        grammar_unref(g);
    }
}

#define CHECK(kind, table) check_table(kind, table, sizeof(table) / sizeof *(table))

/* A refusal: its code, and the text must name `word`. */
static void refuses(enum grammar_kind kind, const char *text, int code, const char *word)
{
    struct grammar *g = NULL;
    struct err e = {0};
    uint64_t start = clock_now_ns();
    int rc = grammar_compile(&g, kind, text, strlen(text), NULL, vocab, &e);
    if (rc == 0 || g != NULL || (code != 0 && rc != code) || strstr(e.text, word) == NULL) {
        fail_msg("%.80s: rc %d, not a refusal naming '%s': %s", text, rc, word, e.text);
    }
    assert_true(clock_now_ns() - start < WITHIN_NS);
}

static void regexes_match_the_whole_text(void **state)
{
    (void)state;
    static const struct table t[] = {
        {"abc", {"abc"}, {"", "ab", "abcd", "xabc"}},
        {"a|bc|", {"a", "bc", ""}, {"b", "abc"}},
        {"[a-c]+\\d{2,3}", {"a12", "abc123"}, {"12", "a1", "a1234", "d12"}},
        {"(ab){2}c?", {"abab", "ababc"}, {"ab", "ababab"}},
        {"x*?y", {"y", "xxy"}, {"x", "xyx"}},
        {"^(yes|no)$", {"yes", "no"}, {"", "yesno"}},
        {"(?:a(?<n>b))+", {"ab", "abab"}, {"a", "aba"}},
        {"[^a-z]", {"A", "天", "😀"}, {"a", "", "AA"}},
        {".", {"a", "气"}, {"\n", "ab"}},
        {"[\\u4e00-\\u9fa5]{2}", {"天气"}, {"天", "ab", "天气好"}},
        {"\\x41\\u{1F600}\\.", {"A😀."}, {"A😀x"}},
        {"\\s\\S\\w\\W", {" aa-", "\t-_ "}, {"aaaa", "  a-"}},
        {"(a|a)*{1000}", {""}, {"b"}},
        {"a{0}b", {"b"}, {"ab"}},
        {"[-a]|[\\]x-]", {"-", "a", "]", "x"}, {"b"}},
    };
    CHECK(GRAMMAR_REGEX, t);
}

static void regexes_that_cannot_be_enforced_are_refused(void **state)
{
    (void)state;
    refuses(GRAMMAR_REGEX, "(?=a)b", ERR_UNSUPPORTED, "look-around");
    refuses(GRAMMAR_REGEX, "(?<!a)b", ERR_UNSUPPORTED, "look-around");
    refuses(GRAMMAR_REGEX, "(a)\\1", ERR_UNSUPPORTED, "back-reference");
    refuses(GRAMMAR_REGEX, "a\\b", ERR_UNSUPPORTED, "boundary");
    refuses(GRAMMAR_REGEX, "\\p{L}", ERR_UNSUPPORTED, "property");
    refuses(GRAMMAR_REGEX, "[[:alpha:]]", ERR_UNSUPPORTED, "POSIX");
    refuses(GRAMMAR_REGEX, "a++", ERR_UNSUPPORTED, "possessive");
    refuses(GRAMMAR_REGEX, "a^b", ERR_UNSUPPORTED, "anchor");
    refuses(GRAMMAR_REGEX, "(a", ERR_INVALID, "not closed");
    refuses(GRAMMAR_REGEX, "a)", ERR_INVALID, "no matching");
    refuses(GRAMMAR_REGEX, "[a", ERR_INVALID, "not closed");
    refuses(GRAMMAR_REGEX, "*a", ERR_INVALID, "nothing to repeat");
    refuses(GRAMMAR_REGEX, "[b-a]", ERR_INVALID, "reversed");
    refuses(GRAMMAR_REGEX, "a{3,2}", ERR_INVALID, "below");
    refuses(GRAMMAR_REGEX, "a\\", ERR_INVALID, "backslash");
    refuses(GRAMMAR_REGEX, "[]", ERR_INVALID, "no text");
    refuses(GRAMMAR_REGEX, "\xff", ERR_INVALID, "UTF-8");
}

static void both_spellings_of_ebnf_are_read(void **state)
{
    (void)state;
    static const struct table t[] = {
        {"root ::= \"yes\" | \"no\"", {"yes", "no"}, {"", "yesno"}},
        {"root ::= item (\",\" item)*\nitem ::= [a-z]+ # name\n", {"a", "ab,c"}, {"", "a,", "A"}},
        {"root ::= pair{2}\npair ::= \"(\" root? \")\"", {"()()", "(()())()"}, {"()", "(())"}},
        {"root ::= [^\\n\"]{1,3} \"\\\"\"", {"a\"", "天天天\""}, {"\"", "aaaa\"", "\n\""}},
        {"root ::=\n  \"a\"\n  | \"b\" root", {"a", "ba", "bba"}, {"b", "ab"}},
        {"?start: expr\nexpr: NUM (\"+\" NUM)* // sum\nNUM: /[0-9]/~1..2",
         {"1", "12+3"},
         {"", "123", "1+"}},
        {"root ::= \"\\x41\\u5929\\U0001F600\\\\\\'\\n\"", {"A天😀\\'\n"}, {"x41"}},
        {"start: [\"a\"] \"b\"", {"b", "ab"}, {"a", "aab"}},
    };
    CHECK(GRAMMAR_EBNF, t);
}

static void wrong_ebnf_is_refused(void **state)
{
    (void)state;
    refuses(GRAMMAR_EBNF, "", 0, "empty");
    refuses(GRAMMAR_EBNF, "root ::= nope", ERR_INVALID, "'nope' is used but not defined");
    refuses(GRAMMAR_EBNF, "x ::= \"a\"", ERR_INVALID, "'root' is missing");
    refuses(GRAMMAR_EBNF, "root ::= \"a", ERR_INVALID, "not closed");
    refuses(GRAMMAR_EBNF, "root ::= \"a\"\nroot ::= \"b\"", ERR_INVALID, "defined twice");
    refuses(GRAMMAR_EBNF, "root ::= root \"a\" | \"b\"", ERR_UNSUPPORTED, "left-recursive");
    refuses(GRAMMAR_EBNF, "root ::= a\na ::= \"x\"? b\nb ::= a \"y\"", ERR_UNSUPPORTED,
            "left-recursive");
    refuses(GRAMMAR_EBNF, "start: \"a\"\n%ignore \" \"", ERR_UNSUPPORTED, "directives");
    refuses(GRAMMAR_EBNF, "root ::= \"\\d\"", ERR_UNSUPPORTED, "escape \\d in a string");
    refuses(GRAMMAR_EBNF, "start: \"\\w+\"", ERR_UNSUPPORTED, "escape \\w in a string");
    refuses(GRAMMAR_EBNF, "start: \"a\"i", ERR_UNSUPPORTED, "case-insensitive");
}

static void a_choice_is_one_of_its_texts(void **state)
{
    (void)state;
    static const struct table t[] = {
        {S([ "a", "ab", "晴天", "晴", "ab" ]), {"a", "ab", "晴", "晴天"}, {"", "b", "abb", "天"}},
    };
    CHECK(GRAMMAR_CHOICE, t);
    refuses(GRAMMAR_CHOICE, "[]", ERR_INVALID, "choice");
    refuses(GRAMMAR_CHOICE, "[1]", ERR_INVALID, "choice[0]");
    refuses(GRAMMAR_CHOICE, "[\"\"]", ERR_INVALID, "choice[0]");
}

static const struct table schemas[] = {
    {S({"type" : "null"}), {"null"}, {"nul", "0", ""}},
    {S({"type" : "boolean"}), {"true", "false"}, {"null", "1"}},
    {S({"type" : "integer"}), {"0", "-7", "120"}, {"01", "1.0", "-", "-0", "1e3"}},
    {S({"type" : "number"}), {"0", "-0.5", "3.25"}, {".5", "1.", "+1", "--1"}},
    {S({"type" : [ "null", "integer" ]}), {"null", "3"}, {"3.5", "\"a\""}},
    {S({"minimum" : 3, "maximum" : 12, "type" : "integer"}),
     {"3", "9", "12"},
     {"2", "13", "30", "-3"}},
    {S({"type" : "number", "exclusiveMinimum" : 0, "maximum" : 1.5}),
     {"0.1", "1", "1.5", "0.0001"},
     {"0", "1.51", "2", "-1", "0.0"}},
    {S({"type" : "integer", "multipleOf" : 7}), {"0", "7", "-14", "700"}, {"8", "1"}},
    {S({"type" : "integer", "multipleOf" : 5, "minimum" : 1, "maximum" : 17}),
     {"5", "15"},
     {"0", "20"}},
    {S({"type" : "string"}),
     {"\"\"", "\"天气\"", "\"\\n\\u001f\"", "\"a b\""},
     {"\"", "\"\n\"", "\"\\x\"", "\"\\ud800\"", "\"\\u5929\"", "a"}},
    {S({"type" : "string", "minLength" : 2, "maxLength" : 3}),
     {"\"ab\"", "\"天气好\"", "\"\\n\\n\\n\"", "\"\\u00010\""},
     {"\"a\"", "\"abcd\"", "\"天气好好\""}},
    {S({"type" : "string", "pattern" : "^a+$"}),
     {"\"a\"", "\"aaa\""},
     {"\"\"", "\"ab\"", "\"ba\""}},
    {S({"type" : "string", "pattern" : "b"}), {"\"b\"", "\"abc\""}, {"\"\"", "\"ac\""}},
    {S({"pattern" : "^[\"]$"}), {"\"\\\"\""}, {"\"\"\""}},
    {S({"format" : "date"}), {"\"2024-02-28\""}, {"\"2024-13-01\"", "\"2024-2-1\""}},
    {S({"enum" : [ 1, "a", null, {"x" : [1]} ]}),
     {"1", "\"a\"", "null", "{\"x\":[1]}"},
     {"2", "\"b\""}},
    {S({"enum" : [ 1, "a" ], "type" : "string"}), {"\"a\""}, {"1"}},
    {S({"enum" : [ 1, 2.0, 1.5, 1e64 ], "type" : "integer"}), {"1", "2.0", "1e+64"}, {"1.5", "x"}},
    {S({"const" : "晴"}), {"\"晴\""}, {"\"雨\""}},
    {S({"type" : "array", "items" : {"type" : "integer"}, "minItems" : 1, "maxItems" : 2}),
     {"[1]", "[1,2]", "[1, 2]", "[\n  1\n]"},
     {"[]", "[1,2,3]", "[1,]", "[  1]", "[\n\n1]"}},
    {S({"prefixItems" : [ {"type" : "null"}, {"type" : "boolean"} ], "items" : false}),
     {"[]", "[null]", "[null, true]"},
     {"[true]", "[null, true, 1]"}},
    {S({"prefixItems" : [ {"type" : "null"} ], "items" : {"type" : "integer"}, "minItems" : 2}),
     {"[null,1]", "[null,1,2]"},
     {"[null]", "[null,null]"}},
    {S({
         "type" : "object",
         "properties" : {"a" : {"type" : "integer"}, "b" : {"type" : "null"}},
         "required" : ["b"]
     }),
     {"{\"a\":1,\"b\":null}", "{\"b\": null}"},
     {"{}", "{\"a\":1}", "{\"b\":null,\"a\":1}", "{\"b\":null,\"c\":1}", "{\"b\":1}"}},
    {S({
         "type" : "object",
         "properties" : {"ab" : {"type" : "integer"}},
         "additionalProperties" : {"type" : "null"}
     }),
     {"{}", "{\"ab\":1}", "{\"ab\":1,\"x\":null}", "{\"a\":null}", "{\"abc\":null}"},
     {"{\"ab\":null}", "{\"x\":1}", "{\"\\u0061b\":null}"}},
    {S({
         "type" : "object",
         "properties" : {"天" : {"const" : 1}},
         "additionalProperties" : {"type" : "null"}
     }),
     {"{\"天\":1}", "{\"天气\":null}", "{\"地\":null}"},
     {"{\"天\":null}"}},
    {"{\"type\":\"object\",\"properties\":{\"a\\\"b\":{\"const\":1}},\"additionalProperties\":{"
     "\"const\":2}}",
     {"{\"a\\\"b\":1}", "{\"a\":2}", "{\"ab\":2}"},
     {"{\"a\"b\":2}", "{\"a\\\"b\":2}"}},
    {S({
         "allOf" : [
             {"properties" : {"a" : {"const" : 1}}, "additionalProperties" : false},
             {"properties" : {"b" : {"const" : 2}}, "additionalProperties" : false}
         ]
     }),
     {"{}"},
     {"{\"a\":1}", "{\"b\":2}", "{\"a\":1,\"b\":2}"}},
    {S({"patternProperties" : {"^x_" : {"type" : "integer"}}, "additionalProperties" : false}),
     {"{}", "{\"x_\":1}", "{\"x_a\":1,\"x_b\":2}"},
     {"{\"y\":1}", "{\"x_\":null}"}},
    {S({"propertyNames" : {"pattern" : "^[a-z]$"}, "type" : "object"}),
     {"{\"a\":1}"},
     {"{\"ab\":1}"}},
    {S({"type" : "object", "maxProperties" : 1}), {"{}", "{\"a\":1}"}, {"{\"a\":1,\"b\":2}"}},
    {S({"type" : "object", "minProperties" : 1}), {"{\"a\":1}"}, {"{}"}},
    {S({"allOf" : [ {"minimum" : 2}, {"maximum" : 4} ], "type" : "integer"}),
     {"2", "4"},
     {"1", "5"}},
    {S({"anyOf" : [ {"type" : "null"}, {"const" : 5} ]}), {"null", "5"}, {"6"}},
    {S({"oneOf" : [ {"type" : "integer"}, {"type" : "string", "maxLength" : 1} ]}),
     {"1", "\"a\""},
     {"\"ab\""}},
    {S({
         "$ref" : "#/$defs/t",
         "$defs" : {"t" : {"type" : "object", "properties" : {"c" : {"$ref" : "#/$defs/t"}}}}
     }),
     {"{}", "{\"c\":{}}", "{\"c\":{\"c\":{\"c\":{}}}}"},
     {"{\"c\":1}", "{\"c\":{}"}},
    {S({
         "dependentRequired" : {"a" : ["b"]},
         "properties" : {"a" : {"const" : 1}, "b" : {"const" : 2}}
     }),
     {"{\"a\":1,\"b\":2}"},
     {"{\"a\":1}"}},
    {S({"title" : "T", "description" : "d", "default" : 1, "examples" : [1], "type" : "null"}),
     {"null"},
     {"1"}},
    {S({"type" : "integer", "not" : {"enum" : [ 2, 4 ]}}), {"1", "3", "5"}, {"2", "4"}},
    {S({"not" : {"type" : [ "object", "array", "number", "boolean" ]}}),
     {"null", "\"a\""},
     {"1", "true", "[]", "{}"}},
    {S({"type" : "string", "not" : {"pattern" : "^ab"}}),
     {"\"a\"", "\"xab\""},
     {"\"ab\"", "\"abc\""}},
    {S({"type" : "string", "not" : {"const" : "天"}}), {"\"天气\"", "\"\""}, {"\"天\""}},
    {S({"type" : "object", "properties" : {"a" : {"const" : 1}}, "not" : {"required" : ["a"]}}),
     {"{}"},
     {"{\"a\":1}"}},
    {S({
         "type" : "object",
         "properties" : {"k" : {"enum" : [ 1, 2 ]}, "a" : {"const" : 0}, "b" : {"const" : 0}},
         "required" : ["k"],
         "if" : {"properties" : {"k" : {"const" : 1}}},
         "then" : {"required" : ["a"]},
         "else" : {"required" : ["b"]}
     }),
     {"{\"k\":1,\"a\":0}", "{\"k\":2,\"b\":0}", "{\"k\":2,\"a\":0,\"b\":0}"},
     {"{\"k\":1,\"b\":0}", "{\"k\":2}", "{\"k\":2,\"a\":0}"}},
    {S({"oneOf" : [ {"type" : "integer", "minimum" : 2}, {"type" : "integer", "maximum" : 5} ]}),
     {"1", "6"},
     {"2", "5", "3"}},
    {S({"type" : "array", "items" : {"enum" : [ 1, 2, 3 ]}, "uniqueItems" : true, "minItems" : 1}),
     {"[1]", "[3,1]", "[2,3,1]"},
     {"[]", "[1,1]", "[3,1,3]"}},
    {S({
         "type" : "array",
         "items" : {"enum" : [ 1, 2, 3, 4, 5, 6, 7, 8, 9, 10 ]},
         "uniqueItems" : true,
         "maxItems" : 3
     }),
     {"[]", "[1]", "[2,10]", "[1,5,9]"},
     {"[1,1]", "[5,5,6]", "[1,2,3,4]"}},
    {S({"contains" : {"const" : 1}, "items" : {"enum" : [ 1, 2 ]}, "maxContains" : 2}),
     {"[1]", "[2,1,2]", "[1,1,2]"},
     {"[]", "[2]", "[1,1,1]", "[1,2,1,1]"}},
    {S({"contains" : {"type" : "null"}, "minContains" : 2, "maxItems" : 3}),
     {"[null,null]", "[1,null,null]"},
     {"[null]", "[1,null,2]", "[null,null,null,null]"}},
    {S({
         "patternProperties" : {"^x" : {"type" : "integer"}, "y$" : {"minimum" : 5}},
         "properties" : {"a" : {"const" : 1}},
         "additionalProperties" : false
     }),
     {"{\"a\":1}", "{\"x\":1}", "{\"xy\":7}", "{\"by\":6}"},
     {"{\"xy\":3}", "{\"b\":1}", "{\"x\":null}", "{\"a\":2}"}},
    {S({
         "properties" : {"a" : {"const" : 1}, "b" : {"const" : 2}, "c" : {"const" : 3}},
         "minProperties" : 2
     }),
     {"{\"a\":1,\"c\":3}", "{\"a\":1,\"b\":2,\"c\":3}"},
     {"{}", "{\"b\":2}"}},
    {S({"properties" : {"a" : {"const" : 1}, "b" : {"const" : 2}}, "maxProperties" : 1}),
     {"{}", "{\"a\":1}", "{\"b\":2}"},
     {"{\"a\":1,\"b\":2}"}},
    {S({"type" : "string", "pattern" : "^[a-z]+$", "maxLength" : 3}),
     {"\"a\"", "\"abc\""},
     {"\"\"", "\"abcd\""}},
    {S({"type" : "string", "pattern" : "b", "minLength" : 3, "maxLength" : 4}),
     {"\"abc\"", "\"bbbb\""},
     {"\"ab\"", "\"aaa\"", "\"abcde\""}},
    {S({"allOf" : [ {"pattern" : "a"}, {"pattern" : "b"} ], "type" : "string"}),
     {"\"ab\"", "\"xbya\""},
     {"\"a\"", "\"b\""}},
    {S({
         "dependentSchemas" : {"a" : {"required" : ["b"]}},
         "properties" : {"a" : {"const" : 1}, "b" : {"const" : 2}}
     }),
     {"{}", "{\"b\":2}", "{\"a\":1,\"b\":2}"},
     {"{\"a\":1}"}},
    {S({"allOf" : [ {"properties" : {"a" : {"const" : 1}}}, {"unevaluatedProperties" : false} ]}),
     {"{}"},
     {"{\"a\":1}"}},
    {S({"allOf" : [ {"properties" : {"a" : {"const" : 1}}} ], "unevaluatedProperties" : false}),
     {"{}", "{\"a\":1}"},
     {"{\"b\":1}"}},
    {S({"$ref" : "#w", "$defs" : {"x" : {"$anchor" : "w", "type" : "null"}}}), {"null"}, {"1"}},
    {S({"type" : "number", "multipleOf" : 0.25}), {"0.5", "1.75", "3", "-0.25"}, {"0.3", "1.1"}},
    {S({"enum" : [ 1, 5, "a", "abc" ], "minimum" : 3, "minLength" : 2}),
     {"5", "\"abc\""},
     {"1", "\"a\""}},
    {S({
         "anyOf" : [ false, {"type" : "null"}, {"type" : "integer", "minimum" : 2, "maximum" : 1} ]
     }),
     {"null"},
     {"1"}},
    {"true", {"1", "[1,{\"a\":null}]"}, {"", "[1"}},
    {"{}", {"\"x\"", "{\"a\": [true]}"}, {"{a:1}"}},
};

static void every_schema_keyword_is_enforced(void **state)
{
    (void)state;
    CHECK(GRAMMAR_JSON_SCHEMA, schemas);
}

static void keywords_that_cannot_be_enforced_are_named(void **state)
{
    (void)state;
    static const struct {
        const char *schema, *word;
    } t[] = {
        {S({"not" : {"multipleOf" : 3}}), "'not'"},
        {S({"if" : {"uniqueItems" : true}, "then" : false}), "'if'"},
        {S({"allOf" : [ {"contains" : {"type" : "null"}}, {"contains" : {"type" : "array"}} ]}),
         "'contains'"},
        {S({"contains" : {"multipleOf" : 3}, "maxContains" : 2}), "'maxContains'"},
        {S({"type" : "object", "minProperties" : 2}), "'minProperties'"},
        {S({"propertyNames" : {"anyOf" : [ {"maxLength" : 1}, {"pattern" : "a"} ]}}),
         "'propertyNames'"},
        {S({"type" : "array", "uniqueItems" : true}), "'uniqueItems'"},
        {S({"type" : "number", "multipleOf" : 0.01}), "'multipleOf'"},
        {S({"$dynamicRef" : "#x"}), "$dynamicRef '#x' leads nowhere"},
        {S({
             "$dynamicRef" : "#x",
             "$defs" : {"a" : {"$dynamicAnchor" : "x"}, "b" : {"$id" : "b", "$dynamicAnchor" : "x"}}
         }),
         "'$dynamicRef'"},
        {S({"format" : "hologram"}), "hologram"},
        {S({"$ref" : "http://example.com/x"}), "$ref"},
        {S({"$ref" : "#/nowhere"}), "leads nowhere"},
        {S({"oneOf" : [ {"multipleOf" : 2}, {"multipleOf" : 3} ]}), "'oneOf'"},
        {S({"pattern" : "a\\1"}), "back-reference"},
        {S({"type" : "string", "enum" : ["a"], "format" : "email"}), "'enum'"},
        {S({"type" : "text"}), "type must be"},
        {S({"type" : "integer", "minimum" : 3, "maximum" : 2}), "bounds"},
        {S({"type" : "string", "minLength" : 3, "maxLength" : 2}), "maxLength"},
        {S({"type" : "string", "maxLength" : 100000000}), "maxLength is too large"},
        {S({"type" : "string", "maxLength" : 1e64}), "maxLength is too large"},
        {S({"type" : "string", "minLength" : -1}), "minLength"},
        {S({"type" : "array", "minItems" : 2, "maxItems" : 1}), "items"},
        {S({"required" : ["a"], "properties" : {"a" : false}}), "'a'"},
        {S({"enum" : []}), "enum"},
        {"false", "false"},
        {"3", "schema must be"},
        {"{", "not valid JSON"},
    };
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        refuses(GRAMMAR_JSON_SCHEMA, t[i].schema, 0, t[i].word);
    }
}

static void json_object_is_any_object(void **state)
{
    (void)state;
    struct grammar *g = compile(GRAMMAR_JSON_OBJECT, "");
    assert_true(accepts(g, "{}"));
    assert_true(accepts(g, "{\"天\": [1, {\"b\": null}], \"c\": \"\\n\"}"));
    assert_false(accepts(g, "[]"));
    assert_false(accepts(g, "{\"a\":}"));
    grammar_unref(g);
}

/* ---- masks ---- */

static uint32_t rng_state;

static uint32_t rng(void)
{
    rng_state = rng_state * 1664525u + 1013904223u;
    return rng_state >> 8;
}

/* The mask of a configuration is exactly the tokens that can be stepped over. */
static void check_mask(struct grammar *g, int config, const struct tokenizer *t, int n_ids,
                       uint32_t *mask, const char *what)
{
    int n = grammar_mask(g, config, mask), found = 0;
    for (int32_t id = 0; id < n_ids; id++) {
        int allowed = grammar_step_token(g, config, id) >= 0;
        found += allowed;
        if (allowed != (int)(mask[id / 32] >> (id % 32) & 1)) {
            size_t len;
            fail_msg("%s: token %d ('%s') is %d in the mask but %d", what, id,
                     tokenizer_piece(t, id, &len), !allowed, allowed);
        }
    }
    assert_int_equal(n, found);
}

static void walk(struct tokenizer *t, struct grammar_vocab *v, enum grammar_kind kind,
                 const char *text, const char *prefix, int n_steps)
{
    int n_ids = tokenizer_n_ids(t), n_words = grammar_vocab_mask_words(v);
    uint32_t *mask = malloc(sizeof *mask * (size_t)n_words);
    struct grammar *g;
    struct err e = {0};
    assert_non_null(mask);
    if (grammar_compile(&g, kind, text, strlen(text), NULL, v, &e) != 0) {
        fail_msg("%s: %s", text, e.text);
    }
    int config = grammar_step_bytes(g, grammar_start(g), prefix, strlen(prefix));
    assert_true(config >= 0);
    for (int i = 0; i < n_steps && config >= 0; i++) {
        check_mask(g, config, t, n_ids, mask, text);
        int n = grammar_mask(g, config, mask);
        if (n <= 0) {
            break;
        }
        int pick = (int)(rng() % (uint32_t)n);
        int32_t id = 0;
        for (;; id++) {
            if (mask[id / 32] >> (id % 32) & 1 && pick-- == 0) {
                break;
            }
        }
        config = grammar_step_token(g, config, id);
        assert_true(config >= 0);
    }
    grammar_unref(g);
    free(mask);
}

static const struct {
    enum grammar_kind kind;
    const char *text, *prefix;
} mask_cases[] = {
    {GRAMMAR_JSON_OBJECT, "", ""},
    {GRAMMAR_JSON_SCHEMA, S({"type" : "string"}), "\""},
    {GRAMMAR_JSON_SCHEMA, S({"type" : "string"}), "\"\xe5\xa4"},
    {GRAMMAR_JSON_SCHEMA, S({"type" : "string", "maxLength" : 3}), "\""},
    {GRAMMAR_JSON_SCHEMA, S({"type" : "string", "minLength" : 2, "maxLength" : 30}), "\""},
    {GRAMMAR_JSON_SCHEMA, S({"type" : "string", "maxLength" : 64}), "\"a"},
    {GRAMMAR_JSON_SCHEMA, S({"type" : "number", "minimum" : -3.5, "maximum" : 1000}), ""},
    {GRAMMAR_JSON_SCHEMA, S({"properties" : {"名" : {"enum" : [ "天", "天气", "a" ]}, "b" : {}}}),
     "{"},
    {GRAMMAR_JSON_SCHEMA,
     S({"additionalProperties" : {"type" : "null"}, "properties" : {"the" : {}}}), "{\""},
    {GRAMMAR_JSON_SCHEMA, S({"type" : "string", "pattern" : "the"}), "\"t"},
    {GRAMMAR_REGEX, "[a-z]{0,3}bcdef", ""},
    {GRAMMAR_REGEX, "[a-z]{3,30}[a-z0-9]{1,40} .*end", ""},
    {GRAMMAR_REGEX, "(.{1,26}|[a-z]+)!", ""},
    {GRAMMAR_REGEX, "[\\u4e00-\\u9fa5]{1,5}", ""},
    {GRAMMAR_CHOICE, S([ "the", "there", "天气" ]), ""},
    {GRAMMAR_EBNF, "root ::= \"(\" root \")\" | [^()]*", "(("},
};

static void masks_equal_a_walk_of_every_token(void **state)
{
    (void)state;
    rng_state = 7;
    for (size_t i = 0; i < sizeof mask_cases / sizeof *mask_cases; i++) {
        walk(tok, vocab, mask_cases[i].kind, mask_cases[i].text, mask_cases[i].prefix, 20);
    }
}

static void masks_equal_a_walk_of_every_token_of_ernie(void **state)
{
    (void)state;
    struct tokenizer *t;
    struct grammar_vocab *v;
    struct err e = {0};
    const char *dir = shared_path("assets/ernie-tokenizer");
    if (dir == NULL || tokenizer_open(&t, dir, &e) != 0) {
        print_message("skipped: no ERNIE tokenizer here\n");
        skip();
    }
    assert_int_equal(grammar_vocab_open(&v, t, 103424, &e), 0);
    rng_state = 11;
    for (size_t i = 0; i < sizeof mask_cases / sizeof *mask_cases; i++) {
        walk(t, v, mask_cases[i].kind, mask_cases[i].text, mask_cases[i].prefix, 3);
    }
    grammar_vocab_close(v);
    tokenizer_close(t);
}

static void special_tokens_are_never_allowed(void **state)
{
    (void)state;
    struct grammar *g = compile(GRAMMAR_REGEX, "(.|\\n)*");
    for (int32_t id = 0; id < tokenizer_n_ids(tok); id++) {
        if (tokenizer_is_special(tok, id)) {
            assert_int_equal(grammar_step_token(g, grammar_start(g), id), -1);
        }
    }
    grammar_unref(g);
}

/* ---- hostile texts ---- */

static void repeat(struct buf *b, const char *s, int n)
{
    for (int i = 0; i < n; i++) {
        buf_append(b, s, strlen(s));
    }
}

/* Time that this thread had a processor: a loaded machine does not make a grammar slow. */
static uint64_t thread_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Compiles, or is refused, and then makes some masks: all within the time. */
static void is_bounded(enum grammar_kind kind, const char *name, struct buf *text,
                       const char *prefix)
{
    struct grammar *g = NULL;
    struct err e = {0};
    uint64_t start = thread_ns();
    int rc = grammar_compile(&g, kind, text->data, text->len, NULL, vocab, &e);
    uint32_t *mask = malloc(sizeof *mask * (size_t)grammar_vocab_mask_words(vocab));
    assert_int_equal(rc == 0, g != NULL);
    if (rc == 0) {
        int config = grammar_step_bytes(g, grammar_start(g), prefix, strlen(prefix));
        (void)grammar_mask(g, config, mask);
    } else {
        assert_true(e.text[0] != 0);
    }
    uint64_t took = thread_ns() - start;
    if (took > WITHIN_NS) {
        fail_msg("%s took %.2f s", name, (double)took * 1e-9);
    }
    free(mask);
    grammar_unref(g);
    buf_clear(text);
}

static void a_position_with_too_many_ways_on_is_dead_and_told_apart(void **state)
{
    (void)state;
    struct grammar *g = compile(GRAMMAR_REGEX, "(.\x13.**.*a)*{1074}4}");
    int config = grammar_step_bytes(g, grammar_start(g), "x\x13", 2);
    assert_true(config >= 0);
    assert_int_equal(grammar_is_ambiguous(g), 0);
    assert_int_equal(grammar_step_bytes(g, config, " again", 6), -1);
    assert_int_equal(grammar_is_ambiguous(g), 1);
    grammar_unref(g);
    g = compile(GRAMMAR_REGEX, "ab");
    assert_int_equal(grammar_step_bytes(g, grammar_start(g), "x", 1), -1);
    assert_int_equal(grammar_is_ambiguous(g), 0);
    grammar_unref(g);
}

static void hostile_regexes_end_soon(void **state)
{
    (void)state;
    static const char *const texts[] = {"(a|a)*{1000}",
                                        "(a|a)*{100000}",
                                        "((a|a)*|(a|a)*)*",
                                        "(([a-z]?){4000})",
                                        "([a-z]?){100000}",
                                        "((((a?){99}){99}){99}){99}",
                                        "(.*){100000}",
                                        "(.*.*.*.*.*)*x",
                                        "((.?){300}){300}",
                                        "a{100000}",
                                        "a{999999999}",
                                        "((a{1000}){1000}){1000}",
                                        "(a*)*",
                                        "(a*)+b",
                                        "(|a)+",
                                        "(.{0,1000}x){1000}",
                                        "[^a][^b][^c][^d][^e]*",
                                        "(a|b|ab)*c{1,90000}"};
    struct buf b;
    buf_init(&b);
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        repeat(&b, texts[i], 1);
        is_bounded(GRAMMAR_REGEX, texts[i], &b, "aaaa");
    }
    repeat(&b, "(", 100000);
    is_bounded(GRAMMAR_REGEX, "open groups", &b, "");
    repeat(&b, "(a|", 3000);
    repeat(&b, ")", 3000);
    is_bounded(GRAMMAR_REGEX, "nested groups", &b, "");
    repeat(&b, "a?", 50000);
    is_bounded(GRAMMAR_REGEX, "optional letters", &b, "a");
    repeat(&b, ".*", 20000);
    is_bounded(GRAMMAR_REGEX, "many stars", &b, "a");
    buf_putc(&b, '[');
    for (uint32_t c = 0x100; c < 0x20000; c += 2) {
        char ch[4];
        if (c < 0xD800 || c > 0xDFFF) {
            buf_append(&b, ch, (size_t)utf8_encode(c, ch));
        }
    }
    repeat(&b, "]*", 1);
    is_bounded(GRAMMAR_REGEX, "a giant class", &b, "");
    for (int i = 0; i < 20000; i++) {
        buf_printf(&b, "[\\u%04x-\\uffff]*", 0x1000 + i);
    }
    is_bounded(GRAMMAR_REGEX, "many classes", &b, "");
    buf_fini(&b);
}

static void hostile_schemas_end_soon(void **state)
{
    (void)state;
    struct buf b;
    buf_init(&b);
    repeat(&b, "{\"items\":", 100000);
    is_bounded(GRAMMAR_JSON_SCHEMA, "open objects", &b, "");
    repeat(&b, "{\"items\":", 60);
    repeat(&b, "true", 1);
    repeat(&b, "}", 60);
    is_bounded(GRAMMAR_JSON_SCHEMA, "deep items", &b, "");
    repeat(&b, "{\"enum\":[", 1);
    for (int i = 0; i < 9999; i++) {
        buf_printf(&b, "\"value %d\",", i * 7);
    }
    repeat(&b, "0]}", 1);
    is_bounded(GRAMMAR_JSON_SCHEMA, "a huge enum", &b, "\"v");
    repeat(&b, "{\"enum\":[0", 1);
    repeat(&b, ",0", 200000);
    repeat(&b, "]}", 1);
    is_bounded(GRAMMAR_JSON_SCHEMA, "too huge an enum", &b, "");
    repeat(&b, "{\"oneOf\":[", 1);
    for (int k = 0; k < 4; k++) {
        repeat(&b, "{\"enum\":[", 1);
        for (int i = 0; i < 9999; i++) {
            buf_printf(&b, "%d,", i * 4 + k);
        }
        repeat(&b, k < 3 ? "-1]}," : "-2]}]}", 1);
    }
    is_bounded(GRAMMAR_JSON_SCHEMA, "enums that exclude each other", &b, "");
    repeat(&b, "{\"$ref\":\"#\"}", 1);
    is_bounded(GRAMMAR_JSON_SCHEMA, "a $ref to itself", &b, "");
    repeat(&b, "{\"allOf\":[{\"$ref\":\"#\"}]}", 1);
    is_bounded(GRAMMAR_JSON_SCHEMA, "allOf of itself", &b, "");
    repeat(&b, "{\"anyOf\":[{\"$ref\":\"#\"},{\"$ref\":\"#\"},{\"type\":\"null\"}]}", 1);
    is_bounded(GRAMMAR_JSON_SCHEMA, "anyOf of itself", &b, "");
    repeat(&b, "{\"$ref\":\"#/$defs/0\",\"$defs\":{", 1);
    for (int i = 0; i < 2000; i++) {
        buf_printf(&b, "\"%d\":{\"$ref\":\"#/$defs/%d\"},", i, i + 1);
    }
    repeat(&b, "\"2000\":{}}}", 1);
    is_bounded(GRAMMAR_JSON_SCHEMA, "a chain of $refs", &b, "");
    repeat(&b, "{\"$ref\":\"#/$defs/0\",\"$defs\":{", 1);
    for (int i = 0; i < 100; i++) {
        buf_printf(&b,
                   "\"%d\":{\"properties\":{\"a\":{\"$ref\":\"#/$defs/%d\"},\"b\":{\"$ref\":\"#/"
                   "$defs/%d\"}}},",
                   i, i + 1, i + 1);
    }
    repeat(&b, "\"100\":{}}}", 1);
    is_bounded(GRAMMAR_JSON_SCHEMA, "doubling $refs", &b, "{");
    repeat(&b, "{\"allOf\":[", 1);
    for (int i = 0; i < 20; i++) {
        repeat(&b,
               "{\"anyOf\":[{\"minLength\":1},{\"minLength\":2},{\"minLength\":3},{\"minLength\":4}"
               "]},",
               1);
    }
    repeat(&b, "{\"type\":\"string\"}]}", 1);
    is_bounded(GRAMMAR_JSON_SCHEMA, "a product of anyOfs", &b, "\"");
    repeat(&b, "{\"type\":\"string\",\"maxLength\":100000}", 1);
    is_bounded(GRAMMAR_JSON_SCHEMA, "a long string", &b, "\"");
    repeat(&b,
           "{\"type\":\"array\",\"minItems\":100000,\"items\":{\"type\":\"array\",\"minItems\":"
           "100000}}",
           1);
    is_bounded(GRAMMAR_JSON_SCHEMA, "long arrays", &b, "[");
    repeat(&b, "{\"type\":\"object\",\"additionalProperties\":true,\"properties\":{", 1);
    for (int i = 0; i < 1999; i++) {
        buf_printf(&b, "\"property %d\":{\"type\":\"integer\",\"minimum\":%d},", i, i);
    }
    repeat(&b, "\"z\":{}}}", 1);
    is_bounded(GRAMMAR_JSON_SCHEMA, "optional properties", &b, "{\"");
    repeat(&b, "{\"type\":\"integer\",\"multipleOf\":1999}", 1);
    is_bounded(GRAMMAR_JSON_SCHEMA, "a large multiple", &b, "1");
    repeat(&b, "{\"pattern\":\"(a|b|ab)*(.*){99}([a-z]?){3000}$\"}", 1);
    is_bounded(GRAMMAR_JSON_SCHEMA, "a hostile pattern", &b, "\"a");
    buf_fini(&b);
}

static void hostile_ebnf_ends_soon(void **state)
{
    (void)state;
    struct buf b;
    buf_init(&b);
    repeat(&b, "root ::= ", 1);
    repeat(&b, "(", 100000);
    is_bounded(GRAMMAR_EBNF, "open groups", &b, "");
    repeat(&b, "root ::= ", 1);
    repeat(&b, "(\"a\" | ", 60);
    repeat(&b, "\"b\"", 1);
    repeat(&b, ")*", 60);
    is_bounded(GRAMMAR_EBNF, "nested groups", &b, "a");
    for (int i = 0; i < 5000; i++) {
        buf_printf(&b, "r%d ::= r%d r%d\n", i, i + 1, i + 1);
    }
    repeat(&b, "r5000 ::= \"a\"\nroot ::= r0\n", 1);
    is_bounded(GRAMMAR_EBNF, "doubling rules", &b, "a");
    for (int i = 0; i < 5000; i++) {
        buf_printf(&b, "r%d ::= r%d? r%d?\n", i, i + 1, i + 1);
    }
    repeat(&b, "r5000 ::= \"a\"\nroot ::= r0\n", 1);
    is_bounded(GRAMMAR_EBNF, "doubling optional rules", &b, "a");
    repeat(&b, "root ::= \"a\" root \"b\" | \"a\" root \"c\" | \"\"", 1);
    is_bounded(GRAMMAR_EBNF, "an ambiguous stack", &b, "aaaaaaaaaaaaaaaaaaaa");
    repeat(&b, "root ::= \"a\"{100000} \"b\"{100000}", 1);
    is_bounded(GRAMMAR_EBNF, "long repeats", &b, "aa");
    repeat(&b, "root ::= ", 1);
    repeat(&b, "\"a\" | ", 20000);
    is_bounded(GRAMMAR_EBNF, "many alternatives", &b, "a");
    buf_fini(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(regexes_match_the_whole_text),
        cmocka_unit_test(regexes_that_cannot_be_enforced_are_refused),
        cmocka_unit_test(both_spellings_of_ebnf_are_read),
        cmocka_unit_test(wrong_ebnf_is_refused),
        cmocka_unit_test(a_choice_is_one_of_its_texts),
        cmocka_unit_test(every_schema_keyword_is_enforced),
        cmocka_unit_test(keywords_that_cannot_be_enforced_are_named),
        cmocka_unit_test(json_object_is_any_object),
        cmocka_unit_test(masks_equal_a_walk_of_every_token),
        cmocka_unit_test(masks_equal_a_walk_of_every_token_of_ernie),
        cmocka_unit_test(special_tokens_are_never_allowed),
        cmocka_unit_test(a_position_with_too_many_ways_on_is_dead_and_told_apart),
        cmocka_unit_test(hostile_regexes_end_soon),
        cmocka_unit_test(hostile_schemas_end_soon),
        cmocka_unit_test(hostile_ebnf_ends_soon),
    };
    return cmocka_run_group_tests_name("text/grammar", tests, set_up, tear_down);
}
