/* SPDX-License-Identifier: Apache-2.0 */
/* See batch_file.h. The input is scanned once for where its lines are and which can be run, so that
 * memory does not grow with the bodies; a body is read again when its turn comes. */
#include "cmd/batch_file.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAX_LINE_BYTES ((size_t)64 << 20)
#define MAX_DEPTH      (JSON_DEPTH_DEFAULT + 8)
#define COPY_BYTES     65536

/* ---- lines of any file ---- */

/* Calls line() for each line that is not blank; stops when it returns < 0. A last line without its
 * break has `broken` set. */
struct line_visit {
    int (*line)(void *user, int number, int64_t at, const char *text, size_t n, int broken,
                struct err *e);
    void *user;
};

static int visit_lines(int fd, const char *path, const struct line_visit *v, struct err *e)
{
    int copy = dup(fd);
    FILE *f = copy < 0 ? NULL : fdopen(copy, "r");
    char *text = NULL;
    size_t cap = 0;
    ssize_t n;
    int64_t at = 0;
    int rc = 0, number = 0;
    if (!f) {
        if (copy >= 0) {
            close(copy);
        }
        return err_set(e, ERR_IO, "%s: %s", path, strerror(errno));
    }
    rewind(f);
    while (rc >= 0 && (n = getline(&text, &cap, f)) > 0) {
        size_t len = (size_t)n, skip = 0;
        int broken = text[len - 1] != '\n';
        number++;
        if (number == 1 && len >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0) {
            skip = 3; /* a byte order mark */
        }
        while (len > skip && strchr(" \t\r\n", text[len - 1]) && text[len - 1]) {
            len--;
        }
        if (len > skip) {
            rc = v->line(v->user, number, at + (int64_t)skip, text + skip, len - skip, broken, e);
        }
        at += n;
    }
    if (rc >= 0 && ferror(f)) {
        rc = err_set(e, ERR_IO, "%s: can't be read", path);
    }
    free(text);
    fclose(f);
    return rc;
}

/* ---- input ---- */

static int set_fault(struct batch_line *l, const char *code, const char *fmt, ...)
    TERN_PRINTF(3, 4);
static int set_fault(struct batch_line *l, const char *code, const char *fmt, ...)
{
    struct buf b;
    va_list ap;
    buf_init(&b);
    va_start(ap, fmt);
    buf_vprintf(&b, fmt, ap);
    va_end(ap);
    l->code = code;
    l->fault = buf_detach(&b);
    return 0;
}

static const char *text_of(const struct json *object, const char *key)
{
    const struct json *v = json_get(object, key);
    return json_type(v) == JSON_STRING ? json_string(v, NULL) : NULL;
}

/* What can be said without the model. */
static int check_request(struct batch_file *b, struct batch_line *l, const struct json *doc)
{
    static const char *const urls[] = {"/v1/chat/completions", "/v1/completions", "/v1/responses"};
    const struct json *id = json_get(doc, "custom_id"), *stream;
    const char *url = text_of(doc, "url"), *method = text_of(doc, "method");
    size_t n = 0, known = 0;
    if (json_type(doc) != JSON_OBJECT) {
        return set_fault(l, "invalid_request", "line %d: expected a JSON object", l->number);
    }
    const char *name = json_type(id) == JSON_STRING ? json_string(id, &n) : NULL;
    if (!name || n == 0) {
        return set_fault(l, "invalid_request", "line %d: custom_id should be a string", l->number);
    }
    uintptr_t first = (uintptr_t)map_get(b->by_id, name, n);
    if (first) {
        return set_fault(l, "duplicate_custom_id", "line %d: custom_id '%.80s' is that of line %d",
                         l->number, name, b->lines[first - 1].number);
    }
    if (!method || strcmp(method, "POST") != 0) {
        return set_fault(l, "invalid_method", "line %d: method should be POST", l->number);
    }
    while (url && known < sizeof urls / sizeof urls[0] && strcmp(urls[known], url) != 0) {
        known++;
    }
    if (!url || known == sizeof urls / sizeof urls[0]) {
        return set_fault(l, "invalid_url",
                         "URL %.80s was used. Supported endpoints: /v1/chat/completions, "
                         "/v1/completions, /v1/responses.",
                         url ? url : "null");
    }
    if (json_type(json_get(doc, "body")) != JSON_OBJECT) {
        return set_fault(l, "invalid_request", "line %d: body should be an object", l->number);
    }
    stream = json_get(json_get(doc, "body"), "stream");
    if (json_type(stream) == JSON_BOOL && json_bool(stream)) {
        return set_fault(l, "invalid_request", "Request must not be sent in stream mode");
    }
    return map_put(b->by_id, name, n, (void *)(uintptr_t)b->n_lines); /* its index + 1 */
}

