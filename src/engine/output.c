/* SPDX-License-Identifier: Apache-2.0 */
/* Text of one sample. Tokens are decoded one by one, so a stop string is found at the token that
 * completes it, wherever the engine's events are cut. Only the tail that the new characters can be
 * part of is searched. Among matches the one that ends first wins, then the order of the list.
 *
 * Text already shown can't be taken back, so while a sample runs the last characters that might
 * become the beginning of a stop string are held back: one less than the longest stop string,
 * counted in characters. */
#include "engine/output.h"

#include "base/utf8.h"

#include <string.h>

int output_init(struct output *out, const struct tokenizer *t, const struct output_options *o)
{
    memset(out, 0, sizeof *out);
    out->o = *o;
    out->stop_index = -1;
    out->stop_token_id = -1;
    buf_init(&out->text);
    detok_init(&out->detok, t, o->skip_special);
    return buf_reserve(&out->text, 64);
}

void output_fini(struct output *out)
{
    buf_fini(&out->text);
}

/* Looks for the match that ends first in text[0..len), among those that end behind old_len. */
static int find_stop(const struct output *out, size_t old_len, size_t *end)
{
    int found = -1;
    for (int i = 0; i < out->o.n_stop; i++) {
        size_t n = out->o.stop_bytes[i];
        if (n == 0 || n > out->text.len) {
            continue;
        }
        size_t at = old_len + 1 > n ? old_len + 1 - n : 0;
        const char *hit = memmem(out->text.data + at, out->text.len - at, out->o.stop[i], n);
        if (hit) {
            size_t hit_end = (size_t)(hit - out->text.data) + n;
            if (found < 0 || hit_end < *end) {
                found = i;
                *end = hit_end;
            }
        }
    }
    return found;
}

static void cut(struct buf *b, size_t len)
{
    b->len = len;
    b->data[len] = '\0';
}

static int is_shown(const struct output *out, int32_t id)
{
    for (int i = 0; i < out->o.n_shown; i++) {
        if (out->o.shown[i] == id) {
            return 1;
        }
    }
    return 0;
}

int output_feed(struct output *out, const struct engine_event *ev, int *n_used)
{
    *n_used = 0;
    if (out->finish != FINISH_NONE || ev->kind != EVENT_TOKENS) {
        return 0;
    }
    for (int i = 0; i < ev->n_tokens; i++) {
        /* an event that ends with FINISH_STOP and has tokens ends on an EOS or stop token */
        int is_stop_token = ev->finish == FINISH_STOP && i == ev->n_tokens - 1;
        size_t old_len = out->text.len, end = 0;
        out->n_tokens++;
        ++*n_used;
        if (is_stop_token && !out->o.include_stop_str) {
            continue;
        }
        out->detok.skip_special = out->o.skip_special && !is_shown(out, ev->tokens[i].id);
        detok_push(&out->detok, ev->tokens[i].id, &out->text);
        int stop = out->n_tokens > out->o.min_tokens ? find_stop(out, old_len, &end) : -1;
        if (stop >= 0) {
            cut(&out->text, out->o.include_stop_str ? end : end - out->o.stop_bytes[stop]);
            out->finish = FINISH_STOP;
            out->stop_index = stop;
            return 1;
        }
    }
    if (ev->finish != FINISH_NONE) {
        /* bytes of a character that never got complete are not shown */
        out->finish = ev->finish;
        out->stop_token_id = ev->stop_token_id;
    }
    return 0;
}

static size_t held_back_chars(const struct output *out)
{
    size_t most = 0;
    if (out->finish != FINISH_NONE || out->o.include_stop_str) {
        return 0;
    }
    for (int i = 0; i < out->o.n_stop; i++) {
        size_t n = utf8_count(out->o.stop[i], out->o.stop_bytes[i]);
        most = n > most ? n : most;
    }
    return most > 0 ? most - 1 : 0;
}

const char *output_take(struct output *out, size_t *n_bytes)
{
    size_t end = out->text.len;
    for (size_t n = held_back_chars(out); n > 0 && end > out->n_sent; n--) {
        do {
            end--;
        } while (end > out->n_sent && ((unsigned char)out->text.data[end] & 0xC0) == 0x80);
    }
    const char *text = out->text.data + out->n_sent;
    *n_bytes = end > out->n_sent ? end - out->n_sent : 0;
    out->n_sent += *n_bytes;
    return text;
}
