/* SPDX-License-Identifier: Apache-2.0 */
/* UTF-8 by the Unicode standard's table 3-7 (well-formed byte sequences): only the second byte has
 * a range that depends on the first, which is where overlong forms, surrogates and values beyond
 * U+10FFFF are excluded; the rest are plain continuation bytes. */
#include "base/utf8.h"

#include "base/buf.h"
#include <string.h>

/* Length by lead byte and the range of the second byte; 0 for bytes that start nothing. */
static int lead(unsigned char c, unsigned char *lo, unsigned char *hi)
{
    *lo = 0x80;
    *hi = 0xBF;
    if (c < 0x80) {
        return 1;
    }
    if (c < 0xC2) {
        return 0;
    }
    if (c < 0xE0) {
        return 2;
    }
    if (c < 0xF0) {
        if (c == 0xE0) {
            *lo = 0xA0;
        } else if (c == 0xED) {
            *hi = 0x9F;
        }
        return 3;
    }
    if (c < 0xF5) {
        if (c == 0xF0) {
            *lo = 0x90;
        } else if (c == 0xF4) {
            *hi = 0x8F;
        }
        return 4;
    }
    return 0;
}

/* Decodes as utf8_decode does; *used is the length of the maximal subpart seen (>= 1). */
static int decode(const unsigned char *s, size_t n_bytes, uint32_t *cp, size_t *used)
{
    unsigned char lo, hi;
    int len = lead(s[0], &lo, &hi);
    *used = 1;
    if (len == 1) {
        *cp = s[0];
        return 1;
    }
    if (len == 0) {
        return -1;
    }
    uint32_t c = s[0] & (0x7Fu >> len);
    for (size_t i = 1; i < (size_t)len; i++) {
        if (i >= n_bytes) {
            return 0;
        }
        if (s[i] < lo || s[i] > hi) {
            return -1;
        }
        lo = 0x80;
        hi = 0xBF;
        c = c << 6 | (s[i] & 0x3Fu);
        *used = i + 1;
    }
    *cp = c;
    return len;
}

int utf8_decode(const char *s, size_t n_bytes, uint32_t *cp)
{
    size_t used;
    return decode((const unsigned char *)s, n_bytes, cp, &used);
}

int utf8_encode(uint32_t cp, char out[4])
{
    if (cp < 0x80) {
        out[0] = (char)cp;
        return 1;
    }
    if (cp < 0x800) {
        out[0] = (char)(0xC0 | cp >> 6);
        out[1] = (char)(0x80 | (cp & 0x3F));
        return 2;
    }
    if (cp < 0x10000) {
        if (cp >= 0xD800 && cp <= 0xDFFF) {
            return 0;
        }
        out[0] = (char)(0xE0 | cp >> 12);
        out[1] = (char)(0x80 | (cp >> 6 & 0x3F));
        out[2] = (char)(0x80 | (cp & 0x3F));
        return 3;
    }
    if (cp <= 0x10FFFF) {
        out[0] = (char)(0xF0 | cp >> 18);
        out[1] = (char)(0x80 | (cp >> 12 & 0x3F));
        out[2] = (char)(0x80 | (cp >> 6 & 0x3F));
        out[3] = (char)(0x80 | (cp & 0x3F));
        return 4;
    }
    return 0;
}

/* Steps over ASCII eight bytes at a time: nearly all text that arrives here. */
static size_t skip_ascii(const char *s, size_t pos, size_t n_bytes)
{
    while (n_bytes - pos >= 8) {
        uint64_t w;
        memcpy(&w, s + pos, 8);
        if (w & 0x8080808080808080u) {
            break;
        }
        pos += 8;
    }
    while (pos < n_bytes && (unsigned char)s[pos] < 0x80) {
        pos++;
    }
    return pos;
}

size_t utf8_valid_prefix(const char *s, size_t n_bytes)
{
    size_t pos = 0;
    for (;;) {
        pos = skip_ascii(s, pos, n_bytes);
        if (pos == n_bytes) {
            return pos;
        }
        uint32_t cp;
        int len = utf8_decode(s + pos, n_bytes - pos, &cp);
        if (len <= 0) {
            return pos;
        }
        pos += (size_t)len;
    }
}

static int continues(char c)
{
    return ((unsigned char)c & 0xc0) == 0x80;
}

size_t utf8_cut(const char *s, size_t n_bytes, size_t most)
{
    if (n_bytes <= most) {
        return n_bytes;
    }
    size_t n = most;
    while (n > 0 && most - n < 3 && continues(s[n])) {
        n--;
    }
    return continues(s[n]) ? most : n; /* no UTF-8: anywhere */
}

int utf8_is_valid(const char *s, size_t n_bytes)
{
    return utf8_valid_prefix(s, n_bytes) == n_bytes;
}

size_t utf8_count(const char *s, size_t n_bytes)
{
    size_t count = 0;
    for (size_t i = 0; i < n_bytes; i++) {
        count += ((unsigned char)s[i] & 0xC0) != 0x80;
    }
    return count;
}

void utf8_append_lossy(struct buf *out, const char *s, size_t n_bytes)
{
    size_t pos = 0;
    while (pos < n_bytes) {
        size_t ok = utf8_valid_prefix(s + pos, n_bytes - pos);
        buf_append(out, s + pos, ok);
        pos += ok;
        if (pos < n_bytes) {
            uint32_t cp;
            size_t used;
            decode((const unsigned char *)s + pos, n_bytes - pos, &cp, &used);
            buf_append(out, "\xEF\xBF\xBD", 3);
            pos += used;
        }
    }
}
