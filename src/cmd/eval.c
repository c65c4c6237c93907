/* SPDX-License-Identifier: Apache-2.0 */
/* tern eval: how good a checkpoint is. Perplexity of texts, multiple choice (C-Eval, CMMLU, MMLU),
 * GSM8K, and generated text against references, of a model directory or of
 * whatever answers at --base-url. The report goes to standard
 * output, progress to stderr. */
#include "cmd/eval.h"
#include "base/clock.h"
#include "base/json.h"
#include "cmd/args.h"
#include "cmd/cmd.h"
#include "cmd/signals.h"
#include "lib/setup.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAX_TASKS     16
#define MAX_TEXTS     64
#define TEXT_BYTES    ((size_t)1 << 30)
#define SHOW_EVERY_NS ((uint64_t)5 * 1000000000)
#define G_EVAL        "Evaluation"

struct args_eval {
    const char *data, *split, *subjects, *output, *samples, *base_url, *api_key;
    struct opt_list tasks, texts, references;
    int64_t n_shots, limit, window, stride, max_gen_tokens, concurrency;
    int json, quiet, chat;
};

#define FIELD(f) offsetof(struct args_eval, f)
static const struct opt rows[] = {
    {.name = "tasks",
     .type = OPT_LIST,
     .offset = FIELD(tasks),
     .group = G_EVAL,
     .help = "Test sets: ceval, cmmlu, mmlu, gsm8k."},
    {.name = "data",
     .type = OPT_STRING,
     .offset = FIELD(data),
     .group = G_EVAL,
     .meta = "DIR",
     .help = "Directory that holds the test sets, one directory each."},
    {.name = "split",
     .type = OPT_STRING,
     .offset = FIELD(split),
     .group = G_EVAL,
     .choices = "test|val|dev|train",
     .help = "Part of a test set to ask; default: test where it is there with answers, else val, "
             "else dev."},
    {.name = "subjects",
     .type = OPT_STRING,
     .offset = FIELD(subjects),
     .group = G_EVAL,
     .meta = "A,B",
     .help = "Only these subjects of a test set."},
    {.name = "num-fewshot",
     .type = OPT_INT,
     .offset = FIELD(n_shots),
     .group = G_EVAL,
     .def = "-1",
     .min = -1,
     .max = 100,
     .help = "Solved examples before each question; -1: as is usual for the test set, 5."},
    {.name = "limit",
     .type = OPT_INT,
     .offset = FIELD(limit),
     .group = G_EVAL,
     .def = "0",
     .min = 0,
     .max = 1e9,
     .help = "Questions of each subject; 0: all."},
    {.name = "perplexity",
     .type = OPT_APPEND,
     .offset = FIELD(texts),
     .group = G_EVAL,
     .meta = "FILE",
     .help = "A text whose perplexity is wanted; may be repeated."},
    {.name = "window",
     .type = OPT_INT,
     .offset = FIELD(window),
     .group = G_EVAL,
     .def = "0",
     .min = 0,
     .max = 1e9,
     .help = "Tokens of one pass over a text; 0: 2,048 or the longest prompt."},
    {.name = "stride",
     .type = OPT_INT,
     .offset = FIELD(stride),
     .group = G_EVAL,
     .def = "0",
     .min = 0,
     .max = 1e9,
     .help = "New tokens of each further pass; 0: half the window."},
    {.name = "references",
     .type = OPT_APPEND,
     .offset = FIELD(references),
     .group = G_EVAL,
     .meta = "FILE",
     .help = "JSON lines with prompt and reference(s): BLEU, ROUGE-L and exact match of greedy "
             "answers; may be repeated."},
    {.name = "max-gen-tokens",
     .type = OPT_INT,
     .offset = FIELD(max_gen_tokens),
     .group = G_EVAL,
     .def = "256",
     .min = 1,
     .max = 1e6,
     .help = "Longest generated answer."},
    {.name = "apply-chat-template",
     .type = OPT_BOOL,
     .offset = FIELD(chat),
     .group = G_EVAL,
     .def = "false",
     .help = "Generated answers: the prompt is a user's message."},
    {.name = "concurrency",
     .type = OPT_INT,
     .offset = FIELD(concurrency),
     .group = G_EVAL,
     .def = "32",
     .min = 1,
     .max = 4096,
     .help = "Questions in flight; changes nothing in the results."},
    {.name = "base-url",
     .type = OPT_STRING,
     .offset = FIELD(base_url),
     .group = G_EVAL,
     .meta = "URL",
     .help = "Ask an OpenAI-compatible server instead; MODEL is then a name it serves. Scores need "
             "completions with echo, and /tokenize or --tokenizer."},
    {.name = "api-key",
     .type = OPT_STRING,
     .offset = FIELD(api_key),
     .group = G_EVAL,
     .env = "OPENAI_API_KEY",
     .meta = "KEY",
     .help = "Key for --base-url."},
    {.name = "json",
     .type = OPT_BOOL,
     .offset = FIELD(json),
     .group = G_EVAL,
     .def = "false",
     .help = "The report as one JSON object."},
    {.name = "output",
     .others = "-o --output-path",
     .type = OPT_STRING,
     .offset = FIELD(output),
     .group = G_EVAL,
     .meta = "FILE",
     .help = "Writes the JSON report there too."},
    {.name = "log-samples",
     .type = OPT_STRING,
     .offset = FIELD(samples),
     .group = G_EVAL,
     .meta = "FILE",
     .help = "Writes each question with its answer and mark, one JSON object a line."},
    {.name = "quiet",
     .type = OPT_BOOL,
     .offset = FIELD(quiet),
     .group = G_EVAL,
     .def = "false",
     .help = "No progress on stderr."},
};

