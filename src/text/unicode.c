/* SPDX-License-Identifier: Apache-2.0 */
#include "text/unicode.h"

#include "base/utf8.h"

int unicode_is_space(uint32_t cp)
{
    return (cp >= 9 && cp <= 13) || (cp >= 28 && cp <= 32) || cp == 0x85 || cp == 0xa0 || cp == 0x1680 ||
           (cp >= 0x2000 && cp <= 0x200a) || cp == 0x2028 || cp == 0x2029 || cp == 0x202f || cp == 0x205f ||
           cp == 0x3000;
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
