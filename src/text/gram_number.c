/* SPDX-License-Identifier: Apache-2.0 */
/* Decimal numbers within bounds, as automata.
 *
 * Bounds are decimal strings, compared digit by digit, so nothing is lost to binary floating point.
 * A range is cut by sign and by integer part: strictly between the bounds' integer parts any
 * fraction goes; at a bound's integer part the fraction is compared with the bound's. Text is
 * canonical JSON: no leading zero, no plus sign, no "-0", no exponent; at most MAX_DIGITS digits
 * before the point, so that a model can't write digits for ever and every reader's double holds the
 * integer exactly. */
#include "text/gram_front.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_DIGITS     15
#define MAX_TEXT       96   /* characters of a bound */
#define MAX_MULTIPLE   2000 /* largest multipleOf built as an automaton */
#define MAX_ENUMERATED 5000 /* multiples in a bounded range, written out one by one */

static const struct gram_range digit_range[] = {{'0', '9'}};

struct decimal {
    char i[MAX_TEXT]; /* integer part, no leading zeros ("0" for zero) */
    char f[MAX_TEXT]; /* fraction, no trailing zeros ("" for none) */
};

/* One magnitude range. */
struct range {
    struct decimal lo, hi;
    int has_hi, lo_exclusive, hi_exclusive;
};

static int compare_int(const char *a, const char *b)
{
    size_t n = strlen(a), m = strlen(b);
    return n != m ? (n < m ? -1 : 1) : strcmp(a, b);
}

static int compare(const struct decimal *a, const struct decimal *b)
{
    int c = compare_int(a->i, b->i);
    return c != 0 ? c
                  : strcmp(a->f, b->f); /* without trailing zeros, text order is numeric order */
}

static int is_zero(const struct decimal *d)
{
    return strcmp(d->i, "0") == 0 && d->f[0] == 0;
}

/* Parses [-]digits[.digits]; returns the sign (-1, 1), 0 when it is no such text. */
static int parse_decimal(const char *s, struct decimal *d)
{
    int sign = 1;
    memset(d, 0, sizeof *d);
    if (*s == '-') {
        sign = -1;
        s++;
    }
    while (*s == '0' && s[1] >= '0' && s[1] <= '9') {
        s++;
    }
    size_t n = strspn(s, "0123456789");
    if (n == 0 || n >= MAX_TEXT - 2) {
        return 0;
    }
    memcpy(d->i, s, n);
    s += n;
    if (*s == '.') {
        size_t m = strspn(++s, "0123456789");
        if (m >= MAX_TEXT) {
            return 0;
        }
        memcpy(d->f, s, m);
        for (s += m; m > 0 && d->f[m - 1] == '0';) {
            d->f[--m] = 0;
        }
    }
    if (*s != 0) {
        return 0;
    }
    return is_zero(d) ? 1 : sign;
}

static void increment(char *digits)
{
    size_t i = strlen(digits);
    while (i > 0 && digits[i - 1] == '9') {
        digits[--i] = '0';
    }
    if (i > 0) {
        digits[i - 1]++;
    } else {
        memmove(digits + 1, digits, strlen(digits) + 1);
        digits[0] = '1';
    }
}

/* digits - 1; digits is not zero. */
static void decrement(char *digits)
{
    size_t i = strlen(digits);
    while (digits[i - 1] == '0') {
        digits[--i] = '9';
    }
    digits[i - 1]--;
    if (digits[0] == '0' && digits[1] != 0) {
        memmove(digits, digits + 1, strlen(digits));
    }
}

static int32_t digits_repeat(struct gram *g, int min, int max, int32_t next)
{
    return gram_repeat(g, gram_class_body(g, digit_range, 1), min, max, next);
}

static int32_t one_digit(struct gram *g, int lo, int hi, int32_t next)
{
    struct gram_range r = {(uint32_t)lo, (uint32_t)hi};
    return gram_chars(g, &r, 1, next);
}

