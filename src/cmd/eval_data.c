/* SPDX-License-Identifier: Apache-2.0 */
/* Test sets in the files they are published in, as questions with their whole context.
 *
 *   ceval/{dev,val,test}/SUBJECT_{split}.csv  id,question,A,B,C,D,answer[,explanation]
 *   cmmlu/{dev,test}/SUBJECT.csv              ,Question,A,B,C,D,Answer
 *   mmlu/{dev,val,test}/SUBJECT_{split}.csv   question,A,B,C,D,answer without a heading line
 *   gsm8k/{train,test}.jsonl                  {"question","answer"}
 *
 * Prompts are those of lm-evaluation-harness: a line that names the subject, the first lines of
 * `dev` as shots, the question, the letter as the continuation. */
#include "base/json.h"
#include "base/utf8.h"
#include "cmd/eval.h"
#include "cmd/eval_names.h"
#include "text/unicode.h"
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define FILE_BYTES_MAX ((size_t)256 << 20)
#define CSV_COLUMNS    12
#define MAX_REFS       64

static const char *const letters[] = {"A", "B", "C", "D"};

/* ---- growing a task ---- */

static struct eval_question *add_question(struct eval_task *t)
{
    if (t->n_questions == t->cap) {
        size_t cap = t->cap ? t->cap * 2 : 256;
        struct eval_question *v = realloc(t->questions, cap * sizeof *v);
        if (!v) {
            return NULL;
        }
        t->questions = v;
        t->cap = cap;
    }
    struct eval_question *q = &t->questions[t->n_questions++];
    memset(q, 0, sizeof *q);
    return q;
}

static int add_subject(struct eval_task *t, const char *name)
{
    struct eval_subject *v =
        realloc(t->subjects, ((size_t)t->n_subjects + 1) * sizeof *t->subjects);
    if (!v) {
        return ERR_NOMEM;
    }
    t->subjects = v;
    v[t->n_subjects] = (struct eval_subject){.name = arena_strdup(&t->arena, name)};
    return v[t->n_subjects].name ? t->n_subjects++ : ERR_NOMEM;
}

void eval_task_fini(struct eval_task *t)
{
    for (size_t i = 0; i < t->n_questions; i++) {
        free(t->questions[i].output);
    }
    free(t->questions);
    free(t->subjects);
    arena_fini(&t->arena);
    memset(t, 0, sizeof *t);
}

/* ---- CSV: RFC 4180, with line breaks inside quotes and an optional byte order mark ---- */

struct csv {
    const char *at, *end;
    int line;
    const char *path;
    struct arena *arena;
};

/* One record: the number of columns, 0 at the end, or an error. */
static int read_record(struct csv *c, const char *columns[CSV_COLUMNS], struct err *e)
{
    struct buf field;
    int n = 0, rc = 0, more = 1;
    while (c->at < c->end && (*c->at == '\n' || *c->at == '\r')) {
        c->line += *c->at++ == '\n';
    }
    if (c->at == c->end) {
        return 0;
    }
    buf_init(&field);
    int first_line = c->line;
    while (more && rc == 0) {
        buf_clear(&field);
        int quoted = c->at < c->end && *c->at == '"';
        c->at += quoted;
        while (c->at < c->end) {
            char ch = *c->at;
            if (quoted && ch == '"') {
                if (c->at + 1 < c->end && c->at[1] == '"') {
                    c->at++;
                } else {
                    quoted = 0;
                    c->at++;
                    continue;
                }
            } else if (!quoted && (ch == ',' || ch == '\n' || ch == '\r')) {
                break;
            }
            c->line += ch == '\n';
            buf_putc(&field, *c->at++);
        }
        if (quoted) {
            rc = err_set(e, ERR_FORMAT, "%s: line %d: a quote is not closed", c->path, first_line);
        } else if (field.len &&
                   (memchr(field.data, 0, field.len) || !utf8_is_valid(field.data, field.len))) {
            rc = err_set(e, ERR_FORMAT, "%s: line %d: holds NUL, or is not UTF-8", c->path,
                         first_line);
        } else if (n == CSV_COLUMNS) {
            rc = err_set(e, ERR_FORMAT, "%s: line %d: more than %d columns", c->path, first_line,
                         CSV_COLUMNS);
        } else {
            columns[n] = arena_strndup(c->arena, field.data ? field.data : "", field.len);
            rc = field.failed || !columns[n] ? err_set(e, ERR_NOMEM, "out of memory") : 0;
            n++;
        }
        more = c->at < c->end && *c->at == ',';
        c->at += more;
    }
    buf_fini(&field);
    return rc < 0 ? rc : n;
}

