/* SPDX-License-Identifier: Apache-2.0 */
/* What structured output costs: for some grammars and a text that each allows, the time to compile
 * and the time of every token mask while the text is written token by token, by a first request
 * (cold) and by the next one (warm). `grammar_bench DIR [ROUNDS]`; bench/masks runs it. */
#include "base/buf.h"
#include "text/grammar.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define VOCABULARY 103424 /* rows of ERNIE's logits; a smaller tokenizer leaves the rest empty */
#define MAX_STEPS  4096
#define S(...)     #__VA_ARGS__

static const struct {
    const char *name;
    enum grammar_kind kind;
    const char *text, *output;
} cases[] = {
    {"json_object", GRAMMAR_JSON_OBJECT, "",
     "{\"city\": \"北京\", \"days\": [{\"day\": \"Monday\", \"high\": 31, \"low\": 22.5, \"rain\": "
     "false}, {\"day\": \"Tuesday\", \"high\": 29, \"low\": null, \"note\": \"thunder "
     "\\\"storms\\\" "
     "in the evening\"}], \"source\": \"the national weather service\"}"},
    {"flat schema", GRAMMAR_JSON_SCHEMA, S({
         "type" : "object",
         "properties" : {
             "name" : {"type" : "string"},
             "age" : {"type" : "integer", "minimum" : 0, "maximum" : 150},
             "email" : {"type" : "string", "format" : "email"},
             "born" : {"type" : "string", "format" : "date"},
             "state" : {"enum" : [ "在线", "离线", "away" ]}
         },
         "required" : [ "name", "age", "email", "born", "state" ],
         "additionalProperties" : false
     }),
     "{\"name\": \"Ada Lovelace, Countess\", \"age\": 36, \"email\": \"ada.l@example.org\", "
     "\"born\": \"1815-12-10\", \"state\": \"离线\"}"},
    {"bounded strings", GRAMMAR_JSON_SCHEMA, S({
         "type" : "object",
         "properties" : {
             "状态" : {"enum" : [ "在线", "离线" ]},
             "备注" : {"type" : "string", "maxLength" : 40},
             "code" : {"type" : "string", "pattern" : "^[A-Z]{2,4}-[0-9]{3,6}$"},
             "slug" : {"type" : "string", "pattern" : "^[a-z][a-z0-9-]*$", "maxLength" : 24},
             "other" : {"type" : "string", "pattern" : "end$", "minLength" : 4}
         },
         "required" : [ "状态", "备注", "code", "slug", "other" ]
     }),
     "{\"状态\": \"在线\", \"备注\": \"设备运行正常，无异常告警 all is fine\", \"code\": "
     "\"QX-20417\", \"slug\": \"night-watch-7\", \"other\": \"a text up to the end\"}"},
    {"nested schema", GRAMMAR_JSON_SCHEMA, S({
         "$defs" : {
             "step" : {
                 "type" : "object",
                 "properties" : {
                     "explanation" : {"type" : "string"},
                     "output" : {"type" : "string"},
                     "children" : {"type" : "array", "items" : {"$ref" : "#/$defs/step"}}
                 },
                 "required" : [ "explanation", "output" ]
             }
         },
         "type" : "object",
         "properties" : {
             "steps" : {"type" : "array", "items" : {"$ref" : "#/$defs/step"}, "maxItems" : 20},
             "score" : {"type" : "number", "minimum" : 0, "exclusiveMaximum" : 10.5},
             "final" : {"anyOf" : [ {"type" : "string"}, {"type" : "null"} ]}
         },
         "required" : [ "steps", "score" ]
     }),
     "{\"steps\": [{\"explanation\": \"subtract seven from both sides\", \"output\": \"8x = -30\", "
     "\"children\": [{\"explanation\": \"-23 - 7\", \"output\": \"-30\"}]}, {\"explanation\": "
     "\"divide by eight\", \"output\": \"x = -3.75\"}], \"score\": 9.75, \"final\": \"x = "
     "-3.75\"}"},
    {"open object", GRAMMAR_JSON_SCHEMA, S({
         "type" : "object",
         "properties" : {"id" : {"type" : "integer"}},
         "patternProperties" : {"^x-" : {"type" : "string"}},
         "additionalProperties" : {"type" : [ "number", "boolean" ]}
     }),
     "{\"id\": 7, \"x-name\": \"Tern\", \"weight\": 0.12, \"flies\": true, \"x-note\": \"a sea "
     "bird\"}"},
    {"regex", GRAMMAR_REGEX, "(Answer|Result): .{1,200}(\\n[\\w .,-]{0,300})?",
     "Answer: the tern flies from pole to pole every year, 70 thousand km"},
    {"choice", GRAMMAR_CHOICE, S([ "positive", "negative", "neutral", "不确定" ]), "neutral"},
    {"grammar", GRAMMAR_EBNF,
     "root ::= select\nselect ::= \"SELECT \" cols \" FROM \" name (\" WHERE \" cond)?\ncols ::= "
     "name "
     "(\", \" name)*\ncond ::= name \" = \" (number | string)\nname ::= [a-z] [a-z0-9_]*\nnumber "
     "::= "
     "[0-9]+\nstring ::= \"'\" [^']* \"'\"\n",
     "SELECT name, wing_span FROM birds WHERE kind = 'arctic tern'"},
};

