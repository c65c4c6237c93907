/* SPDX-License-Identifier: Apache-2.0 */
/* What a model says, split into reasoning, content and tool calls: one incremental parser for
 * streams and whole answers of every dialect, so that a stream joined is the whole answer.
 *
 * Text goes in as it is decoded, cut anywhere; events come out in order:
 *
 *     answer_feed(&a, text, n);           // and answer_finish(&a) when nothing more comes
 *     while (answer_next(&a, &ev)) { … }  // ev.text is borrowed until the next feed
 *
 * The syntax is ERNIE 4.5's (the parsers named "ernie45"):
 *
 *     <think>\nreasoning\n</think>\n\n<response>\ncontent\n</response>\n
 *     <tool_call>\n{"name": "f", "arguments": {…}}\n</tool_call>\n
 *
 * Marks are found by their text, wherever tokens cut it. Line breaks that belong to the marks are
 * dropped with them: one after <think> and <response>, one before </think> and </response>, at most
 * two after </think> (all, when a mark follows), one after </response>, those before and after a
 * call. Everything else is passed on byte for byte, blanks included; what turns out not to be a
 * call after all (no JSON, cut off) is content. Owner: whoever receives the sample's text. */
#ifndef TERN_TEXT_ANSWER_H
#define TERN_TEXT_ANSWER_H

#include "base/buf.h"
#include "text/tokenizer.h"

enum answer_tools {
    ANSWER_TOOLS_NONE,
    ANSWER_TOOLS_MARKED, /* <tool_call> blocks among the content; a call comes as a whole */
    ANSWER_TOOLS_LIST, /* the content is [{"name": …, "parameters": …}, …] (tool_choice required);
                        * arguments come as they are written */
    ANSWER_TOOLS_ONE, /* the content is the arguments of one function (tool_choice named) */
};

struct answer_options {
    int reasoning; /* look for <think> … </think> */
    int thinking;  /* the prompt left <think> open: the text begins inside it */
    enum answer_tools tools;
    const char *function; /* ANSWER_TOOLS_ONE: its name; borrowed */
    int one_call;         /* only the first call is told of */
};

enum answer_kind {
    ANSWER_REASONING,
    ANSWER_CONTENT,
    ANSWER_CALL,      /* a call begins: text is the function's name */
    ANSWER_ARGUMENTS, /* more of its arguments' JSON text */
    ANSWER_CALL_END,  /* every ANSWER_CALL gets one; cut off arguments too */
};

struct answer_event {
    enum answer_kind kind;
    int call; /* of the three call kinds: 0, 1, 2, … */
    const char *text;
    size_t n_bytes; /* never 0 for reasoning, content and arguments */
};

struct answer_slot {
    enum answer_kind kind;
    int call;
    size_t at, n;
};

struct answer {
    struct answer_options o;
    int state;
    struct buf pend; /* undecided bytes */
    struct buf out;  /* texts of the events */
    struct answer_slot *slots;
    int n_slots, cap_slots, next_slot;
    int in_response, after_think; /* marks seen */
    int n_calls, n_complete; /* calls begun, calls whose arguments are complete; not counted for
                              * ANSWER_TOOLS_ONE */
    size_t scanned;          /* bytes of pend that were looked at, inside a block or arguments */
    int in_string, escaped, depth, scalar;
    size_t lead; /* line breaks at the start of pend, before <tool_call> */
    int failed;  /* out of memory: text is missing */
};

void answer_init(struct answer *a, const struct answer_options *o);
void answer_fini(struct answer *a);
void answer_feed(struct answer *a, const char *text, size_t n_bytes); /* drops events not taken */
void answer_finish(struct answer *a);                                 /* once, at the end */
int answer_next(struct answer *a, struct answer_event *ev);           /* 1, or 0: no more */
/* 1 while what comes next is reasoning. */
int answer_is_thinking(const struct answer *a);

/* What events say, collected: of a whole answer, or of what one chunk of a stream brings. */
struct answer_call {
    int index;
    int begins; /* its ANSWER_CALL is among the events: name is given */
    struct buf name, arguments;
};
struct answer_message {
    struct buf reasoning, content;
    struct answer_call *calls;
    int n_calls, cap_calls;
    int failed;
};
void answer_message_init(struct answer_message *m);
void answer_message_fini(struct answer_message *m);
void answer_message_take(struct answer_message *m, struct answer *a); /* all events that wait */

/* ---- marks ---- */
enum answer_mark {
    MARK_THINK,
    MARK_THINK_END,
    MARK_RESPONSE,
    MARK_RESPONSE_END,
    MARK_CALL,
    MARK_CALL_END,
    ANSWER_MARKS
};
const char *answer_mark_text(enum answer_mark m);
/* Token ids of the marks; -1 where the vocabulary has none. Decoding must show them to the parser
 * even if they are special. */
void answer_mark_ids(const struct tokenizer *t, int32_t ids[ANSWER_MARKS]);
/* 1 when a rendered prompt ends inside <think>: the template (mark[i] != 0) wrote it last, and only
 * blanks or text of the messages follow. */
int answer_prompt_thinks(const char *text, const uint8_t *mark, size_t n_bytes);

#endif
