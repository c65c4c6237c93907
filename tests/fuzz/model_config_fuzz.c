/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as config.json and generation_config.json: refused in one line, or sizes in range. */
#include "model/config.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);

static char dir[] = "/tmp/tern-fuzz-XXXXXX";

static void clean_up(void)
{
    char path[64];
    snprintf(path, sizeof path, "%s/config.json", dir);
    (void)unlink(path);
    snprintf(path, sizeof path, "%s/generation_config.json", dir);
    (void)unlink(path);
    (void)rmdir(dir);
}

static void put(const char *name, const uint8_t *data, size_t n_bytes)
{
    char path[64];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (fd < 0 || write(fd, data, n_bytes) != (ssize_t)n_bytes) {
        abort();
    }
    close(fd);
}

static void check_refusal(const struct err *e)
{
    if (e->text[0] == 0 || strchr(e->text, '\n') != NULL) {
        abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes)
{
    static int is_open;
    struct model_config c;
    struct quant_config q;
    struct model_generation_config g;
    struct err e = {0};
    int tie;
    if (!is_open) {
        is_open = mkdtemp(dir) != NULL;
        atexit(clean_up);
    }
    put("config.json", data, n_bytes);
    put("generation_config.json", data, n_bytes);
    if (config_read(&c, &q, &tie, dir, &e) != 0) {
        check_refusal(&e);
    } else {
        if (c.n_heads < 1 || c.n_heads > MAX_HEADS || c.vocab_size < 1 ||
            c.vocab_size > MAX_VOCAB || c.n_layers < 1 || c.n_layers > MAX_LAYERS) {
            abort();
        }
        quant_config_fini(&q);
    }
    if (config_read_generation(&g, dir, &e) != 0) {
        check_refusal(&e);
    }
    return 0;
}
