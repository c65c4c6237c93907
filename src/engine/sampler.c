/* SPDX-License-Identifier: Apache-2.0 */
/* Sampling of one row, in vLLM's order: allowed ids, bad words, min_tokens, logit bias, penalties,
 * argmax or temperature, min_p, top_k, top_p, draw.
 *
 * A vocabulary of 100,000 entries is never sorted. What survives min_p, top_k and top_p is always
 * "the largest ones", so each filter is a threshold:
 *  - one pass divides by the temperature and weighs every entry, w = exp(y - max), and keeps only
 * sums and maxima per chunk (the kernel `weigh`): whatever then looks into a chunk weighs it once
 * more, which is less work than to write all y and w;
 *  - a lower bound for what can survive comes for free: the k-th largest chunk maximum for top_k,
 * and (1 - p) * total / vocabulary for top_p (all entries up to that weight together are at most 1
 * - p); it leaves a short list;
 *  - exact thresholds in the list come from a radix walk over the bits of the value (count for
 * top_k, weight for top_p), three levels whatever the distribution. Rules: top_k keeps ties with
 * the k-th; top_p keeps an entry while the larger ones together weigh less than p, and ties there
 * go to the lower id; entries with weight 0 (exp below 2^-125) are never drawn.
 *
 * Everything is summed in double, in a fixed order (a chunk as `weigh` does, chunks and entries of a
 * list ascending), with an own exp and log, and one uniform number is drawn per token: the result
 * depends on the row and its parameters only. */
#include "engine/sampler.h"

#include "engine/rng.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define GREEDY_BELOW    1e-5
#define MIN_TEMPERATURE 0.01
#define CHUNK           WEIGH_CHUNK
#define LANES           4

typedef float vec_f __attribute__((vector_size(16)));
typedef int32_t vec_i __attribute__((vector_size(16)));

struct sampler {
    const struct kernels *kernels;
    int vocab_size;
    int n_chunks;
    float *y;          /* [n_chunks * CHUNK] modified logits, 64-byte aligned */
    float *masked;     /* [n_chunks * CHUNK] logits that a grammar leaves */
    uint32_t *mask;    /* [n_chunks * CHUNK / 32] */
    int32_t *count;    /* [vocab_size] zero between calls */
    double *chunk_sum; /* [n_chunks] */
    float *chunk_max;  /* [n_chunks] */
    float *tops;       /* [n_chunks] scratch of bound_of_kth */
    int32_t *list_id;  /* the survivors, ascending ids */
    float *list_y, *list_w;
    int n_list;
    int32_t *picked; /* scratch of walk_down */
};

/* A row whose chunks are weighed: y = x / temperature, w = exp(y - max), max the largest y. */
struct scaled {
    const float *x;
    float temperature, max;
};

/* ---- life ---- */

static size_t padded(int vocab_size)
{
    return ((size_t)vocab_size + CHUNK - 1) / CHUNK * CHUNK;
}

size_t sampler_bytes(int vocab_size)
{
    size_t n = padded(vocab_size);
    return n * (4 * sizeof(float) + 3 * sizeof(int32_t)) + n / 8 +
           n / CHUNK * (sizeof(double) + 2 * sizeof(float));
}

int sampler_open(struct sampler **out, const struct kernels *k, int vocab_size, struct err *e)
{
    *out = NULL;
    size_t n = padded(vocab_size);
    struct sampler *s = calloc(1, sizeof *s);
    if (!s) {
        return err_set(e, ERR_NOMEM, "sampler: out of memory");
    }
    s->kernels = k;
    s->vocab_size = vocab_size;
    s->n_chunks = (int)(n / CHUNK);
    s->y = aligned_alloc(64, n * sizeof *s->y);
    s->masked = aligned_alloc(64, n * sizeof *s->masked);
    s->mask = malloc(n / 8);
    s->count = calloc(n, sizeof *s->count);
    s->chunk_sum = malloc((size_t)s->n_chunks * sizeof *s->chunk_sum);
    s->chunk_max = malloc((size_t)s->n_chunks * sizeof *s->chunk_max);
    s->tops = malloc((size_t)s->n_chunks * sizeof *s->tops);
    s->list_id = malloc(n * sizeof *s->list_id);
    s->list_y = malloc(n * sizeof *s->list_y);
    s->list_w = malloc(n * sizeof *s->list_w);
    s->picked = malloc(n * sizeof *s->picked);
    if (!s->y || !s->masked || !s->mask || !s->count || !s->chunk_sum || !s->chunk_max ||
        !s->tops || !s->list_id || !s->list_y || !s->list_w || !s->picked) {
        sampler_close(s);
        return err_set(e, ERR_NOMEM, "sampler: out of memory");
    }
    *out = s;
    return 0;
}

