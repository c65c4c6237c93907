/* SPDX-License-Identifier: Apache-2.0 */
/* tern quantize MODEL OUT: a 16-bit checkpoint to a directory with quantized linear layers, in a
 * published format. Everything is written into OUT.partial-PID beside OUT, brought to the disk and
 * renamed at the very end: OUT is a whole model or isn't there. A fault or an interrupt removes
 * what was begun. The report (error of every matrix, sizes, perplexities) goes to standard
 * output. */
#include "base/json.h"
#include "cmd/args.h"
#include "cmd/cmd.h"
#include "cmd/eval.h"
#include "cmd/signals.h"
#include "lib/setup.h"
#include "model/calibrate.h"
#include "model/pack.h"
#include "model/quant_write.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define G_QUANTIZE    "Quantization"
#define TEXT_BYTES    ((size_t)1 << 30)
#define SEQS          4    /* windows of a text that are in flight */
#define WINDOW        512  /* tokens of a calibration text that see each other */
#define FEEDBACK_ROWS 1024 /* of each product that error feedback is made of */

struct args_quantize {
    const char *scheme, *format, *group, *head, *text, *calibrate;
    int64_t calibration_tokens;
    struct opt_list ignored;
    int search, json, pack;
};

#define FIELD(f) offsetof(struct args_quantize, f)
static const struct opt rows[] = {
    {.name = "scheme",
     .type = OPT_STRING,
     .offset = FIELD(scheme),
     .group = G_QUANTIZE,
     .choices = "int8|int4|fp8|w2|path",
     .help = "What the linear layers become; w2: the 2-bit convolutional code; "
             "path: fp8, int4 and w2, in directories of those names in OUT, and what each step "
             "loses (with --perplexity). Needed unless --pack."},
    {.name = "format",
     .type = OPT_STRING,
     .offset = FIELD(format),
     .group = G_QUANTIZE,
     .def = "compressed-tensors",
     .choices = "compressed-tensors|awq|fp8",
     .help = "Layout and quant_method: awq (int4) has zero points; fp8 (fp8) a scale for 128 x 128 "
             "weights instead of one a row."},
    {.name = "group-size",
     .type = OPT_STRING,
     .offset = FIELD(group),
     .group = G_QUANTIZE,
     .def = "64",
     .choices = "32|64|128",
     .help = "int4: inputs that share a scale."},
    {.name = "scale-search",
     .type = OPT_BOOL,
     .offset = FIELD(search),
     .group = G_QUANTIZE,
     .def = "true",
     .help = "int4: the scale with the smallest squared error; else the one that spans the range."},
    {.name = "calibrate",
     .type = OPT_STRING,
     .offset = FIELD(calibrate),
     .group = G_QUANTIZE,
     .meta = "FILE",
     .help =
         "int4: a text that shows which channels matter (AWQ): scales of channels are searched "
         "for and folded into norms, v and up; errors are weighted by the activations. w2: errors "
         "of columns are made good in those that follow."},
    {.name = "calibration-tokens",
     .type = OPT_SIZE,
     .offset = FIELD(calibration_tokens),
     .group = G_QUANTIZE,
     .def = "8192",
     .min = 1,
     .max = 1e7,
     .help = "Tokens of that text that are read, in windows of 512."},
    {.name = "head",
     .type = OPT_STRING,
     .offset = FIELD(head),
     .group = G_QUANTIZE,
     .def = "16",
     .choices = "16|8|4",
     .help = "Bits of embedding and head (stored once when tied): 8 as the scheme has them, 4 in "
             "groups of 32. Needs --format compressed-tensors."},
    {.name = "ignore",
     .type = OPT_LIST,
     .offset = FIELD(ignored),
     .group = G_QUANTIZE,
     .meta = "LAYER",
     .help = "Linear layers that stay as they are, by whole name, first or last parts; none: all "
             "are quantized. Default: fp8 o_proj gate_proj up_proj, others none. Norms always "
             "stay, embedding and head unless --head."},
    {.name = "pack",
     .type = OPT_BOOL,
     .offset = FIELD(pack),
     .group = G_QUANTIZE,
     .def = "false",
     .help = "Packed for tern: model.tern, which is mapped instead of loaded, in place of a format "
             "that others read. Without --scheme: of MODEL as it is (any format, with "
             "--quantization and --quantization-head as elsewhere)."},
    {.name = "perplexity",
     .type = OPT_STRING,
     .offset = FIELD(text),
     .group = G_QUANTIZE,
     .meta = "FILE",
     .help = "A text whose perplexity is measured with MODEL and with OUT. Needed by --scheme "
             "path."},
    {.name = "json",
     .type = OPT_BOOL,
     .offset = FIELD(json),
     .group = G_QUANTIZE,
     .def = "false",
     .help = "The report as one JSON object."},
};