struct times {
    double us[MAX_STEPS];
    int n;
};

static int by_time(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* Time of this thread only: other load on the machine doesn't count. */
static uint64_t cpu_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static double mean(const struct times *t)
{
    double sum = 0;
    for (int i = 0; i < t->n; i++) {
        sum += t->us[i];
    }
    return t->n > 0 ? sum / t->n : 0;
}

/* One mask before every token of the output, and one after the last. */
static int follow(struct grammar *g, const int32_t *ids, int n, uint32_t *mask, struct times *t)
{
    int config = grammar_start(g);
    for (int i = 0; i <= n && config >= 0; i++) {
        uint64_t start = cpu_ns();
        (void)grammar_mask(g, config, mask);
        if (t->n < MAX_STEPS) {
            t->us[t->n++] = (double)(cpu_ns() - start) * 1e-3;
        }
        if (i < n) {
            config = grammar_step_token(g, config, ids[i]);
        }
    }
    return config >= 0 && grammar_can_stop(g, config) ? 0 : -1;
}

static int run(int k, const struct tokenizer *t, const struct grammar_vocab *v, int rounds,
               struct times *all_cold, struct times *all_warm)
{
    static struct times cold, warm;
    struct grammar *g;
    struct err e = {0};
    struct token_ids ids = {0};
    uint32_t *mask = malloc(sizeof *mask * (size_t)grammar_vocab_mask_words(v));
    uint64_t start = cpu_ns();
    int rc = grammar_compile(&g, cases[k].kind, cases[k].text, strlen(cases[k].text), NULL, v, &e);
    double compile_ms = (double)(cpu_ns() - start) * 1e-6;
    cold.n = warm.n = 0;
    if (rc != 0 || mask == NULL ||
        tokenizer_encode(t, cases[k].output, strlen(cases[k].output), 0, &ids, &e) != 0) {
        fprintf(stderr, "%s: %s\n", cases[k].name, e.text);
        free(mask);
        return -1;
    }
    rc = follow(g, ids.ids, (int)ids.n, mask, &cold);
    for (int i = 0; i < rounds && rc == 0; i++) {
        rc = follow(g, ids.ids, (int)ids.n, mask, &warm);
    }
    if (rc != 0) {
        fprintf(stderr, "%s: its grammar does not allow its text\n", cases[k].name);
    }
    for (int i = 0; i < cold.n && all_cold->n < MAX_STEPS; i++) {
        all_cold->us[all_cold->n++] = cold.us[i];
    }
    for (int i = 0; i < warm.n && all_warm->n < MAX_STEPS; i++) {
        all_warm->us[all_warm->n++] = warm.us[i];
    }
    qsort(cold.us, (size_t)cold.n, sizeof *cold.us, by_time);
    qsort(warm.us, (size_t)warm.n, sizeof *warm.us, by_time);
    printf("%-16s %6d  %8.1f   %7.0f %7.0f %7.0f   %7.1f %7.1f\n", cases[k].name, (int)ids.n + 1,
           compile_ms, mean(&cold), cold.us[cold.n * 99 / 100], cold.us[cold.n - 1], mean(&warm),
           warm.us[warm.n - 1]);
    grammar_unref(g);
    token_ids_fini(&ids);
    free(mask);
    return rc;
}

int main(int argc, char **argv)
{
    static struct times cold, warm;
    struct tokenizer *t;
    struct grammar_vocab *v;
    struct err e = {0};
    int rounds = argc > 2 ? atoi(argv[2]) : 3, status = 0;
    if (argc < 2 || tokenizer_open(&t, argv[1], &e) != 0) {
        fprintf(stderr, "usage: grammar_bench DIR [ROUNDS] (%s)\n", e.text);
        return 1;
    }
    uint64_t start = cpu_ns();
    if (grammar_vocab_open(&v, t, VOCABULARY, &e) != 0) {
        fprintf(stderr, "%s\n", e.text);
        return 1;
    }
    printf("%d tokens; the vocabulary's trie takes %.0f ms, once\n", tokenizer_n_ids(t),
           (double)(cpu_ns() - start) * 1e-6);
    printf("%-16s %6s  %8s   %7s %7s %7s   %7s %7s\n", "", "masks", "compile", "cold", "p99", "max",
           "warm", "max");
    printf("%-16s %6s  %8s   %7s %7s %7s   %7s %7s\n", "", "", "ms", "us", "us", "us", "us", "us");
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        status |= run((int)k, t, v, rounds, &cold, &warm) != 0;
    }
    printf("mean of all masks: %.0f us cold, %.1f us warm; 8 rows a step: %.2f ms cold, %.2f ms "
           "warm\n",
           mean(&cold), mean(&warm), 8 * mean(&cold) * 1e-3, 8 * mean(&warm) * 1e-3);
    grammar_vocab_close(v);
    tokenizer_close(t);
    return status;
}