struct evaluation {
    struct eval_task tasks[MAX_TASKS];
    int n_tasks;
    struct eval_text texts[MAX_TEXTS];
    int n_texts;
    struct eval_windows windows;
    double seconds;
};

/* ---- progress ---- */

void eval_progress_step(struct eval_progress *p, size_t done)
{
    uint64_t now = clock_now_ns();
    p->done = done;
    if (p->quiet ||
        (done < p->total && now - p->shown_ns < (p->tty ? SHOW_EVERY_NS / 25 : SHOW_EVERY_NS))) {
        return;
    }
    double seconds = (double)(now - p->start_ns) * 1e-9;
    double left = done ? seconds / (double)done * (double)(p->total - done) : 0;
    p->shown_ns = now;
    fprintf(stderr, "%s%s: %zu of %zu, %.0f s%s%.0f s left%s", p->tty ? "\r\033[K" : "", p->what,
            done, p->total, seconds, done ? ", about " : ", ", left,
            !p->tty || done == p->total ? "\n" : "");
}

static struct eval_progress progress_start(const char *what, size_t total, int quiet)
{
    return (struct eval_progress){.what = what,
                                  .total = total,
                                  .start_ns = clock_now_ns(),
                                  .shown_ns = clock_now_ns(),
                                  .quiet = quiet,
                                  .tty = isatty(2)};
}

/* ---- what is asked ---- */

static int load(struct evaluation *v, const struct args_eval *a, struct err *e)
{
    struct eval_data_options o = {.dir = a->data,
                                  .split = a->split,
                                  .subjects = a->subjects,
                                  .n_shots = (int)a->n_shots,
                                  .limit = a->limit};
    if (a->tasks.n + a->references.n > MAX_TASKS || a->texts.n > MAX_TEXTS) {
        return err_set(e, ERR_INVALID, "at most %d test sets and %d texts", MAX_TASKS, MAX_TEXTS);
    }
    if (a->tasks.n + a->references.n + a->texts.n == 0) {
        return err_set(e, ERR_INVALID,
                       "nothing to evaluate: give --tasks, --perplexity or --references");
    }
    if (a->tasks.n && !a->data) {
        return err_set(e, ERR_INVALID, "--tasks needs --data, the directory of the test sets");
    }
    for (int i = 0; i < a->tasks.n; i++) {
        int rc = eval_data_load(&v->tasks[v->n_tasks++], a->tasks.v[i], &o, e);
        if (rc < 0) {
            return rc;
        }
    }
    for (int i = 0; i < a->references.n; i++) {
        int rc = eval_data_references(&v->tasks[v->n_tasks++], a->references.v[i], a->limit, e);
        if (rc < 0) {
            return rc;
        }
    }
    for (int i = 0; i < v->n_tasks; i++) {
        struct eval_task *t = &v->tasks[i];
        if (t->kind != EVAL_CHOICE) {
            t->max_tokens = (int)a->max_gen_tokens;
            t->chat = a->chat;
        } else if (a->chat) {
            return err_set(e, ERR_INVALID,
                           "--apply-chat-template: %s compares log-likelihoods of letters after "
                           "plain text",
                           t->name);
        }
    }
    for (int i = 0; i < a->texts.n; i++) {
        struct eval_text *t = &v->texts[v->n_texts++];
        t->name = a->texts.v[i];
        buf_init(&t->text);
        int rc = buf_read_file(&t->text, t->name, TEXT_BYTES, e);
        if (rc < 0) {
            return rc;
        }
    }
    v->windows = (struct eval_windows){(int)a->window, (int)a->stride};
    return 0;
}