/* ---- multiple choice ---- */

struct choice_row {
    const char *question, *options[4];
    int gold; /* -1: the file has no answers */
};

struct choice_file {
    struct choice_row *rows;
    size_t n;
};

struct choice_set {
    const char *name;
    int suffix;                    /* files end in _SPLIT.csv */
    int heading;                   /* a first line names the columns */
    const char *before, *after;    /* around the subject's name, before the shots */
    const char *answer;            /* what the letter follows */
    const char *const (*names)[2]; /* file name -> subject's name, or NULL */
    size_t n_names;
};

static const struct choice_set choice_sets[] = {
    {"ceval", 1, 1, "以下是中国关于", "的单项选择题，请选出其中的正确答案。\n\n", "答案：",
     ceval_names, sizeof ceval_names / sizeof *ceval_names},
    {"cmmlu", 0, 1, "以下是关于", "的单项选择题，请直接给出正确答案的选项。\n\n", "答案：",
     cmmlu_names, sizeof cmmlu_names / sizeof *cmmlu_names},
    {"mmlu", 1, 0, "The following are multiple choice questions (with answers) about ", ".\n\n",
     "Answer:", NULL, 0},
};

static int check_heading(const struct csv *c, const char *const *columns, int n, struct err *e)
{
    static const char *const names[] = {"question", "A", "B", "C", "D", "answer"};
    for (int i = 0; i < 5 + (n > 6); i++) {
        if (n < 6 || strcasecmp(columns[i + 1], names[i]) != 0) {
            return err_set(e, ERR_FORMAT,
                           "%s: line 1: expected the heading id,question,A,B,C,D,answer", c->path);
        }
    }
    return n;
}

static int no_questions(const char *path, struct err *e)
{
    return err_set(e, ERR_FORMAT, "%s: no questions in it", path);
}

static int read_choices(struct arena *arena, const struct choice_set *set, const char *path,
                        struct choice_file *out, struct err *e)
{
    struct buf text;
    size_t cap = 0;
    const char *columns[CSV_COLUMNS];
    buf_init(&text);
    out->rows = NULL;
    out->n = 0;
    int rc = buf_read_file(&text, path, FILE_BYTES_MAX, e);
    struct csv c = {
        .at = text.data, .end = text.data + text.len, .line = 1, .path = path, .arena = arena};
    if (rc >= 0 && text.len >= 3 && memcmp(text.data, "\xEF\xBB\xBF", 3) == 0) {
        c.at += 3;
    }
    int skip = set->heading, first = set->heading; /* the id column comes with the heading */
    while (rc >= 0 && (rc = text.len ? read_record(&c, columns, e) : 0) > 0) {
        if (skip) {
            skip = 0;
            rc = check_heading(&c, columns, rc, e);
            continue;
        }
        int gold = rc > first + 5 && columns[first + 5][0] ? columns[first + 5][0] - 'A' : -1;
        if (rc < first + 5 || gold > 3 || (gold >= 0 && columns[first + 5][1] != '\0')) {
            rc = err_set(e, ERR_FORMAT,
                         "%s: line %d: expected %squestion, A, B, C, D and an answer A to D", path,
                         c.line, first ? "id, " : "");
            break;
        }
        if (out->n == cap) {
            cap = cap ? cap * 2 : 64;
            struct choice_row *v = realloc(out->rows, cap * sizeof *v);
            if (!v) {
                rc = err_set(e, ERR_NOMEM, "out of memory");
                break;
            }
            out->rows = v;
        }
        struct choice_row *row = &out->rows[out->n++];
        row->question = columns[first];
        row->gold = gold;
        memcpy(row->options, columns + first + 1, sizeof row->options);
    }
    buf_fini(&text);
    return rc >= 0 && out->n == 0 ? no_questions(path, e) : rc;
}

static void write_question(const struct choice_set *set, const struct choice_row *row,
                           struct buf *out)
{
    size_t n = strlen(row->question), head = unicode_leading_space(row->question, n);
    buf_append(out, row->question + head,
               n - head - unicode_trailing_space(row->question + head, n - head));
    for (int i = 0; i < 4; i++) {
        buf_printf(out, "\n%s. %s", letters[i], row->options[i]);
    }
    buf_printf(out, "\n%s", set->answer);
}

