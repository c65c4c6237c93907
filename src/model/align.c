/* SPDX-License-Identifier: Apache-2.0 */
/* align: two forwards with KV stores of their own, in lockstep over one sequence at a time; see
 * align.h. A `lane` is one forward, its store and the sequence it is at. Block ids are handed out
 * in plain order; that their order doesn't matter is what the same-bits tests show. */
#include "model/align.h"

#include "base/hash.h"
#include "base/json.h"
#include "model/forward.h"
#include "model/internal.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_GOLDEN_BYTES (16u << 20)
#define MAX_GOLDEN_IDS   65536

struct lane {
    const struct align_options *o;
    struct kv_store *kv;
    struct forward *f;
    int capacity; /* tokens */
    int32_t *block_table, *kv_index;
    int32_t (*rope_pos)[3];
    uint8_t *wants;
    int n; /* tokens in the cache */
};

static void lane_close(struct lane *l)
{
    forward_close(l->f);
    kv_store_close(l->kv);
    free(l->block_table);
    free(l->kv_index);
    free(l->rope_pos);
    free(l->wants);
    memset(l, 0, sizeof *l);
}

static int lane_open(struct lane *l, const struct align_options *o, int eager, int capacity,
                     int max_logits, struct err *e)
{
    int n_blocks = (capacity + KV_BLOCK_TOKENS - 1) / KV_BLOCK_TOKENS;
    size_t n = (size_t)capacity;
    struct kv_layout layout;
    memset(l, 0, sizeof *l);
    l->o = o;
    l->capacity = capacity;
    l->block_table = calloc((size_t)n_blocks, sizeof *l->block_table);
    l->kv_index = calloc(n, sizeof *l->kv_index);
    l->rope_pos = calloc(n, sizeof *l->rope_pos);
    l->wants = calloc(n, 1);
    if (l->block_table == NULL || l->kv_index == NULL || l->rope_pos == NULL || l->wants == NULL) {
        lane_close(l);
        return err_set(e, ERR_NOMEM, "align: out of memory");
    }
    for (int i = 0; i < n_blocks; i++) {
        l->block_table[i] = i;
    }
    model_kv_layout(o->model, &layout);
    struct forward_options fo = {.max_rows = capacity,
                                 .max_logits = max_logits,
                                 .max_seqs = 1,
                                 .max_model_len = capacity,
                                 .eager = eager};
    int rc = kv_store_open(&l->kv, &layout, n_blocks, e);
    rc =
        rc < 0 ? rc : forward_open(&l->f, o->model, o->kernels, o->pool, l->kv, &comm_none, &fo, e);
    if (rc < 0) {
        lane_close(l);
    }
    return rc;
}

/* Adds n tokens to the sequence; logits of all of them, or of the last. */
static int lane_feed(struct lane *l, const int32_t *ids, int n, int all, const float **logits,
                     struct err *e)
{
    for (int i = 0; i < n; i++) {
        l->kv_index[i] = l->n + i;
        l->rope_pos[i][0] = l->rope_pos[i][1] = l->rope_pos[i][2] = l->n + i;
        l->wants[i] = all || i == n - 1;
    }
    struct forward_seq seq = {0, n, l->block_table};
    struct forward_batch b = {.n_rows = n,
                              .token_id = ids,
                              .kv_index = l->kv_index,
                              .rope_pos = (const int32_t(*)[3])l->rope_pos,
                              .wants_logits = l->wants,
                              .n_seqs = 1,
                              .seqs = &seq};
    int rc = forward_run(l->f, &b, logits, e);
    l->n += n;
    return rc;
}

static void compare_logits(struct align_prompt_result *r, int step, const float *eager,
                           const float *plan, int n)
{
    if (memcmp(eager, plan, (size_t)n * sizeof *plan) == 0) {
        return;
    }
    r->bits_equal = 0;
    if (r->first_difference < 0) {
        r->first_difference = step;
    }
    for (int i = 0; i < n; i++) {
        double a = (double)eager[i], d = fabs((double)plan[i] - a) / fmax(fabs(a), 1e-6);
        if (d > r->max_relative_error || d != d) {
            r->max_relative_error = d == d ? d : INFINITY;
        }
    }
}

