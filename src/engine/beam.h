/* SPDX-License-Identifier: Apache-2.0 */
/* Beam search of one request: the n most likely continuations, found side by side. */
#ifndef TERN_ENGINE_BEAM_H
#define TERN_ENGINE_BEAM_H

#include "engine/core.h"

/* Memory for the request's beams, all of it but the tokens' history. Submitting thread. */
int beam_open(struct group *g, int vocab_size);
void beam_close(struct group *g); /* may have none */
/* Where the candidates of a beam's row go. */
struct sample_job beam_job(const struct seq *q, const float *logits);
/* The candidates of q's row are there. When all beams of the request have theirs, the best go on or
 * the request ends. Returns the tokens that count for the statistics of this step. */
int beam_report(struct engine *en, struct seq *q, uint64_t now_ns);

#endif
