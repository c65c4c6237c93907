/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as a EBNF or Lark grammar: grammar_fuzz.h says what must hold. */
#include "grammar_fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes)
{
    return fuzz_grammar(GRAMMAR_EBNF, data, n_bytes);
}
