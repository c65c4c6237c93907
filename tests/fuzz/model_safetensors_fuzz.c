/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as a safetensors file: refused in one line, or every tensor lies inside the file. */
#include "model/safetensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes)
{
    struct safetensors *st;
    struct err e = {0};
    char path[64];
    int fd = memfd_create("fuzz", 0);
    if (fd < 0 || write(fd, data, n_bytes) != (ssize_t)n_bytes) {
        abort();
    }
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    if (safetensors_open(&st, path, &e) != 0) {
        if (e.text[0] == 0 || strchr(e.text, '\n') != NULL) {
            abort();
        }
        close(fd);
        return 0;
    }
    for (size_t i = 0; i < safetensors_count(st); i++) {
        const struct safetensors_tensor *t = safetensors_at(st, i);
        const uint8_t *p = safetensors_data(st, t);
        volatile uint8_t sink = 0;
        for (uint64_t k = 0; k < t->end - t->begin; k++) {
            sink = (uint8_t)(sink ^ p[k]); /* a byte outside the mapping ends the program */
        }
        if (t->end > n_bytes || safetensors_find(st, t->name) != t) {
            abort();
        }
    }
    safetensors_close(st);
    close(fd);
    return 0;
}
