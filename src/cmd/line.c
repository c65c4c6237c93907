/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/line.h"
#include "base/plugin.h"
#include "cmd/signals.h"
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <locale.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <unistd.h>
#include <wchar.h>
#ifdef TERN_LIBEDIT
#include <histedit.h>

#define HISTORY_LINES 1000

/* X(return type, name, parameters): each becomes a member of struct edit_functions. */
#define EDIT_FUNCTIONS(X)                                                                          \
    X(EditLine *, el_init, (const char *, FILE *, FILE *, FILE *))                                 \
    X(void, el_end, (EditLine *))                                                                  \
    X(int, el_set, (EditLine *, int, ...))                                                         \
    X(int, el_get, (EditLine *, int, ...))                                                         \
    X(const char *, el_gets, (EditLine *, int *))                                                  \
    X(void, el_resize, (EditLine *))                                                               \
    X(History *, history_init, (void))                                                             \
    X(void, history_end, (History *))                                                              \
    X(int, history, (History *, HistEvent *, int, ...))

struct edit_functions {
#define EDIT_MEMBER(type, name, parameters) type(*name) parameters;
    EDIT_FUNCTIONS(EDIT_MEMBER)
#undef EDIT_MEMBER
};
#endif

#define END_KEY '\x04' /* Ctrl-D */

struct line_reader {
    int signals; /* signalfd of SIGINT and SIGTERM */
    enum line_read ended;
    struct buf pend; /* bytes behind the line that was read last */
    size_t seen;     /* of them: searched already, no line ends there */
    int eof;
#ifdef TERN_LIBEDIT
    struct edit_functions f;
    EditLine *edit; /* NULL: lines are read as they are */
    History *past;
    char *history;
    const char *prompt;
    mbstate_t shift;
#endif
};

/* Waits for a byte of standard input. 0: there is one (or the end), -1: a signal came. */
static int wait_input(struct line_reader *r)
{
    struct pollfd p[2] = {{.fd = STDIN_FILENO, .events = POLLIN},
                          {.fd = r->signals, .events = POLLIN}};
    while (poll(p, 2, -1) < 0 && errno == EINTR) {
    }
    if (p[1].revents & POLLIN) {
        struct signalfd_siginfo info;
        ssize_t n = read(r->signals, &info, sizeof info);
        if (n == (ssize_t)sizeof info) {
            r->ended = info.ssi_signo == SIGTERM ? LINE_TERMINATED : LINE_INTERRUPTED;
            return -1;
        }
    }
    return 0;
}

#ifdef TERN_LIBEDIT