/* Digits i.. of a number between lo and hi, which have the same length. */
static int32_t same_length(struct gram *g, const char *lo, const char *hi, int i, int tight_lo,
                           int tight_hi, int32_t next)
{
    int n = (int)strlen(lo), count = 0;
    int32_t alt[3];
    if (i == n) {
        return next;
    }
    if (!tight_lo && !tight_hi) {
        return digits_repeat(g, n - i, n - i, next);
    }
    int a = tight_lo ? lo[i] : '0', b = tight_hi ? hi[i] : '9';
    if (a == b) {
        return one_digit(g, a, a, same_length(g, lo, hi, i + 1, tight_lo, tight_hi, next));
    }
    if (tight_lo) {
        alt[count++] = one_digit(g, a, a, same_length(g, lo, hi, i + 1, 1, 0, next));
        a++;
    }
    if (tight_hi) {
        alt[count++] = one_digit(g, b, b, same_length(g, lo, hi, i + 1, 0, 1, next));
        b--;
    }
    if (a <= b) {
        alt[count++] = one_digit(g, a, b, same_length(g, lo, hi, i + 1, 0, 0, next));
    }
    return gram_alt(g, alt, count);
}

/* Integers lo..hi (hi NULL: up to MAX_DIGITS digits); -1 when there is none. */
static int32_t integers(struct gram *g, const char *lo, const char *hi, int32_t next)
{
    char a[MAX_TEXT], b[MAX_TEXT];
    int32_t alt[MAX_TEXT + 2];
    int count = 0, n_lo = (int)strlen(lo);
    int n_hi = hi != NULL ? (int)strlen(hi) : (n_lo > MAX_DIGITS ? n_lo : MAX_DIGITS);
    if (hi != NULL && compare_int(lo, hi) > 0) {
        return -1;
    }
    for (int n = n_lo; n <= n_hi; n++) {
        memset(a, '0', sizeof a);
        memset(b, '9', sizeof b);
        a[0] = '1';
        a[n] = b[n] = 0;
        if (n == n_lo) {
            memcpy(a, lo, (size_t)n_lo + 1);
        }
        if (hi != NULL && n == n_hi) {
            memcpy(b, hi, (size_t)n_hi + 1);
        }
        alt[count++] = same_length(g, a, b, 0, 1, 1, next);
    }
    return gram_alt(g, alt, count);
}

struct fraction {
    const char *lo, *hi;
    int n, max_digits, lo_exclusive, hi_exclusive;
};

static int digit_of(const char *f, int i)
{
    return i < (int)strlen(f) ? f[i] : '0';
}

static int rest_is_zero(const char *f, int i)
{
    return i >= (int)strlen(f);
}

/* May the fraction end after i digits? */
static int may_end(const struct fraction *f, int i, int tight_lo, int tight_hi)
{
    return (!tight_lo || (rest_is_zero(f->lo, i) && !f->lo_exclusive)) &&
           (!tight_hi || !rest_is_zero(f->hi, i) || !f->hi_exclusive);
}

/* Digits i.. of a fraction after the point; -1: no such digits. */
static int32_t fraction_digits(struct gram *g, const struct fraction *f, int i, int tight_lo,
                               int tight_hi, int32_t next)
{
    int32_t alt[4];
    int count = 0;
    if (!tight_lo && !tight_hi) {
        int left = f->max_digits > i ? f->max_digits - i : 1;
        return digits_repeat(g, i == 0 ? 1 : 0, left, next);
    }
    if (i > 0 && may_end(f, i, tight_lo, tight_hi)) {
        alt[count++] = next;
    }
    if (i < f->n || (tight_lo && !tight_hi && i < f->n + f->max_digits)) {
        int a = tight_lo ? digit_of(f->lo, i) : '0', b = tight_hi ? digit_of(f->hi, i) : '9';
        int at_a = tight_lo || (tight_hi && a == b), at_b = a < b && tight_hi;
        if (a <= b && at_a) {
            int32_t t = fraction_digits(g, f, i + 1, tight_lo, tight_hi && a == b, next);
            if (t >= 0) {
                alt[count++] = one_digit(g, a, a, t);
            }
        }
        if (at_b) {
            int32_t t = fraction_digits(g, f, i + 1, 0, 1, next);
            if (t >= 0) {
                alt[count++] = one_digit(g, b, b, t);
            }
        }
        if (a + at_a <= b - at_b) {
            alt[count++] =
                one_digit(g, a + at_a, b - at_b, fraction_digits(g, f, i + 1, 0, 0, next));
        }
    }
    return count == 0 ? -1 : gram_alt(g, alt, count);
}

