/* SPDX-License-Identifier: Apache-2.0 */
/* What both kinds of partner share: the table of settings, and signals. */
#include "cmd/ask.h"
#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

const char *const ask_setting_names[ASK_SETTINGS] = {
    [ASK_TEMPERATURE] = "temperature",
    [ASK_TOP_P] = "top_p",
    [ASK_TOP_K] = "top_k",
    [ASK_MIN_P] = "min_p",
    [ASK_MAX_TOKENS] = "max_tokens",
    [ASK_SEED] = "seed",
    [ASK_REPETITION_PENALTY] = "repetition_penalty",
    [ASK_PRESENCE_PENALTY] = "presence_penalty",
    [ASK_FREQUENCY_PENALTY] = "frequency_penalty",
    [ASK_STOP] = "stop",
};

static const struct range {
    double min, max;
    int integer;
} ranges[ASK_SETTINGS] = {
    [ASK_TEMPERATURE] = {0, 100, 0},
    [ASK_TOP_P] = {1e-9, 1, 0},
    [ASK_TOP_K] = {-1, 1e9, 1},
    [ASK_MIN_P] = {0, 1, 0},
    [ASK_MAX_TOKENS] = {1, 1e9, 1},
    [ASK_SEED] = {-9e15, 9e15, 1},
    [ASK_REPETITION_PENALTY] = {1e-9, 1e9, 0},
    [ASK_PRESENCE_PENALTY] = {-2, 2, 0},
    [ASK_FREQUENCY_PENALTY] = {-2, 2, 0},
};

/* `-` and `_` are alike, as on the command line. */
static int find(const char *name)
{
    for (int i = 0; i < ASK_SETTINGS; i++) {
        const char *a = ask_setting_names[i], *b = name;
        while (*a && (*a == *b || (*a == '_' && *b == '-'))) {
            a++;
            b++;
        }
        if (!*a && !*b) {
            return i;
        }
    }
    return -1;
}

static int check(int which, const char *value, struct err *e)
{
    const struct range *r = &ranges[which];
    char *end;
    if (which == ASK_STOP) {
        return *value ? 0 : err_set(e, ERR_INVALID, "stop: expected some text");
    }
    errno = 0;
    double v = strtod(value, &end);
    if (end == value || *end || errno || !isfinite(v) || v < r->min || v > r->max ||
        (r->integer && v != floor(v))) {
        return err_set(e, ERR_INVALID, "%s: expected %s from %g to %g, found '%s'",
                       ask_setting_names[which], r->integer ? "a whole number" : "a number", r->min,
                       r->max, value);
    }
    return 0;
}

int ask_set(struct ask_settings *s, const char *name, const char *value, struct err *e)
{
    int which = find(name);
    if (which < 0) {
        struct buf names;
        buf_init(&names);
        for (int i = 0; i < ASK_SETTINGS; i++) {
            buf_printf(&names, " %s", ask_setting_names[i]);
        }
        err_set(e, ERR_INVALID, "there is no setting '%s'; there are%s", name,
                names.data ? names.data : "");
        buf_fini(&names);
        return ERR_INVALID;
    }
    int rc = value ? check(which, value, e) : 0;
    char *copy = rc >= 0 && value ? strdup(value) : NULL;
    if (rc >= 0 && value && !copy) {
        rc = err_set(e, ERR_NOMEM, "out of memory");
    }
    if (rc >= 0) {
        free(s->text[which]);
        s->text[which] = copy;
    }
    return rc;
}

void ask_settings_fini(struct ask_settings *s)
{
    for (int i = 0; i < ASK_SETTINGS; i++) {
        free(s->text[i]);
        s->text[i] = NULL;
    }
}

double ask_number(const struct ask_settings *s, enum ask_setting which)
{
    return strtod(s->text[which], NULL);
}

int ask_is_integer(enum ask_setting which)
{
    return ranges[which].integer;
}

void ask_close(struct ask *a)
{
    if (a->close) {
        a->close(a->self);
        a->close = NULL;
    }
}