static int add_line(void *user, int number, int64_t at, const char *text, size_t n, int broken,
                    struct err *e)
{
    struct batch_file *b = user;
    struct json *doc = NULL;
    struct err why = {0};
    (void)broken;
    if (b->n_lines == b->cap) {
        size_t cap = b->cap ? 2 * b->cap : 256;
        struct batch_line *lines = realloc(b->lines, cap * sizeof *lines);
        if (!lines) {
            return err_set(e, ERR_NOMEM, "out of memory");
        }
        b->lines = lines;
        b->cap = cap;
    }
    struct batch_line *l = &b->lines[b->n_lines++];
    *l = (struct batch_line){.at = at, .n_bytes = n, .row_at = -1, .number = number};
    int rc = 0;
    if (n > MAX_LINE_BYTES) {
        rc = set_fault(l, "line_too_long", "line %d: %zu bytes are more than %zu", number, n,
                       MAX_LINE_BYTES);
    } else if (json_parse(&doc, text, n, MAX_DEPTH, &why) != 0) {
        rc = set_fault(l, "invalid_json_line", "line %d: no JSON: %s", number, why.text);
    } else {
        rc = check_request(b, l, doc);
    }
    json_free(doc);
    return rc < 0 || (l->code && !l->fault) ? err_set(e, ERR_NOMEM, "out of memory") : 0;
}

struct json *batch_file_read(const struct batch_file *b, const struct batch_line *l)
{
    struct json *doc = NULL;
    char *text = l->n_bytes > MAX_LINE_BYTES ? NULL : malloc(l->n_bytes + 1);
    size_t got = 0;
    while (text && got < l->n_bytes) {
        ssize_t n = pread(b->in_fd, text + got, l->n_bytes - got, l->at + (int64_t)got);
        if (n <= 0) {
            break;
        }
        got += (size_t)n;
    }
    if (!text || got < l->n_bytes || json_parse(&doc, text, got, MAX_DEPTH, NULL) != 0) {
        doc = NULL;
    }
    free(text);
    return doc;
}

/* ---- output ---- */

static struct batch_line *line_of_number(const struct batch_file *b, int64_t number)
{
    size_t low = 0, high = b->n_lines;
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        if (b->lines[mid].number < number) {
            low = mid + 1;
        } else {
            high = mid;
        }
    }
    return low < b->n_lines && b->lines[low].number == number ? &b->lines[low] : NULL;
}

static struct batch_line *line_of_row(const struct batch_file *b, const struct json *row)
{
    const struct json *id = json_get(row, "custom_id");
    const struct json *error = json_get(row, "error"), *line = json_get(error, "line");
    size_t n;
    if (json_type(error) == JSON_OBJECT && json_type(line) == JSON_INT) {
        struct batch_line *l = line_of_number(b, json_int(line));
        return l && l->code ? l : NULL;
    }
    const char *name = json_type(id) == JSON_STRING ? json_string(id, &n) : NULL;
    uintptr_t at = name ? (uintptr_t)map_get(b->by_id, name, n) : 0;
    return at ? &b->lines[at - 1] : NULL;
}