/* ["." digits] between two fractions that apply at this integer part (NULL: no bound). */
static int32_t fraction(struct gram *g, const struct range *r, int at_lo, int at_hi, int max_digits,
                        int32_t next)
{
    struct fraction f = {.lo = r->lo.f,
                         .hi = r->hi.f,
                         .max_digits = max_digits,
                         .lo_exclusive = r->lo_exclusive,
                         .hi_exclusive = r->hi_exclusive};
    int n_lo = at_lo ? (int)strlen(f.lo) : 0, n_hi = at_hi ? (int)strlen(f.hi) : 0;
    f.n = n_lo > n_hi ? n_lo : n_hi;
    int32_t alt[2];
    int count = 0;
    if (may_end(&f, 0, at_lo, at_hi)) {
        alt[count++] = next;
    }
    int32_t digits = max_digits > 0 ? fraction_digits(g, &f, 0, at_lo, at_hi, next) : -1;
    if (digits >= 0) {
        alt[count++] = gram_bytes(g, ".", 1, digits);
    }
    return count == 0 ? -1 : gram_alt(g, alt, count);
}

/* Non-negative decimals of a range; -1 when there is none. */
static int32_t magnitudes(struct gram *g, const struct range *r, int integer, int max_fraction,
                          int32_t next)
{
    char a[MAX_TEXT], b[MAX_TEXT];
    int32_t alt[3];
    int count = 0;
    int order = r->has_hi ? compare(&r->lo, &r->hi) : -1;
    if (order > 0 || (order == 0 && (r->lo_exclusive || r->hi_exclusive))) {
        return -1;
    }
    memcpy(a, r->lo.i, sizeof a);
    memcpy(b, r->hi.i, sizeof b);
    if (integer) {
        if (r->lo.f[0] != 0 || r->lo_exclusive) {
            increment(a);
        }
        if (r->has_hi && r->hi.f[0] == 0 && r->hi_exclusive) {
            if (strcmp(b, "0") == 0) {
                return -1;
            }
            decrement(b);
        }
        return integers(g, a, r->has_hi ? b : NULL, next);
    }
    int same = r->has_hi && strcmp(a, b) == 0;
    int32_t f = fraction(g, r, 1, same, max_fraction, next);
    if (f >= 0) {
        alt[count++] = gram_bytes(g, a, strlen(a), f);
    }
    if (r->has_hi && !same) {
        f = fraction(g, r, 0, 1, max_fraction, next);
        if (f >= 0) {
            alt[count++] = gram_bytes(g, b, strlen(b), f);
        }
        decrement(b);
    }
    if (!same) {
        increment(a);
        int32_t inner =
            integers(g, a, r->has_hi ? b : NULL, fraction(g, r, 0, 0, max_fraction, next));
        if (inner >= 0) {
            alt[count++] = inner;
        }
    }
    return count == 0 ? -1 : gram_alt(g, alt, count);
}

/* The remaining digits, at most `digits` and at least one, that bring remainder r to 0 modulo m
 * when zeros fill them up, for every r: fills after[r] (-1: none) from the last digit on. */
static void fraction_remainders(struct gram *g, int m, int digits, int32_t *after, int32_t *scratch,
                                int32_t next)
{
    int32_t alt[12];
    int64_t ten = 1;
    for (int r = 0; r < m; r++) {
        after[r] = r == 0 ? next : -1;
    }
    for (int left = 1; left <= digits && !gram_failed(g); left++) {
        ten *= 10;
        for (int r = 0; r < m; r++) {
            int count = 0;
            if (left < digits && r * ten % m == 0) {
                alt[count++] = next;
            }
            for (int d = 0; d < 10; d++) {
                int32_t t = after[(r * 10 + d) % m];
                if (t >= 0) {
                    alt[count++] = one_digit(g, '0' + d, '0' + d, t);
                }
            }
            scratch[r] = count == 0 ? -1 : gram_alt(g, alt, count);
        }
        memcpy(after, scratch, sizeof *after * (size_t)m);
    }
}

/* What may follow the digits before the point, for every remainder they leave: nothing, or a point
 * and `digits` more. */
