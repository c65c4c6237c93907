/* SPDX-License-Identifier: Apache-2.0 */
/* Options from a table; see opt.h for the rules. Values pass through one function, put_value,
 * whatever their source, so that a range or a choice is checked the same way for a flag, a file and
 * a variable. */
#include "base/opt.h"
#include "base/json.h"
#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define CONFIG_FILE_BYTES_MAX ((size_t)1 << 20)

/* ---- names ---- */

static int same_char(char a, char b)
{
    return a == b || ((a == '-' || a == '_') && (b == '-' || b == '_'));
}

static int same_name(const char *name, const char *word, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (!name[i] || !same_char(name[i], word[i])) {
            return 0;
        }
    }
    return name[n] == '\0';
}

static int has_word(const char *words, const char *w, size_t n)
{
    while (words && *words) {
        size_t len = strcspn(words, " ");
        if (len == n) {
            size_t i = 0;
            while (i < n && same_char(words[i], w[i])) {
                i++;
            }
            if (i == n) {
                return 1;
            }
        }
        words += len;
        words += strspn(words, " ");
    }
    return 0;
}

struct row_ref {
    const struct opt *row;
    void *target;
    int index; /* into opts.source */
};

static struct row_ref row_at(const struct opts *o, int index)
{
    struct row_ref r = {NULL, NULL, index};
    size_t i = (size_t)index;
    for (int t = 0; t < o->n_tables; t++) {
        if (i < o->tables[t].n_rows) {
            r.row = &o->tables[t].rows[i];
            r.target = o->tables[t].target;
            return r;
        }
        i -= o->tables[t].n_rows;
    }
    return r;
}

static int count_rows(const struct opts *o)
{
    size_t n = 0;
    for (int t = 0; t < o->n_tables; t++) {
        n += o->tables[t].n_rows;
    }
    return (int)n;
}

/* Finds a flag given with its dashes ("--x", "-x"), n bytes. `negated`: it was --no-x of a boolean.
 */
static struct row_ref find_flag(const struct opts *o, const char *flag, size_t n, int *negated)
{
    int n_rows = count_rows(o);
    *negated = 0;
    for (int pass = 0; pass < 2; pass++) {
        for (int i = 0; i < n_rows; i++) {
            struct row_ref r = row_at(o, i);
            if (!r.row->name || (r.row->flags & OPT_ENV_ONLY)) {
                continue;
            }
            if (pass == 0) {
                if ((n > 2 && flag[0] == '-' && flag[1] == '-' &&
                     same_name(r.row->name, flag + 2, n - 2)) ||
                    has_word(r.row->others, flag, n)) {
                    return r;
                }
            } else if (r.row->type == OPT_BOOL && n > 5 && strncmp(flag, "--no", 4) == 0 &&
                       same_char(flag[4], '-') && same_name(r.row->name, flag + 5, n - 5)) {
                *negated = 1;
                return r;
            }
        }
    }
    return (struct row_ref){NULL, NULL, -1};
}

static struct row_ref find_name(const struct opts *o, const char *name, size_t n)
{
    int n_rows = count_rows(o);
    for (int i = 0; i < n_rows; i++) {
        struct row_ref r = row_at(o, i);
        if (r.row->name && !(r.row->flags & OPT_ENV_ONLY) && same_name(r.row->name, name, n)) {
            return r;
        }
    }
    return (struct row_ref){NULL, NULL, -1};
}

int opt_edit_distance(const char *a, size_t na, const char *b, size_t nb)
{
    enum { MAX = 48 };
    int d[3][MAX + 1];
    if (na > MAX || nb > MAX) {
        return MAX;
    }
    for (size_t j = 0; j <= nb; j++) {
        d[0][j] = (int)j;
    }
    for (size_t i = 1; i <= na; i++) {
        int *row = d[i % 3], *up = d[(i - 1) % 3], *up2 = d[(i + 1) % 3];
        row[0] = (int)i;
        for (size_t j = 1; j <= nb; j++) {
            int same = same_char(a[i - 1], b[j - 1]);
            int best = up[j - 1] + !same;
            best = up[j] + 1 < best ? up[j] + 1 : best;
            best = row[j - 1] + 1 < best ? row[j - 1] + 1 : best;
            if (i > 1 && j > 1 && same_char(a[i - 1], b[j - 2]) && same_char(a[i - 2], b[j - 1]) &&
                up2[j - 2] + 1 < best) {
                best = up2[j - 2] + 1;
            }
            row[j] = best;
        }
    }
    return d[na % 3][nb];
}

