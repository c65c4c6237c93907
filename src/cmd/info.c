/* SPDX-License-Identifier: Apache-2.0 */
/* tern info MODEL: what was recognised in a model directory, what it needs, and what this machine
 * offers. Reads no weights. */
#include "base/json.h"
#include "cmd/args.h"
#include "cmd/cmd.h"
#include "lib/setup.h"
#include <stdio.h>

struct args_info {
    int json;
};

static const struct opt rows[] = {
    {.name = "json",
     .type = OPT_BOOL,
     .offset = offsetof(struct args_info, json),
     .group = "Output",
     .def = "false",
     .help = "One JSON object."},
};

static void print_text(const struct setup *s, const char *refusal, struct buf *out)
{
    enum cpu_level levels[8];
    int n = cpu_levels_available(levels);
    model_describe(s->model, out, 0);
    buf_printf(out, "tokenizer:     %d ids, end of text %d, chat template %s\n",
               tokenizer_n_ids(s->tokenizer), s->eos_id,
               chat_template_is_fallback(s->chat) ? "built in (the model has none)"
                                                  : "from the model");
    setup_describe_plan(s, out, 0);
    buf_printf(out, "compute:       %d thread%s (%s), level %s of", s->n_threads,
               s->n_threads == 1 ? "" : "s", s->threads_why, cpu_level_name(s->level));
    for (int i = 0; i < n; i++) {
        buf_printf(out, " %s", cpu_level_name(levels[i]));
    }
    buf_printf(out, "\nserves here:   %s%s\n", refusal ? "no: " : "yes", refusal ? refusal : "");
}

static void print_json(const struct setup *s, const char *refusal, struct buf *out)
{
    enum cpu_level levels[8];
    int n = cpu_levels_available(levels);
    struct buf part;
    struct json_writer w;
    buf_init(&part);
    json_w_init(&w, out);
    json_w_object(&w);
    model_describe(s->model, &part, 1);
    json_w_key(&w, "model");
    json_w_raw(&w, part.data, part.len);
    json_w_key(&w, "tokenizer");
    json_w_object(&w);
    json_w_kint(&w, "n_ids", tokenizer_n_ids(s->tokenizer));
    json_w_kint(&w, "eos_token_id", s->eos_id);
    json_w_key(&w, "stop_token_ids");
    json_w_array(&w);
    for (int i = 0; i < s->n_stop_ids; i++) {
        json_w_int(&w, s->stop_ids[i]);
    }
    json_w_array_end(&w);
    json_w_kbool(&w, "chat_template_built_in", chat_template_is_fallback(s->chat));
    json_w_object_end(&w);
    buf_clear(&part);
    setup_describe_plan(s, &part, 1);
    json_w_key(&w, "memory");
    json_w_raw(&w, part.data, part.len);
    json_w_key(&w, "compute");
    json_w_object(&w);
    json_w_kint(&w, "threads", s->n_threads);
    json_w_kstring(&w, "threads_why", s->threads_why);
    json_w_kstring(&w, "level", cpu_level_name(s->level));
    json_w_key(&w, "levels_available");
    json_w_array(&w);
    for (int i = 0; i < n; i++) {
        json_w_string(&w, cpu_level_name(levels[i]));
    }
    json_w_array_end(&w);
    json_w_object_end(&w);
    json_w_kbool(&w, "serves_here", refusal == NULL);
    json_w_kstring(&w, "refusal", refusal);
    json_w_object_end(&w);
    buf_putc(out, '\n');
    buf_fini(&part);
}

int cmd_info(int argc, char **argv)
{
    const char *command = "tern info";
    struct args_info own = {0};
    struct args_engine a = {0};
    struct opts o = {.usage = "tern info MODEL [options]",
                     .tables = {{rows, sizeof rows / sizeof *rows, &own}, args_engine_table(&a)},
                     .n_tables = 2};
    struct setup s = {.a = &a};
    struct err e = {0, ""}, refusal = {0, ""};
    struct buf out;
    buf_init(&out);
    int rc = args_parse_model(&o, command, &a, argc, argv);
    if (rc < 0) {
        args_log(&o, &a, NULL, &s.log);
        rc = setup_cpu(&s, &e) < 0 || setup_files(&s, &e) < 0 ? args_fail(command, &e) : 0;
        if (rc == 0) {
            const char *why = setup_plan(&s, &refusal) < 0 ? refusal.text : NULL;
            if (own.json) {
                print_json(&s, why, &out);
            } else {
                print_text(&s, why, &out);
            }
            fwrite(out.data ? out.data : "", 1, out.len, stdout);
        }
    }
    setup_close(&s);
    buf_fini(&out);
    opts_fini(&o);
    return rc;
}
