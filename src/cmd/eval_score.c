/* SPDX-License-Identifier: Apache-2.0 */
/* Marks for `tern eval`. Words are compared as 64-bit hashes: a collision would need a corpus
 * billions of words long, and n-grams become sortable numbers. */
#include "base/hash.h"
#include "base/utf8.h"
#include "cmd/eval.h"
#include "text/unicode.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define BLEU_ORDER 4

struct words {
    uint64_t *v;
    size_t n;
};

static int is_word_character(uint32_t cp)
{
    if (cp < 0x80) {
        return (cp >= '0' && cp <= '9') || (cp >= 'a' && cp <= 'z') || (cp >= 'A' && cp <= 'Z');
    }
    /* Latin, Greek, Cyrillic and their neighbours; everything further east stands alone */
    return (cp >= 0xC0 && cp <= 0x24F && cp != 0xD7 && cp != 0xF7) || (cp >= 0x370 && cp <= 0x52F);
}

static void split(const char *text, int lower, struct words *out)
{
    size_t n = strlen(text);
    struct buf word;
    buf_init(&word);
    out->v = malloc((n + 1) * sizeof *out->v);
    out->n = 0;
    for (size_t i = 0; out->v && i <= n;) {
        uint32_t cp = 0;
        int len = i < n ? utf8_decode(text + i, n - i, &cp) : 0;
        int inside = i < n && len > 0 && is_word_character(cp);
        if (!inside && word.len) {
            out->v[out->n++] = hash64(word.data, word.len, 0);
            buf_clear(&word);
        }
        if (i == n) {
            break;
        }
        len = len > 0 ? len : 1;
        if (inside) {
            uint32_t mapped[3] = {cp, 0, 0};
            int k = lower ? unicode_lower(cp, mapped) : 1;
            for (int j = 0; j < k; j++) {
                char bytes[4];
                buf_append(&word, bytes, (size_t)utf8_encode(mapped[j], bytes));
            }
        } else if (!unicode_is_space(cp)) {
            out->v[out->n++] = hash64(text + i, (size_t)len, 0);
        }
        i += (size_t)len;
    }
    buf_fini(&word);
}

/* ---- ROUGE-L ---- */

static size_t common_subsequence(const struct words *a, const struct words *b)
{
    size_t *row = calloc(b->n + 1, sizeof *row), best = 0;
    for (size_t i = 0; row && i < a->n; i++) {
        size_t diagonal = 0;
        for (size_t j = 0; j < b->n; j++) {
            size_t above = row[j + 1];
            row[j + 1] = a->v[i] == b->v[j] ? diagonal + 1 : above > row[j] ? above : row[j];
            diagonal = above;
        }
    }
    best = row ? row[b->n] : 0;
    free(row);
    return best;
}

double eval_rouge_l(const char *text, const char *const *refs, int n_refs)
{
    struct words a;
    double best = 0;
    split(text, 1, &a);
    for (int i = 0; i < n_refs; i++) {
        struct words b;
        split(refs[i], 1, &b);
        double common = a.v && b.v ? (double)common_subsequence(&a, &b) : 0;
        double f1 = common > 0 ? 200.0 * common / (double)(a.n + b.n) : 0;
        best = f1 > best ? f1 : best;
        free(b.v);
    }
    free(a.v);
    return best;
}

/* ---- BLEU ---- */