static const char *nearest_name(const struct opts *o, const char *name, size_t n)
{
    const char *best = NULL;
    int best_distance = (int)(n / 3) < 2 ? 2 : (int)(n / 3);
    int n_rows = count_rows(o);
    for (int i = 0; i < n_rows; i++) {
        const struct opt *row = row_at(o, i).row;
        if (!row->name || (row->flags & (OPT_ENV_ONLY | OPT_IGNORED | OPT_REFUSED | OPT_HIDDEN))) {
            continue;
        }
        int d = opt_edit_distance(name, n, row->name, strlen(row->name));
        if (d < best_distance) {
            best_distance = d;
            best = row->name;
        }
    }
    return best;
}

/* ---- values ---- */

int opt_parse_size(const char *text, int64_t *out)
{
    char *end;
    if (!isdigit((unsigned char)text[0]) && !(text[0] == '-' && isdigit((unsigned char)text[1]))) {
        return ERR_INVALID;
    }
    errno = 0;
    long long whole = strtoll(text, &end, 10);
    if (errno) {
        return ERR_INVALID;
    }
    if (*end == '\0') {
        *out = whole;
        return 0;
    }
    static const char *const binary[] = {"K", "M", "G", "T", "KiB", "MiB", "GiB", "TiB"};
    for (int i = 0; i < 8; i++) {
        if (strcmp(end, binary[i]) == 0) {
            int shift = 10 * (i % 4 + 1);
            if (whole < 0 || whole > (INT64_MAX >> shift)) {
                return ERR_INVALID;
            }
            *out = (int64_t)whole << shift;
            return 0;
        }
    }
    char *unit;
    double v = strtod(text, &unit);
    static const char decimal[] = "kmgt";
    const char *p = *unit ? strchr(decimal, *unit) : NULL;
    if (!p || unit[1] != '\0' || !isfinite(v) || v < 0 || strpbrk(text, "eExX")) {
        return ERR_INVALID;
    }
    for (ptrdiff_t i = 0; i <= p - decimal; i++) {
        v *= 1000;
    }
    if (v >= 9e18) {
        return ERR_INVALID;
    }
    *out = (int64_t)(v + 0.5);
    return 0;
}

static int parse_bool(const char *s, int *out)
{
    static const char *const yes[] = {"true", "yes", "on", "1"}, *const no[] = {"false", "no",
                                                                                "off", "0"};
    for (int i = 0; i < 4; i++) {
        if (strcasecmp(s, yes[i]) == 0) {
            *out = 1;
            return 0;
        }
        if (strcasecmp(s, no[i]) == 0) {
            *out = 0;
            return 0;
        }
    }
    return ERR_INVALID;
}

static int choice_allowed(const char *choices, const char *v)
{
    size_t n = strlen(v);
    while (*choices) {
        size_t len = strcspn(choices, "|");
        if (len == n && strncasecmp(choices, v, n) == 0) {
            return 1;
        }
        choices += len;
        choices += *choices == '|';
    }
    return 0;
}

static int refuse_value(const struct opt *row, const char *shown, const char *value, struct err *e)
{
    char allowed[256] = "";
    if (row->choices) {
        snprintf(allowed, sizeof allowed, "%s", row->choices);
        for (char *p = allowed; *p; p++) {
            *p = *p == '|' ? ' ' : *p;
        }
    } else if (row->min == row->max) { /* NOLINT: exact on purpose, both come from the table */
        snprintf(allowed, sizeof allowed, "%.15g", row->min);
    } else if (row->max >= 9e15) {
        snprintf(allowed, sizeof allowed, "%.15g or more", row->min);
    } else {
        snprintf(allowed, sizeof allowed, "%.15g to %.15g", row->min, row->max);
    }
    return err_set(e, ERR_INVALID, "%s: %s is not possible here (allowed: %s)%s%s", shown, value,
                   allowed, row->note ? ": " : "", row->note ? row->note : "");
}

static int list_push(struct arena *a, struct opt_list *l, const char *s)
{
    if ((l->n & (l->n - 1)) == 0) { /* grow at powers of two */
        size_t cap = l->n ? (size_t)l->n * 2 : 1;
        const char **v = arena_alloc(a, cap * sizeof *v);
        if (!v) {
            return ERR_NOMEM;
        }
        if (l->n) {
            memcpy(v, l->v, (size_t)l->n * sizeof *v);
        }
        l->v = v;
    }
    l->v[l->n++] = s;
    return 0;
}

