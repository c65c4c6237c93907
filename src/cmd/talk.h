/* SPDX-License-Identifier: Apache-2.0 */
/* A session of `tern chat` or `tern complete`: the conversation so far, what the user typed, and
 * how answers are shown. */
#ifndef TERN_CMD_TALK_H
#define TERN_CMD_TALK_H

#include "cmd/ask.h"
#include "cmd/line.h"

struct talk_message {
    char *role, *content;
};

struct talk {
    struct ask ask;
    struct ask_settings settings;
    int chat;        /* 0: prompts to go on with; no conversation */
    int colour;      /* on a terminal, unless NO_COLOR */
    int terminal;    /* answers go to a terminal: its control characters are left out */
    int stats;       /* a line of speeds after each answer */
    int interactive; /* a person types: faults are told and the session goes on */
    char *system;    /* NULL: none */
    struct talk_message *messages;
    int n_messages, cap_messages;
    struct buf answer;
    int thinking; /* the text shown last was reasoning */
    int quit;
};

void talk_fini(struct talk *t); /* the partner is closed by whoever opened it */
int talk_set_system(struct talk *t, const char *text, struct err *e);
/* Asks and shows the answer; in a chat both become part of the conversation. ERR_CANCELED when the
 * user stopped it: what came until then is kept. */
int talk_say(struct talk *t, const char *text, struct err *e);
/* A text that can be said: valid UTF-8 without NUL. */
int talk_check(const char *text, size_t n, struct err *e);
/* A line that begins with '/'. */
int talk_command(struct talk *t, const char *line, struct err *e);
/* Lines until the end or /exit. */
int talk_lines(struct talk *t, struct line_reader *r, struct err *e);

#endif
