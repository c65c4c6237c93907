/* SPDX-License-Identifier: Apache-2.0 */
#include "text/unicode.h"

#include "base/utf8.h"
#include "text/unicode_tables.h"

#define COUNT(a) (sizeof(a) / sizeof(*(a)))

int unicode_is_space(uint32_t cp)
{
    return (cp >= 9 && cp <= 13) || (cp >= 28 && cp <= 32) || cp == 0x85 || cp == 0xa0 ||
           cp == 0x1680 || (cp >= 0x2000 && cp <= 0x200a) || cp == 0x2028 || cp == 0x2029 ||
           cp == 0x202f || cp == 0x205f || cp == 0x3000;
}

size_t unicode_leading_space(const char *s, size_t n_bytes)
{
    size_t i = 0;
    uint32_t cp;
    while (i < n_bytes) {
        int n = utf8_decode(s + i, n_bytes - i, &cp);
        if (n <= 0 || !unicode_is_space(cp)) {
            break;
        }
        i += (size_t)n;
    }
    return i;
}

size_t unicode_trailing_space(const char *s, size_t n_bytes)
{
    size_t end = n_bytes;
    uint32_t cp;
    while (end > 0) {
        size_t i = end - 1;
        while (i > 0 && ((uint8_t)s[i] & 0xc0) == 0x80) {
            i--;
        }
        if (utf8_decode(s + i, end - i, &cp) <= 0 || !unicode_is_space(cp)) {
            break;
        }
        end = i;
    }
    return n_bytes - end;
}

static int in_ranges(const struct cp_range *v, size_t n, uint32_t cp)
{
    size_t lo = 0, hi = n;
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        if (cp > v[mid].last) {
            lo = mid + 1;
        } else {
            hi = mid;
        }
    }
    return lo < n && cp >= v[lo].first;
}

int unicode_is_printable(uint32_t cp)
{
    return in_ranges(printable, COUNT(printable), cp);
}

int unicode_is_cased(uint32_t cp)
{
    return in_ranges(cased, COUNT(cased), cp);
}

static uint32_t run_map(const struct case_run *v, size_t n, uint32_t cp)
{
    for (size_t i = 0; i < n && v[i].first <= cp; i++) {
        if (cp <= v[i].last && (cp - v[i].first) % v[i].step == 0) {
            return (uint32_t)((int32_t)cp + v[i].delta);
        }
    }
    return cp;
}

static int special(uint32_t cp, uint32_t kind, uint32_t out[3])
{
    for (size_t i = 0; i < COUNT(case_specials) && case_specials[i].cp <= cp; i++) {
        if (case_specials[i].cp == cp && case_specials[i].kind == kind) {
            int n = 0;
            while (n < 3 && case_specials[i].to[n]) {
                out[n] = case_specials[i].to[n];
                n++;
            }
            return n;
        }
    }
    return 0;
}

int unicode_upper(uint32_t cp, uint32_t out[3])
{
    int n = cp < 0x80 ? 0 : special(cp, 0, out);
    if (!n) {
        out[0] = run_map(upper_runs, COUNT(upper_runs), cp);
        n = 1;
    }
    return n;
}

int unicode_lower(uint32_t cp, uint32_t out[3])
{
    int n = cp < 0x80 ? 0 : special(cp, 1, out);
    if (!n) {
        out[0] = run_map(lower_runs, COUNT(lower_runs), cp);
        n = 1;
    }
    return n;
}

int unicode_title(uint32_t cp, uint32_t out[3])
{
    int n = cp < 0x80 ? 0 : special(cp, 2, out);
    if (n) {
        return n;
    }
    out[0] = in_ranges(title_same, COUNT(title_same), cp)
                 ? cp
                 : run_map(title_runs, COUNT(title_runs), cp);
    if (out[0] == cp && !in_ranges(title_same, COUNT(title_same), cp)) {
        out[0] = run_map(upper_runs, COUNT(upper_runs), cp);
    }
    return 1;
}