static int measure(struct evaluation *v, const struct eval_backend *b, int quiet, struct err *e)
{
    uint64_t start = clock_now_ns();
    int rc = 0;
    for (int i = 0; rc >= 0 && i < v->n_texts; i++) {
        struct eval_progress p = progress_start(v->texts[i].name, 0, quiet);
        rc = b->score_text(b->self, &v->texts[i], &v->windows, &p, e);
    }
    for (int i = 0; rc >= 0 && i < v->n_tasks; i++) {
        struct eval_task *t = &v->tasks[i];
        struct eval_progress p = progress_start(t->name, t->n_questions, quiet);
        rc = b->ask(b->self, t, &p, e);
        if (rc >= 0) {
            eval_score(t);
        }
    }
    v->seconds = (double)(clock_now_ns() - start) * 1e-9;
    return rc;
}

/* ---- the report ---- */

struct totals {
    size_t n, n_correct, n_flexible, n_truncated;
    double accuracy, stderr_of_mean, macro, rouge_l;
};

static struct totals total_up(const struct eval_task *t)
{
    struct totals x = {.n = t->n_questions};
    for (size_t i = 0; i < t->n_questions; i++) {
        x.n_correct += (size_t)t->questions[i].correct;
        x.n_flexible += (size_t)t->questions[i].flexible;
        x.n_truncated += (size_t)t->questions[i].truncated;
        x.rouge_l += t->questions[i].rouge_l;
    }
    for (int i = 0; i < t->n_subjects; i++) {
        x.macro += t->subjects[i].n
                       ? (double)t->subjects[i].n_correct / t->subjects[i].n / t->n_subjects
                       : 0;
    }
    if (x.n) {
        x.accuracy = (double)x.n_correct / (double)x.n;
        x.rouge_l /= (double)x.n;
    }
    if (x.n > 1) { /* the sample's standard deviation over the square root of its size */
        x.stderr_of_mean = sqrt(x.accuracy * (1 - x.accuracy) / (double)(x.n - 1));
    }
    return x;
}

static void print_task(const struct eval_task *t)
{
    struct totals x = total_up(t);
    printf("%s (%s, %d shots, %zu questions)\n", t->name, t->split, t->n_shots, x.n);
    for (int i = 0; t->kind == EVAL_CHOICE && i < t->n_subjects; i++) {
        const struct eval_subject *s = &t->subjects[i];
        printf("  %-44s %5d / %-5d %6.2f %%\n", s->name, s->n_correct, s->n,
               s->n ? 100.0 * s->n_correct / s->n : 0);
    }
    if (t->kind == EVAL_CHOICE) {
        printf("  %-44s %5zu / %-5zu %6.2f %% +- %.2f\n", "accuracy", x.n_correct, x.n,
               100 * x.accuracy, 100 * x.stderr_of_mean);
        printf("  %-44s %22.2f %%\n", "mean over subjects", 100 * x.macro);
    } else if (t->kind == EVAL_MATH) {
        printf("  %-44s %5zu / %-5zu %6.2f %% +- %.2f\n", "exact match (after ####)", x.n_correct,
               x.n, 100 * x.accuracy, 100 * x.stderr_of_mean);
        printf("  %-44s %5zu / %-5zu %6.2f %%\n", "exact match (last number)", x.n_flexible, x.n,
               x.n ? 100.0 * (double)x.n_flexible / (double)x.n : 0);
    } else {
        printf("  %-44s %22.2f\n  %-44s %22.2f\n", "BLEU", eval_bleu(t), "ROUGE-L", x.rouge_l);
        printf("  %-44s %5zu / %-5zu %6.2f %%\n", "exact match", x.n_correct, x.n,
               100 * x.accuracy);
    }
    if (x.n_truncated) {
        printf("  %zu prompts were longer than the model takes and lost their beginning\n",
               x.n_truncated);
    }
    if (t->note) {
        printf("  %s\n", t->note);
    }
}

static double perplexity(const struct eval_text *t)
{
    return t->n_scored ? exp(t->nll / (double)t->n_scored) : NAN;
}

static void print_report(const struct evaluation *v)
{
    for (int i = 0; i < v->n_texts; i++) {
        const struct eval_text *t = &v->texts[i];
        printf("%s: perplexity %.4f (%zu of %zu tokens in %zu passes, %.4f bits per byte)\n",
               t->name, perplexity(t), t->n_scored, t->n_tokens, t->n_windows,
               t->nll / log(2) / (double)t->text.len);
    }
    for (int i = 0; i < v->n_tasks; i++) {
        print_task(&v->tasks[i]);
    }
}