static int add_warning(struct opts *o, const char *fmt, ...) TERN_PRINTF(2, 3);
static int add_warning(struct opts *o, const char *fmt, ...)
{
    char line[512];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    for (int i = 0; i < o->warnings.n; i++) {
        if (strcmp(o->warnings.v[i], line) == 0) {
            return 0;
        }
    }
    char *s = arena_strdup(&o->arena, line);
    return s ? list_push(&o->arena, &o->warnings, s) : ERR_NOMEM;
}

/* --x.key value: the object so far with one member put in. */
static int put_json_piece(struct opts *o, const char **field, const char *shown, const char *key,
                          const char *value, struct err *e)
{
    struct json *old = NULL, *piece = NULL;
    struct buf b;
    struct json_writer w;
    int rc = 0;
    buf_init(&b);
    if (strchr(key, '.') || key[0] == '\0' || strchr(key, '+')) {
        rc = err_set(e, ERR_UNSUPPORTED,
                     "%s.%s: only one plain key after the dot is supported; give the whole as JSON",
                     shown, key);
        goto done;
    }
    if (*field && (rc = json_parse(&old, *field, strlen(*field), JSON_DEPTH_DEFAULT, e)) < 0) {
        goto done;
    }
    json_w_init(&w, &b);
    json_w_object(&w);
    size_t it = 0, key_bytes;
    const char *k;
    const struct json *v;
    while (old && json_next(old, &it, &k, &key_bytes, &v)) {
        if (strcmp(k, key) != 0) {
            json_w_key(&w, k);
            json_w_value(&w, v);
        }
    }
    json_w_key(&w, key);
    if (json_parse(&piece, value, strlen(value), JSON_DEPTH_DEFAULT, NULL) == 0) {
        json_w_value(&w, piece);
    } else {
        json_w_string(&w, value);
    }
    json_w_object_end(&w);
    *field = b.failed ? NULL : arena_strdup(&o->arena, b.data);
    rc = *field ? 0 : err_set(e, ERR_NOMEM, "%s: out of memory", shown);
done:
    buf_fini(&b);
    json_free(old);
    json_free(piece);
    return rc;
}

static int put_number(const struct opt *row, void *field, const char *shown, const char *value,
                      struct err *e)
{
    const char *kind = row->type == OPT_INT    ? "an integer"
                       : row->type == OPT_SIZE ? "a number such as 4096, 16k or 4G"
                                               : "a number";
    double v;
    if (row->type == OPT_DOUBLE) {
        char *end;
        v = strtod(value, &end);
        if (end == value || *end != '\0' || !isfinite(v) || strpbrk(value, "xX ")) {
            return err_set(e, ERR_INVALID, "%s: expected %s, found '%s'", shown, kind, value);
        }
        *(double *)field = v;
    } else {
        int64_t i;
        if ((row->flags & OPT_AUTO) && strcasecmp(value, "auto") == 0) {
            i = -1;
        } else if (row->type == OPT_SIZE) {
            if (opt_parse_size(value, &i) < 0) {
                return err_set(e, ERR_INVALID, "%s: expected %s, found '%s'", shown, kind, value);
            }
        } else {
            char *end;
            errno = 0;
            i = strtoll(value, &end, 10);
            if (errno || end == value || *end != '\0' || isspace((unsigned char)value[0])) {
                return err_set(e, ERR_INVALID, "%s: expected %s, found '%s'", shown, kind, value);
            }
        }
        *(int64_t *)field = i;
        v = (double)i;
        if ((row->flags & OPT_AUTO) && i == -1) {
            return 0;
        }
    }
    if ((row->min != 0 || row->max != 0) && (v < row->min || v > row->max)) {
        return refuse_value(row, shown, value, e);
    }
    return 0;
}

/* Stores one value. `shown` is how the user wrote the option; `key` is the part after a dot, or
 * NULL. */
