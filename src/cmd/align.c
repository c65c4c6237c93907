/* SPDX-License-Identifier: Apache-2.0 */
/* tern align MODEL: generates greedily twice, eagerly and from the compiled plan, and compares
 * every logit bit by bit; with --golden FILE also with stored logits of another implementation.
 * Exit code 1 on any difference. */
#include "model/align.h"
#include "base/json.h"
#include "cmd/args.h"
#include "cmd/cmd.h"
#include "lib/setup.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct args_align {
    int json;
    const char *golden;
    int64_t tokens;
    struct opt_list prompts;
};

#define FIELD(f) offsetof(struct args_align, f)
static const struct opt rows[] = {
    {.name = "prompt",
     .others = "-p",
     .type = OPT_APPEND,
     .offset = FIELD(prompts),
     .group = "Comparison",
     .help = "Prompt, may be repeated; default: three of the ERNIE adaptation notes."},
    {.name = "tokens",
     .type = OPT_INT,
     .offset = FIELD(tokens),
     .group = "Comparison",
     .def = "32",
     .min = 1,
     .max = ALIGN_MAX_TOKENS,
     .help = "Greedy tokens per prompt."},
    {.name = "golden",
     .type = OPT_STRING,
     .offset = FIELD(golden),
     .group = "Comparison",
     .meta = "FILE",
     .help = "golden.json with logits of another implementation (--enforce-eager: compare the "
             "eager pass with it)."},
    {.name = "json",
     .type = OPT_BOOL,
     .offset = FIELD(json),
     .group = "Comparison",
     .def = "false",
     .help = "One JSON object."},
};

static const char *const notes_prompts[] = {"The quick brown fox jumps over the lazy dog.",
                                            "1+1等于几？", "import torch"};

struct comparison {
    struct token_ids ids[ALIGN_MAX_PROMPTS];
    struct align_prompt prompts[ALIGN_MAX_PROMPTS];
    const char *texts[ALIGN_MAX_PROMPTS];
    int n;
    struct align_result result;
    struct align_golden_result golden;
};

static int collect_prompts(struct comparison *c, const struct setup *s,
                           const struct args_align *own, struct err *e)
{
    c->n = own->prompts.n ? own->prompts.n : (int)(sizeof notes_prompts / sizeof *notes_prompts);
    if (c->n > ALIGN_MAX_PROMPTS) {
        return err_set(e, ERR_INVALID, "--prompt: at most %d prompts", ALIGN_MAX_PROMPTS);
    }
    for (int i = 0; i < c->n; i++) {
        c->texts[i] = own->prompts.n ? own->prompts.v[i] : notes_prompts[i];
        int rc = tokenizer_encode(s->tokenizer, c->texts[i], strlen(c->texts[i]), 1, &c->ids[i], e);
        if (rc < 0) {
            return err_prefix(e, "prompt %d", i + 1);
        }
        if (c->ids[i].n == 0) {
            return err_set(e, ERR_INVALID, "prompt %d is empty", i + 1);
        }
        for (size_t k = 0; k < c->ids[i].n; k++) {
            if (c->ids[i].ids[k] >= model_config(s->model)->vocab_size) {
                return err_set(e, ERR_INVALID, "prompt %d needs id %d, but the model has only %d",
                               i + 1, c->ids[i].ids[k], model_config(s->model)->vocab_size);
            }
        }
        c->prompts[i] = (struct align_prompt){c->ids[i].ids, (int)c->ids[i].n};
    }
    return 0;
}

static void print_text(const struct comparison *c, const struct setup *s, int with_golden)
{
    const struct align_result *r = &c->result;
    printf("model %s, %s, level %s, %d thread%s, numerics %s\n", s->a->model,
           model_act(s->model) == ACT_BF16 ? "bfloat16" : "float32", cpu_level_name(s->level),
           s->n_threads, s->n_threads == 1 ? "" : "s", model_numerics_id(s->model));
    for (int i = 0; i < r->n_prompts; i++) {
        const struct align_prompt_result *p = &r->prompts[i];
        printf("prompt %d (%d ids, %d greedy tokens) %s: token ids %s, logits %s, largest relative "
               "error %.3g, hash %016" PRIx64 "\n",
               i + 1, c->prompts[i].n, p->n_tokens, c->texts[i], p->ids_equal ? "equal" : "DIFFER",
               p->bits_equal ? "equal bit for bit" : "DIFFER", p->max_relative_error, p->plan_hash);
        if (!p->bits_equal) {
            printf("  first difference at step %d, eager hash %016" PRIx64 "\n",
                   p->first_difference, p->eager_hash);
        }
    }
    printf("token ids equal: %s\nlargest relative error: %.3g\nlogits hash: %016" PRIx64 "\n",
           r->ids_equal ? "yes" : "NO", r->max_relative_error, r->logits_hash);
    if (with_golden) {
        const struct align_golden_result *g = &c->golden;
        printf("golden: %d of %d greedy ids equal, %d of %d argmax equal, logit error max %.3g "
               "(limit %.3g) rms %.3g (limit %.3g), "
               "perplexity %.6g expected %.6g (relative error %.3g, limit %.3g): %s%s\n",
               g->n_greedy_equal, g->n_greedy, g->n_argmax_equal, g->n_argmax, g->max_logit_error,
               g->limit_logit, g->rms_logit_error, g->limit_rms, g->perplexity,
               g->perplexity_expected, g->perplexity_error, g->limit_perplexity,
               g->passed ? "passed" : "FAILED: ", g->passed ? "" : g->reason);
    }
}