static void ends_of_whole(struct gram *g, int m, int digits, int32_t *after, int32_t *scratch,
                          int32_t next)
{
    int64_t ten = 1;
    for (int i = 0; i < digits; i++) {
        ten *= 10;
    }
    fraction_remainders(g, m, digits, after, scratch, next);
    for (int r = 0; r < m && digits > 0; r++) {
        int32_t alt[2];
        int count = 0;
        if (r * ten % m == 0) {
            alt[count++] = next;
        }
        if (after[r] >= 0) {
            alt[count++] = gram_bytes(g, ".", 1, after[r]);
        }
        after[r] = count == 0 ? -1 : gram_alt(g, alt, count);
    }
}

/* Multiples of m * 10^-digits with up to MAX_DIGITS digits before the point: remainders as states,
 * digit by digit, built from the last digit. */
static int32_t multiples(struct gram *g, int m, int digits, int nonzero, int32_t next)
{
    size_t bytes = sizeof(int32_t) * (size_t)m;
    int32_t *after = malloc(bytes), *now = malloc(bytes), *ends = malloc(bytes), entry = -1,
            alt[12];
    if (after == NULL || now == NULL || ends == NULL) {
        gram_fail(g, ERR_NOMEM, "out of memory while compiling a number");
    } else {
        ends_of_whole(g, m, digits, after, now, next);
        memcpy(ends, after, bytes);
    }
    for (int left = 1; left <= MAX_DIGITS - digits && !gram_failed(g); left++) {
        int first = left == MAX_DIGITS - digits;
        for (int r = 0; r < (first ? 1 : m); r++) {
            int count = 0;
            if (!first && ends[r] >= 0) {
                alt[count++] = ends[r];
            }
            if (first && (!nonzero || digits > 0)) {
                alt[count++] = gram_bytes(g, "0", 1, ends[0]);
            }
            for (int d = first ? 1 : 0; d < 10; d++) {
                int32_t t = after[(r * 10 + d) % m];
                if (t >= 0) {
                    alt[count++] = one_digit(g, '0' + d, '0' + d, t);
                }
            }
            now[r] = count == 0 ? -1 : gram_alt(g, alt, count);
        }
        int32_t *swap = after;
        after = now;
        now = swap;
        entry = after[0];
    }
    free(after);
    free(now);
    free(ends);
    return entry;
}

/* d * 10^digits; *rest: a fraction is left over. */
static int64_t scaled(const struct decimal *d, int sign, int digits, int *rest)
{
    int64_t v = strtoll(d->i, NULL, 10);
    size_t n = strlen(d->f);
    for (int i = 0; i < digits; i++) {
        v = v * 10 + ((size_t)i < n ? d->f[i] - '0' : 0);
    }
    *rest = n > (size_t)digits;
    return sign * v;
}

static int32_t write_scaled(struct gram *g, int64_t v, int digits, int32_t next)
{
    char text[48];
    int64_t ten = 1;
    for (int i = 0; i < digits; i++) {
        ten *= 10;
    }
    int64_t whole = llabs(v) / ten, part = llabs(v) % ten;
    int n = snprintf(text, sizeof text, "%s%lld", v < 0 ? "-" : "", (long long)whole);
    if (part > 0) {
        n += snprintf(text + n, sizeof text - (size_t)n, ".%0*lld", digits, (long long)part);
        while (text[n - 1] == '0') {
            n--;
        }
    }
    return gram_bytes(g, text, (size_t)n, next);
}

/* Multiples inside a bounded range, one by one. */
static int32_t enumerate(struct gram *g, int64_t lo, int64_t hi, int64_t m, int digits,
                         int32_t next)
{
    int32_t *alt = malloc(sizeof *alt * (MAX_ENUMERATED + 2));
    int count = 0;
    int64_t first = lo >= 0 ? (lo + m - 1) / m * m : -(-lo / m * m);
    for (int64_t v = first; alt != NULL && v <= hi && !gram_failed(g); v += m) {
        if (count > MAX_ENUMERATED) {
            gram_fail(g, ERR_UNSUPPORTED,
                      "multipleOf within so wide a minimum and maximum is not supported");
            break;
        }
        alt[count++] = write_scaled(g, v, digits, next);
    }
    int32_t entry = count > 0 ? gram_alt(g, alt, count) : -1;
    free(alt);
    return entry;
}