struct quantizing {
    const struct args_quantize *own;
    const struct args_engine *engine;
    struct log log;
    struct quant_write_options o;
    struct calibration calibration;
    const char *out;
    char temporary[PATH_MAX];
    struct json_writer json;
    struct buf report;
    int on_path; /* one of several: no line a matrix */
    double square_error, square;
    int n_quantized, n_kept;
    uint64_t in_bytes, out_bytes;
    double before, after; /* perplexities */
};

static int interrupted(void *user)
{
    (void)user;
    return signals_pending();
}

/* ---- report ---- */

static double relative(double error, double square)
{
    return square > 0 ? sqrt(error / square) : 0;
}

static void matrix_done(void *user, const struct quant_write_matrix *m)
{
    struct quantizing *q = user;
    const double error = relative(m->square_error, m->square);
    q->square_error += m->square_error;
    q->square += m->square;
    q->n_kept += m->kept;
    q->n_quantized += !m->kept;
    if (q->on_path) {
        return;
    }
    if (q->own->json) {
        json_w_object(&q->json);
        json_w_kstring(&q->json, "name", m->name);
        json_w_kint(&q->json, "rows", m->rows);
        json_w_kint(&q->json, "cols", m->cols);
        json_w_kbool(&q->json, "quantized", !m->kept);
        json_w_kdouble(&q->json, "relative_error", error);
        json_w_object_end(&q->json);
        return;
    }
    printf("%-44s [%d, %d]  ", m->name, m->rows, m->cols);
    if (m->kept) {
        puts("as it was");
    } else {
        printf("error %.3f %%\n", 100 * error);
    }
    fflush(stdout);
}

static void print_report(struct quantizing *q)
{
    const double error = relative(q->square_error, q->square);
    if (q->own->json) {
        json_w_array_end(&q->json);
        json_w_kint(&q->json, "quantized", q->n_quantized);
        json_w_kint(&q->json, "kept", q->n_kept);
        json_w_kdouble(&q->json, "relative_error", error);
        json_w_kint(&q->json, "bytes_before", (int64_t)q->in_bytes);
        json_w_kint(&q->json, "bytes_after", (int64_t)q->out_bytes);
        if (q->own->text) {
            json_w_kdouble(&q->json, "perplexity_before", q->before);
            json_w_kdouble(&q->json, "perplexity_after", q->after);
        }
        json_w_object_end(&q->json);
        buf_putc(&q->report, '\n');
        fwrite(q->report.data ? q->report.data : "", 1, q->report.len, stdout);
        return;
    }
    if (q->own->scheme) {
        printf("%d matrices quantized, %d kept, relative error %.3f %% (root mean square)\n",
               q->n_quantized, q->n_kept, 100 * error);
    }
    printf("weights %.1f MiB -> %.1f MiB\n", (double)q->in_bytes / 1048576,
           (double)q->out_bytes / 1048576);
    if (q->own->text) {
        printf("perplexity of %s: %.4f -> %.4f (%+.2f %%)\n", q->own->text, q->before, q->after,
               100 * (q->after / q->before - 1));
    }
}