static int align_prompt(const struct align_options *o, struct lane *eager, struct lane *plan,
                        const struct align_prompt *prompt, struct align_prompt_result *r,
                        struct err *e)
{
    int vocab = model_config(o->model)->vocab_size;
    const float *a = NULL, *b = NULL;
    r->first_difference = -1;
    r->bits_equal = 1;
    r->n_tokens = o->n_tokens;
    eager->n = plan->n = 0;
    for (int i = 0; i < o->n_tokens; i++) {
        const int32_t *ids_a = i == 0 ? prompt->ids : &r->eager_ids[i - 1];
        const int32_t *ids_b = i == 0 ? prompt->ids : &r->plan_ids[i - 1];
        int n = i == 0 ? prompt->n : 1;
        int rc = lane_feed(eager, ids_a, n, 0, &a, e);
        rc = rc < 0 ? rc : lane_feed(plan, ids_b, n, 0, &b, e);
        if (rc < 0) {
            return rc;
        }
        r->eager_ids[i] = o->kernels->argmax(a, vocab);
        r->plan_ids[i] = o->kernels->argmax(b, vocab);
        compare_logits(r, i, a, b, vocab);
    }
    r->ids_equal = memcmp(r->eager_ids, r->plan_ids, (size_t)o->n_tokens * sizeof(int32_t)) == 0;
    r->eager_hash = hash64(a, (size_t)vocab * sizeof *a, 0);
    r->plan_hash = hash64(b, (size_t)vocab * sizeof *b, 0);
    return 0;
}

int align_run(const struct align_options *o, struct align_result *r, struct err *e)
{
    int longest = 0;
    memset(r, 0, sizeof *r);
    if (o->n_prompts < 1 || o->n_prompts > ALIGN_MAX_PROMPTS || o->n_tokens < 1 ||
        o->n_tokens > ALIGN_MAX_TOKENS) {
        return err_set(e, ERR_INVALID, "align: %d prompts of %d tokens, expected 1..%d and 1..%d",
                       o->n_prompts, o->n_tokens, ALIGN_MAX_PROMPTS, ALIGN_MAX_TOKENS);
    }
    for (int i = 0; i < o->n_prompts; i++) {
        if (o->prompts[i].n < 1 || o->prompts[i].n > MAX_GOLDEN_IDS) {
            return err_set(e, ERR_INVALID, "align: prompt %d has %d tokens, expected 1..%d", i,
                           o->prompts[i].n, MAX_GOLDEN_IDS);
        }
        longest = o->prompts[i].n > longest ? o->prompts[i].n : longest;
    }
    struct lane eager = {0}, plan = {0};
    int rc = lane_open(&eager, o, 1, longest + o->n_tokens, 1, e);
    rc = rc < 0 ? rc : lane_open(&plan, o, 0, longest + o->n_tokens, 1, e);
    uint64_t hashes[ALIGN_MAX_PROMPTS];
    r->ids_equal = r->bits_equal = 1;
    for (int i = 0; i < o->n_prompts && rc == 0; i++) {
        struct align_prompt_result *p = &r->prompts[i];
        rc = align_prompt(o, &eager, &plan, &o->prompts[i], p, e);
        r->ids_equal &= p->ids_equal;
        r->bits_equal &= p->bits_equal;
        r->max_relative_error = fmax(r->max_relative_error, p->max_relative_error);
        hashes[i] = p->plan_hash;
        r->n_prompts++;
    }
    if (rc == 0) {
        r->logits_hash = hash64(hashes, (size_t)o->n_prompts * sizeof hashes[0], 0);
    }
    lane_close(&eager);
    lane_close(&plan);
    return rc;
}

/* ---- golden logits ---- */

struct golden {
    const struct align_options *o;
    const char *path;
    struct lane lane;
    int32_t *ids; /* [MAX_GOLDEN_IDS] */
    int vocab;
    double margin; /* greedy ids are compared up to the first smaller one */
    double sum_squares;
    int64_t n_logits;
    struct align_golden_result *r;
    struct err *e;
};