static int add_row(void *user, int number, int64_t at, const char *text, size_t n, int broken,
                   struct err *e)
{
    struct batch_file *b = user;
    struct json *row = NULL;
    if (broken) {
        log_warning(b->log, "%s: the last row is incomplete: it is cut off and made again",
                    b->out_path);
        return 0;
    }
    if (json_parse(&row, text, n, MAX_DEPTH + JSON_DEPTH_DEFAULT, NULL) != 0 ||
        json_type(row) != JSON_OBJECT) {
        json_free(row);
        return err_set(e, ERR_FORMAT,
                       "%s: line %d is no row of a batch output; --overwrite starts it anew",
                       b->out_path, number);
    }
    struct batch_line *l = line_of_row(b, row);
    const char *id = text_of(row, "custom_id");
    int rc = 0;
    if (!l) {
        rc = err_set(e, ERR_INVALID,
                     "%s: line %d answers no request of %s (custom_id %.80s); --overwrite starts "
                     "the output anew",
                     b->out_path, number, b->in_path, id ? id : "null");
    } else if (l->row_at < 0) {
        l->row_at = at;
        l->row_bytes = n;
        b->n_done++;
    }
    json_free(row);
    b->out_bytes = at + (int64_t)n + 1;
    return rc;
}

static int open_output(struct batch_file *b, const char *path, int overwrite, struct err *e)
{
    struct stat st;
    int flags = O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC;
    b->out_fd = open(path, flags, 0666);
    if (b->out_fd < 0 && (errno == ENXIO || errno == EINVAL || errno == EACCES)) {
        b->out_fd = open(path, O_WRONLY | O_CLOEXEC); /* a pipe, a terminal */
    }
    if (b->out_fd < 0 || fstat(b->out_fd, &st) != 0) {
        return err_set(e, ERR_IO, "%s: %s", path, strerror(errno));
    }
    b->regular = S_ISREG(st.st_mode);
    b->out_path = b->regular ? realpath(path, NULL) : strdup(path);
    if (!b->out_path) {
        return err_set(e, ERR_IO, "%s: %s", path, strerror(errno));
    }
    if (!b->regular) {
        return 0;
    }
    struct stat in;
    if (fstat(b->in_fd, &in) == 0 && in.st_dev == st.st_dev && in.st_ino == st.st_ino) {
        return err_set(e, ERR_INVALID, "%s is both input and output", path);
    }
    if (flock(b->out_fd, LOCK_EX | LOCK_NB) != 0) {
        return err_set(e, ERR_BUSY, "%s: another run writes it", path);
    }
    if (overwrite && ftruncate(b->out_fd, 0) != 0) {
        return err_set(e, ERR_IO, "%s: %s", path, strerror(errno));
    }
    struct line_visit v = {add_row, b};
    int rc = visit_lines(b->out_fd, b->out_path, &v, e);
    if (rc >= 0 && ftruncate(b->out_fd, b->out_bytes) != 0) {
        rc = err_set(e, ERR_IO, "%s: %s", path, strerror(errno));
    }
    b->n_resumed = b->n_done;
    return rc;
}

int batch_file_open(struct batch_file *b, const char *in_path, const char *out_path, int overwrite,
                    const struct log *log, struct err *e)
{
    struct stat st;
    *b = (struct batch_file){.log = log, .in_path = in_path, .in_fd = -1, .out_fd = -1};
    b->by_id = map_new();
    if (!b->by_id) {
        return err_set(e, ERR_NOMEM, "out of memory");
    }
    b->in_fd = open(in_path, O_RDONLY | O_CLOEXEC);
    if (b->in_fd < 0 || fstat(b->in_fd, &st) != 0) {
        return err_set(e, ERR_IO, "%s: %s", in_path, strerror(errno));
    }
    if (!S_ISREG(st.st_mode)) {
        return err_set(e, ERR_INVALID, "%s: the input must be a file: it is read twice", in_path);
    }
    struct line_visit v = {add_line, b};
    int rc = visit_lines(b->in_fd, in_path, &v, e);
    return rc < 0 ? rc : open_output(b, out_path, overwrite, e);
}