static int perplexity(struct quantizing *q, const char *model, double *out, struct err *e)
{
    struct args_engine a = *q->engine;
    struct setup s = {.a = &a, .log = q->log, .n_seqs_wanted = SEQS};
    struct eval_backend b = {0};
    struct eval_text text = {.name = q->own->text};
    struct eval_windows windows = {0, 0};
    struct eval_progress progress = {.what = text.name, .quiet = 1};
    a.model = model;
    buf_init(&text.text);
    int rc = buf_read_file(&text.text, text.name, TEXT_BYTES, e);
    rc = rc < 0 ? rc : setup_check(&s, e);
    rc = rc < 0 ? rc : setup_load(&s, e);
    rc = rc < 0 ? rc : setup_engine(&s, e);
    rc = rc < 0 ? rc : eval_local_open(&b, &s, SEQS, e);
    rc = rc < 0 ? rc : b.score_text(b.self, &text, &windows, &progress, e);
    *out = text.n_scored > 0 ? exp(text.nll / (double)text.n_scored) : 0;
    setup_close(&s); /* first: the engine's events go to the backend's queue */
    eval_local_close(&b);
    buf_fini(&text.text);
    return rc;
}

/* Runs MODEL over the calibration text. */
static int calibrate(struct quantizing *q, struct err *e)
{
    struct args_engine a = *q->engine;
    struct setup s = {.a = &a, .log = q->log, .n_seqs_wanted = 1};
    struct token_ids ids = {0};
    struct buf text;
    buf_init(&text);
    int rc = buf_read_file(&text, q->own->calibrate, TEXT_BYTES, e);
    rc = rc < 0 ? rc : setup_check(&s, e);
    rc = rc < 0 ? rc : setup_load(&s, e);
    if (rc >= 0) {
        rc = tokenizer_encode(s.tokenizer, text.data ? text.data : "", text.len, 0, &ids, e);
        rc = rc < 0 ? err_prefix(e, "%s", q->own->calibrate) : rc;
    }
    if (rc >= 0 && ids.n == 0) {
        rc = err_set(e, ERR_INVALID, "%s: no text to calibrate with", q->own->calibrate);
    }
    if (rc >= 0) {
        const int64_t n = q->own->calibration_tokens;
        const int longest = model_config(s.model)->max_position_embeddings;
        const struct calibration_options o = {
            .model = s.model,
            .kernels = s.kernels,
            .pool = s.pool,
            .ids = ids.ids,
            .n_ids = (int)((int64_t)ids.n < n ? (int64_t)ids.n : n),
            .window = longest < WINDOW ? longest : WINDOW,
            .max_rows = q->o.scheme == QUANT_WRITE_TWO ? FEEDBACK_ROWS : 0,
            .stop = interrupted,
        };
        calibration_fini(&q->calibration); /* of an earlier step */
        rc = calibration_run(&q->calibration, &o, e);
    }
    q->o.calibration = &q->calibration;
    q->o.kernels = s.kernels;
    setup_close(&s);
    token_ids_fini(&ids);
    buf_fini(&text);
    return rc;
}

/* ---- files ---- */

static int path_in(char out[PATH_MAX], const char *dir, const char *name, struct err *e)
{
    const int n = snprintf(out, PATH_MAX, "%s/%s", dir, name);
    return n < 0 || n >= PATH_MAX ? err_set(e, ERR_INVALID, "%s: path is too long", dir) : 0;
}

static int io_failed(const char *path, struct err *e)
{
    return err_set(e, ERR_IO, "%s: %s", path, strerror(errno));
}

/* A new file with this content (of `from`, or the bytes), on the disk. */
static int write_file(const char *path, FILE *from, const void *data, size_t n, struct err *e)
{
    char piece[64 << 10];
    FILE *f = fopen(path, "wbx");
    if (!f) {
        return io_failed(path, e);
    }
    int bad = fwrite(data, 1, n, f) != n;
    while (from && !bad && (n = fread(piece, 1, sizeof piece, from)) > 0) {
        bad = fwrite(piece, 1, n, f) != n;
    }
    bad = bad || (from && ferror(from)) || fflush(f) != 0 || fsync(fileno(f)) != 0;
    const int why = errno;
    bad |= fclose(f) != 0;
    errno = why;
    return bad ? io_failed(path, e) : 0;
}

static int copy_file(const char *from, const char *to, struct err *e)
{
    FILE *f = fopen(from, "rb");
    if (!f) {
        return io_failed(from, e);
    }
    int rc = write_file(to, f, "", 0, e);
    fclose(f);
    return rc;
}