static int bad(struct golden *g, const char *what)
{
    return err_set(g->e, ERR_FORMAT, "%s: %s is missing or malformed", g->path, what);
}

/* Ids of a JSON array; the count or an error. */
static int read_ids(struct golden *g, const struct json *list, const char *what)
{
    size_t n = json_length(list);
    if (json_type(list) != JSON_ARRAY || n == 0 || n > MAX_GOLDEN_IDS) {
        return bad(g, what);
    }
    for (size_t i = 0; i < n; i++) {
        const struct json *v = json_at(list, i);
        if (json_type(v) != JSON_INT || json_int(v) < 0 || json_int(v) >= g->vocab) {
            return err_set(g->e, ERR_FORMAT, "%s: %s[%zu] is no token id below %d", g->path, what,
                           i, g->vocab);
        }
        g->ids[i] = (int32_t)json_int(v);
    }
    return (int)n;
}

static double log_sum_exp(const struct golden *g, const float *logits)
{
    float max;
    double sum;
    g->o->kernels->logsumexp(logits, g->vocab, &max, &sum);
    return (double)max + log(sum);
}

static void add_logit(struct golden *g, double found, double expected)
{
    double d = fabs(found - expected);
    g->sum_squares += d * d;
    g->n_logits++;
    if (!(d <= g->r->max_logit_error)) {
        g->r->max_logit_error = d == d ? d : INFINITY;
    }
}

static int check_prompt(struct golden *g, const struct json *prompt)
{
    const struct json *greedy = json_get(prompt, "greedy"), *margins = json_get(prompt, "margins");
    const struct json *logprobs = json_get(prompt, "logprobs"), *last = json_get(prompt, "last");
    const float *logits;
    int n = read_ids(g, json_get(prompt, "ids"), "prompts[].ids");
    if (n < 0) {
        return n;
    }
    g->lane.n = 0;
    int rc = lane_feed(&g->lane, g->ids, n, 0, &logits, g->e);
    if (rc < 0) {
        return rc;
    }
    const struct json *top_ids = json_get(last, "top_ids"),
                      *top_logits = json_get(last, "top_logits");
    for (size_t i = 0; i < json_length(top_ids); i++) {
        int64_t id = json_int(json_at(top_ids, i));
        if (id < 0 || id >= g->vocab) {
            return bad(g, "prompts[].last.top_ids");
        }
        add_logit(g, (double)logits[id], json_double(json_at(top_logits, i)));
    }
    if (json_type(json_get(last, "logsumexp")) != JSON_NULL) {
        add_logit(g, log_sum_exp(g, logits), json_double(json_get(last, "logsumexp")));
    }
    int n_greedy = json_type(greedy) == JSON_NULL ? 0 : read_ids(g, greedy, "prompts[].greedy");
    if (n_greedy < 0) {
        return n_greedy;
    }
    for (int i = 0; i < n_greedy; i++) {
        if (json_double(json_at(margins, (size_t)i)) < g->margin) {
            break;
        }
        g->r->n_greedy++;
        g->r->n_greedy_equal += g->o->kernels->argmax(logits, g->vocab) == g->ids[i];
        if (json_type(logprobs) == JSON_ARRAY) {
            double lp = (double)logits[g->ids[i]] - log_sum_exp(g, logits);
            double d = fabs(lp - json_double(json_at(logprobs, (size_t)i)));
            if (!(d <= g->r->max_logprob_error)) {
                g->r->max_logprob_error = d == d ? d : INFINITY;
            }
        }
        if (i + 1 < n_greedy && (rc = lane_feed(&g->lane, &g->ids[i], 1, 0, &logits, g->e)) < 0) {
            return rc;
        }
    }
    g->r->n_prompts++;
    return 0;
}

