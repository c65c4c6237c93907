/* SPDX-License-Identifier: Apache-2.0 */
/* Reader of tokenizer.model, the protobuf file that SentencePiece writes, and of the same
 * vocabulary in a GGUF file (spm_gguf.c). Only what tern's BPE understands is accepted: model type
 * BPE with byte fallback, identity normalisation, whitespace kept as it is. Anything else is
 * refused by the name of its field, since a tokenizer that is almost right is worse than none. */
#ifndef TERN_TEXT_SPM_H
#define TERN_TEXT_SPM_H

#include "base/err.h"
#include <stddef.h>
#include <stdint.h>

#define SPM_FILE_BYTES_MAX  ((size_t)64 << 20)
#define SPM_PIECES_MAX      (1 << 20)
#define SPM_PIECE_BYTES_MAX 512

enum spm_type {
    SPM_NORMAL = 1,
    SPM_UNKNOWN = 2,
    SPM_CONTROL = 3,
    SPM_USER_DEFINED = 4,
    SPM_UNUSED = 5,
    SPM_BYTE = 6,
};

struct spm_piece {
    const char *text; /* inside spm.blob; valid UTF-8, NUL-terminated */
    uint32_t n_bytes;
    uint32_t type; /* enum spm_type */
    float score;
};

struct spm_slot {
    int32_t id;   /* -1: free */
    uint32_t tag; /* more bits of the hash: most strings that are looked up are no pieces, and are
                     told apart without a look at the piece */
};

struct spm {
    int n_pieces;
    struct spm_piece *pieces; // [n_pieces]
    char *blob; // the three tables are on large pages: faults of small ones are felt at start-up
    size_t blob_bytes;
    struct spm_slot *index; // open-addressed hash of the piece strings
    uint32_t index_mask;
    uint64_t seed;
    int32_t unk_id;
    int32_t byte_id[256];
    int has_unused;
};

/* name is used in error texts only. m may be uninitialised; on failure nothing has to be freed. */
int spm_parse(struct spm *m, const void *data, size_t n_bytes, const char *name, struct err *e);
int spm_open(struct spm *m, const char *path, struct err *e);
/* The vocabulary of a GGUF file ("llama" tokenizers), checked in the same way. Pieces "[PADn]" at
 * the end, which fill a vocabulary up, are left out. */
struct gguf;
int spm_from_gguf(struct spm *m, const struct gguf *g, struct err *e);
/* Checks and keeps pieces; their text may not be NUL-terminated and is copied. */
int spm_build(struct spm *m, const struct spm_piece *pieces, size_t n_pieces, const char *name,
              struct err *e);
void spm_fini(struct spm *m);
int32_t spm_find(const struct spm *m, const char *text,
                 size_t n_bytes); /* id of the exact piece, -1 if none */

#endif