static int is_companion(const char *name)
{
    static const char *const begins[] = {
        "tokenizer", "tokenization_", "special_tokens_map.json", "added_tokens.json",
        "vocab.",    "merges.txt",    "chat_template",           "generation_config.json",
        "LICENSE",   "spiece.model"};
    for (size_t i = 0; i < sizeof begins / sizeof *begins; i++) {
        if (strncmp(name, begins[i], strlen(begins[i])) == 0) {
            return 1;
        }
    }
    return 0;
}

/* Tokenizer, template and generation files; those that are there already stay. */
static int copy_companions(const struct quantizing *q, const char *dir, struct err *e)
{
    DIR *d = opendir(dir);
    int rc = d ? 0 : io_failed(dir, e);
    for (const struct dirent *en; rc >= 0 && (en = readdir(d)) != NULL;) {
        char from[PATH_MAX], to[PATH_MAX];
        struct stat sb;
        if (!is_companion(en->d_name)) {
            continue;
        }
        rc = path_in(from, dir, en->d_name, e);
        rc = rc < 0 ? rc : path_in(to, q->temporary, en->d_name, e);
        if (rc >= 0 && stat(from, &sb) == 0 && S_ISREG(sb.st_mode) && access(to, F_OK) != 0) {
            rc = copy_file(from, to, e);
        }
    }
    if (d) {
        closedir(d);
    }
    return rc;
}

static void sync_directory(const char *path)
{
    const int fd = open(path, O_RDONLY | O_DIRECTORY);
    if (fd >= 0) {
        fsync(fd); /* best effort: some file systems have no such thing */
        close(fd);
    }
}

static void remove_temporary(const struct quantizing *q)
{
    DIR *d = opendir(q->temporary);
    for (const struct dirent *en; d && (en = readdir(d)) != NULL;) {
        char path[PATH_MAX];
        if (path_in(path, q->temporary, en->d_name, NULL) == 0) {
            unlink(path); /* fails for . and .. */
        }
    }
    if (d) {
        closedir(d);
    }
    rmdir(q->temporary);
}

static int make_temporary(struct quantizing *q, struct err *e)
{
    struct stat sb;
    if (lstat(q->out, &sb) == 0) {
        return err_set(e, ERR_INVALID, "%s: exists already, and nothing is overwritten", q->out);
    }
    size_t n = strlen(q->out);
    while (n > 1 && q->out[n - 1] == '/') {
        n--;
    }
    const int len = snprintf(q->temporary, sizeof q->temporary, "%.*s.partial-%ld", (int)n, q->out,
                             (long)getpid());
    if (len < 0 || len >= (int)sizeof q->temporary) {
        q->temporary[0] = '\0';
        return err_set(e, ERR_INVALID, "%s: path is too long", q->out);
    }
    if (mkdir(q->temporary, 0777) != 0) {
        int rc = io_failed(q->temporary, e);
        q->temporary[0] = '\0';
        return rc;
    }
    return 0;
}

/* ---- the command ---- */

static int copy_all_companions(const struct quantizing *q, struct err *e)
{
    const char *model = q->engine->model, *tokenizer = q->engine->tokenizer;
    struct stat sb;
    int rc = tokenizer ? copy_companions(q, tokenizer, e) : 0;
    return rc >= 0 && stat(model, &sb) == 0 && S_ISDIR(sb.st_mode) ? copy_companions(q, model, e)
                                                                   : rc;
}

static int write_model(struct quantizing *q, struct setup *s, struct err *e)
{
    char path[PATH_MAX];
    struct buf config;
    buf_init(&config);
    int rc = quant_write_config(s->model, &q->o, &config, e);
    rc = rc < 0 ? rc : path_in(path, q->temporary, "config.json", e);
    rc = rc < 0 ? rc : write_file(path, NULL, config.data, config.len, e);
    rc = rc < 0 ? rc : path_in(path, q->temporary, "model.safetensors", e);
    rc = rc < 0 ? rc : quant_write_weights(s->model, &q->o, path, s->pool, &q->out_bytes, e);
    buf_fini(&config);
    return rc;
}