static void check_fingerprint_row(struct golden *g, const struct json *row,
                                  const struct json *probe_ids, const float *logits)
{
    double sum = 0, squares = 0;
    int best = g->o->kernels->argmax(logits, g->vocab);
    for (int i = 0; i < g->vocab; i++) {
        sum += (double)logits[i];
        squares += (double)logits[i] * (double)logits[i];
    }
    g->r->n_argmax++;
    g->r->n_argmax_equal += best == json_int(json_at(row, 0));
    add_logit(g, (double)logits[best], json_double(json_at(row, 1)));
    add_logit(g, log_sum_exp(g, logits), json_double(json_at(row, 2)));
    add_logit(g, sum / g->vocab, json_double(json_at(row, 3)));
    add_logit(g, sqrt(squares / g->vocab), json_double(json_at(row, 4)));
    for (size_t i = 0; i < json_length(probe_ids); i++) {
        int64_t id = json_int(json_at(probe_ids, i));
        if (id >= 0 && id < g->vocab) {
            add_logit(g, (double)logits[id], json_double(json_at(row, 5 + i)));
        }
    }
}

static int check_fingerprint(struct golden *g, const struct json *root)
{
    const struct json *fp = json_get(root, "fingerprint"), *prompts = json_get(root, "prompts");
    const char *name = json_type(json_get(fp, "prompt")) == JSON_STRING
                           ? json_string(json_get(fp, "prompt"), NULL)
                           : NULL;
    for (size_t i = 0; name != NULL && i < json_length(prompts); i++) {
        const struct json *p = json_at(prompts, i);
        if (json_type(json_get(p, "name")) != JSON_STRING ||
            strcmp(json_string(json_get(p, "name"), NULL), name) != 0) {
            continue;
        }
        const struct json *rows = json_get(fp, "rows");
        const float *logits;
        int n = read_ids(g, json_get(p, "ids"), "prompts[].ids");
        if (n < 0 || json_length(rows) != (size_t)n) {
            return n < 0 ? n : bad(g, "fingerprint.rows");
        }
        g->lane.n = 0;
        int rc = lane_feed(&g->lane, g->ids, n, 1, &logits, g->e);
        for (int r = 0; r < n && rc == 0; r++) {
            check_fingerprint_row(g, json_at(rows, (size_t)r), json_get(fp, "probe_ids"),
                                  logits + (size_t)r * forward_logits_stride(g->lane.f));
        }
        return rc;
    }
    return name == NULL ? 0 : bad(g, "fingerprint.prompt");
}

static int check_perplexity(struct golden *g, const struct json *root)
{
    const struct json *p = json_get(root, "perplexity");
    if (json_type(p) != JSON_OBJECT) {
        return 0;
    }
    const float *logits;
    int n = read_ids(g, json_get(p, "ids"), "perplexity.ids");
    if (n < 2) {
        return n < 0 ? n : bad(g, "perplexity.ids");
    }
    g->lane.n = 0;
    int rc = lane_feed(&g->lane, g->ids, n, 1, &logits, g->e);
    if (rc < 0) {
        return rc;
    }
    double nll = 0;
    for (int i = 0; i + 1 < n; i++) {
        const float *row = logits + (size_t)i * forward_logits_stride(g->lane.f);
        nll += log_sum_exp(g, row) - (double)row[g->ids[i + 1]];
    }
    g->r->perplexity = exp(nll / (n - 1));
    g->r->perplexity_expected = json_double(json_get(p, "ppl"));
    g->r->perplexity_error = fabs(g->r->perplexity / g->r->perplexity_expected - 1);
    return 0;
}