static int load(struct line_reader *r)
{
    static const char *const names[] = {"libedit.so.2", NULL};
    void *library = plugin_open(names, 1, "libedit2", NULL); /* global: see reader_of */
    if (!library) {
        return -1;
    }
    /* dlsym gives an object pointer; copying its bytes is the defined way to a function's */
#define EDIT_FIND(type, name, parameters)                                                          \
    {                                                                                              \
        void *p = dlsym(library, #name);                                                           \
        if (!p) {                                                                                  \
            return -1;                                                                             \
        }                                                                                          \
        memcpy(&r->f.name, &p, sizeof p);                                                          \
    }
    EDIT_FUNCTIONS(EDIT_FIND)
#undef EDIT_FIND
    return 0;
}

/* The library's callbacks get an EditLine only. What it was given is asked for by a function that
 * lives in the library too, hence found by its name. */
static struct line_reader *reader_of(EditLine *el)
{
    struct line_reader *r = NULL;
    int (*get)(EditLine *, int, ...);
    void *p = dlsym(RTLD_DEFAULT, "el_get");
    memcpy(&get, &p, sizeof get);
    get(el, EL_CLIENTDATA, &r);
    return r;
}

static char *tell_prompt(EditLine *el)
{
    return (char *)(uintptr_t)reader_of(el)->prompt; /* the library only reads it */
}

/* One character for the editor: 1, 0 at the end, -1 when a signal came. */
static int next_char(EditLine *el, wchar_t *out)
{
    struct line_reader *r = reader_of(el);
    for (;;) {
        char byte;
        if (wait_input(r) < 0) {
            return -1;
        }
        ssize_t n = read(STDIN_FILENO, &byte, 1);
        if (n < 0 && (errno == EINTR || errno == EAGAIN)) {
            continue;
        }
        if (n <= 0) {
            return 0;
        }
        /* A Ctrl-D typed before the editor had the terminal was kept by it as the end of a file,
         * which reads as a NUL now. */
        byte = byte == '\0' ? END_KEY : byte;
        size_t k = mbrtowc(out, &byte, 1, &r->shift);
        if (k == (size_t)-1) {
            memset(&r->shift, 0, sizeof r->shift);
        } else if (k != (size_t)-2) {
            return 1;
        }
    }
}

static void open_editor(struct line_reader *r, const char *history)
{
    HistEvent ev;
    if (load(r) < 0) {
        return;
    }
    /* the editor counts columns of characters, so it has to know what they are */
    if (!setlocale(LC_CTYPE, "") || MB_CUR_MAX == 1) {
        setlocale(LC_CTYPE, "C.UTF-8");
    }
    r->past = r->f.history_init();
    r->edit = r->past ? r->f.el_init("tern", stdin, stdout, stderr) : NULL;
    if (!r->edit) {
        return;
    }
    r->f.history(r->past, &ev, H_SETSIZE, HISTORY_LINES);
    r->f.history(r->past, &ev, H_SETUNIQUE, 1);
    r->history = history ? strdup(history) : NULL;
    if (r->history) {
        r->f.history(r->past, &ev, H_LOAD, r->history);
    }
    r->f.el_set(r->edit, EL_CLIENTDATA, r);
    r->f.el_set(r->edit, EL_EDITOR, "emacs");
    r->f.el_set(r->edit, EL_HIST, r->f.history, r->past);
    r->f.el_set(r->edit, EL_PROMPT_ESC, tell_prompt, '\1');
    r->f.el_set(r->edit, EL_GETCFN, next_char);
}

static enum line_read read_edited(struct line_reader *r, const char *prompt, struct buf *out)
{
    HistEvent ev;
    int n = 0;
    r->prompt = prompt;
    r->ended = LINE_END;
    memset(&r->shift, 0, sizeof r->shift);
    r->f.el_resize(r->edit); /* the window may have changed */
    const char *line = r->f.el_gets(r->edit, &n);
    if (!line || n <= 0) {
        return r->ended;
    }
    buf_append(out, line, (size_t)n);
    if (out->len && out->data[out->len - 1] == '\n') {
        out->data[--out->len] = '\0';
    }
    if (out->len) {
        r->f.history(r->past, &ev, H_ENTER, line);
    }
    return LINE_TEXT;
}

/* The lines are the user's own: nobody else may read them. */
static void save_history(struct line_reader *r)
{
    HistEvent ev;
    int fd = open(r->history, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    FILE *f = fd >= 0 && fchmod(fd, 0600) == 0 ? fdopen(fd, "w") : NULL;
    if (f) {
        r->f.history(r->past, &ev, H_SAVE_FP, f);
        fclose(f);
    } else if (fd >= 0) {
        close(fd);
    }
}

#endif

static enum line_read read_plain(struct line_reader *r, struct buf *out)
{
    char chunk[4096];
    r->ended = LINE_END;
    for (;;) {
        char *end = r->pend.len > r->seen
                        ? memchr(r->pend.data + r->seen, '\n', r->pend.len - r->seen)
                        : NULL;
        r->seen = r->pend.len;
        if (end || (r->eof && r->pend.len)) {
            size_t n = end ? (size_t)(end - r->pend.data) : r->pend.len;
            size_t used = end ? n + 1 : n;
            buf_append(out, r->pend.data, n);
            memmove(r->pend.data, r->pend.data + used, r->pend.len - used);
            r->pend.len -= used;
            r->seen = 0;
            return LINE_TEXT;
        }
        if (r->eof || r->pend.failed) {
            return LINE_END;
        }
        if (wait_input(r) < 0) {
            return r->ended;
        }
        ssize_t n = read(STDIN_FILENO, chunk, sizeof chunk);
        if (n < 0 && errno == EINTR) {
            continue;
        }
        r->eof = n <= 0;
        buf_append(&r->pend, chunk, n > 0 ? (size_t)n : 0);
    }
}

int line_open(struct line_reader **out, int editing, const char *history, struct err *e)
{
    struct line_reader *r = calloc(1, sizeof *r);
    sigset_t set;
    *out = NULL;
    if (!r) {
        return err_set(e, ERR_NOMEM, "out of memory");
    }
    signals_set(&set);
    buf_init(&r->pend);
    r->signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    if (r->signals < 0) {
        line_close(r);
        return err_set(e, ERR_IO, "cannot wait for signals: %s", strerror(errno));
    }
#ifdef TERN_LIBEDIT
    if (editing) {
        open_editor(r, history);
    }
#else
    (void)editing;
    (void)history;
#endif
    *out = r;
    return 0;
}

enum line_read line_read(struct line_reader *r, const char *prompt, struct buf *out)
{
    buf_clear(out);
    buf_append(out, "", 0);
#ifdef TERN_LIBEDIT
    if (r->edit) {
        return read_edited(r, prompt, out);
    }
#endif
    if (isatty(STDIN_FILENO)) {
        for (const char *p = prompt; *p; p++) {
            if (*p != '\1') {
                fputc(*p, stderr);
            }
        }
    }
    return read_plain(r, out);
}

void line_close(struct line_reader *r)
{
    if (!r) {
        return;
    }
#ifdef TERN_LIBEDIT
    if (r->edit) {
        if (r->history) {
            save_history(r);
        }
        r->f.el_end(r->edit);
    }
    if (r->past) {
        r->f.history_end(r->past);
    }
    free(r->history);
#endif
    if (r->signals >= 0) {
        close(r->signals);
    }
    buf_fini(&r->pend);
    free(r);
}