/* config.json and model.tern of the model at `from`, in place of what --scheme wrote. */
static int pack_model(struct quantizing *q, const char *from, struct err *e)
{
    struct args_engine a = *q->engine;
    struct setup s = {.a = &a, .log = q->log};
    char path[PATH_MAX];
    struct buf config;
    a.model = from;
    buf_init(&config);
    int rc = setup_cpu(&s, e);
    rc = rc < 0 ? rc : setup_files(&s, e);
    rc = rc < 0 ? rc : pack_check(s.model, e);
    rc = rc < 0 ? rc : quant_write_config(s.model, NULL, &config, e);
    rc = rc < 0 ? rc : setup_load(&s, e);
    rc = rc < 0 ? rc : path_in(path, q->temporary, "config.json", e);
    if (rc >= 0) {
        unlink(path);
        rc = write_file(path, NULL, config.data, config.len, e);
    }
    rc = rc < 0 ? rc : path_in(path, q->temporary, PACK_FILE, e);
    rc = rc < 0 ? rc : pack_write(s.model, path, &q->out_bytes, e);
    if (rc >= 0 && path_in(path, q->temporary, "model.safetensors", e) == 0) {
        unlink(path); /* isn't there without --scheme */
    }
    setup_close(&s);
    buf_fini(&config);
    return rc;
}

static int quantize(struct quantizing *q, struct err *e)
{
    struct setup s = {.a = q->engine, .log = q->log};
    const char *texts = q->engine->tokenizer ? q->engine->tokenizer : q->engine->model;
    struct stat sb;
    int rc = setup_cpu(&s, e);
    rc = rc < 0 ? rc : setup_files(&s, e);
    if (rc >= 0 && stat(texts, &sb) == 0 && S_ISREG(sb.st_mode)) {
        rc = err_set(e, ERR_INVALID,
                     "%s: expected --tokenizer DIR, whose files become those of the model: a GGUF "
                     "file has none",
                     texts);
    }
    if (rc >= 0) {
        q->in_bytes = model_file_bytes(s.model);
        rc = q->own->scheme ? quant_write_check(s.model, &q->o, e) : pack_check(s.model, e);
    }
    rc = rc < 0 ? rc : make_temporary(q, e);
    rc = rc < 0 ? rc : copy_all_companions(q, e);
    if (rc >= 0 && q->own->text && !(q->before > 0)) {
        rc = perplexity(q, q->engine->model, &q->before, e);
    }
    if (rc >= 0 && q->own->calibrate &&
        (strcmp(q->own->scheme, "int4") == 0 || strcmp(q->own->scheme, "w2") == 0)) {
        rc = calibrate(q, e);
    }
    if (rc >= 0 && q->own->scheme) {
        rc = cpu_pool_open(&s.pool, s.n_threads, s.cpu_ids, e);
        rc = rc < 0 ? rc : write_model(q, &s, e);
    }
    setup_close(&s);
    if (rc >= 0 && q->own->pack) {
        rc = pack_model(q, q->own->scheme ? q->temporary : q->engine->model, e);
    }
    if (rc >= 0) {
        sync_directory(q->temporary);
        rc = rename(q->temporary, q->out) == 0 ? 0 : io_failed(q->out, e);
    }
    if (rc < 0) {
        if (q->temporary[0]) {
            remove_temporary(q);
        }
        return rc;
    }
    return q->own->text ? perplexity(q, q->out, &q->after, e) : 0;
}

/* ---- the whole path ---- */

static const char *const path_steps[] = {"fp8", "int4", "w2"};
#define PATH_STEPS (sizeof path_steps / sizeof *path_steps)

