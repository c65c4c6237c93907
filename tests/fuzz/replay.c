/* SPDX-License-Identifier: Apache-2.0 */
/* Runs a fuzz target over every file of the given directories: the driver of ordinary builds, where
 * there is no libFuzzer. Each input gets a heap block of its exact size, so that a sanitizer sees a
 * read beyond it. */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);

static int replay(const char *path)
{
    FILE *f = fopen(path, "rb");
    struct stat st;
    if (!f || fstat(fileno(f), &st) != 0) {
        perror(path);
        exit(1);
    }
    if (!S_ISREG(st.st_mode)) {
        fclose(f);
        return 0;
    }
    size_t n = (size_t)st.st_size;
    uint8_t *data = malloc(n ? n : 1);
    if (!data || fread(data, 1, n, f) != n) {
        perror(path);
        exit(1);
    }
    fclose(f);
    LLVMFuzzerTestOneInput(data, n);
    free(data);
    return 1;
}

int main(int argc, char **argv)
{
    int count = 0;
    for (int i = 1; i < argc; i++) {
        DIR *dir = opendir(argv[i]);
        if (!dir) {
            perror(argv[i]);
            return 1;
        }
        for (const struct dirent *d = readdir(dir); d; d = readdir(dir)) {
            char path[4096];
            snprintf(path, sizeof path, "%s/%s", argv[i], d->d_name);
            count += replay(path);
        }
        closedir(dir);
    }
    printf("%d inputs\n", count);
    return count > 0 ? 0 : 1;
}
