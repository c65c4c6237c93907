/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers of JSON schemas: bounds and multipleOf of all schemas together, as decimal text for
 * gram_number. */
#include "text/gram_schema.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_FRACTION GRAM_MAX_FRACTION

/* A number's value as plain decimal text: as written where possible, exponents written out. */
static int plain_decimal(double d, const struct json *v, char *out, size_t size)
{
    if (json_type(v) == JSON_INT) {
        return snprintf(out, size, "%lld", (long long)json_int(v)) < (int)size;
    }
    for (int digits = 0; digits <= 30; digits++) {
        int n = snprintf(out, size, "%.*f", digits, d);
        if (n < 0 || (size_t)n >= size) {
            return 0;
        }
        if (strtod(out, NULL) == d) {
            return 1;
        }
    }
    return 0;
}

struct bound {
    double value;
    int set, exclusive;
    char text[96];
};

static void take_bound(struct schema *c, struct bound *b, const struct json *v, int exclusive,
                       int upper, const char *name)
{
    if (v == NULL || gram_failed(c->g)) {
        return;
    }
    if (json_type(v) == JSON_BOOL) { /* draft 4: makes minimum or maximum exclusive */
        b->exclusive |= exclusive && json_bool(v);
        return;
    }
    if (json_type(v) != JSON_INT && json_type(v) != JSON_DOUBLE) {
        gram_fail(c->g, ERR_INVALID, "JSON schema: %s must be a number", name);
        return;
    }
    double d = json_double(v);
    int tighter = !b->set || (upper ? d < b->value : d > b->value) || (d == b->value && exclusive);
    if (tighter) {
        b->value = d;
        b->set = 1;
        b->exclusive = exclusive;
        if (!plain_decimal(d, v, b->text, sizeof b->text)) {
            gram_fail(c->g, ERR_UNSUPPORTED, "JSON schema: %s has too many digits", name);
        }
    }
}

static int whole_digits(const char *text)
{
    return (int)strcspn(text + (*text == '-'), ".");
}

static int fraction_digits(const char *text)
{
    const char *point = strchr(text, '.');
    return point != NULL ? (int)strlen(point + 1) : 0;
}

static int64_t gcd(int64_t a, int64_t b)
{
    while (b != 0) {
        int64_t r = a % b;
        a = b;
        b = r;
    }
    return a;
}

/* A multipleOf as a whole number of 10^-digits. Validators divide doubles, so a fraction such as
 * 0.01 is taken only where no rounding can show: fractions of a power of two (0.25), or whole
 * numbers being asked for. 0: refused. */
static int64_t scaled(struct schema *c, const struct json *m, int integer, int *digits)
{
    double d = json_type(m) == JSON_INT || json_type(m) == JSON_DOUBLE ? json_double(m) : 0;
    char text[96];
    if (!(d > 0)) {
        gram_fail(c->g, ERR_INVALID, "JSON schema: multipleOf must be a number above 0");
        return 0;
    }
    if (!plain_decimal(d, m, text, sizeof text) || strlen(text) > 16) {
        gram_schema_refuse(c, "multipleOf", "with so many digits is not supported");
        return 0;
    }
    *digits = fraction_digits(text);
    if (*digits == 0) {
        return strtoll(text, NULL, 10);
    }
    char *point = strchr(text, '.');
    memmove(point, point + 1, strlen(point));
    int64_t value = strtoll(text, NULL, 10), ten = 1;
    for (int i = 0; i < *digits; i++) {
        ten *= 10;
    }
    int64_t denominator = ten / gcd(value, ten);
    long double error = fabsl((long double)d * (long double)ten / (long double)value - 1);
    if (integer && error < 5e-17L && *digits <= 6) {
        value /= gcd(value, ten); /* whole multiples of p/q are those of p */
        *digits = 0;
        return value;
    }
    if ((denominator & (denominator - 1)) != 0) {
        gram_schema_refuse(c, "multipleOf",
                           "is supported for whole numbers and fractions such as 0.5 and 0.25");
        return 0;
    }
    return value;
}

/* The least common multiple of all multipleOf; 0: none. */
static int64_t multiple(struct schema *c, const struct view *v, int integer, int *digits)
{
    int64_t all = 0;
    *digits = 0;
    for (int i = 0; i < v->n && !gram_failed(c->g); i++) {
        const struct json *m = json_get(v->schema[i], "multipleOf");
        int d = 0;
        int64_t one = m != NULL ? scaled(c, m, integer, &d) : 0;
        if (one == 0) {
            continue;
        }
        for (; d < *digits; d++) {
            one *= 10;
        }
        for (; *digits < d && all != 0; ++*digits) {
            all *= 10;
        }
        *digits = d;
        all = all == 0 ? one : all / gcd(all, one) * one;
        if (all <= 0 || all > 1000000000000000) {
            gram_schema_refuse(c, "multipleOf", "is too large");
        }
    }
    return gram_failed(c->g) ? 0 : all;
}

int32_t gram_schema_number(struct schema *c, const struct view *v, int integer, int32_t next)
{
    struct bound lo = {0}, hi = {0};
    struct gram_number spec = {.integer = integer, .max_fraction = MAX_FRACTION};
    for (int i = 0; i < v->n; i++) {
        const struct json *s = v->schema[i];
        take_bound(c, &lo, json_get(s, "minimum"), 0, 0, "minimum");
        take_bound(c, &hi, json_get(s, "maximum"), 0, 1, "maximum");
        take_bound(c, &lo, json_get(s, "exclusiveMinimum"), 1, 0, "exclusiveMinimum");
        take_bound(c, &hi, json_get(s, "exclusiveMaximum"), 1, 1, "exclusiveMaximum");
    }
    spec.multiple_of = multiple(c, v, integer, &spec.multiple_digits);
    spec.lo = lo.set ? lo.text : NULL;
    spec.hi = hi.set ? hi.text : NULL;
    if (!integer && (lo.exclusive || hi.exclusive)) {
        /* A text just inside must not be rounded to the bound by whoever reads it as a double. */
        int whole = whole_digits(lo.text), other = whole_digits(hi.text);
        whole = other > whole ? other : whole;
        spec.max_fraction = whole < MAX_FRACTION ? MAX_FRACTION - whole : 1;
        if (whole + fraction_digits(lo.text) >= MAX_FRACTION ||
            whole + fraction_digits(hi.text) >= MAX_FRACTION) {
            gram_schema_refuse(c, hi.exclusive ? "exclusiveMaximum" : "exclusiveMinimum",
                               "with so many digits is not supported");
        }
    }
    spec.lo_exclusive = lo.exclusive;
    spec.hi_exclusive = hi.exclusive;
    return gram_failed(c->g) ? next : gram_number(c->g, &spec, next);
}