static const char *subject_title(const struct choice_set *set, const char *subject,
                                 struct arena *arena)
{
    for (size_t i = 0; i < set->n_names; i++) {
        if (strcmp(set->names[i][0], subject) == 0) {
            return set->names[i][1];
        }
    }
    char *title = arena_strdup(arena, subject);
    for (char *p = title; p && *p; p++) {
        *p = *p == '_' ? ' ' : *p;
    }
    return title;
}

static int add_choices(struct eval_task *t, const struct choice_set *set, const char *subject,
                       const struct choice_file *shots, const struct choice_file *asked,
                       int same_file, int64_t limit, struct err *e)
{
    struct buf b;
    int index = add_subject(t, subject);
    const char *title = subject_title(set, subject, &t->arena);
    if (index < 0 || !title) {
        return err_set(e, ERR_NOMEM, "out of memory");
    }
    buf_init(&b);
    for (size_t i = 0; i < asked->n && (!limit || i < (size_t)limit); i++) {
        buf_clear(&b);
        buf_printf(&b, "%s%s%s", set->before, title, set->after);
        int n_shots = 0;
        for (size_t k = 0; k < shots->n && n_shots < t->n_shots; k++) {
            if (same_file && k == i) {
                continue; /* a question must not show its own answer */
            }
            write_question(set, &shots->rows[k], &b);
            buf_printf(&b, " %s\n\n", shots->rows[k].gold < 0 ? "" : letters[shots->rows[k].gold]);
            n_shots++;
        }
        write_question(set, &asked->rows[i], &b);
        struct eval_question *q = add_question(t);
        if (!q || b.failed || !(q->context = arena_strndup(&t->arena, b.data, b.len))) {
            buf_fini(&b);
            return err_set(e, ERR_NOMEM, "out of memory");
        }
        q->subject = index;
        q->context_bytes = b.len;
        q->n_choices = 4;
        q->gold = asked->rows[i].gold;
        static const char *const continuations[] = {" A", " B", " C", " D"};
        memcpy(q->choices, continuations, sizeof continuations);
    }
    buf_fini(&b);
    return 0;
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static int wanted(const char *list, const char *name)
{
    size_t n = strlen(name);
    for (const char *p = list; p && *p; p += strcspn(p, ",") + (p[strcspn(p, ",")] == ',')) {
        if (strcspn(p, ",") == n && strncmp(p, name, n) == 0) {
            return 1;
        }
    }
    return !list;
}

/* Subjects of a directory, sorted; names in the task's arena. */
static int list_subjects(struct eval_task *t, const struct choice_set *set, const char *dir,
                         const char *split, const char *subjects, char ***out, size_t *n,
                         struct err *e)
{
    DIR *d = opendir(dir);
    char ending[64];
    size_t cap = 0;
    snprintf(ending, sizeof ending, "%s%s.csv", set->suffix ? "_" : "", set->suffix ? split : "");
    *out = NULL;
    *n = 0;
    if (!d) {
        return err_set(e, ERR_NOT_FOUND, "%s: no such directory", dir);
    }
    for (struct dirent *f; (f = readdir(d)) != NULL;) {
        size_t len = strlen(f->d_name), tail = strlen(ending);
        if (len <= tail || strcmp(f->d_name + len - tail, ending) != 0) {
            continue;
        }
        char *name = arena_strndup(&t->arena, f->d_name, len - tail);
        if (name && !wanted(subjects, name)) {
            continue;
        }
        if (*n == cap) {
            cap = cap ? cap * 2 : 64;
            char **v = realloc(*out, cap * sizeof *v);
            name = v ? name : NULL;
            *out = v ? v : *out;
        }
        if (!name) {
            closedir(d);
            return err_set(e, ERR_NOMEM, "out of memory");
        }
        (*out)[(*n)++] = name;
    }
    closedir(d);
    if (*n) {
        qsort(*out, *n, sizeof **out, compare_names);
    }
    return *n ? 0
              : err_set(e, ERR_NOT_FOUND, "%s: no files *%s%s%s", dir, ending,
                        subjects ? " for subjects " : "", subjects ? subjects : "");
}

static int has_split(const char *root, const char *split)
{
    char path[4200];
    snprintf(path, sizeof path, "%s/%s", root, split);
    return !buf_file_absent(path);
}

static int load_subject(struct eval_task *t, const struct choice_set *set, const char *root,
                        const char *subject, int64_t limit, struct err *e)
{
    char path[4400], shots_path[4400];
    struct choice_file asked = {0}, shots = {0};
    int same = strcmp(t->split, "dev") == 0;
    snprintf(path, sizeof path, "%s/%s/%s%s%s.csv", root, t->split, subject, set->suffix ? "_" : "",
             set->suffix ? t->split : "");
    snprintf(shots_path, sizeof shots_path, "%s/dev/%s%s.csv", root, subject,
             set->suffix ? "_dev" : "");
    int rc = read_choices(&t->arena, set, path, &asked, e);
    for (size_t i = 0; rc >= 0 && i < asked.n; i++) {
        if (asked.rows[i].gold < 0) {
            rc = err_set(e, ERR_FORMAT, "%s: question %zu has no answer: choose another --split",
                         path, i + 1);
        }
    }
    if (rc >= 0 && t->n_shots > 0) {
        rc = read_choices(&t->arena, set, shots_path, &shots, e);
    }
    rc = rc < 0 ? rc : add_choices(t, set, subject, &shots, &asked, same, limit, e);
    free(asked.rows);
    free(shots.rows);
    return rc;
}

static int load_choice_set(struct eval_task *t, const struct choice_set *set,
                           const struct eval_data_options *o, struct err *e)
{
    static const char *const preferred[] = {"test", "val", "dev"};
    char root[4096], dir[4200];
    char **names = NULL;
    size_t n = 0;
    snprintf(root, sizeof root, "%s/%s", o->dir, set->name);
    t->kind = EVAL_CHOICE;
    t->name = set->name;
    t->split = o->split;
    for (int i = strcmp(set->name, "ceval") == 0; !t->split && i < 3; i++) { /* C-Eval keeps the
                                                            answers of its test split back */
        t->split = has_split(root, preferred[i]) ? preferred[i] : NULL;
    }
    if (!t->split) {
        return err_set(e, ERR_NOT_FOUND, "%s: expected a directory test, val or dev in it", root);
    }
    snprintf(dir, sizeof dir, "%s/%s", root, t->split);
    int rc = list_subjects(t, set, dir, t->split, o->subjects, &names, &n, e);
    for (size_t i = 0; rc >= 0 && i < n; i++) {
        rc = load_subject(t, set, root, names[i], o->limit, e);
    }
    if (strcmp(t->split, "dev") == 0 && t->n_shots > 0) {
        t->note = "shots come from the questions asked, the question itself left out";
    }
    free(names);
    return rc;
}

/* ---- JSON lines ---- */

struct lines {
    struct buf text;
    const char *path;
    size_t at;
    int line;
};

/* The next line that is not empty, parsed. 1, 0 at the end, or an error. */
static int next_object(struct lines *l, struct json **out, struct err *e)
{
    *out = NULL;
    while (l->at < l->text.len) {
        const char *from = l->text.data + l->at;
        const char *to = memchr(from, '\n', l->text.len - l->at);
        size_t n = to ? (size_t)(to - from) : l->text.len - l->at;
        l->at += n + (to != NULL);
        l->line++;
        if (unicode_leading_space(from, n) == n) {
            continue;
        }
        int rc = json_parse(out, from, n, JSON_DEPTH_DEFAULT, e);
        if (rc < 0) {
            return err_prefix(e, "%s: line %d", l->path, l->line);
        }
        if (json_type(*out) != JSON_OBJECT) {
            json_free(*out);
            *out = NULL;
            return err_set(e, ERR_FORMAT, "%s: line %d: expected an object", l->path, l->line);
        }
        return 1;
    }
    return 0;
}

static const char *text_of(const struct lines *l, struct arena *arena, const struct json *object,
                           const char *key, struct err *e)
{
    size_t n;
    const struct json *v = json_get(object, key);
    const char *s = json_type(v) == JSON_STRING ? json_string(v, &n) : NULL;
    char *copy = s && !memchr(s, 0, n) ? arena_strndup(arena, s, n) : NULL;
    if (!copy) {
        err_set(e, ERR_FORMAT, "%s: line %d: expected the field \"%s\" to be a text", l->path,
                l->line, key);
    }
    return copy;
}

struct solved {
    const char *question, *answer;
};

static int read_solved(struct eval_task *t, const char *path, struct solved **out, size_t *n,
                       struct err *e)
{
    struct lines l = {.path = path};
    struct json *object;
    size_t cap = 0;
    *out = NULL;
    *n = 0;
    buf_init(&l.text);
    int rc = buf_read_file(&l.text, path, FILE_BYTES_MAX, e);
    while (rc >= 0 && (rc = next_object(&l, &object, e)) > 0) {
        struct solved s;
        s.question = text_of(&l, &t->arena, object, "question", e);
        s.answer = s.question ? text_of(&l, &t->arena, object, "answer", e) : NULL;
        json_free(object);
        if (!s.answer) {
            rc = ERR_FORMAT;
            break;
        }
        if (!strstr(s.answer, "#### ")) {
            rc = err_set(e, ERR_FORMAT, "%s: line %d: expected an answer that ends in \"#### N\"",
                         path, l.line);
            break;
        }
        if (*n == cap) {
            cap = cap ? cap * 2 : 256;
            struct solved *v = realloc(*out, cap * sizeof *v);
            if (!v) {
                rc = err_set(e, ERR_NOMEM, "out of memory");
                break;
            }
            *out = v;
        }
        (*out)[(*n)++] = s;
    }
    buf_fini(&l.text);
    return rc >= 0 && *n == 0 ? no_questions(path, e) : rc;
}

static int load_gsm8k(struct eval_task *t, const struct eval_data_options *o, struct err *e)
{
    char root[4096], path[4200], train[4200];
    struct solved *asked = NULL, *shots = NULL;
    size_t n_asked = 0, n_shots = 0, first = 0;
    struct buf b;
    snprintf(root, sizeof root, "%s/gsm8k", o->dir);
    t->kind = EVAL_MATH;
    t->name = "gsm8k";
    t->split = o->split ? o->split : "test";
    t->stops[0] = "Question:";
    t->n_stops = 1;
    t->max_tokens = 256;
    snprintf(path, sizeof path, "%s/%s.jsonl", root, t->split);
    snprintf(train, sizeof train, "%s/train.jsonl", root);
    buf_init(&b);
    int rc = read_solved(t, path, &asked, &n_asked, e);
    if (rc >= 0 && t->n_shots > 0 && !buf_file_absent(train)) {
        rc = read_solved(t, train, &shots, &n_shots, e);
    } else if (rc >= 0 && t->n_shots > 0) {
        first = (size_t)t->n_shots < n_asked ? (size_t)t->n_shots : n_asked;
        t->note = "no train.jsonl: the shots are the first questions of the split, which are not "
                  "scored";
    }
    rc = rc >= 0 && add_subject(t, "gsm8k") < 0 ? err_set(e, ERR_NOMEM, "out of memory") : rc;
    for (size_t i = first; rc >= 0 && i < n_asked && (!o->limit || i - first < (size_t)o->limit);
         i++) {
        const struct solved *from = shots ? shots : asked;
        size_t n = shots ? n_shots : first;
        buf_clear(&b);
        for (size_t k = 0; k < n && k < (size_t)t->n_shots; k++) {
            buf_printf(&b, "Question: %s\nAnswer: %s\n\n", from[k].question, from[k].answer);
        }
        buf_printf(&b, "Question: %s\nAnswer:", asked[i].question);
        struct eval_question *q = add_question(t);
        const char **refs = arena_alloc(&t->arena, sizeof *refs);
        if (!q || !refs || b.failed || !(q->context = arena_strndup(&t->arena, b.data, b.len))) {
            rc = err_set(e, ERR_NOMEM, "out of memory");
            break;
        }
        refs[0] = asked[i].answer;
        q->context_bytes = b.len;
        q->refs = refs;
        q->n_refs = 1;
    }
    buf_fini(&b);
    free(asked);
    free(shots);
    return rc;
}

static int add_reference(struct eval_task *t, const struct lines *l, const struct json *object,
                         struct err *e)
{
    const struct json *list = json_get(object, "references");
    int many = json_type(list) == JSON_ARRAY;
    size_t n = many ? json_length(list) : 1;
    const char *prompt = text_of(l, &t->arena, object, "prompt", e);
    if (!prompt) {
        return ERR_FORMAT;
    }
    if (n == 0 || n > MAX_REFS) {
        return err_set(e, ERR_FORMAT, "%s: line %d: expected 1 to %d references, found %zu",
                       l->path, l->line, MAX_REFS, n);
    }
    struct eval_question *q = add_question(t);
    const char **refs = arena_alloc(&t->arena, n * sizeof *refs);
    if (!q || !refs) {
        return err_set(e, ERR_NOMEM, "out of memory");
    }
    for (size_t i = 0; i < n; i++) {
        if (many) {
            size_t k;
            const char *s = json_type(json_at(list, i)) == JSON_STRING
                                ? json_string(json_at(list, i), &k)
                                : NULL;
            refs[i] = s ? arena_strdup(&t->arena, s) : NULL;
        } else {
            refs[i] = text_of(l, &t->arena, object, "reference", e);
        }
        if (!refs[i]) {
            return many ? err_set(e, ERR_FORMAT, "%s: line %d: a reference is no text", l->path,
                                  l->line)
                        : ERR_FORMAT;
        }
    }
    q->context = prompt;
    q->context_bytes = strlen(prompt);
    q->refs = refs;
    q->n_refs = (int)n;
    return 0;
}

int eval_data_references(struct eval_task *t, const char *path, int64_t limit, struct err *e)
{
    struct lines l = {.path = path};
    struct json *object;
    memset(t, 0, sizeof *t);
    arena_init(&t->arena, (size_t)64 << 10);
    t->kind = EVAL_REFERENCE;
    t->name = path;
    t->split = "-";
    t->max_tokens = 256;
    buf_init(&l.text);
    int rc = add_subject(t, "all") < 0 ? err_set(e, ERR_NOMEM, "out of memory")
                                       : buf_read_file(&l.text, path, FILE_BYTES_MAX, e);
    while (rc >= 0 && (!limit || t->n_questions < (size_t)limit) &&
           (rc = next_object(&l, &object, e)) > 0) {
        rc = add_reference(t, &l, object, e);
        json_free(object);
    }
    buf_fini(&l.text);
    if (rc >= 0 && t->n_questions == 0) {
        rc = no_questions(path, e);
    }
    return rc;
}

int eval_data_load(struct eval_task *t, const char *name, const struct eval_data_options *o,
                   struct err *e)
{
    memset(t, 0, sizeof *t);
    arena_init(&t->arena, (size_t)64 << 10);
    t->n_shots = o->n_shots >= 0 ? o->n_shots : 5;
    if (strcmp(name, "gsm8k") == 0) {
        return load_gsm8k(t, o, e);
    }
    for (size_t i = 0; i < sizeof choice_sets / sizeof *choice_sets; i++) {
        if (strcmp(name, choice_sets[i].name) == 0) {
            return load_choice_set(t, &choice_sets[i], o, e);
        }
    }
    return err_set(e, ERR_INVALID, "--tasks: expected ceval, cmmlu, mmlu or gsm8k, found '%s'",
                   name);
}

/* ---- tokens of a choice ---- */

int eval_encode_choice(eval_encoder *encode, void *self, const struct eval_question *q, int choice,
                       struct token_ids *whole, size_t *n_context, struct err *e)
{
    struct buf text;
    size_t blank = unicode_trailing_space(q->context, q->context_bytes);
    whole->n = 0;
    buf_init(&text);
    buf_append(&text, q->context, q->context_bytes);
    buf_puts(&text, q->choices[choice]);
    int rc = text.failed ? err_set(e, ERR_NOMEM, "out of memory")
                         : encode(self, q->context, q->context_bytes - blank, whole, e);
    *n_context = whole->n;
    whole->n = 0;
    rc = rc < 0 ? rc : encode(self, text.data, text.len, whole, e);
    buf_fini(&text);
    if (rc >= 0 && whole->n <= *n_context) {
        rc = err_set(e, ERR_FORMAT, "a choice adds no token to its context");
    }
    return rc;
}

/* ---- windows over a text ---- */

int eval_windows_resolve(struct eval_windows *w, int max_tokens, struct err *e)
{
    int window = w->window ? w->window : max_tokens < 2048 ? max_tokens : 2048;
    if (window < 2 || window > max_tokens) {
        return err_set(e, ERR_INVALID, "--window: expected 2 to %d tokens, found %d", max_tokens,
                       window);
    }
    int stride = w->stride ? w->stride : window / 2;
    if (stride < 1 || stride >= window) {
        return err_set(e, ERR_INVALID,
                       "--stride: expected 1 to %d (every scored token needs one before it), found "
                       "%d",
                       window - 1, stride);
    }
    w->window = window;
    w->stride = stride;
    return 0;
}

void eval_windows_next(const struct eval_windows *w, size_t n_tokens, size_t done, size_t *begin,
                       size_t *end)
{
    size_t window = (size_t)w->window, fresh = done ? (size_t)w->stride : window;
    *end = done + fresh < n_tokens ? done + fresh : n_tokens;
    *begin = *end > window ? *end - window : 0;
}
