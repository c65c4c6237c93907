/* SPDX-License-Identifier: Apache-2.0 */
/* Character properties as Python's str methods see them. */
#ifndef TERN_TEXT_UNICODE_H
#define TERN_TEXT_UNICODE_H

#include <stddef.h>
#include <stdint.h>

int unicode_is_space(uint32_t cp);     /* str.isspace */
int unicode_is_printable(uint32_t cp); /* str.isprintable */
int unicode_is_cased(uint32_t cp);
/* Case mapping of one character without regard to its neighbours; 1 to 3 characters into out. */
int unicode_upper(uint32_t cp, uint32_t out[3]);
int unicode_lower(uint32_t cp, uint32_t out[3]);
int unicode_title(uint32_t cp, uint32_t out[3]);
/* Bytes of white space at the start or the end of valid UTF-8 text. */
size_t unicode_leading_space(const char *s, size_t n_bytes);
size_t unicode_trailing_space(const char *s, size_t n_bytes);

#endif