static void set_options(struct quantizing *q)
{
    static const char *const kept_fp8[] = {"o_proj", "gate_proj", "up_proj"};
    const struct args_quantize *own = q->own;
    q->o = (struct quant_write_options){
        .scheme = strcmp(own->format, "awq") == 0    ? QUANT_WRITE_AWQ
                  : strcmp(own->format, "fp8") == 0  ? QUANT_WRITE_FP8_BLOCK
                  : strcmp(own->scheme, "int8") == 0 ? QUANT_WRITE_INT8
                  : strcmp(own->scheme, "int4") == 0 ? QUANT_WRITE_INT4
                  : strcmp(own->scheme, "w2") == 0   ? QUANT_WRITE_TWO
                                                     : QUANT_WRITE_FP8,
        .group = (int)strtol(own->group, NULL, 10),
        .search = own->search,
        .head_bits = strcmp(own->head, "16") == 0 ? 0 : (int)strtol(own->head, NULL, 10),
        .ignored = own->ignored.v,
        .n_ignored = own->ignored.n,
        .user = q,
        .done = matrix_done,
        .stop = interrupted,
    };
    if (own->ignored.n == 1 && strcmp(own->ignored.v[0], "none") == 0) {
        q->o.n_ignored = 0;
    } else if (own->ignored.n == 0 && strcmp(own->scheme, "fp8") == 0) {
        q->o.ignored = kept_fp8;
        q->o.n_ignored = (int)(sizeof kept_fp8 / sizeof *kept_fp8);
    }
}

/* A row of the table: against the original, and against the step before. */
static void step_done(struct quantizing *q, double last)
{
    const double error = relative(q->square_error, q->square),
                 loss = 100 * (q->after / q->before - 1);
    const double step = 100 * (q->after / last - 1);
    if (q->own->json) {
        json_w_object(&q->json);
        json_w_kstring(&q->json, "scheme", q->own->scheme);
        json_w_kint(&q->json, "bytes", (int64_t)q->out_bytes);
        json_w_kdouble(&q->json, "relative_error", error);
        json_w_kdouble(&q->json, "perplexity", q->after);
        json_w_kdouble(&q->json, "loss_percent", loss);
        json_w_kdouble(&q->json, "step_loss_percent", step);
        json_w_object_end(&q->json);
        return;
    }
    printf("%-6s %9.1f %9.3f %% %12.4f %+9.2f %% %+9.2f %%\n", q->own->scheme,
           (double)q->out_bytes / 1048576, 100 * error, q->after, loss, step);
    fflush(stdout);
}

/* Each step is made of the original, into a directory of its own. */
static int walk_path(struct quantizing *q, struct args_quantize *own, struct err *e)
{
    const char *root = q->out;
    char out[PATH_MAX];
    double last = 0;
    int rc = mkdir(root, 0777) == 0 ? 0 : io_failed(root, e);
    for (size_t i = 0; i < PATH_STEPS && rc >= 0; i++) {
        own->scheme = path_steps[i];
        q->square_error = q->square = 0;
        q->on_path = 1;
        q->out = out;
        set_options(q);
        rc = path_in(out, root, path_steps[i], e);
        rc = rc < 0 ? rc : quantize(q, e);
        if (rc >= 0 && i == 0 && !own->json) {
            printf("%-6s %9s %11s %12s %11s %11s\n%-6s %9.1f %11s %12.4f\n", "step", "MiB", "error",
                   "perplexity", "loss", "of the step", "as is", (double)q->in_bytes / 1048576, "",
                   q->before);
        }
        if (rc >= 0) {
            step_done(q, i == 0 ? q->before : last);
        }
        last = q->after;
    }
    q->out = root; /* `out` ends here */
    if (rc < 0) {
        rmdir(root); /* unless a step is done */
    }
    return rc;
}

static void end_path_json(struct quantizing *q)
{
    json_w_array_end(&q->json);
    json_w_kint(&q->json, "bytes_before", (int64_t)q->in_bytes);
    json_w_kdouble(&q->json, "perplexity_before", q->before);
    json_w_object_end(&q->json);
    buf_putc(&q->report, '\n');
    fwrite(q->report.data ? q->report.data : "", 1, q->report.len, stdout);
}