static int put_value(struct opts *o, struct row_ref r, const char *shown, const char *key,
                     const char *value, enum opt_source source, struct err *e)
{
    const struct opt *row = r.row;
    if (source == OPT_FROM_FILE && o->source[r.index] == OPT_FROM_COMMAND_LINE) {
        return 0; /* a file that was named last */
    }
    if (row->flags & OPT_REFUSED) {
        return err_set(e, ERR_UNSUPPORTED, "%s is not supported: %s", shown, row->note);
    }
    if (row->flags & OPT_IGNORED) {
        o->source[r.index] = (unsigned char)source;
        return add_warning(o, "%s is accepted and has no effect: %s", shown, row->note);
    }
    if ((row->flags & OPT_DEPRECATED) &&
        add_warning(o, "%s is deprecated: %s", shown, row->note) < 0) {
        return err_set(e, ERR_NOMEM, "out of memory");
    }
    void *field = (char *)r.target + row->offset;
    int first = o->source[r.index] != (unsigned char)source;
    o->source[r.index] = (unsigned char)source;
    if (key && row->type != OPT_JSON) {
        return err_set(e, ERR_INVALID, "%s.%s: --%s takes a plain value, no keys", shown, key,
                       row->name);
    }
    switch (row->type) {
    case OPT_BOOL:
        if (parse_bool(value, field) < 0) {
            return err_set(e, ERR_INVALID, "%s: expected true or false, found '%s'", shown, value);
        }
        return 0;
    case OPT_INT:
    case OPT_SIZE:
    case OPT_DOUBLE:
        return put_number(row, field, shown, value, e);
    case OPT_STRING:
        if (row->choices && !choice_allowed(row->choices, value)) {
            return refuse_value(row, shown, value, e);
        }
        *(const char **)field = value;
        return 0;
    case OPT_LIST:
    case OPT_APPEND: {
        struct opt_list *l = field;
        if (first) {
            *l = (struct opt_list){NULL, 0};
        }
        return list_push(&o->arena, l, value) < 0 ? err_set(e, ERR_NOMEM, "out of memory") : 0;
    }
    case OPT_JSON:
        break;
    }
    if (key) {
        return put_json_piece(o, field, shown, key, value, e);
    }
    struct json *doc = NULL;
    struct err why;
    int rc = json_parse(&doc, value, strlen(value), JSON_DEPTH_DEFAULT, &why);
    if (rc < 0) {
        return err_set(e, ERR_INVALID, "%s: expected a JSON object: %s", shown, why.text);
    }
    int is_object = json_type(doc) == JSON_OBJECT;
    json_free(doc);
    if (!is_object) {
        return err_set(e, ERR_INVALID, "%s: expected a JSON object, found '%s'", shown, value);
    }
    *(const char **)field = value;
    return 0;
}

/* ---- the config file ---- */

static char *trim(char *s)
{
    s += strspn(s, " \t");
    size_t n = strlen(s);
    while (n && strchr(" \t\r", s[n - 1])) {
        s[--n] = '\0';
    }
    return s;
}

/* Cuts a comment off and takes quotes away; returns the value inside the line. */
static char *yaml_scalar(char *s)
{
    s = trim(s);
    if (*s == '"' || *s == '\'') {
        char *end = strchr(s + 1, *s);
        if (end) {
            *end = '\0';
            return s + 1;
        }
        return s;
    }
    for (char *p = s; *p; p++) {
        if (*p == '#' && (p == s || p[-1] == ' ' || p[-1] == '\t')) {
            *p = '\0';
            break;
        }
    }
    return trim(s);
}

static int yaml_put(struct opts *o, struct row_ref r, const char *shown, char *value, struct err *e)
{
    int many = r.row->type == OPT_LIST || r.row->type == OPT_APPEND;
    size_t n = strlen(value);
    if (!many || *value != '[' || value[n - 1] != ']') {
        return put_value(o, r, shown, NULL, value, OPT_FROM_FILE, e);
    }
    value[n - 1] = '\0';
    char *save = NULL;
    for (char *item = strtok_r(value + 1, ",", &save); item; item = strtok_r(NULL, ",", &save)) {
        int rc = put_value(o, r, shown, NULL, yaml_scalar(item), OPT_FROM_FILE, e);
        if (rc < 0) {
            return rc;
        }
    }
    return 0;
}