void sampler_close(struct sampler *s)
{
    if (!s) {
        return;
    }
    free(s->y);
    free(s->masked);
    free(s->mask);
    free(s->count);
    free(s->chunk_sum);
    free(s->chunk_max);
    free(s->tops);
    free(s->list_id);
    free(s->list_y);
    free(s->list_w);
    free(s->picked);
    free(s);
}

/* ---- what changes logits ---- */

uint32_t *sampler_mask_words(struct sampler *s)
{
    return s->mask;
}

const float *sampler_masked(struct sampler *s, const float *logits, const uint32_t *mask)
{
    /* Most words of a mask allow nothing or everything. */
    for (int at = 0; at < s->vocab_size; at += 32) {
        int n = s->vocab_size - at < 32 ? s->vocab_size - at : 32;
        uint32_t m = mask[at / 32];
        if (m == UINT32_MAX && n == 32) {
            memcpy(s->masked + at, logits + at, 32 * sizeof *logits);
            continue;
        }
        for (int i = 0; i < n; i++) {
            s->masked[at + i] = -INFINITY;
        }
        for (; m != 0; m &= m - 1) {
            int i = __builtin_ctz(m);
            if (i < n) {
                s->masked[at + i] = logits[at + i];
            }
        }
    }
    return s->masked;
}

static int is_modified(const struct sampler_row *r)
{
    const struct sampling_params *p = r->params;
    return p->n_allowed_token_ids > 0 || p->n_bad_words > 0 || r->n_out < p->min_tokens ||
           p->n_logit_bias > 0 || p->repetition_penalty != 1.0 || p->frequency_penalty != 0.0 ||
           p->presence_penalty != 0.0;
}

static void apply_masks(struct sampler *s, const struct sampler_row *r)
{
    const struct sampling_params *p = r->params;
    if (p->n_allowed_token_ids > 0) {
        for (int i = 0; i < s->vocab_size; i++) {
            s->y[i] = -INFINITY;
        }
        for (int i = 0; i < p->n_allowed_token_ids; i++) {
            s->y[p->allowed_token_ids[i]] = r->logits[p->allowed_token_ids[i]];
        }
    }
    for (int i = 0; i < p->n_bad_words; i++) {
        const struct token_seq *word = &p->bad_words[i];
        int n_before = word->n - 1;
        if (n_before <= r->n_out &&
            (n_before == 0 || memcmp(word->ids, r->out + r->n_out - n_before,
                                     (size_t)n_before * sizeof(int32_t)) == 0)) {
            s->y[word->ids[n_before]] = -INFINITY;
        }
    }
    if (r->n_out < p->min_tokens && !r->must_stop) {
        if (r->eos_id >= 0 && r->eos_id < s->vocab_size) {
            s->y[r->eos_id] = -INFINITY;
        }
        for (int i = 0; i < p->n_stop_token_ids; i++) {
            if (p->stop_token_ids[i] >= 0 && p->stop_token_ids[i] < s->vocab_size) {
                s->y[p->stop_token_ids[i]] = -INFINITY;
            }
        }
    }
    for (int i = 0; i < p->n_logit_bias; i++) {
        s->y[p->logit_bias[i].id] += fminf(100.0f, fmaxf(-100.0f, p->logit_bias[i].bias));
    }
}

/* `count` holds 0 for a token not met yet, else 1 + its number of outputs. Returned to zero at the
 * end. */
