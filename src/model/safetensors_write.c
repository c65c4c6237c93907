/* SPDX-License-Identifier: Apache-2.0 */
/* Two states: announcing (entries are collected), then writing (the header is out, bytes are
 * counted). A fault of the disk names the file and what the system said, once, at whichever call
 * sees it. */
#include "model/safetensors_write.h"

#include "base/buf.h"
#include "base/json.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct safetensors_writer {
    char *path;
    FILE *f;
    struct buf header;
    struct json_writer json;
    uint64_t announced, written, header_bytes;
};

static int io_failed(const struct safetensors_writer *w, struct err *e)
{
    return err_set(e, ERR_IO, "%s: %s", w->path, strerror(errno));
}

int safetensors_writer_open(struct safetensors_writer **out, const char *path, struct err *e)
{
    struct safetensors_writer *w = calloc(1, sizeof *w);
    *out = w;
    if (w == NULL) {
        return err_set(e, ERR_NOMEM, "%s: out of memory", path);
    }
    buf_init(&w->header);
    w->path = strdup(path);
    if (w->path == NULL) {
        return err_set(e, ERR_NOMEM, "%s: out of memory", path);
    }
    w->f = fopen(path, "wbx");
    if (w->f == NULL) {
        return io_failed(w, e);
    }
    json_w_init(&w->json, &w->header);
    json_w_object(&w->json);
    json_w_key(&w->json, "__metadata__"); /* libraries refuse files without this one */
    json_w_object(&w->json);
    json_w_kstring(&w->json, "format", "pt");
    json_w_object_end(&w->json);
    return 0;
}

int safetensors_writer_add(struct safetensors_writer *w, const char *name, enum safetensors_dtype d,
                           int n_dims, const int64_t *shape, struct err *e)
{
    uint64_t n = safetensors_dtype_size(d);
    json_w_key(&w->json, name);
    json_w_object(&w->json);
    json_w_kstring(&w->json, "dtype", safetensors_dtype_name(d));
    json_w_key(&w->json, "shape");
    json_w_array(&w->json);
    for (int i = 0; i < n_dims; i++) {
        json_w_int(&w->json, shape[i]);
        n *= (uint64_t)shape[i];
    }
    json_w_array_end(&w->json);
    json_w_key(&w->json, "data_offsets");
    json_w_array(&w->json);
    json_w_uint(&w->json, w->announced);
    json_w_uint(&w->json, w->announced + n);
    json_w_array_end(&w->json);
    json_w_object_end(&w->json);
    w->announced += n;
    return w->header.failed ? err_set(e, ERR_NOMEM, "%s: out of memory", w->path) : 0;
}

static int write_all(struct safetensors_writer *w, const void *data, size_t n, struct err *e)
{
    return fwrite(data, 1, n, w->f) == n ? 0 : io_failed(w, e);
}

int safetensors_writer_begin(struct safetensors_writer *w, struct err *e)
{
    json_w_object_end(&w->json);
    while (w->header.len % 8 != 0 && !w->header.failed) {
        buf_putc(&w->header, ' '); /* data begins at a multiple of 8 */
    }
    if (w->header.failed) {
        return err_set(e, ERR_NOMEM, "%s: out of memory", w->path);
    }
    uint8_t length[8];
    for (int i = 0; i < 8; i++) {
        length[i] = (uint8_t)((uint64_t)w->header.len >> 8 * i);
    }
    w->header_bytes = sizeof length + w->header.len;
    int rc = write_all(w, length, sizeof length, e);
    return rc < 0 ? rc : write_all(w, w->header.data, w->header.len, e);
}

int safetensors_writer_put(struct safetensors_writer *w, const void *data, size_t n_bytes,
                           struct err *e)
{
    int rc = write_all(w, data, n_bytes, e);
    w->written += rc == 0 ? n_bytes : 0;
    return rc;
}

int safetensors_writer_finish(struct safetensors_writer *w, struct err *e)
{
    if (w->written != w->announced) {
        return err_set(e, ERR_INTERNAL, "%s: %llu bytes of tensors announced, %llu written",
                       w->path, (unsigned long long)w->announced, (unsigned long long)w->written);
    }
    FILE *f = w->f;
    int bad = fflush(f) != 0 || fsync(fileno(f)) != 0;
    int why = errno;
    w->f = NULL;
    bad = fclose(f) != 0 || bad;
    errno = why != 0 ? why : errno;
    return bad ? io_failed(w, e) : 0;
}

uint64_t safetensors_writer_bytes(const struct safetensors_writer *w)
{
    return w->header_bytes + w->written;
}

void safetensors_writer_close(struct safetensors_writer *w)
{
    if (w == NULL) {
        return;
    }
    if (w->f != NULL) {
        fclose(w->f);
    }
    buf_fini(&w->header);
    free(w->path);
    free(w);
}