static int read_config_file(struct opts *o, const char *path, struct err *e)
{
    struct buf b;
    buf_init(&b);
    int rc = buf_read_file(&b, path, CONFIG_FILE_BYTES_MAX, e);
    char *text = rc < 0 ? NULL : arena_strndup(&o->arena, b.data ? b.data : "", b.len);
    buf_fini(&b);
    if (rc < 0) {
        return err_prefix(e, "--config");
    }
    if (!text) {
        return err_set(e, ERR_NOMEM, "--config: out of memory");
    }
    struct row_ref open_list = {NULL, NULL, -1};
    char shown[128] = "";
    int line = 0;
    char *next = text;
    while (next) {
        char *s = strsep(&next, "\n");
        line++;
        int indented = *s == ' ' || *s == '\t';
        s = trim(s);
        if (*s == '\0' || *s == '#' || strcmp(s, "---") == 0) {
            continue;
        }
        if (*s == '-' && (s[1] == ' ' || s[1] == '\t')) {
            if (!open_list.row) {
                return err_set(e, ERR_FORMAT, "%s line %d: a list item without a key before it",
                               path, line);
            }
            rc = put_value(o, open_list, shown, NULL, yaml_scalar(s + 1), OPT_FROM_FILE, e);
        } else {
            char *colon = strchr(s, ':');
            if (!colon || indented || (colon[1] != '\0' && colon[1] != ' ' && colon[1] != '\t')) {
                return err_set(
                    e, ERR_FORMAT,
                    "%s line %d: expected 'option: value' (nested YAML is not supported)", path,
                    line);
            }
            *colon = '\0';
            char *name = yaml_scalar(s), *value = yaml_scalar(colon + 1);
            struct row_ref r = find_name(o, name, strlen(name));
            if (!r.row) {
                return err_set(e, ERR_INVALID, "%s line %d: unknown option '%s'", path, line, name);
            }
            snprintf(shown, sizeof shown, "%s line %d: %.60s", path, line, name);
            int many = r.row->type == OPT_LIST || r.row->type == OPT_APPEND;
            open_list = many && *value == '\0' ? r : (struct row_ref){NULL, NULL, -1};
            rc = open_list.row ? 0 : yaml_put(o, r, shown, value, e);
        }
        if (rc < 0) {
            return rc;
        }
    }
    return 0;
}

/* ---- the command line ---- */

/* May this word be the value of an option? Words with a dash are flags, unless they are numbers or
 * sentences. */
static int is_value(const char *w)
{
    if (w[0] != '-' || w[1] == '\0') {
        return 1;
    }
    return isdigit((unsigned char)w[1]) || (w[1] == '.' && isdigit((unsigned char)w[2])) ||
           strchr(w, ' ') != NULL;
}

static int unknown_flag(const struct opts *o, const char *flag, size_t n, struct err *e)
{
    size_t dashes = strspn(flag, "-");
    const char *near = n > dashes ? nearest_name(o, flag + dashes, n - dashes) : NULL;
    return err_set(e, ERR_INVALID, "unrecognized option: %.*s%s%s%s", (int)(n > 200 ? 200 : n),
                   flag, near ? " (did you mean --" : "", near ? near : "", near ? "?)" : "");
}

/* Handles argv[i], which starts with a dash; returns the number of words used, or an error. */
static int take_flag(struct opts *o, int argc, char **argv, int i, struct err *e)
{
    const char *word = argv[i], *equals = strchr(word, '='), *value = equals ? equals + 1 : NULL;
    size_t n = equals ? (size_t)(equals - word) : strlen(word);
    if ((n == 6 && strncmp(word, "--help", 6) == 0) || (n == 2 && strncmp(word, "-h", 2) == 0)) {
        o->help = 1;
        o->help_topic = value;
        return 1;
    }
    int negated;
    const char *key = NULL;
    struct row_ref r = find_flag(o, word, n, &negated);
    const char *dot = memchr(word, '.', n);
    if (!r.row && dot) {
        r = find_flag(o, word, (size_t)(dot - word), &negated);
        key = arena_strndup(&o->arena, dot + 1, (size_t)(word + n - dot - 1));
        n = (size_t)(dot - word);
    }
    if (!r.row && n >= 2 && word[0] == '-' &&
        word[1] != '-') { /* -O3: a short form with its value attached */
        r = find_flag(o, word, 2, &negated);
        if (r.row && r.row->type != OPT_BOOL) {
            value = word[2] == '=' ? word + 3 : word + 2;
            n = 2;
        } else {
            r.row = NULL;
        }
    }
    if (!r.row) {
        return unknown_flag(o, word, n, e);
    }
    const char *shown = arena_strndup(&o->arena, word, n);
    if (!shown) {
        return err_set(e, ERR_NOMEM, "out of memory");
    }
    if (r.row->type == OPT_BOOL) {
        if (negated && value) {
            return err_set(e, ERR_INVALID, "%s takes no value", shown);
        }
        int next = 1, b;
        if (!value && !negated && i + 1 < argc && strlen(argv[i + 1]) > 1 &&
            parse_bool(argv[i + 1], &b) == 0) {
            value = argv[i + 1]; /* --x True, as scripts write it */
            next = 2;
        }
        int rc = put_value(o, r, shown, key,
                           value     ? value
                           : negated ? "false"
                                     : "true",
                           OPT_FROM_COMMAND_LINE, e);
        return rc < 0 ? rc : next;
    }
    if (value) {
        if (r.row->type == OPT_LIST) {
            o->source[r.index] = OPT_FROM_DEFAULT; /* a second use replaces the first */
        }
        int rc = put_value(o, r, shown, key, value, OPT_FROM_COMMAND_LINE, e);
        return rc < 0 ? rc : 1;
    }
    if (i + 1 >= argc || !is_value(argv[i + 1])) {
        return err_set(e, ERR_INVALID, "%s: expected a value%s%s%s", shown,
                       i + 1 < argc ? " (one that starts with a dash is written " : "",
                       i + 1 < argc ? shown : "", i + 1 < argc ? "=VALUE)" : "");
    }
    int used = 1;
    if (r.row->type == OPT_LIST) {
        o->source[r.index] = OPT_FROM_DEFAULT;
    }
    do {
        int rc = put_value(o, r, shown, key, argv[i + used], OPT_FROM_COMMAND_LINE, e);
        if (rc < 0) {
            return rc;
        }
        used++;
    } while (r.row->type == OPT_LIST && i + used < argc && is_value(argv[i + used]));
    return used;
}

