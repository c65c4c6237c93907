/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TERN_BASE_CLOCK_H
#define TERN_BASE_CLOCK_H
#include <stdint.h>
uint64_t clock_now_ns(void); /* monotonic */
int64_t clock_unix_s(void);  /* wall clock, seconds since 1970 */
double clock_unix(void);     /* wall clock with fraction */
#endif
