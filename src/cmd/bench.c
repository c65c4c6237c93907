/* SPDX-License-Identifier: Apache-2.0 */
/* tern bench: the choice of benchmark, and the arithmetic they share. */
#include "cmd/bench.h"
#include "cmd/args.h"
#include "cmd/cmd.h"
#include "cmd/commands.h"
#include "cmd/pages.h"
#include "engine/rng.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* ---- random numbers ---- */

double bench_uniform(struct bench_rng *r)
{
    return rng_uniform(r->seed, r->n++);
}

int64_t bench_integer(struct bench_rng *r, int64_t low, int64_t high)
{
    return low + (int64_t)(bench_uniform(r) * (double)(high - low + 1));
}

static double normal(struct bench_rng *r)
{
    double u = 1 - bench_uniform(r), v = bench_uniform(r);
    return sqrt(-2 * log(u)) * cos(6.283185307179586 * v);
}

/* Marsaglia and Tsang, "A simple method for generating gamma variables", 2000. */
double bench_gamma(struct bench_rng *r, double shape, double scale)
{
    double boost = 1;
    if (shape < 1) {
        boost = pow(1 - bench_uniform(r), 1 / shape);
        shape += 1;
    }
    double d = shape - 1.0 / 3, c = 1 / sqrt(9 * d);
    for (;;) {
        double x = normal(r), v = 1 + c * x;
        v = v * v * v;
        if (v > 0 && log(1 - bench_uniform(r)) < 0.5 * x * x + d - d * v + d * log(v)) {
            return boost * d * v * scale;
        }
    }
}

/* ---- samples ---- */

int bench_values_add(struct bench_values *s, double x)
{
    if (s->n == s->cap) {
        size_t cap = s->cap ? s->cap * 2 : 64;
        double *v = realloc(s->v, cap * sizeof *v);
        if (!v) {
            return ERR_NOMEM;
        }
        s->v = v;
        s->cap = cap;
    }
    s->v[s->n++] = x;
    return 0;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

void bench_values_sort(struct bench_values *s)
{
    if (s->n) {
        qsort(s->v, s->n, sizeof *s->v, ascending);
    }
}

double bench_mean(const struct bench_values *s)
{
    double sum = 0;
    for (size_t i = 0; i < s->n; i++) {
        sum += s->v[i];
    }
    return s->n ? sum / (double)s->n : 0;
}

double bench_std(const struct bench_values *s)
{
    double mean = bench_mean(s), sum = 0;
    for (size_t i = 0; i < s->n; i++) {
        sum += (s->v[i] - mean) * (s->v[i] - mean);
    }
    return s->n ? sqrt(sum / (double)s->n) : 0;
}

double bench_percentile(const struct bench_values *sorted, double p)
{
    if (!sorted->n) {
        return 0;
    }
    double at = p / 100 * (double)(sorted->n - 1);
    size_t low = (size_t)at, high = low + 1 < sorted->n ? low + 1 : low;
    return sorted->v[low] + (at - (double)low) * (sorted->v[high] - sorted->v[low]);
}

/* ---- results ---- */

void bench_date(char out[32])
{
    time_t now = time(NULL);
    struct tm t;
    localtime_r(&now, &t);
    strftime(out, 32, "%Y%m%d-%H%M%S", &t);
}

int bench_save_json(const char *path, const struct buf *b, int append, struct err *e)
{
    FILE *f = b->failed ? NULL : fopen(path, append ? "a" : "w");
    int bad = !f || fwrite(b->data, 1, b->len, f) != b->len || fputc('\n', f) == EOF;
    bad |= f && fclose(f) != 0;
    return bad ? err_set(e, ERR_IO, "%s: cannot be written", path) : 0;
}

/* ---- the command ---- */

int cmd_bench(int argc, char **argv)
{
    const char *name = argc > 0 ? argv[0] : "", *family = "bench ";
    int help = strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0;
    size_t n = strlen(family);
    if (strncmp(name, "--help=", 7) == 0 && pages_family("bench", name + 7) == 0) {
        return 0;
    }
    for (const struct command *c = commands; c->name; c++) {
        if (strncmp(c->name, family, n) == 0 && strcmp(name, c->name + n) == 0) {
            return c->run(argc - 1, argv + 1);
        }
    }
    FILE *out = help ? stdout : stderr;
    if (*name && !help) {
        fprintf(stderr, "tern bench: error: unknown benchmark '%s'\n", name);
    }
    fputs("usage: tern bench BENCHMARK [options]\n\nbenchmarks:\n", out);
    for (const struct command *c = commands; c->name; c++) {
        if (strncmp(c->name, family, n) == 0) {
            fprintf(out, "  %-10s  %s\n", c->name + n, c->help);
        }
    }
    return help ? 0 : EXIT_USAGE;
}