static void apply_penalties(struct sampler *s, const struct sampler_row *r)
{
    const struct sampling_params *p = r->params;
    float repetition = (float)p->repetition_penalty;
    float frequency = (float)p->frequency_penalty, presence = (float)p->presence_penalty;
    if (repetition == 1.0f && frequency == 0.0f && presence == 0.0f) {
        return;
    }
    for (int i = 0; i < r->n_prompt; i++) {
        s->count[r->prompt[i]] = 1;
    }
    for (int i = 0; i < r->n_out; i++) {
        int32_t *c = &s->count[r->out[i]];
        *c = *c == 0 ? 2 : *c + 1;
    }
    for (int pass = 0; pass < 2; pass++) {
        const int32_t *ids = pass == 0 ? r->prompt : r->out;
        int n = pass == 0 ? r->n_prompt : r->n_out;
        for (int i = 0; i < n; i++) {
            int32_t id = ids[i], n_out = s->count[id] - 1;
            if (n_out < 0) {
                continue; /* done already */
            }
            float v = s->y[id];
            v = v > 0.0f ? v / repetition : v * repetition;
            if (n_out > 0) {
                v -= frequency * (float)n_out;
                v -= presence;
            }
            s->y[id] = v;
            s->count[id] = 0;
        }
    }
}

/* ---- weights ---- */

/* ln(x) for a finite x >= 2^-1022, about 1 ulp: x = m * 2^e with m near 1, then the atanh series.
 */
static double ln(double x)
{
    int e;
    double m = frexp(x, &e);
    if (m < 0.70710678118654752) {
        m *= 2.0;
        e--;
    }
    double s = (m - 1.0) / (m + 1.0), s2 = s * s, sum = 0.0;
    for (int k = 23; k >= 3; k -= 2) {
        sum = (sum + 1.0 / k) * s2;
    }
    return (double)e * 0.69314718055994531 + 2.0 * s * (1.0 + sum);
}

/* Sums and maxima of all chunks. */
static void weigh(struct sampler *s, const struct scaled *r)
{
    s->kernels->weigh(r->x, s->vocab_size, r->temperature, r->max, NULL, NULL, s->chunk_sum,
                      s->chunk_max);
}

/* y and w of one chunk; returns how many entries it has. */
static int weigh_chunk(const struct sampler *s, const struct scaled *r, int c, float *y, float *w)
{
    double sum;
    float top;
    int n = s->vocab_size - c * CHUNK;
    n = n < CHUNK ? n : CHUNK;
    s->kernels->weigh(r->x + (size_t)c * CHUNK, n, r->temperature, r->max, y, w, &sum, &top);
    return n;
}

/* ---- thresholds ---- */

/* Bits that order like the float (no NaN). */
static uint32_t order_key(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u & 0x80000000u ? ~u : u | 0x80000000u;
}

