/* SPDX-License-Identifier: Apache-2.0 */
/* Character properties as Python's str methods see them. */
#ifndef TERN_TEXT_UNICODE_H
#define TERN_TEXT_UNICODE_H

#include <stddef.h>
#include <stdint.h>

int unicode_is_space(uint32_t cp); /* str.isspace */
/* Bytes of white space at the start or the end of valid UTF-8 text. */
size_t unicode_leading_space(const char *s, size_t n_bytes);
size_t unicode_trailing_space(const char *s, size_t n_bytes);

#endif
