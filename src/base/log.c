/* SPDX-License-Identifier: Apache-2.0 */
/* Log lines. A line is built whole and handed to the kernel with one write(2), so that lines of
 * several threads (and of several processes on one pipe) don't mix. Text may quote outside data:
 * control characters are escaped and bad UTF-8 is replaced, and a line break inside the text starts
 * a new line with the same head, so that nobody can forge a line of ours. */
#include "base/log.h"

#include "base/buf.h"
#include "base/json.h"
#include "base/utf8.h"
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <time.h>
#include <unistd.h>

static const struct {
    const char *name;
    enum log_level level;
} level_names[] = {
    {"DEBUG", LOG_DEBUG}, {"INFO", LOG_INFO},         {"WARNING", LOG_WARNING},
    {"ERROR", LOG_ERROR}, {"CRITICAL", LOG_CRITICAL}, {"WARN", LOG_WARNING},
    {"TRACE", LOG_DEBUG},
};

int log_level_parse(const char *name, enum log_level *out)
{
    for (size_t i = 0; i < sizeof level_names / sizeof level_names[0]; i++) {
        if (strcasecmp(name, level_names[i].name) == 0) {
            *out = level_names[i].level;
            return 0;
        }
    }
    return ERR_INVALID;
}

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

static void put_text(struct buf *out, const char *head, const char *text, size_t n_bytes)
{
    struct buf clean;
    buf_init(&clean);
    utf8_append_lossy(&clean, text, n_bytes);
    buf_puts(out, head);
    for (size_t i = 0; i < clean.len; i++) {
        unsigned char c = (unsigned char)clean.data[i];
        if (c == '\n') {
            buf_putc(out, '\n');
            buf_puts(out, head);
        } else if ((c < 0x20 && c != '\t') || c == 0x7F) {
            buf_printf(out, "\\x%02x", c);
        } else {
            buf_putc(out, (char)c);
        }
    }
    buf_putc(out, '\n');
    out->failed |= clean.failed;
    buf_fini(&clean);
}

static void put_json(struct buf *out, const struct log *log, enum log_level level,
                     const char *stamp, const char *file, int line, const struct buf *text)
{
    struct json_writer w;
    json_w_init(&w, out);
    json_w_object(&w);
    json_w_kstring(&w, "level", level_names[level].name);
    json_w_kstring(&w, "time", stamp);
    json_w_kstring(&w, "file", file);
    json_w_kint(&w, "line", line);
    if (log->prefix) {
        json_w_kstring(&w, "prefix", log->prefix);
    }
    json_w_key(&w, "message");
    json_w_stringn(&w, text->data, text->len);
    json_w_object_end(&w);
    buf_putc(out, '\n');
}

static void write_all(int fd, const char *data, size_t n_bytes)
{
    while (n_bytes > 0) {
        ssize_t n = write(fd, data, n_bytes);
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n <= 0) {
            return; /* a log that can't be written is lost: nobody could be told */
        }
        data += n;
        n_bytes -= (size_t)n;
    }
}

void log_write(const struct log *log, enum log_level level, const char *file, int line,
               const char *fmt, ...)
{
    static const struct log fallback = {.level = LOG_INFO, .fd = 2};
    log = log ? log : &fallback;
    if (level < log->level || level > LOG_CRITICAL) {
        return;
    }
    int saved_errno = errno;
    struct buf text, out;
    buf_init(&text);
    buf_init(&out);
    va_list ap;
    va_start(ap, fmt);
    buf_vprintf(&text, fmt, ap);
    va_end(ap);

    if (log->sink) {
        log->sink(log->sink_user, level, text.failed || !text.data ? "" : text.data);
        buf_fini(&text);
        errno = saved_errno;
        return;
    }
    time_t now = time(NULL);
    struct tm tm;
    char stamp[32] = "";
    if (localtime_r(&now, &tm)) {
        const char *layout = log->json ? "%Y-%m-%dT%H:%M:%S%z" : "%m-%d %H:%M:%S";
        strftime(stamp, sizeof stamp, layout, &tm);
    }
    if (log->json) {
        put_json(&out, log, level, stamp, base_name(file), line, &text);
    } else {
        char head[256];
        snprintf(head, sizeof head, "%s%s %s [%s:%d] ", log->prefix ? log->prefix : "",
                 level_names[level].name, stamp, base_name(file), line);
        put_text(&out, head, text.data ? text.data : "", text.len);
    }
    if (text.failed || out.failed) {
        static const char lost[] = "ERROR a log line was lost: out of memory\n";
        write_all(log->fd, lost, sizeof lost - 1);
    } else {
        write_all(log->fd, out.data, out.len);
    }
    buf_fini(&text);
    buf_fini(&out);
    errno = saved_errno;
}