static int compare_u64(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* Sorted hashes of the n-grams of some words. */
static uint64_t *ngrams(const struct words *w, size_t order, size_t *n)
{
    *n = w->n >= order ? w->n - order + 1 : 0;
    uint64_t *out = malloc((*n + 1) * sizeof *out);
    for (size_t i = 0; out && i < *n; i++) {
        out[i] = hash64(w->v + i, order * sizeof *w->v, 1);
    }
    if (out) {
        qsort(out, *n, sizeof *out, compare_u64);
    } else {
        *n = 0;
    }
    return out;
}

static size_t run_length(const uint64_t *v, size_t n, uint64_t key)
{
    size_t low = 0, high = n, count = 0;
    while (low < high) {
        size_t mid = (low + high) / 2;
        if (v[mid] < key) {
            low = mid + 1;
        } else {
            high = mid;
        }
    }
    for (; low < n && v[low] == key; low++) {
        count++;
    }
    return count;
}

struct bleu_counts {
    double match[BLEU_ORDER], total[BLEU_ORDER], length, ref_length;
};

static void count_question(const struct eval_question *q, struct bleu_counts *c)
{
    struct words out, *refs = calloc((size_t)q->n_refs, sizeof *refs);
    split(q->output ? q->output : "", 0, &out);
    size_t closest = SIZE_MAX;
    for (int i = 0; refs && i < q->n_refs; i++) {
        split(q->refs[i], 0, &refs[i]);
        size_t gap = refs[i].n > out.n ? refs[i].n - out.n : out.n - refs[i].n;
        size_t held = closest > out.n ? closest - out.n : out.n - closest;
        if (closest == SIZE_MAX || gap < held || (gap == held && refs[i].n < closest)) {
            closest = refs[i].n;
        }
    }
    c->length += (double)out.n;
    c->ref_length += closest == SIZE_MAX ? 0 : (double)closest;
    for (size_t order = 1; refs && order <= BLEU_ORDER; order++) {
        size_t n;
        uint64_t *mine = ngrams(&out, order, &n);
        c->total[order - 1] += (double)n;
        uint64_t *theirs[64];
        size_t n_theirs[64];
        int n_refs = q->n_refs < 64 ? q->n_refs : 64;
        for (int r = 0; r < n_refs; r++) {
            theirs[r] = ngrams(&refs[r], order, &n_theirs[r]);
        }
        for (size_t i = 0; i < n;) {
            size_t same = run_length(mine + i, n - i, mine[i]), allowed = 0;
            for (int r = 0; r < n_refs; r++) {
                size_t k = run_length(theirs[r], n_theirs[r], mine[i]);
                allowed = k > allowed ? k : allowed;
            }
            c->match[order - 1] += (double)(same < allowed ? same : allowed);
            i += same;
        }
        for (int r = 0; r < n_refs; r++) {
            free(theirs[r]);
        }
        free(mine);
    }
    for (int i = 0; refs && i < q->n_refs; i++) {
        free(refs[i].v);
    }
    free(refs);
    free(out.v);
}

double eval_bleu(const struct eval_task *t)
{
    struct bleu_counts c = {0};
    for (size_t i = 0; i < t->n_questions; i++) {
        count_question(&t->questions[i], &c);
    }
    double sum = 0, smooth = 1;
    for (int k = 0; k < BLEU_ORDER; k++) {
        if (c.total[k] == 0 || (k == 0 && c.match[0] == 0)) {
            return 0;
        }
        double share = c.match[k] / c.total[k];
        if (c.match[k] == 0) {
            smooth *= 2;
            share = 1 / (smooth * c.total[k]);
        }
        sum += log(share);
    }
    double brevity = c.length < c.ref_length ? exp(1 - c.ref_length / c.length) : 1;
    return 100 * brevity * exp(sum / BLEU_ORDER);
}

/* ---- numbers ---- */

static size_t number_run(const char *s, const char *set)
{
    return strspn(s, set);
}

/* A match of -?[$0-9.,]{2,} or else -?[0-9]+ at s: its length, 0 for none. */
static size_t match_number(const char *s)
{
    size_t sign = *s == '-';
    size_t n = number_run(s + sign, "$0123456789.,");
    if (n >= 2) {
        return sign + n;
    }
    n = number_run(s + sign, "0123456789");
    return n ? sign + n : 0;
}

void eval_number(const char *text, int strict, char *out, size_t n)
{
    const char *from = NULL;
    size_t len = 0;
    if (strict) {
        for (const char *p = text; !len && (p = strstr(p, "#### ")) != NULL; p++) {
            size_t sign = p[5] == '-';
            size_t k = number_run(p + 5 + sign, "0123456789.,");
            from = p + 5;
            len = k ? sign + k : 0;
        }
    } else {
        for (const char *p = text; *p;) {
            size_t k = match_number(p);
            if (k) {
                from = p;
                len = k;
            }
            p += k ? k : 1;
        }
    }
    size_t used = 0;
    for (size_t i = 0; i < len && used + 1 < n; i++) {
        if (from[i] != ',' && from[i] != '$') {
            out[used++] = from[i];
        }
    }
    if (used && out[used - 1] == '.') {
        used--;
    }
    out[used] = '\0';
}

/* ---- a task ---- */

static void trim(const char *s, const char **from, size_t *n)
{
    size_t all = strlen(s), head = unicode_leading_space(s, all);
    *from = s + head;
    *n = all - head;
    *n -= unicode_trailing_space(*from, *n);
}

static int equals_reference(const struct eval_question *q)
{
    const char *mine, *ref;
    size_t n, k;
    trim(q->output ? q->output : "", &mine, &n);
    for (int i = 0; i < q->n_refs; i++) {
        trim(q->refs[i], &ref, &k);
        if (n == k && memcmp(mine, ref, n) == 0) {
            return 1;
        }
    }
    return 0;
}

static void score_math(struct eval_question *q)
{
    char gold[64], strict[64], flexible[64];
    const char *output = q->output ? q->output : "";
    eval_number(q->refs[0], 1, gold, sizeof gold);
    eval_number(output, 1, strict, sizeof strict);
    eval_number(output, 0, flexible, sizeof flexible);
    q->correct = gold[0] && strcmp(gold, strict) == 0;
    q->flexible = gold[0] && strcmp(gold, flexible) == 0;
}

void eval_score(struct eval_task *t)
{
    for (int i = 0; i < t->n_subjects; i++) {
        t->subjects[i].n = t->subjects[i].n_correct = 0;
    }
    for (size_t i = 0; i < t->n_questions; i++) {
        struct eval_question *q = &t->questions[i];
        if (t->kind == EVAL_CHOICE) {
            q->picked = 0;
            for (int k = 1; k < q->n_choices; k++) {
                q->picked = q->logprob[k] > q->logprob[q->picked] ? k : q->picked;
            }
            q->correct = q->picked == q->gold;
        } else if (t->kind == EVAL_MATH) {
            score_math(q);
        } else {
            q->correct = equals_reference(q);
            q->rouge_l = eval_rouge_l(q->output ? q->output : "", q->refs, q->n_refs);
        }
        t->subjects[q->subject].n++;
        t->subjects[q->subject].n_correct += q->correct;
    }
}