static const char *find_config(struct opts *o, int argc, char **argv)
{
    if (!find_name(o, "config", 6).row) {
        return NULL;
    }
    const char *path = NULL;
    for (int i = 0; i < argc && strcmp(argv[i], "--") != 0; i++) {
        if (strcmp(argv[i], "--config") == 0 && i + 1 < argc) {
            path = argv[i + 1];
        } else if (strncmp(argv[i], "--config=", 9) == 0) {
            path = argv[i] + 9;
        }
    }
    return path;
}

static int put_defaults(struct opts *o, struct err *e)
{
    int n_rows = count_rows(o);
    for (int i = 0; i < n_rows; i++) {
        struct row_ref r = row_at(o, i);
        const char *shown = opt_own_name(r.row);
        if (r.row->def && !(r.row->flags & (OPT_IGNORED | OPT_REFUSED | OPT_DEPRECATED))) {
            int rc = put_value(o, r, shown, NULL, r.row->def, OPT_FROM_DEFAULT, e);
            if (rc < 0) {
                return rc;
            }
        }
        const char *env = r.row->env ? getenv(r.row->env) : NULL;
        if (env && *env) {
            int rc = put_value(o, r, r.row->env, NULL, env, OPT_FROM_ENV, e);
            if (rc < 0) {
                return rc;
            }
        }
    }
    return 0;
}

int opts_parse(struct opts *o, int argc, char **argv, struct err *e)
{
    arena_init(&o->arena, 0);
    memset(o->source, OPT_FROM_DEFAULT, sizeof o->source);
    o->args = o->warnings = (struct opt_list){NULL, 0};
    if (count_rows(o) > OPT_ROWS_MAX) {
        return err_set(e, ERR_INTERNAL, "more than %d options in the tables", OPT_ROWS_MAX);
    }
    for (int i = 0; i < argc && strcmp(argv[i], "--") != 0;
         i++) { /* help works whatever else is wrong */
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0 ||
            strncmp(argv[i], "--help=", 7) == 0) {
            o->help = 1;
            o->help_topic = argv[i][1] == '-' && argv[i][6] == '=' ? argv[i] + 7 : NULL;
            return 0;
        }
    }
    int rc = put_defaults(o, e);
    const char *config = rc < 0 ? NULL : find_config(o, argc, argv);
    if (config) {
        rc = read_config_file(o, config, e);
    }
    int only_words = 0;
    for (int i = 0; rc >= 0 && i < argc;) {
        if (!only_words && strcmp(argv[i], "--") == 0) {
            only_words = 1;
            i++;
        } else if (only_words || argv[i][0] != '-' || argv[i][1] == '\0') {
            rc = list_push(&o->arena, &o->args, argv[i++]) < 0
                     ? err_set(e, ERR_NOMEM, "out of memory")
                     : 0;
        } else {
            rc = take_flag(o, argc, argv, i, e);
            i += rc;
        }
    }
    return rc < 0 ? rc : 0;
}

