/* SPDX-License-Identifier: Apache-2.0 */
/* See answer.h. A state machine over the bytes that are not decided yet (`pend`): each state either
 * takes something off its front or says that it must see more. The last feed is the same machine
 * with `final` set, where nothing more can come and every state has to decide.
 *
 * Cost is linear: ordinary text is searched for marks once, and of what stays in `pend` only the
 * few bytes that may begin a mark are looked at again. A block or a call's arguments, which may be
 * long, remember how far they were scanned. */
#include "text/answer.h"

#include "base/json.h"

#include <stdlib.h>
#include <string.h>

enum state {
    AT_START,  /* nothing but blanks seen */
    REASONING, /* until </think> */
    BEFORE,    /* between </think>, or the start, and the content */
    CONTENT,
    RESPONSE_ENDS, /* just behind </response> */
    BLOCK,         /* behind <tool_call> */
    AFTER_CALL,    /* blanks behind </tool_call> */
    LIST_OPEN,     /* before [ */
    LIST_ITEM,     /* before { or ] */
    LIST_HEAD,     /* {"name": …, "parameters": */
    LIST_ARGUMENTS,
    LIST_TAIL, /* behind the arguments, before } */
    LIST_DONE,
    ONE, /* arguments of the named function */
};

#define ARGUMENTS_DEPTH_MAX 64

static const char *const marks[ANSWER_MARKS] = {"<think>",     "</think>",    "<response>",
                                                "</response>", "<tool_call>", "</tool_call>"};

const char *answer_mark_text(enum answer_mark m)
{
    return marks[m];
}

void answer_mark_ids(const struct tokenizer *t, int32_t ids[ANSWER_MARKS])
{
    for (int i = 0; i < ANSWER_MARKS; i++) {
        ids[i] = tokenizer_id(t, marks[i]);
    }
}