/* What the words mean together. Returns -1 to go on, else the exit code. */
static int resolve(struct quantizing *q, const struct opts *o)
{
    const struct args_quantize *own = q->own;
    const int path = own->scheme && strcmp(own->scheme, "path") == 0;
    const int awq = strcmp(own->format, "awq") == 0, blocks = strcmp(own->format, "fp8") == 0;
    const char *wrong = NULL;
    if (o->args.n != 2) {
        wrong = o->args.n < 2 ? "expected MODEL and OUT" : "expected MODEL and OUT, found more";
    } else if (!own->scheme && !own->pack) {
        wrong = "expected --scheme int8, int4, fp8, w2 or path, or --pack";
    } else if (!own->scheme) {
        wrong = opts_source(o, "format") != OPT_FROM_DEFAULT || own->ignored.n > 0 ||
                        own->calibrate || strcmp(own->head, "16") != 0 ||
                        opts_source(o, "group-size") != OPT_FROM_DEFAULT
                    ? "--format, --group-size, --head, --ignore and --calibrate need --scheme"
                    : NULL;
    } else if (path && !own->text) {
        wrong = "--scheme path needs --perplexity FILE";
    } else if (awq && strcmp(own->scheme, "int4") != 0) {
        wrong = "--format awq needs --scheme int4";
    } else if (blocks && strcmp(own->scheme, "fp8") != 0) {
        wrong = "--format fp8 needs --scheme fp8";
    } else if (strcmp(own->scheme, "int4") != 0 && !path &&
               (opts_source(o, "group-size") != OPT_FROM_DEFAULT ||
                opts_source(o, "scale-search") != OPT_FROM_DEFAULT)) {
        wrong = "--group-size and --scale-search need --scheme int4";
    } else if (own->calibrate && strcmp(own->scheme, "int4") != 0 &&
               strcmp(own->scheme, "w2") != 0 && !path) {
        wrong = "--calibrate needs --scheme int4 or w2";
    } else if (strcmp(own->head, "16") != 0 && (awq || blocks)) {
        wrong = "--head 8 and 4 need --format compressed-tensors";
    } else if (opts_source(o, "quantization") != OPT_FROM_DEFAULT ||
               opts_source(o, "quantization-head") != OPT_FROM_DEFAULT) {
        wrong = "--quantization and --quantization-head are of no use here: --scheme and --head "
                "say what is made";
    }
    if (wrong) {
        fprintf(stderr, "usage: %s\ntern quantize: error: %s\n", o->usage, wrong);
        return EXIT_USAGE;
    }
    q->out = o->args.v[1];
    if (own->scheme && !path) {
        set_options(q);
    }
    return -1;
}

int cmd_quantize(int argc, char **argv)
{
    const char *command = "tern quantize";
    struct args_quantize own = {0};
    struct args_engine a = {0};
    struct opts o = {
        .usage =
            "tern quantize MODEL OUT --scheme int8|int4|fp8|w2 | --scheme path --perplexity FILE | "
            "--pack [options]",
        .tables = {{rows, sizeof rows / sizeof *rows, &own}, args_engine_table(&a)},
        .n_tables = 2};
    struct quantizing q = {.own = &own, .engine = &a};
    struct err e = {0, ""};
    buf_init(&q.report);
    int rc = args_parse(&o, command, argc, argv);
    rc = rc < 0 ? resolve(&q, &o) : rc;
    rc = rc < 0 ? args_model(&o, command, &a, 2) : rc;
    if (rc < 0) {
        args_quiet_log(&o, &a, &q.log);
        signals_block();
        json_w_init(&q.json, &q.report);
        json_w_object(&q.json);
        json_w_kstring(&q.json, "scheme", own.scheme ? own.scheme : "none");
        json_w_kstring(&q.json, "format", own.pack ? "tern" : own.format);
        json_w_key(&q.json, own.scheme && strcmp(own.scheme, "path") == 0 ? "steps" : "matrices");
        json_w_array(&q.json);
        const int path = own.scheme && strcmp(own.scheme, "path") == 0;
        rc = path ? walk_path(&q, &own, &e) : quantize(&q, &e);
        if (rc >= 0 && !path) {
            print_report(&q);
        } else if (rc >= 0 && own.json) {
            end_path_json(&q);
        }
        rc = rc < 0 ? args_fail(command, &e) : 0;
    }
    calibration_fini(&q.calibration);
    buf_fini(&q.report);
    opts_fini(&o);
    return rc;
}