static void put_hex(struct json_writer *w, const char *key, uint64_t v)
{
    char text[24];
    snprintf(text, sizeof text, "%016" PRIx64, v);
    json_w_kstring(w, key, text);
}

static void print_json(const struct comparison *c, const struct setup *s, int with_golden)
{
    const struct align_result *r = &c->result;
    struct buf out;
    struct json_writer w;
    buf_init(&out);
    json_w_init(&w, &out);
    json_w_object(&w);
    json_w_kstring(&w, "model", s->a->model);
    json_w_kstring(&w, "level", cpu_level_name(s->level));
    json_w_kstring(&w, "numerics_id", model_numerics_id(s->model));
    json_w_kbool(&w, "ids_equal", r->ids_equal);
    json_w_kbool(&w, "bits_equal", r->bits_equal);
    json_w_kdouble(&w, "max_relative_error", r->max_relative_error);
    put_hex(&w, "logits_hash", r->logits_hash);
    json_w_key(&w, "prompts");
    json_w_array(&w);
    for (int i = 0; i < r->n_prompts; i++) {
        const struct align_prompt_result *p = &r->prompts[i];
        json_w_object(&w);
        json_w_kstring(&w, "prompt", c->texts[i]);
        json_w_key(&w, "token_ids");
        json_w_array(&w);
        for (int k = 0; k < p->n_tokens; k++) {
            json_w_int(&w, p->plan_ids[k]);
        }
        json_w_array_end(&w);
        json_w_kbool(&w, "ids_equal", p->ids_equal);
        json_w_kbool(&w, "bits_equal", p->bits_equal);
        json_w_kint(&w, "first_difference", p->first_difference);
        json_w_kdouble(&w, "max_relative_error", p->max_relative_error);
        put_hex(&w, "logits_hash", p->plan_hash);
        json_w_object_end(&w);
    }
    json_w_array_end(&w);
    if (with_golden) {
        const struct align_golden_result *g = &c->golden;
        json_w_key(&w, "golden");
        json_w_object(&w);
        json_w_kbool(&w, "passed", g->passed);
        json_w_kstring(&w, "reason", g->reason);
        json_w_kint(&w, "greedy", g->n_greedy);
        json_w_kint(&w, "greedy_equal", g->n_greedy_equal);
        json_w_kdouble(&w, "max_logit_error", g->max_logit_error);
        json_w_kdouble(&w, "rms_logit_error", g->rms_logit_error);
        json_w_kdouble(&w, "max_logprob_error", g->max_logprob_error);
        json_w_kdouble(&w, "perplexity_error", g->perplexity_error);
        json_w_object_end(&w);
    }
    json_w_object_end(&w);
    puts(out.data ? out.data : "");
    buf_fini(&out);
}

static int run(struct setup *s, const struct args_align *own, struct comparison *c, struct err *e)
{
    int rc = setup_cpu(s, e);
    rc = rc < 0 ? rc : setup_files(s, e);
    rc = rc < 0 ? rc : collect_prompts(c, s, own, e);
    rc = rc < 0 ? rc : setup_load(s, e);
    struct align_options ao = {.model = s->model,
                               .kernels = s->kernels,
                               .pool = s->pool,
                               .prompts = c->prompts,
                               .n_prompts = c->n,
                               .n_tokens = (int)own->tokens,
                               .eager = s->a->enforce_eager};
    rc = rc < 0 ? rc : align_run(&ao, &c->result, e);
    if (rc >= 0 && own->golden) {
        rc = align_golden(&ao, own->golden, &c->golden, e);
    }
    if (rc < 0) {
        return rc;
    }
    if (own->json) {
        print_json(c, s, own->golden != NULL);
    } else {
        print_text(c, s, own->golden != NULL);
    }
    return 0;
}

int cmd_align(int argc, char **argv)
{
    const char *command = "tern align";
    struct args_align own = {0};
    struct args_engine a = {0};
    struct opts o = {.usage = "tern align MODEL [options]",
                     .tables = {{rows, sizeof rows / sizeof *rows, &own}, args_engine_table(&a)},
                     .n_tables = 2};
    struct setup s = {.a = &a};
    struct err e = {0, ""};
    struct comparison *c = calloc(1, sizeof *c);
    int rc = args_parse_model(&o, command, &a, argc, argv);
    if (rc < 0 && !c) {
        err_set(&e, ERR_NOMEM, "out of memory");
        rc = args_fail(command, &e);
    } else if (rc < 0) {
        args_log(&o, &a, NULL, &s.log);
        if (run(&s, &own, c, &e) < 0) {
            rc = args_fail(command, &e);
        } else {
            rc = c->result.ids_equal && c->result.bits_equal && (!own.golden || c->golden.passed)
                     ? 0
                     : EXIT_FAULT;
        }
    }
    for (int i = 0; c && i < ALIGN_MAX_PROMPTS; i++) {
        token_ids_fini(&c->ids[i]);
    }
    free(c);
    setup_close(&s);
    opts_fini(&o);
    return rc;
}
