/* SPDX-License-Identifier: Apache-2.0 */
/* One pass over the text. A place that doesn't end with the text's last token costs one
 * comparison, so 131,072 tokens take some tens of microseconds; a place that matches the longest
 * suffix ends the pass, since later ones could only tie with it. */
#include "engine/ngram.h"

#include <stddef.h>

static int32_t at(const int32_t *prompt, int n_prompt, const int32_t *out, int i)
{
    return i < n_prompt ? prompt[i] : out[i - n_prompt];
}

int ngram_propose(const int32_t *prompt, int n_prompt, const int32_t *out, int n_out, int min,
                  int max, int32_t *draft, int k)
{
    int n = n_prompt + n_out, best = 0, best_end = 0;
    if (n < 2) {
        return 0;
    }
    int32_t last = at(prompt, n_prompt, out, n - 1);
    for (int end = 0; end < n - 1 && best < max; end++) {
        if (at(prompt, n_prompt, out, end) != last) {
            continue;
        }
        int length = 1;
        while (length < max && length <= end &&
               at(prompt, n_prompt, out, end - length) ==
                   at(prompt, n_prompt, out, n - 1 - length)) {
            length++;
        }
        if (length > best) {
            best = length;
            best_end = end;
        }
    }
    if (best < min) {
        return 0;
    }
    int n_draft = 0;
    for (int i = best_end + 1; i < n && n_draft < k; i++) {
        draft[n_draft++] = at(prompt, n_prompt, out, i);
    }
    return n_draft;
}
