/* SPDX-License-Identifier: Apache-2.0 */
/* Headings and reasons that several option tables use. */
#ifndef TERN_LIB_ARGS_WORDS_H
#define TERN_LIB_ARGS_WORDS_H

#define G_LOG     "Log"
#define G_NONE    "Accepted without effect"
#define G_REFUSED "Known and refused"

#define NOTE_PYTHON "it concerns Python or torch, and tern has neither"
#define NOTE_ONE    "one process serves the whole model"

#endif