static int32_t multiple_of(struct gram *g, const struct gram_number *spec, int has_lo, int sign_lo,
                           const struct decimal *lo, int has_hi, int sign_hi,
                           const struct decimal *hi, int32_t next)
{
    int digits = spec->multiple_digits;
    if (has_lo && has_hi && (int)strlen(lo->i) <= MAX_DIGITS - digits &&
        (int)strlen(hi->i) <= MAX_DIGITS - digits) {
        int frac_lo, frac_hi;
        int64_t a = scaled(lo, sign_lo, digits, &frac_lo),
                b = scaled(hi, sign_hi, digits, &frac_hi);
        a += (frac_lo && sign_lo > 0) || (!frac_lo && spec->lo_exclusive);
        b -= (frac_hi && sign_hi < 0) || (!frac_hi && spec->hi_exclusive);
        return enumerate(g, a, b, spec->multiple_of, digits, next);
    }
    if (spec->multiple_of > MAX_MULTIPLE) {
        gram_fail(g, ERR_UNSUPPORTED,
                  "multipleOf %lld is not supported (at most %d without both bounds)",
                  (long long)spec->multiple_of, MAX_MULTIPLE);
        return -1;
    }
    if (has_hi || (has_lo && !is_zero(lo))) {
        gram_fail(g, ERR_UNSUPPORTED,
                  "multipleOf together with only one of minimum and maximum is not supported");
        return -1;
    }
    if (digits > 0 && spec->lo_exclusive) {
        gram_fail(g, ERR_UNSUPPORTED,
                  "multipleOf with a fraction together with exclusiveMinimum is not supported");
        return -1;
    }
    int m = (int)spec->multiple_of;
    int32_t plus = multiples(g, m, digits, has_lo && spec->lo_exclusive, next);
    return has_lo ? plus
                  : gram_alt2(g, plus, gram_bytes(g, "-", 1, multiples(g, m, digits, 1, next)));
}

int32_t gram_number(struct gram *g, const struct gram_number *spec, int32_t next)
{
    static const struct decimal zero = {.i = "0"};
    struct decimal lo = zero, hi = zero;
    int sign_lo = -1, sign_hi = 1, count = 0;
    int32_t alt[2];
    if ((spec->lo != NULL && (sign_lo = parse_decimal(spec->lo, &lo)) == 0) ||
        (spec->hi != NULL && (sign_hi = parse_decimal(spec->hi, &hi)) == 0)) {
        gram_fail(g, ERR_UNSUPPORTED, "a number's bound has too many digits");
        return GRAM_STATE_RETURN;
    }
    if (spec->multiple_of > 0) {
        alt[0] = multiple_of(g, spec, spec->lo != NULL, sign_lo, &lo, spec->hi != NULL, sign_hi,
                             &hi, next);
        count = alt[0] >= 0;
    } else {
        if (spec->hi == NULL || sign_hi > 0) { /* zero and above */
            struct range r = {.has_hi = spec->hi != NULL,
                              .lo = sign_lo > 0 ? lo : zero,
                              .hi = hi,
                              .lo_exclusive = sign_lo > 0 && spec->lo_exclusive,
                              .hi_exclusive = spec->hi_exclusive};
            alt[count] = magnitudes(g, &r, spec->integer, spec->max_fraction, next);
            count += alt[count] >= 0;
        }
        if (spec->lo == NULL || sign_lo < 0) { /* below zero: bounds change places */
            struct range r = {.has_hi = spec->lo != NULL,
                              .lo = sign_hi < 0 ? hi : zero,
                              .hi = lo,
                              .lo_exclusive = sign_hi > 0 || spec->hi_exclusive,
                              .hi_exclusive = spec->lo_exclusive};
            int32_t m = magnitudes(g, &r, spec->integer, spec->max_fraction, next);
            if (m >= 0) {
                alt[count++] = gram_bytes(g, "-", 1, m);
            }
        }
    }
    if (count == 0 && g->why[0] == 0) {
        snprintf(g->why, sizeof g->why, "no number satisfies the schema's bounds");
    }
    return gram_alt(g, alt, count);
}
