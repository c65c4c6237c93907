/* SPDX-License-Identifier: Apache-2.0 */
/* What `tern eval` measures, and the two places it can ask: a model directory here (eval_local.c)
 * or a server somewhere (eval_remote.c).
 *
 *   data (eval_data.c)  test sets in their published layouts -> questions with their whole context
 *   ask  (a backend)    log-likelihoods of the choices, or a generated answer, per question
 *   score (eval_score.c) exact match, BLEU, ROUGE-L
 *
 * Counting is that of lm-evaluation-harness: a choice's tokens are those that the text "context +
 * choice" has beyond the tokens of the context alone, the choice with the largest sum of
 * log-probabilities is the answer, context that does not fit loses its beginning. */
#ifndef TERN_CMD_EVAL_H
#define TERN_CMD_EVAL_H

#include "base/arena.h"
#include "base/buf.h"
#include "base/err.h"
#include "text/tokenizer.h"
#include <stdint.h>

#define EVAL_MAX_CHOICES 8
#define EVAL_MAX_STOPS   4

enum eval_kind {
    EVAL_CHOICE,    /* multiple choice by log-likelihood: accuracy */
    EVAL_MATH,      /* a generated solution: exact match of its last number (GSM8K) */
    EVAL_REFERENCE, /* generated text against reference texts: BLEU, ROUGE-L, exact match */
};

struct eval_question {
    int subject;
    const char *context; /* shots included */
    size_t context_bytes;
    const char *choices[EVAL_MAX_CHOICES]; /* continuations, with their leading blank */
    int n_choices;
    int gold;                /* index of the right choice */
    const char *const *refs; /* right texts; EVAL_MATH: one, the published solution */
    int n_refs;
    /* the backend's */
    double logprob[EVAL_MAX_CHOICES]; /* sum over the choice's tokens, natural logarithm */
    char *output;                     /* generated text, malloc'ed */
    int truncated;                    /* the context lost its beginning */
    /* the scorer's */
    int picked;   /* index of the choice with the largest sum */
    int correct;  /* EVAL_MATH: the strict reading; EVAL_REFERENCE: equal to a reference */
    int flexible; /* EVAL_MATH: the last number, wherever it stands */
    double rouge_l;
};

struct eval_subject {
    const char *name;
    int n, n_correct;
};

struct eval_task {
    enum eval_kind kind;
    const char *name, *split;
    int n_shots;
    const char *note; /* one line the report prints under the table, or NULL */
    struct eval_question *questions;
    size_t n_questions, cap;
    struct eval_subject *subjects;
    int n_subjects;
    const char *stops[EVAL_MAX_STOPS];
    int n_stops, max_tokens;
    int chat; /* generate through the chat template: the context is a user's message */
    struct arena arena;
};

/* A text whose tokens are all scored. */
struct eval_text {
    const char *name;
    struct buf text;
    /* the backend's */
    size_t n_tokens, n_scored, n_windows;
    double nll; /* sum of -ln p over the scored tokens */
};

struct eval_windows {
    int window; /* tokens of one pass, 0: the smaller of 2,048 and what the model takes */
    int stride; /* new tokens per pass, 0: half the window */
};
/* Fills in the defaults and checks; max_tokens: the longest prompt. */
int eval_windows_resolve(struct eval_windows *w, int max_tokens, struct err *e);
/* The pass that follows one that ended before token `done` (0: the first): its first token and its
 * end. Tokens [done, end) are scored (of the first pass all but the very first). */
void eval_windows_next(const struct eval_windows *w, size_t n_tokens, size_t done, size_t *begin,
                       size_t *end);

struct eval_progress {
    const char *what;
    size_t done, total;
    uint64_t start_ns, shown_ns;
    int quiet, tty;
};
void eval_progress_step(struct eval_progress *p, size_t done); /* prints now and then, to stderr */

struct eval_backend {
    void *self;
    /* Answers every question of the task. */
    int (*ask)(void *self, struct eval_task *t, struct eval_progress *p, struct err *e);
    int (*score_text)(void *self, struct eval_text *t, const struct eval_windows *w,
                      struct eval_progress *p, struct err *e);
};

/* ---- eval_data.c ---- */
struct eval_data_options {
    const char *dir;      /* holds ceval/, cmmlu/, mmlu/, gsm8k/ */
    const char *split;    /* NULL: test if it is there with answers, else val, else dev */
    const char *subjects; /* comma separated, NULL: all */
    int n_shots;          /* -1: the task's default, 5 */
    int64_t limit;        /* questions of a subject, 0: all */
};
/* ceval, cmmlu, mmlu, gsm8k. The task is always eval_task_fini's to free. */
int eval_data_load(struct eval_task *t, const char *name, const struct eval_data_options *o,
                   struct err *e);
/* JSON lines {"prompt": …, "reference": … or "references": […]}. */
int eval_data_references(struct eval_task *t, const char *path, int64_t limit, struct err *e);
void eval_task_fini(struct eval_task *t);
/* Appends the ids of a text. */
typedef int eval_encoder(void *self, const char *text, size_t n_bytes, struct token_ids *out,
                         struct err *e);
/* Tokens of a choice: `context` (cut of trailing white space, which goes to the choice) and the
 * joined text, encoded; *n_context of whole's ids are context. */
int eval_encode_choice(eval_encoder *encode, void *self, const struct eval_question *q, int choice,
                       struct token_ids *whole, size_t *n_context, struct err *e);

/* ---- eval_score.c ---- */
void eval_score(
    struct eval_task *t); /* fills picked, correct, flexible, rouge_l and the subjects */
/* Corpus BLEU-4, 0..100: clipped n-gram counts, closest reference length, zero counts smoothed by
 * halving (method "exp" of sacreBLEU). Words are runs of letters and digits; Han characters, kana,
 * hangul syllables and every other visible character stand alone. */
double eval_bleu(const struct eval_task *t);
/* F1 of the longest common subsequence of lower-cased words, the best reference, 0..100. */
double eval_rouge_l(const char *text, const char *const *refs, int n_refs);
/* The number an answer gives: strict after "#### ", else the last one. Points into `out` of n
 * bytes;
 * "" when there is none. */
void eval_number(const char *text, int strict, char *out, size_t n);

/* ---- eval_local.c ---- */
struct setup;
/* `s` has its engine; both outlive the backend. */
int eval_local_open(struct eval_backend *b, struct setup *s, int max_in_flight, struct err *e);
void eval_local_close(struct eval_backend *b);

/* ---- eval_remote.c ---- */
struct eval_remote_options {
    const char *base_url; /* with or without /v1 */
    const char *model;    /* NULL: the first that /v1/models names */
    const char *api_key, *tokenizer;
    int max_in_flight, max_model_len; /* 0: as /v1/models says, else 4,096 */
};
int eval_remote_open(struct eval_backend *b, const struct eval_remote_options *o, struct err *e);
void eval_remote_close(struct eval_backend *b); /* due whatever open returned */

#endif