static void write_task(const struct eval_task *t, struct json_writer *w)
{
    struct totals x = total_up(t);
    json_w_object(w);
    json_w_kstring(w, "task", t->name);
    json_w_kstring(w, "split", t->split);
    json_w_kint(w, "num_fewshot", t->n_shots);
    json_w_kint(w, "n", (int64_t)x.n);
    json_w_kint(w, "n_truncated", (int64_t)x.n_truncated);
    if (t->kind == EVAL_CHOICE) {
        json_w_kdouble(w, "acc", x.accuracy);
        json_w_kdouble(w, "acc_stderr", x.stderr_of_mean);
        json_w_kdouble(w, "acc_macro", x.macro);
        json_w_key(w, "subjects");
        json_w_object(w);
        for (int i = 0; i < t->n_subjects; i++) {
            const struct eval_subject *s = &t->subjects[i];
            json_w_key(w, s->name);
            json_w_object(w);
            json_w_kint(w, "n", s->n);
            json_w_kint(w, "n_correct", s->n_correct);
            json_w_kdouble(w, "acc", s->n ? (double)s->n_correct / s->n : 0);
            json_w_object_end(w);
        }
        json_w_object_end(w);
    } else if (t->kind == EVAL_MATH) {
        json_w_kdouble(w, "exact_match_strict", x.accuracy);
        json_w_kdouble(w, "exact_match_stderr", x.stderr_of_mean);
        json_w_kdouble(w, "exact_match_flexible", x.n ? (double)x.n_flexible / (double)x.n : 0);
    } else {
        json_w_kdouble(w, "bleu", eval_bleu(t));
        json_w_kdouble(w, "rouge_l", x.rouge_l);
        json_w_kdouble(w, "exact_match", x.accuracy);
    }
    if (t->note) {
        json_w_kstring(w, "note", t->note);
    }
    json_w_object_end(w);
}

static void write_report(const struct evaluation *v, const char *model, struct buf *out)
{
    struct json_writer w;
    json_w_init(&w, out);
    json_w_object(&w);
    json_w_kstring(&w, "model", model);
    json_w_key(&w, "texts");
    json_w_array(&w);
    for (int i = 0; i < v->n_texts; i++) {
        const struct eval_text *t = &v->texts[i];
        json_w_object(&w);
        json_w_kstring(&w, "file", t->name);
        json_w_kint(&w, "n_tokens", (int64_t)t->n_tokens);
        json_w_kint(&w, "n_scored", (int64_t)t->n_scored);
        json_w_kdouble(&w, "nll", t->nll);
        json_w_kdouble(&w, "perplexity", perplexity(t));
        json_w_kdouble(&w, "bits_per_byte", t->nll / log(2) / (double)t->text.len);
        json_w_object_end(&w);
    }
    json_w_array_end(&w);
    json_w_key(&w, "tasks");
    json_w_array(&w);
    for (int i = 0; i < v->n_tasks; i++) {
        write_task(&v->tasks[i], &w);
    }
    json_w_array_end(&w);
    json_w_kdouble(&w, "seconds", v->seconds);
    json_w_object_end(&w);
    buf_putc(out, '\n');
}

static void write_sample(const struct eval_task *t, const struct eval_question *q, struct buf *out)
{
    struct json_writer w;
    json_w_init(&w, out);
    json_w_object(&w);
    json_w_kstring(&w, "task", t->name);
    json_w_kstring(&w, "subject", t->subjects[q->subject].name);
    json_w_key(&w, "context");
    json_w_stringn(&w, q->context, q->context_bytes);
    if (t->kind == EVAL_CHOICE) {
        json_w_key(&w, "choices");
        json_w_array(&w);
        for (int i = 0; i < q->n_choices; i++) {
            json_w_object(&w);
            json_w_kstring(&w, "text", q->choices[i]);
            json_w_kdouble(&w, "logprob", q->logprob[i]);
            json_w_object_end(&w);
        }
        json_w_array_end(&w);
        json_w_kint(&w, "gold", q->gold);
        json_w_kint(&w, "picked", q->picked);
    } else {
        json_w_kstring(&w, "output", q->output);
        json_w_key(&w, "references");
        json_w_array(&w);
        for (int i = 0; i < q->n_refs; i++) {
            json_w_string(&w, q->refs[i]);
        }
        json_w_array_end(&w);
    }
    if (t->kind == EVAL_MATH) {
        json_w_kbool(&w, "correct_last_number", q->flexible);
    } else if (t->kind == EVAL_REFERENCE) {
        json_w_kdouble(&w, "rouge_l", q->rouge_l);
    }
    json_w_kbool(&w, "correct", q->correct);
    json_w_object_end(&w);
    buf_putc(out, '\n');
}