static float key_value(uint32_t key)
{
    uint32_t u = key & 0x80000000u ? key & 0x7fffffffu : ~key;
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

/* Goes down the distinct values of the list until the running weight (1 an entry, or w) reaches
 * `target`; returns the value where it does, *before = the weight of all larger ones. The smallest
 * value when it never does. Level by level, the entries of the bin that was picked are looked at
 * more closely. Two sums a bin, for even and odd entries: a single one would be a chain of
 * additions. */
static float walk_down(const struct sampler *s, int by_weight, double target, double *before)
{
    static const int shift[3] = {21, 10, 0}, bits[3] = {11, 11, 10};
    uint32_t prefix = 0;
    double above = 0.0;
    int n = s->n_list;
    for (int level = 0; level < 3; level++) {
        double mass[2][1 << 11] = {{0}};
        uint32_t mask = (1u << bits[level]) - 1;
        for (int k = 0; k < n; k++) {
            int i = level == 0 ? k : s->picked[k];
            uint32_t bin = order_key(s->list_y[i]) >> shift[level] & mask;
            mass[k & 1][bin] += by_weight ? (double)s->list_w[i] : 1.0;
        }
        int pick = -1;
        double pick_mass = 0.0;
        for (int bin = (int)mask; bin >= 0; bin--) {
            double m = mass[0][bin] + mass[1][bin];
            if (m > 0.0) { /* an entry of the list weighs something */
                above += pick_mass;
                pick = bin;
                pick_mass = m;
                if (above + m >= target) {
                    break;
                }
            }
        }
        prefix = prefix << bits[level] | (uint32_t)pick;
        int n_picked = 0;
        for (int k = 0; k < n && level < 2; k++) {
            int i = level == 0 ? k : s->picked[k];
            s->picked[n_picked] = i;
            n_picked += order_key(s->list_y[i]) >> shift[level] == prefix;
        }
        n = n_picked;
    }
    *before = above;
    return key_value(prefix);
}

/* A value that at least k entries reach: the k-th largest of the chunk maxima. Each round splits
 * v[from..to) into those above a pivot, those equal to it and those below, and goes on with the part
 * that holds place k - 1 of the descending order. */
static float bound_of_kth(struct sampler *s, int k)
{
    if (k > s->n_chunks) {
        return -INFINITY;
    }
    float *v = s->tops;
    memcpy(v, s->chunk_max, (size_t)s->n_chunks * sizeof *v);
    for (int from = 0, to = s->n_chunks;;) {
        const float pivot = v[from + (to - from) / 2];
        int above = from, below = to;
        for (int i = from; i < below;) {
            const float x = v[i];
            if (x > pivot) {
                v[i++] = v[above];
                v[above++] = x;
            } else if (x < pivot) {
                v[i] = v[--below];
                v[below] = x;
            } else {
                i++;
            }
        }
        if (k - 1 >= above && k - 1 < below) {
            return pivot;
        }
        from = k - 1 < above ? from : below;
        to = k - 1 < above ? above : to;
    }
}

/* Entries that weigh something, at least w_bound, and have at least y_bound. */
static void gather(struct sampler *s, const struct scaled *r, float y_bound, float w_bound)
{
    /* Nothing below this weighs w_bound: a thousandth is more than all roundings. */
    const double y_least = w_bound > 0.0f ? (double)r->max + ln(w_bound) - 1e-3 : -INFINITY;
    float y[CHUNK], w[CHUNK];
    int n = 0;
    for (int c = 0; c < s->n_chunks; c++) {
        if (!(s->chunk_max[c] >= y_bound && (double)s->chunk_max[c] >= y_least)) {
            continue;
        }
        const int n_entries = weigh_chunk(s, r, c, y, w);
        for (int i = 0; i < n_entries; i++) {
            s->list_id[n] = c * CHUNK + i;
            s->list_y[n] = y[i];
            s->list_w[n] = w[i];
            n += w[i] > 0.0f && w[i] >= w_bound && y[i] >= y_bound;
        }
    }
    s->n_list = n;
}

static void keep(struct sampler *s, float y_bound, int n_ties)
{
    int n = 0;
    for (int i = 0; i < s->n_list; i++) {
        int tie = s->list_y[i] == y_bound;
        if (s->list_y[i] > y_bound || (tie && n_ties > 0)) {
            s->list_id[n] = s->list_id[i];
            s->list_y[n] = s->list_y[i];
            s->list_w[n] = s->list_w[i];
            n++;
            n_ties -= tie;
        }
    }
    s->n_list = n;
}

static double list_weight(const struct sampler *s)
{
    double sum = 0.0;
    for (int i = 0; i < s->n_list; i++) {
        sum += (double)s->list_w[i];
    }
    return sum;
}

/* What of the list can be drawn: the entries above `bound` and the first n_ties of those equal to
 * it. */
struct nucleus {
    float bound;
    int n_ties;
    double weight;
};

static struct nucleus find_nucleus(const struct sampler *s, double top_p, double total)
{
    struct nucleus u = {-INFINITY, 0, 0.0};
    double target = top_p * total;
    u.bound = walk_down(s, 1, target, &u.weight);
    for (int i = 0; i < s->n_list; i++) {
        if (s->list_y[i] == u.bound && (u.weight < target || u.weight == 0.0)) {
            u.weight += (double)s->list_w[i];
            u.n_ties++;
        }
    }
    return u;
}

/* ---- draw ---- */

static int32_t draw_from_list(const struct sampler *s, double u, const struct nucleus *of)
{
    double target = u * of->weight, sum = 0.0;
    int last = 0, n_ties = of->n_ties;
    for (int i = 0; i < s->n_list; i++) {
        int tie = s->list_y[i] == of->bound;
        if (s->list_y[i] > of->bound || (tie && n_ties > 0)) {
            n_ties -= tie;
            sum += (double)s->list_w[i];
            last = i;
            if (sum > target) {
                break;
            }
        }
    }
    return s->list_id[last];
}

static int32_t draw_from_all(const struct sampler *s, const struct scaled *r, double u,
                             double total)
{
    float y[CHUNK], w[CHUNK];
    double target = u * total, before = 0.0;
    int c = 0;
    while (c < s->n_chunks - 1 && !(before + s->chunk_sum[c] > target)) {
        before += s->chunk_sum[c++];
    }
    int32_t last = -1;
    const int n = weigh_chunk(s, r, c, y, w);
    for (int i = 0; i < n; i++) {
        if (w[i] > 0.0f) {
            before += (double)w[i];
            last = c * CHUNK + i;
            if (before > target) {
                break;
            }
        }
    }
    return last;
}

/* `best` is the largest entry of x, and finite. */
static int32_t draw_random(struct sampler *s, const struct sampler_row *r, const float *x,
                           int32_t best)
{
    const struct sampling_params *p = r->params;
    float temperature = (float)fmax(p->temperature, MIN_TEMPERATURE);
    const struct scaled scaled = {x, temperature, x[best] / temperature};
    weigh(s, &scaled);
    double total = 0.0;
    for (int c = 0; c < s->n_chunks; c++) {
        total += s->chunk_sum[c];
    }
    if (!(total > 0.0)) {
        return best; /* logits near the end of the range of floats, divided by a low temperature */
    }
    double u = rng_uniform(r->seed, (uint64_t)r->n_out);
    int by_k = p->top_k > 0 && p->top_k < s->vocab_size, by_p = p->top_p < 1.0;
    if (!by_k && !by_p && p->min_p == 0.0) {
        int32_t id = draw_from_all(s, &scaled, u, total);
        return id >= 0 ? id : best; /* the last chunk may be empty when u is at its end */
    }
    float y_bound = by_k ? bound_of_kth(s, p->top_k) : -INFINITY;
    double w_bound = p->min_p;
    if (!by_k && p->min_p == 0.0) {
        w_bound = 0.999 * (1.0 - p->top_p) * total / s->vocab_size;
    }
    gather(s, &scaled, y_bound, (float)w_bound);
    if (by_k && s->n_list > p->top_k) {
        double before;
        keep(s, walk_down(s, 0, p->top_k, &before), s->n_list);
    }
    struct nucleus all = {-INFINITY, 0, 0.0};
    if (!by_p || by_k || p->min_p > 0.0) {
        all.weight = list_weight(s);
        total = all.weight;
    }
    if (by_p) {
        all = find_nucleus(s, p->top_p, total);
    }
    return draw_from_list(s, u, &all);
}

int32_t sampler_draw(struct sampler *s, const struct sampler_row *r)
{
    const float *x = r->logits;
    if (is_modified(r)) {
        memcpy(s->y, r->logits, (size_t)s->vocab_size * sizeof *s->y);
        apply_masks(s, r);
        apply_penalties(s, r);
        x = s->y;
    }
    int32_t best = s->kernels->argmax(x, s->vocab_size);
    if (!isfinite(x[best])) { /* all masked: any; else the model computes nothing */
        const float *raw = r->raw != NULL ? r->raw : r->logits;
        return isfinite(raw[s->kernels->argmax(raw, s->vocab_size)]) ? best : SAMPLER_NO_NUMBERS;
    }
    if (r->params->temperature < GREEDY_BELOW) {
        return best;
    }
    return draw_random(s, r, x, best);
}

/* ---- log-probabilities ---- */

static float logprob(float x, double max, double log_sum)
{
    double v = (double)x - max - log_sum;
    return v == v ? (float)v : -INFINITY;
}

/* Inserts into out[0..n), best first; ties stay in ascending id order because ids come ascending.
 */
static int insert(struct token_logprob *out, int n, int k, int32_t id, float x)
{
    int at = n < k ? n : k - 1;
    while (at > 0 && out[at - 1].logprob < x) {
        out[at] = out[at - 1];
        at--;
    }
    out[at] = (struct token_logprob){id, x, 0};
    return n < k ? n + 1 : n;
}

static int by_value(const void *a, const void *b)
{
    const struct token_logprob *x = a, *y = b;
    if (x->logprob != y->logprob) {
        return x->logprob < y->logprob ? 1 : -1;
    }
    return (x->id > y->id) - (x->id < y->id);
}

#define MAX_INSERT 64 /* above, sorting everything is cheaper than inserting */

#define SCAN 16 /* entries looked at together while none is good enough */

static int any_above(const float *x, float bound)
{
    vec_f a, b, c, d;
    memcpy(&a, x, sizeof a);
    memcpy(&b, x + LANES, sizeof b);
    memcpy(&c, x + 2 * LANES, sizeof c);
    memcpy(&d, x + 3 * LANES, sizeof d);
    vec_i any = (a > bound) | (b > bound) | (c > bound) | (d > bound);
    return (any[0] | any[1] | any[2] | any[3]) != 0;
}

static int best_entries(const float *x, int n, int k, struct token_logprob *out)
{
    int found = 0;
    if (k > MAX_INSERT) {
        struct token_logprob *all = malloc((size_t)n * sizeof *all);
        if (all) {
            for (int i = 0; i < n; i++) {
                all[i] = (struct token_logprob){i, x[i] == x[i] ? x[i] : -INFINITY, 0};
            }
            qsort(all, (size_t)n, sizeof *all, by_value);
            memcpy(out, all, (size_t)k * sizeof *all);
            free(all);
            return k;
        }
    }
    int i = 0;
    for (; i < n; i++) {
        if (found == k && i % SCAN == 0) {
            while (i + SCAN <= n && !any_above(x + i, out[k - 1].logprob)) {
                i += SCAN;
            }
            if (i == n) {
                break;
            }
        }
        float v = x[i] == x[i] ? x[i] : -INFINITY;
        if (found < k || v > out[k - 1].logprob) {
            found = insert(out, found, k, i, v);
        }
    }
    return found;
}

static int rank_of(const float *x, int n, float value)
{
    vec_i count = {0};
    int i = 0;
    for (; i + LANES <= n; i += LANES) {
        vec_f v;
        memcpy(&v, x + i, sizeof v);
        count -= v >= value;
    }
    int rank = count[0] + count[1] + count[2] + count[3];
    for (; i < n; i++) {
        rank += x[i] >= value;
    }
    return rank;
}

int sampler_logprobs_of(struct sampler *s, const float *logits, int32_t id, const int32_t *ids,
                        int n, struct token_logprob *out)
{
    float max;
    double sum;
    s->kernels->logsumexp(logits, s->vocab_size, &max, &sum);
    double log_sum = ln(sum);
    out[0] = (struct token_logprob){id, logprob(logits[id], (double)max, log_sum),
                                    rank_of(logits, s->vocab_size, logits[id])};
    for (int i = 0; i < n; i++) {
        out[1 + i] =
            (struct token_logprob){ids[i], logprob(logits[ids[i]], (double)max, log_sum), 0};
    }
    return 1 + n;
}

int sampler_logprobs(struct sampler *s, const float *logits, int32_t id, int k,
                     struct token_logprob *out)
{
    int n = s->vocab_size;
    k = k < n ? k : n;
    float max;
    double sum;
    s->kernels->logsumexp(logits, n, &max, &sum);
    double log_sum = ln(sum);
    out[0] = (struct token_logprob){id, logprob(logits[id], (double)max, log_sum),
                                    rank_of(logits, n, logits[id])};
    int n_best = k > 0 ? best_entries(logits, n, k, out + 1) : 0;
    for (int i = 1; i <= n_best; i++) {
        /* equal values share the rank of the last of them */
        int j = i;
        while (j < n_best && out[j + 1].logprob == out[i].logprob) {
            j++;
        }
        int rank = j < n_best ? j : rank_of(logits, n, out[i].logprob);
        for (int t = i; t <= j; t++) {
            out[t].rank = rank;
        }
        i = j;
    }
    for (int i = 1; i <= n_best; i++) {
        out[i].logprob = logprob(out[i].logprob, (double)max, log_sum);
    }
    return 1 + n_best;
}
