/* SPDX-License-Identifier: Apache-2.0 */
/* UTF-8 as the Unicode standard defines it: no surrogates, no overlong forms, at most U+10FFFF. */
#ifndef TERN_BASE_UTF8_H
#define TERN_BASE_UTF8_H
#include <stddef.h>
#include <stdint.h>
#define UTF8_REPLACEMENT 0xFFFDu
/* Decodes one character at s (n_bytes available, > 0). Returns its length 1..4 and sets *cp;
 * returns 0 when the bytes are the proper start of a character that needs more bytes; -1 when they
 * are no UTF-8. */
int utf8_decode(const char *s, size_t n_bytes, uint32_t *cp);
int utf8_encode(uint32_t cp, char out[4]); /* length, 0 for surrogates or > 10FFFF */
size_t utf8_valid_prefix(const char *s,
                         size_t n_bytes); /* longest valid prefix made of whole characters */
int utf8_is_valid(const char *s, size_t n_bytes);
/* Bytes of s that a message shows: at most `most`, and no character is cut in two. */
size_t utf8_cut(const char *s, size_t n_bytes, size_t most);
size_t utf8_count(const char *s, size_t n_bytes); /* code points of valid text */
struct buf;
/* Appends s with every maximal bad subpart replaced by U+FFFD (as Python's errors="replace"). */
void utf8_append_lossy(struct buf *out, const char *s, size_t n_bytes);
#endif