void opts_fini(struct opts *o)
{
    arena_fini(&o->arena);
}

int opts_set(struct opts *o, const char *name, const char *value, struct err *e)
{
    size_t n = strlen(name);
    struct row_ref r = find_name(o, name, n);
    if (!r.row) {
        const char *near = nearest_name(o, name, n);
        char hint[128] = "";
        snprintf(hint, sizeof hint, "%s", near ? near : "");
        for (char *p = hint; *p && strchr(name, '_'); p++) { /* in the spelling of the asker */
            *p = *p == '-' ? '_' : *p;
        }
        return err_set(e, ERR_NOT_FOUND, "unknown option '%.200s'%s%s%s", name,
                       near ? " (did you mean '" : "", hint, near ? "'?)" : "");
    }
    char *kept = arena_strdup(&o->arena, value), *shown = arena_strdup(&o->arena, name);
    if (!kept || !shown) {
        return err_set(e, ERR_NOMEM, "out of memory");
    }
    int rc = put_value(o, r, shown, NULL, kept, OPT_FROM_COMMAND_LINE, e);
    if (rc >= 0 && same_name("config", name, n)) {
        rc = read_config_file(o, kept, e);
    }
    return rc < 0 ? rc : 0;
}

enum opt_source opts_source(const struct opts *o, const char *name)
{
    int n_rows = count_rows(o);
    for (int i = 0; i < n_rows; i++) {
        const struct opt *row = row_at(o, i).row;
        const char *own = opt_own_name(row);
        if (own && strcmp(own, name) == 0) {
            return (enum opt_source)o->source[i];
        }
    }
    return OPT_FROM_DEFAULT;
}

/* ---- what is printed ---- */

const struct opt *opts_row(const struct opts *o, int i)
{
    return i < count_rows(o) ? row_at(o, i).row : NULL;
}

int opts_is_listed(const struct opts *o, const struct opt *row)
{
    for (const char *const *p = o->unlisted; p && *p; p++) {
        if (row->name && strcmp(*p, row->name) == 0) {
            return 0;
        }
    }
    return !(row->flags & OPT_HIDDEN);
}

const char *opt_own_name(const struct opt *row)
{
    return row->flags & OPT_ENV_ONLY ? row->env : row->name;
}

const char *opt_meta(const struct opt *row)
{
    static const char *const meta[] = {"", "N", "X", "TEXT", "SIZE", "A [B ...]", "TEXT", "JSON"};
    return row->type == OPT_BOOL ? "" : row->meta ? row->meta : meta[row->type];
}

int opt_default_on(const struct opt *row)
{
    return row->type == OPT_BOOL && row->def && strcmp(row->def, "true") == 0;
}

const char *opts_next_spelling(const struct opts *o, int i, const char *p, char word[OPT_SPELLING])
{
    while (p && *p) {
        int negated;
        size_t n = strcspn(p, " ");
        snprintf(word, OPT_SPELLING, "%.*s", (int)n, p);
        p += n;
        p += strspn(p, " ");
        if (find_flag(o, word, strlen(word), &negated).index == i) {
            return p;
        }
    }
    return NULL;
}

static void help_row(const struct opts *o, int i, struct buf *out)
{
    const struct opt *row = row_at(o, i).row;
    char word[OPT_SPELLING];
    struct buf left;
    buf_init(&left);
    if (row->flags & OPT_ENV_ONLY) {
        buf_printf(&left, "  %s", row->env);
    } else {
        buf_printf(&left, "  --%s%s%s%s", opt_default_on(row) ? "[no-]" : "", row->name,
                   *opt_meta(row) ? " " : "", opt_meta(row));
        const char *before = ", ";
        for (const char *p = row->others; (p = opts_next_spelling(o, i, p, word)) != NULL;) {
            buf_printf(&left, "%s%s", before, word);
            before = " ";
        }
    }
    buf_printf(out, "%-38s%s%s", left.data ? left.data : "",
               left.len >= 38 ? "\n                                      " : "",
               row->help ? row->help : "");
    buf_fini(&left);
    if (row->flags & OPT_IGNORED) {
        buf_printf(out, "Accepted, no effect: %s.", row->note);
    } else if (row->flags & OPT_REFUSED) {
        buf_printf(out, "Refused: %s.", row->note);
    } else if (row->flags & OPT_DEPRECATED) {
        buf_printf(out, " Deprecated: %s.", row->note);
    }
    if (row->choices && !(row->flags & (OPT_IGNORED | OPT_REFUSED))) {
        buf_puts(out, " One of: ");
        for (const char *p = row->choices; *p; p++) {
            if (*p == '|') {
                buf_puts(out, ", ");
            } else {
                buf_putc(out, *p);
            }
        }
        buf_putc(out, '.');
    }
    if (row->def && !(row->flags & (OPT_IGNORED | OPT_REFUSED))) {
        buf_printf(out, " (default: %s)",
                   row->type == OPT_BOOL && strcmp(row->def, "true") == 0    ? "on"
                   : row->type == OPT_BOOL && strcmp(row->def, "false") == 0 ? "off"
                                                                             : row->def);
    }
    if (row->env && !(row->flags & OPT_ENV_ONLY)) {
        buf_printf(out, " [env: %s]", row->env);
    }
    buf_putc(out, '\n');
}