static void judge(struct golden *g)
{
    struct align_golden_result *r = g->r;
    r->rms_logit_error = g->n_logits > 0 ? sqrt(g->sum_squares / (double)g->n_logits) : 0;
    double argmax = r->n_argmax > 0 ? (double)r->n_argmax_equal / r->n_argmax : 1;
    if (r->n_greedy_equal != r->n_greedy) {
        snprintf(r->reason, sizeof r->reason, "%d of %d greedy ids differ",
                 r->n_greedy - r->n_greedy_equal, r->n_greedy);
    } else if (!(r->max_logit_error <= r->limit_logit)) {
        snprintf(r->reason, sizeof r->reason, "largest logit error %.3g, limit %.3g",
                 r->max_logit_error, r->limit_logit);
    } else if (!(r->max_logprob_error <= r->limit_logit)) {
        snprintf(r->reason, sizeof r->reason, "largest logprob error %.3g, limit %.3g",
                 r->max_logprob_error, r->limit_logit);
    } else if (!(r->rms_logit_error <= r->limit_rms)) {
        snprintf(r->reason, sizeof r->reason, "rms logit error %.3g, limit %.3g",
                 r->rms_logit_error, r->limit_rms);
    } else if (argmax < r->limit_argmax) {
        snprintf(r->reason, sizeof r->reason, "argmax equal in %.1f %%, limit %.1f %%",
                 100 * argmax, 100 * r->limit_argmax);
    } else if (!(r->perplexity_error <= r->limit_perplexity)) {
        snprintf(r->reason, sizeof r->reason, "perplexity %.6g, expected %.6g within %.2g relative",
                 r->perplexity, r->perplexity_expected, r->limit_perplexity);
    } else if (r->n_greedy + r->n_argmax + (r->perplexity_expected > 0) == 0) {
        snprintf(r->reason, sizeof r->reason, "the file holds nothing to compare");
    } else {
        r->passed = 1;
    }
}

/* Longest sequence that the file makes us run. */
static size_t longest_sequence(const struct json *root)
{
    const struct json *prompts = json_get(root, "prompts");
    size_t most = json_length(json_get(json_get(root, "perplexity"), "ids"));
    for (size_t i = 0; i < json_length(prompts); i++) {
        const struct json *p = json_at(prompts, i);
        size_t n = json_length(json_get(p, "ids")) + json_length(json_get(p, "greedy"));
        most = n > most ? n : most;
    }
    return most;
}

/* Golden figures are those of float32 activations, so that 16-bit and 8-bit ones have limits of
 * their own (twice what the oracle's own emulation of them shows). */
static void set_limits(struct golden *g)
{
    static const struct {
        double logit, rms, argmax, perplexity, margin;
    } limits[] = {{5e-4, 5e-4, 1.0, 1e-4, 0},    /* float32 */
                  {1.4, 0.18, 0.87, 0.03, 0.5},  /* bfloat16 */
                  {1.7, 0.26, 0.78, 0.04, 0.6},  /* int8 */
                  {5.2, 0.77, 0.44, 0.16, 2.8}}; /* fp8 */
    enum input_format input = weights_input(&g->o->model->weights);
    int i = input == INPUT_I8 ? 2 : input != INPUT_ACT ? 3 : model_act(g->o->model) == ACT_BF16;
    g->margin = limits[i].margin;
    g->r->limit_logit = limits[i].logit;
    g->r->limit_rms = limits[i].rms;
    g->r->limit_argmax = limits[i].argmax;
    g->r->limit_perplexity = limits[i].perplexity;
}

int align_golden(const struct align_options *o, const char *golden_path,
                 struct align_golden_result *r, struct err *e)
{
    struct golden g = {
        .o = o, .path = golden_path, .r = r, .e = e, .vocab = model_config(o->model)->vocab_size};
    struct json *root = NULL;
    memset(r, 0, sizeof *r);
    set_limits(&g);
    int rc = json_parse_file(&root, golden_path, MAX_GOLDEN_BYTES, e);
    if (rc < 0) {
        return rc;
    }
    size_t longest = longest_sequence(root);
    const struct json *prompts = json_get(root, "prompts");
    if (longest == 0 || longest > MAX_GOLDEN_IDS ||
        (g.ids = calloc(MAX_GOLDEN_IDS, sizeof *g.ids)) == NULL) {
        rc = longest == 0 || longest > MAX_GOLDEN_IDS
                 ? bad(&g, "prompts or perplexity")
                 : err_set(e, ERR_NOMEM, "align: out of memory");
        goto done;
    }
    rc = lane_open(&g.lane, o, o->eager, (int)longest, (int)longest, e);
    for (size_t i = 0; i < json_length(prompts) && rc == 0; i++) {
        rc = check_prompt(&g, json_at(prompts, i));
    }
    rc = rc < 0 ? rc : check_fingerprint(&g, root);
    rc = rc < 0 ? rc : check_perplexity(&g, root);
    if (rc == 0) {
        judge(&g);
    }
done:
    lane_close(&g.lane);
    free(g.ids);
    json_free(root);
    return rc;
}