static int save(const char *path, const struct buf *b, struct err *e)
{
    FILE *f = fopen(path, "w");
    int bad = !f || fwrite(b->data, 1, b->len, f) != b->len;
    bad |= f && fclose(f) != 0;
    return bad ? err_set(e, ERR_IO, "%s: cannot be written", path) : 0;
}

static int report(const struct evaluation *v, const struct args_eval *a, const char *model,
                  struct err *e)
{
    struct buf b;
    int rc = 0;
    buf_init(&b);
    write_report(v, model, &b);
    if (b.failed) {
        rc = err_set(e, ERR_NOMEM, "out of memory");
    } else if (a->json) {
        fwrite(b.data, 1, b.len, stdout);
    } else {
        print_report(v);
    }
    rc = rc >= 0 && a->output ? save(a->output, &b, e) : rc;
    buf_clear(&b);
    for (int i = 0; rc >= 0 && a->samples && i < v->n_tasks; i++) {
        for (size_t k = 0; k < v->tasks[i].n_questions; k++) {
            write_sample(&v->tasks[i], &v->tasks[i].questions[k], &b);
        }
    }
    if (rc >= 0 && a->samples) {
        rc = b.failed ? err_set(e, ERR_NOMEM, "out of memory") : save(a->samples, &b, e);
    }
    buf_fini(&b);
    return rc;
}

/* ---- the command ---- */

static int run_local(struct evaluation *v, const struct args_eval *a, struct setup *s,
                     struct err *e)
{
    struct eval_backend b = {0};
    s->n_seqs_wanted = (int)a->concurrency;
    int rc = setup_check(s, e);
    rc = rc < 0 ? rc : setup_load(s, e);
    rc = rc < 0 ? rc : setup_engine(s, e);
    rc = rc < 0 ? rc : eval_local_open(&b, s, (int)a->concurrency, e);
    rc = rc < 0 ? rc : measure(v, &b, a->quiet, e);
    setup_close(s); /* first: the engine's events go to the backend's queue */
    eval_local_close(&b);
    return rc;
}

static int run_remote(struct evaluation *v, const struct args_eval *a, const struct args_engine *g,
                      struct err *e)
{
    struct eval_backend b = {0};
    struct eval_remote_options o = {.base_url = a->base_url,
                                    .model = g->model,
                                    .api_key = a->api_key,
                                    .tokenizer = g->tokenizer,
                                    .max_in_flight = (int)a->concurrency,
                                    .max_model_len = (int)g->max_model_len};
    int rc = eval_remote_open(&b, &o, e);
    rc = rc < 0 ? rc : measure(v, &b, a->quiet, e);
    eval_remote_close(&b);
    return rc;
}

int cmd_eval(int argc, char **argv)
{
    const char *command = "tern eval";
    struct args_eval own = {0};
    struct args_engine a = {0};
    struct opts o = {.usage = "tern eval MODEL --tasks ceval --data DIR | --perplexity FILE "
                              "[options]",
                     .tables = {{rows, sizeof rows / sizeof *rows, &own}, args_engine_table(&a)},
                     .n_tables = 2};
    struct setup s = {.a = &a};
    struct evaluation *v = calloc(1, sizeof *v);
    struct err e = {0, ""};
    int rc = v ? args_parse(&o, command, argc, argv) : EXIT_FAULT;
    if (rc < 0 && own.base_url && o.args.n == 0) {
        /* the server's first model */
    } else {
        rc = rc < 0 ? args_model(&o, command, &a, 1) : rc;
        rc = rc < 0 && !own.base_url ? args_find_model(command, &a) : rc;
    }
    if (rc < 0) {
        args_quiet_log(&o, &a, &s.log);
        signals_block();
        rc = load(v, &own, &e);
        rc = rc < 0 ? rc : own.base_url ? run_remote(v, &own, &a, &e) : run_local(v, &own, &s, &e);
        rc = rc < 0 ? rc : report(v, &own, a.model ? a.model : own.base_url, &e);
        rc = rc < 0 ? args_fail(command, &e) : 0;
    }
    for (int i = 0; v && i < v->n_tasks; i++) {
        eval_task_fini(&v->tasks[i]);
    }
    for (int i = 0; v && i < v->n_texts; i++) {
        buf_fini(&v->texts[i].text);
    }
    free(v);
    opts_fini(&o);
    return rc;
}