int opts_help(const struct opts *o, const char *topic, struct buf *out)
{
    if (topic && strcasecmp(topic, "all") == 0) {
        topic = NULL;
    }
    int n_rows = count_rows(o), found = 0;
    buf_printf(out, "usage: %s\n", o->usage);
    for (int i = 0; i < n_rows; i++) { /* the first row of a group prints the whole group */
        const struct opt *head = row_at(o, i).row;
        int seen = 0;
        for (int j = 0; j < i && !seen; j++) {
            seen = strcmp(row_at(o, j).row->group, head->group) == 0;
        }
        int heading = 0;
        for (int j = i; j < n_rows && !seen; j++) {
            const struct opt *row = row_at(o, j).row;
            if (strcmp(row->group, head->group) != 0) {
                continue;
            }
            const char *own = opt_own_name(row);
            size_t dashes = topic ? strspn(topic, "-") : 0;
            int named = topic && same_name(own, topic + dashes, strlen(topic + dashes));
            int wanted =
                named ||
                (opts_is_listed(o, row) &&
                 (!topic || (*topic && strncasecmp(topic, row->group, strlen(topic)) == 0)));
            if (wanted) {
                if (!heading) {
                    buf_printf(out, "\n%s:\n", row->group);
                }
                heading = found = 1;
                help_row(o, j, out);
            }
        }
    }
    if (!topic) {
        buf_puts(out, "\nA flag may be written with - or _, and --x=v or --x v. --help=GROUP or "
                      "--help=FLAG prints a part.\n");
    }
    return found || !topic ? 0 : ERR_NOT_FOUND;
}

static void describe_value(const struct opt *row, const void *field, struct buf *out)
{
    switch (row->type) {
    case OPT_BOOL:
        buf_puts(out, *(const int *)field ? "True" : "False");
        break;
    case OPT_INT:
    case OPT_SIZE:
        buf_printf(out, "%lld", (long long)*(const int64_t *)field);
        break;
    case OPT_DOUBLE:
        buf_printf(out, "%.15g", *(const double *)field);
        break;
    case OPT_STRING:
        buf_printf(out, "'%s'", *(const char *const *)field ? *(const char *const *)field : "");
        break;
    case OPT_JSON:
        buf_puts(out, *(const char *const *)field ? *(const char *const *)field : "{}");
        break;
    case OPT_LIST:
    case OPT_APPEND: {
        const struct opt_list *l = field;
        buf_putc(out, '[');
        for (int i = 0; i < l->n; i++) {
            buf_printf(out, "%s'%s'", i ? ", " : "", l->v[i]);
        }
        buf_putc(out, ']');
        break;
    }
    }
}

void opts_describe(const struct opts *o, const char *secrets, struct buf *out)
{
    int n_rows = count_rows(o), first = 1;
    buf_putc(out, '{');
    for (int i = 0; i < n_rows; i++) {
        struct row_ref r = row_at(o, i);
        if (o->source[i] == OPT_FROM_DEFAULT || (r.row->flags & OPT_IGNORED)) {
            continue;
        }
        const char *own = opt_own_name(r.row);
        buf_puts(out, first ? "'" : ", '");
        first = 0;
        for (const char *p = own; *p; p++) {
            buf_putc(out, (char)(*p == '-' ? '_' : *p));
        }
        buf_puts(out, "': ");
        if (secrets && has_word(secrets, own, strlen(own))) {
            buf_puts(out, "'***'");
        } else {
            describe_value(r.row, (const char *)r.target + r.row->offset, out);
        }
    }
    buf_putc(out, '}');
}