void batch_file_close(struct batch_file *b)
{
    for (size_t i = 0; i < b->n_lines; i++) {
        free(b->lines[i].fault);
    }
    free(b->lines);
    free(b->out_path);
    map_free(b->by_id);
    if (b->in_fd >= 0) {
        close(b->in_fd);
    }
    if (b->out_fd >= 0) {
        close(b->out_fd);
    }
}

static int write_all(int fd, const char *data, size_t n)
{
    while (n > 0) {
        ssize_t k = write(fd, data, n);
        if (k < 0 && errno == EINTR) {
            continue;
        }
        if (k <= 0) {
            return -1;
        }
        data += k;
        n -= (size_t)k;
    }
    return 0;
}

int batch_file_put(struct batch_file *b, struct batch_line *l, const struct buf *row, struct err *e)
{
    struct buf line;
    buf_init(&line);
    buf_append(&line, row->data ? row->data : "", row->len);
    buf_putc(&line, '\n');
    if (row->failed || line.failed) {
        buf_fini(&line);
        return err_set(e, ERR_NOMEM, "out of memory");
    }
    int rc = 0;
    if (write_all(b->out_fd, line.data, line.len) != 0) {
        rc = err_set(e, ERR_IO, "%s: %s", b->out_path, strerror(errno));
        if (b->regular && ftruncate(b->out_fd, b->out_bytes) != 0) {
            log_warning(b->log, "%s: a piece of a row was left behind", b->out_path);
        }
    } else {
        l->row_at = b->out_bytes;
        l->row_bytes = line.len - 1;
        b->out_bytes += (int64_t)line.len;
        b->n_done++;
    }
    buf_fini(&line);
    return rc;
}

static int copy_row(const struct batch_file *b, const struct batch_line *l, int to, char *scratch)
{
    size_t left = l->row_bytes;
    int64_t at = l->row_at;
    while (left > 0) {
        size_t want = left < COPY_BYTES ? left : COPY_BYTES;
        ssize_t n = pread(b->out_fd, scratch, want, at);
        if (n <= 0 || write_all(to, scratch, (size_t)n) != 0) {
            return -1;
        }
        left -= (size_t)n;
        at += n;
    }
    return write_all(to, "\n", 1);
}

static int in_order(const struct batch_file *b)
{
    int64_t last = -1;
    for (size_t i = 0; i < b->n_lines; i++) {
        if (b->lines[i].row_at < last) {
            return 0;
        }
        last = b->lines[i].row_at;
    }
    return 1;
}

int batch_file_finish(struct batch_file *b, struct err *e)
{
    struct buf path;
    struct stat st;
    int fd = -1, rc = 0;
    char *scratch = NULL;
    if (!b->regular || in_order(b)) {
        return 0;
    }
    buf_init(&path);
    buf_printf(&path, "%s.sorted-XXXXXX", b->out_path);
    scratch = malloc(COPY_BYTES);
    fd = path.failed || !scratch ? -1 : mkstemp(path.data);
    int ok = fd >= 0 && fstat(b->out_fd, &st) == 0 && fchmod(fd, st.st_mode & 0777) == 0;
    for (size_t i = 0; ok && i < b->n_lines; i++) {
        ok = copy_row(b, &b->lines[i], fd, scratch) == 0;
    }
    if (!ok || fdatasync(fd) != 0 || rename(path.data, b->out_path) != 0) {
        rc = err_set(e, ERR_IO, "%s: the rows are complete but can't be put in order: %s",
                     b->out_path, strerror(errno));
        if (fd >= 0) {
            unlink(path.data);
        }
    }
    if (fd >= 0) {
        close(fd);
    }
    free(scratch);
    buf_fini(&path);
    return rc;
}