static int is_blank(char c)
{
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

int answer_prompt_thinks(const char *text, const uint8_t *mark, size_t n_bytes)
{
    size_t n_open = strlen(marks[MARK_THINK]), n_end = strlen(marks[MARK_THINK_END]);
    for (size_t i = n_bytes; i-- > 0;) {
        size_t left = n_bytes - i;
        if (!mark[i] || text[i] != '<') {
            continue;
        }
        if (left >= n_end && memcmp(text + i, marks[MARK_THINK_END], n_end) == 0) {
            return 0;
        }
        if (left < n_open || memcmp(text + i, marks[MARK_THINK], n_open) != 0) {
            continue;
        }
        for (size_t k = i + n_open; k < n_bytes; k++) {
            if (mark[k] && !is_blank(text[k])) {
                return 0;
            }
        }
        return 1;
    }
    return 0;
}

/* ---- events ---- */

void answer_init(struct answer *a, const struct answer_options *o)
{
    memset(a, 0, sizeof *a);
    a->o = *o;
    a->state = AT_START;
    buf_init(&a->pend);
    buf_init(&a->out);
}

void answer_fini(struct answer *a)
{
    buf_fini(&a->pend);
    buf_fini(&a->out);
    free(a->slots);
    a->slots = NULL;
}

static void emit(struct answer *a, enum answer_kind kind, const char *text, size_t n)
{
    struct answer_slot *last = a->n_slots > a->next_slot ? &a->slots[a->n_slots - 1] : NULL;
    int call = kind == ANSWER_REASONING || kind == ANSWER_CONTENT ? 0 : a->n_calls - 1;
    if (n == 0 && kind != ANSWER_CALL && kind != ANSWER_CALL_END) {
        return;
    }
    if (a->o.one_call && call > 0) {
        return;
    }
    if (last && last->kind == kind && last->call == call && kind != ANSWER_CALL) {
        buf_append(&a->out, text, n);
        last->n += n;
        return;
    }
    if (a->n_slots == a->cap_slots) {
        int cap = a->cap_slots ? a->cap_slots * 2 : 8;
        struct answer_slot *more = realloc(a->slots, (size_t)cap * sizeof *more);
        if (!more) {
            a->failed = 1;
            return;
        }
        a->slots = more;
        a->cap_slots = cap;
    }
    a->slots[a->n_slots++] = (struct answer_slot){kind, call, a->out.len, n};
    buf_append(&a->out, text, n);
}

int answer_next(struct answer *a, struct answer_event *ev)
{
    if (a->next_slot >= a->n_slots || a->out.failed) {
        return 0;
    }
    const struct answer_slot *s = &a->slots[a->next_slot++];
    ev->kind = s->kind;
    ev->call = s->call;
    ev->text = a->out.data ? a->out.data + s->at : "";
    ev->n_bytes = s->n;
    return 1;
}

/* ---- the front of pend ---- */

static void drop(struct answer *a, size_t n)
{
    a->pend.len -= n;
    memmove(a->pend.data, a->pend.data + n, a->pend.len);
    a->pend.data[a->pend.len] = '\0';
}

static void pass(struct answer *a, enum answer_kind kind, size_t n)
{
    if (n > 0) {
        emit(a, kind, a->pend.data, n);
        drop(a, n);
    }
}

/* How pend + at compares with a mark: 1 it is one, 0 it may become one, -1 it is none. */
static int compare(const struct answer *a, size_t at, enum answer_mark m)
{
    size_t n = strlen(marks[m]), left = a->pend.len - at;
    if (left >= n) {
        return memcmp(a->pend.data + at, marks[m], n) == 0 ? 1 : -1;
    }
    return memcmp(a->pend.data + at, marks[m], left) == 0 ? 0 : -1;
}

/* The first place in pend that is one of two marks, or may become one; pend.len: none. *which is -1
 * while it may only become one. */
static size_t find(const struct answer *a, int m1, int m2, int *which)
{
    const char *at = a->pend.data, *end = a->pend.data + a->pend.len;
    *which = -1;
    while (at < end && (at = memchr(at, '<', (size_t)(end - at))) != NULL) {
        for (int i = 0; i < 2; i++) {
            int m = i ? m2 : m1;
            int r = m >= 0 ? compare(a, (size_t)(at - a->pend.data), (enum answer_mark)m) : -1;
            if (r >= 0) {
                *which = r ? m : -1;
                return (size_t)(at - a->pend.data);
            }
        }
        at++;
    }
    return a->pend.len;
}

static size_t breaks_before(const struct answer *a, size_t at, size_t most)
{
    size_t n = 0;
    while (n < most && n < at && a->pend.data[at - n - 1] == '\n') {
        n++;
    }
    return n;
}

static size_t blanks(const struct answer *a, size_t at)
{
    size_t n = 0;
    while (at + n < a->pend.len && is_blank(a->pend.data[at + n])) {
        n++;
    }
    return n;
}

/* ---- states; each returns 0 when it must see more ---- */

static int enter_content(struct answer *a)
{
    a->state = a->o.tools == ANSWER_TOOLS_LIST  ? LIST_OPEN
               : a->o.tools == ANSWER_TOOLS_ONE ? ONE
                                                : BEFORE;
    return 1;
}

/* Blanks and <think>: reasoning begins, whether the prompt opened it already or not. */
static int at_start(struct answer *a, int final)
{
    if (!a->o.reasoning) {
        return enter_content(a);
    }
    size_t n = blanks(a, 0);
    int r = n < a->pend.len || !final ? compare(a, n, MARK_THINK) : -1;
    if (r == 0 && !final) {
        return 0;
    }
    if (r > 0) {
        size_t len = n + strlen(marks[MARK_THINK]);
        if (len == a->pend.len && !final) {
            return 0;
        }
        drop(a, len + (len < a->pend.len && a->pend.data[len] == '\n'));
        a->state = REASONING;
        return 1;
    }
    if (a->o.thinking) {
        a->state = REASONING;
        return 1;
    }
    return enter_content(a);
}

static int reasoning(struct answer *a, int final)
{
    int which;
    size_t at = find(a, MARK_THINK_END, -1, &which);
    if (which < 0 && final) {
        pass(a, ANSWER_REASONING, a->pend.len);
        return 0;
    }
    size_t keep = breaks_before(a, at, 1);
    pass(a, ANSWER_REASONING, at - keep);
    if (which < 0) {
        return 0;
    }
    drop(a, keep + strlen(marks[MARK_THINK_END]));
    a->after_think = 1;
    return enter_content(a);
}

static int before(struct answer *a, int final)
{
    size_t n = 0;
    int may_mark = a->o.reasoning || a->o.tools == ANSWER_TOOLS_MARKED;
    while (n < a->pend.len && a->pend.data[n] == '\n') {
        n++;
    }
    int r = may_mark ? compare(a, n, MARK_RESPONSE) : -1;
    int t = a->o.tools == ANSWER_TOOLS_MARKED ? compare(a, n, MARK_CALL) : -1;
    if (!final && (r == 0 || t == 0)) {
        return 0;
    }
    if (r > 0) {
        size_t len = n + strlen(marks[MARK_RESPONSE]);
        if (len == a->pend.len && !final) {
            return 0;
        }
        drop(a, len + (len < a->pend.len && a->pend.data[len] == '\n'));
        a->in_response = 1;
    } else if (a->after_think && t <= 0) {
        drop(a, n < 2 ? n : 2);
    }
    a->state = CONTENT;
    return 1;
}

static int content(struct answer *a, int final)
{
    int calls = a->o.tools == ANSWER_TOOLS_MARKED, which = -1;
    size_t at = a->pend.len, keep = 0;
    if (calls || a->in_response) {
        at = find(a, calls ? MARK_CALL : -1, a->in_response ? MARK_RESPONSE_END : -1, &which);
        keep = breaks_before(a, at, calls ? at : 1);
    }
    if (which < 0) {
        pass(a, ANSWER_CONTENT, final ? a->pend.len : at - keep);
        return 0;
    }
    if (which == MARK_RESPONSE_END) {
        keep = keep > 0;
        pass(a, ANSWER_CONTENT, at - keep);
        drop(a, keep + strlen(marks[MARK_RESPONSE_END]));
        a->in_response = 0;
        a->state = RESPONSE_ENDS;
        return 1;
    }
    pass(a, ANSWER_CONTENT, at - keep);
    a->lead = keep;
    a->scanned = keep + strlen(marks[MARK_CALL]);
    a->in_string = a->escaped = 0;
    a->state = BLOCK;
    return 1;
}

static int response_ends(struct answer *a, int final)
{
    if (a->pend.len == 0) {
        return 0;
    }
    (void) final;
    drop(a, a->pend.data[0] == '\n');
    a->state = CONTENT;
    return 1;
}

/* ---- calls ---- */

static int string_end(const char *s, size_t n, size_t at) /* at: behind the quote; -1: not yet */
{
    for (; at < n; at++) {
        if (s[at] == '\\') {
            at++;
        } else if (s[at] == '"') {
            return (int)at + 1;
        }
    }
    return -1;
}

/* End of the value that begins at `at` in valid JSON text. */
static size_t value_end(const char *s, size_t n, size_t at)
{
    int depth = 0;
    while (at < n) {
        char c = s[at];
        if (c == '"') {
            int end = string_end(s, n, at + 1);
            at = end < 0 ? n : (size_t)end;
            if (depth == 0) {
                return at;
            }
            continue;
        }
        if (c == '}' || c == ']' || c == ',') {
            depth -= c != ',';
            if (depth < 0 || (depth == 0 && c == ',')) {
                return at;
            }
            if (depth == 0) {
                return at + 1;
            }
        }
        depth += c == '{' || c == '[';
        at++;
    }
    return n;
}

/* The text of a member of the object that s is; the last one of that name. 0: there is none. */
static int member(const char *s, size_t n, const char *key, const char **out, size_t *out_bytes)
{
    size_t at = 0, n_key = strlen(key);
    int found = 0;
    while (at < n && s[at] != '{') {
        at++;
    }
    at++;
    while (at < n) {
        while (at < n && s[at] != '"') {
            at++;
        }
        if (at >= n) {
            break;
        }
        int end = string_end(s, n, at + 1);
        size_t name = at + 1;
        if (end < 0) {
            break;
        }
        at = (size_t)end;
        while (at < n && s[at] != ':') {
            at++;
        }
        at++;
        while (at < n && is_blank(s[at])) {
            at++;
        }
        size_t stop = value_end(s, n, at);
        if ((size_t)end - 1 - name == n_key && memcmp(s + name, key, n_key) == 0) {
            found = 1;
            *out = s + at;
            *out_bytes = stop - at;
            while (*out_bytes > 0 && is_blank((*out)[*out_bytes - 1])) {
                --*out_bytes;
            }
        }
        at = stop;
    }
    return found;
}

static void tell_call(struct answer *a, const char *name, size_t n)
{
    a->n_calls++;
    emit(a, ANSWER_CALL, name, n);
}

static void end_call(struct answer *a, int is_complete)
{
    a->n_complete += is_complete;
    emit(a, ANSWER_CALL_END, "", 0);
}

/* The inside of a block. Arguments keep the form the model gave them; the few models that write
 * them as a string with JSON in it mean that JSON. */
static int take_block(struct answer *a, const char *s, size_t n)
{
    struct json *doc = NULL, *inner = NULL;
    struct err e = {0};
    const char *text = "{}";
    size_t n_text = 2, n_name;
    int ok = json_parse(&doc, s, n, ARGUMENTS_DEPTH_MAX, &e) == 0;
    const struct json *name = ok ? json_get(doc, "name") : NULL;
    ok = ok && json_type(name) == JSON_STRING;
    const char *key = ok && json_get(doc, "arguments") ? "arguments" : "parameters";
    const struct json *args = ok ? json_get(doc, key) : NULL;
    if (json_type(args) == JSON_OBJECT) {
        ok = member(s, n, key, &text, &n_text);
    } else if (json_type(args) == JSON_STRING) {
        text = json_string(args, &n_text);
        ok = json_parse(&inner, text, n_text, ARGUMENTS_DEPTH_MAX, &e) == 0 &&
             json_type(inner) == JSON_OBJECT;
    } else {
        ok = ok && json_type(args) == JSON_NULL;
    }
    if (ok) {
        const char *called = json_string(name, &n_name);
        tell_call(a, called, n_name);
        emit(a, ANSWER_ARGUMENTS, text, n_text);
        end_call(a, 1);
    }
    json_free(inner);
    json_free(doc);
    return ok;
}

/* Looks for </tool_call> outside of strings: arguments may speak of marks. */
static int block(struct answer *a, int final)
{
    size_t start = a->lead + strlen(marks[MARK_CALL]), n_end = strlen(marks[MARK_CALL_END]);
    for (; a->scanned < a->pend.len; a->scanned++) {
        char c = a->pend.data[a->scanned];
        if (a->escaped) {
            a->escaped = 0;
        } else if (a->in_string && c == '\\') {
            a->escaped = 1;
        } else if (c == '"') {
            a->in_string = !a->in_string;
        } else if (c == '<' && !a->in_string) {
            int r = compare(a, a->scanned, MARK_CALL_END);
            if (r == 0 && !final) {
                return 0;
            }
            if (r > 0) {
                break;
            }
        }
    }
    if (a->scanned >= a->pend.len) {
        if (final) {
            pass(a, ANSWER_CONTENT, a->pend.len);
        }
        return 0;
    }
    size_t end = a->scanned + n_end;
    if (take_block(a, a->pend.data + start, a->scanned - start)) {
        drop(a, end);
        a->state = AFTER_CALL;
    } else {
        pass(a, ANSWER_CONTENT, end);
        a->state = CONTENT;
    }
    return 1;
}

static int after_call(struct answer *a, int final)
{
    size_t n = blanks(a, 0);
    int r = compare(a, n, MARK_CALL), e = a->in_response ? compare(a, n, MARK_RESPONSE_END) : -1;
    if (n == a->pend.len || r == 0 || e == 0) {
        if (final) {
            drop(a, n == a->pend.len ? n : 0);
            a->state = CONTENT;
        }
        return final && a->pend.len > 0;
    }
    if (r > 0 || e > 0) {
        drop(a, n);
    }
    a->state = CONTENT;
    return 1;
}

/* ---- a list of calls, as it is written ---- */

static int give_up(struct answer *a)
{
    a->o.tools = ANSWER_TOOLS_NONE;
    a->in_response = 0;
    a->state = CONTENT;
    return 1;
}

static int list_open(struct answer *a, int final)
{
    size_t n = blanks(a, 0);
    if (n == a->pend.len) {
        if (final) {
            drop(a, n);
        }
        return 0;
    }
    if (a->pend.data[n] != '[') {
        return give_up(a);
    }
    drop(a, n + 1);
    a->state = LIST_ITEM;
    return 1;
}

static int list_item(struct answer *a, int final)
{
    size_t n = blanks(a, 0);
    if (n < a->pend.len && a->pend.data[n] == ',' && a->n_calls > 0) {
        n++;
        n += blanks(a, n);
    }
    if (n == a->pend.len) {
        if (final) {
            drop(a, n);
        }
        return 0;
    }
    char c = a->pend.data[n];
    if (c != '{' && c != ']') {
        return give_up(a);
    }
    drop(a, n + (c == ']'));
    a->state = c == ']' ? LIST_DONE : LIST_HEAD;
    return 1;
}

/* Steps over blanks and one string, whose span it gives. 1, 0 more is needed, -1 something else. */
static int head_string(const struct answer *a, size_t *at, size_t *from, size_t *n)
{
    *at += blanks(a, *at);
    if (*at >= a->pend.len) {
        return 0;
    }
    if (a->pend.data[*at] != '"') {
        return -1;
    }
    int end = string_end(a->pend.data, a->pend.len, *at + 1);
    if (end < 0) {
        return 0;
    }
    *from = *at;
    *n = (size_t)end - *at;
    *at = (size_t)end;
    return 1;
}

static int head_char(const struct answer *a, size_t *at, char c)
{
    *at += blanks(a, *at);
    if (*at >= a->pend.len) {
        return 0;
    }
    return a->pend.data[(*at)++] == c ? 1 : -1;
}

static int head_key(const struct answer *a, size_t *at, const char *one, const char *other)
{
    size_t from = 0, n = 0;
    int r = head_string(a, at, &from, &n);
    if (r <= 0) {
        return r;
    }
    const char *key = a->pend.data + from + 1;
    n -= 2;
    if ((n != strlen(one) || memcmp(key, one, n) != 0) &&
        (n != strlen(other) || memcmp(key, other, n) != 0)) {
        return -1;
    }
    return head_char(a, at, ':');
}

/* Decodes the name and tells of the call. 0: not a string after all. */
static int tell_named(struct answer *a, size_t from, size_t n)
{
    struct json *doc = NULL;
    struct err e = {0};
    size_t n_name;
    if (json_parse(&doc, a->pend.data + from, n, 1, &e) != 0) {
        return 0;
    }
    const char *name = json_string(doc, &n_name);
    tell_call(a, name, n_name);
    json_free(doc);
    return 1;
}

static int list_head(struct answer *a, int final)
{
    size_t at = 1, from = 0, n = 0;
    int has_arguments = 0;
    int r = head_key(a, &at, "name", "name");
    r = r > 0 ? head_string(a, &at, &from, &n) : r;
    if (r > 0) {
        at += blanks(a, at);
        if (at < a->pend.len && a->pend.data[at] == '}') {
            at++;
        } else {
            r = head_char(a, &at, ',');
            r = r > 0 ? head_key(a, &at, "parameters", "arguments") : r;
            at += r > 0 ? blanks(a, at) : 0;
            r = r > 0 ? at < a->pend.len : r;
            has_arguments = 1;
        }
    }
    if (r == 0 && !final) {
        return 0;
    }
    if (r <= 0 || !tell_named(a, from, n)) {
        return give_up(a);
    }
    drop(a, at);
    if (!has_arguments) {
        emit(a, ANSWER_ARGUMENTS, "{}", 2);
        end_call(a, 1);
        a->state = LIST_ITEM;
        return 1;
    }
    a->depth = a->in_string = a->escaped = 0;
    a->scalar = a->pend.data[0] != '{' && a->pend.data[0] != '[';
    a->state = LIST_ARGUMENTS;
    return 1;
}

/* One byte of a value; 1 when the value ends with it, 2 when it ended before it. */
static int value_byte(struct answer *a, char c)
{
    if (a->in_string) {
        if (a->escaped) {
            a->escaped = 0;
        } else if (c == '\\') {
            a->escaped = 1;
        } else if (c == '"') {
            a->in_string = 0;
            return a->depth == 0;
        }
        return 0;
    }
    if (c == '"') {
        a->in_string = 1;
        return 0;
    }
    if (a->scalar && (c == ',' || c == '}' || is_blank(c))) {
        return 2;
    }
    a->depth += (c == '{' || c == '[') - (c == '}' || c == ']');
    return !a->scalar && a->depth == 0;
}

static int list_arguments(struct answer *a, int final)
{
    for (size_t i = 0; i < a->pend.len; i++) {
        int r = value_byte(a, a->pend.data[i]);
        if (r) {
            pass(a, ANSWER_ARGUMENTS, i + (r == 1));
            a->state = LIST_TAIL;
            return 1;
        }
    }
    pass(a, ANSWER_ARGUMENTS, a->pend.len);
    if (final) {
        end_call(a, 0);
    }
    return 0;
}

static int list_tail(struct answer *a, int final)
{
    size_t n = blanks(a, 0);
    if (n == a->pend.len) {
        if (final) {
            drop(a, n);
            end_call(a, 1);
        }
        return 0;
    }
    end_call(a, 1);
    if (a->pend.data[n] != '}') {
        return give_up(a);
    }
    drop(a, n + 1);
    a->state = LIST_ITEM;
    return 1;
}

static int list_done(struct answer *a, int final)
{
    size_t n = blanks(a, 0);
    if (n < a->pend.len) {
        return give_up(a);
    }
    if (final) {
        drop(a, n);
    }
    return 0;
}

static int one(struct answer *a, int final)
{
    size_t n = a->n_calls == 0 ? blanks(a, 0) : 0;
    if (n == a->pend.len && n > 0 && !final) {
        return 0;
    }
    if (a->n_calls == 0 && (a->pend.len > 0 || final)) {
        drop(a, n);
        tell_call(a, a->o.function, strlen(a->o.function));
    }
    pass(a, ANSWER_ARGUMENTS, a->pend.len);
    if (final) {
        end_call(a, 0);
    }
    return 0;
}

static int step(struct answer *a, int final)
{
    switch ((enum state)a->state) {
    case AT_START:
        return at_start(a, final);
    case REASONING:
        return reasoning(a, final);
    case BEFORE:
        return before(a, final);
    case CONTENT:
        return content(a, final);
    case RESPONSE_ENDS:
        return response_ends(a, final);
    case BLOCK:
        return block(a, final);
    case AFTER_CALL:
        return after_call(a, final);
    case LIST_OPEN:
        return list_open(a, final);
    case LIST_ITEM:
        return list_item(a, final);
    case LIST_HEAD:
        return list_head(a, final);
    case LIST_ARGUMENTS:
        return list_arguments(a, final);
    case LIST_TAIL:
        return list_tail(a, final);
    case LIST_DONE:
        return list_done(a, final);
    case ONE:
        return one(a, final);
    }
    return 0;
}

static void forget_events(struct answer *a)
{
    a->n_slots = a->next_slot = 0;
    a->failed |= a->out.failed;
    buf_clear(&a->out);
}

void answer_feed(struct answer *a, const char *text, size_t n_bytes)
{
    forget_events(a);
    if (n_bytes > 0) {
        buf_append(&a->pend, text, n_bytes);
        while (a->pend.len > 0 && step(a, 0)) {
        }
        a->failed |= a->pend.failed;
    }
}

void answer_finish(struct answer *a)
{
    if (buf_reserve(&a->pend, 1) != 0) {
        a->failed = 1;
        return;
    }
    while (step(a, 1)) {
    }
}

int answer_is_thinking(const struct answer *a)
{
    return a->state == REASONING || (a->state == AT_START && a->o.reasoning && a->o.thinking);
}

/* ---- the whole ---- */

void answer_message_init(struct answer_message *m)
{
    memset(m, 0, sizeof *m);
    buf_init(&m->reasoning);
    buf_init(&m->content);
}

void answer_message_fini(struct answer_message *m)
{
    for (int i = 0; i < m->n_calls; i++) {
        buf_fini(&m->calls[i].name);
        buf_fini(&m->calls[i].arguments);
    }
    free(m->calls);
    buf_fini(&m->reasoning);
    buf_fini(&m->content);
}

static struct answer_call *add_call(struct answer_message *m, int index)
{
    if (m->n_calls == m->cap_calls) {
        int cap = m->cap_calls ? m->cap_calls * 2 : 4;
        struct answer_call *more = realloc(m->calls, (size_t)cap * sizeof *more);
        if (!more) {
            m->failed = 1;
            return NULL;
        }
        m->calls = more;
        m->cap_calls = cap;
    }
    struct answer_call *c = &m->calls[m->n_calls++];
    c->index = index;
    c->begins = 0;
    buf_init(&c->name);
    buf_init(&c->arguments);
    return c;
}

static void take_call(struct answer_message *m, const struct answer_event *ev)
{
    struct answer_call *c = m->n_calls > 0 ? &m->calls[m->n_calls - 1] : NULL;
    if (!c || c->index != ev->call) {
        c = add_call(m, ev->call);
    }
    if (!c) {
        return;
    }
    struct buf *to = ev->kind == ANSWER_CALL ? &c->name : &c->arguments;
    c->begins |= ev->kind == ANSWER_CALL;
    buf_append(to, ev->text, ev->n_bytes);
    m->failed |= to->failed;
}

void answer_message_take(struct answer_message *m, struct answer *a)
{
    struct answer_event ev;
    while (answer_next(a, &ev)) {
        if (ev.kind == ANSWER_REASONING) {
            buf_append(&m->reasoning, ev.text, ev.n_bytes);
        } else if (ev.kind == ANSWER_CONTENT) {
            buf_append(&m->content, ev.text, ev.n_bytes);
        } else if (ev.kind != ANSWER_CALL_END) {
            take_call(m, &ev);
        }
    }
    m->failed |= a->failed | m->reasoning.failed | m->content.failed;
}
