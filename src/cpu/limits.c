/* SPDX-License-Identifier: Apache-2.0 */
/* What the process may use: CPUs of its affinity mask, the cgroup's CPU quota, and memory.
 *
 * Control groups nest, and a limit anywhere above us binds: every folder from our own group up to
 * the mount's root is read and the tightest value wins. Version 2 has one tree; version 1 has a
 * tree per controller, and a machine may mount both. Inside a container the path of
 * /proc/self/cgroup may be relative to a root that the mount does not show; mountinfo's root field
 * tells which part of the path to cut.
 *
 * Memory that holds reclaimable page cache counts as free: the kernel gives it back before it
 * refuses an allocation, and right after start-up the mapped checkpoint is all page cache. */
#include "base/buf.h"
#include "cpu/cpu.h"
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define PATH_BYTES     4096
#define FILE_MAX_BYTES ((size_t)4 << 20)
#define AFFINITY_CPUS  8192
#define NO_LIMIT_BYTES ((uint64_t)1 << 60) /* version 1 writes "no limit" as nearly 2^63 */

/* The file's text into b (empty when it can't be read). */
static const char *read_text(struct buf *b, const char *path)
{
    buf_clear(b);
    if (buf_read_file(b, path, FILE_MAX_BYTES, NULL) < 0 || !b->data) {
        return "";
    }
    return b->data;
}

static const char *read_in(struct buf *b, const char *dir, const char *name)
{
    char path[2 * PATH_BYTES + 64];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    return read_text(b, path);
}

/* Value of "key <number>" at the start of a line; 0 if absent. */
static uint64_t field(const char *text, const char *key)
{
    size_t n = strlen(key);
    for (const char *p = text; p && *p; p = strchr(p, '\n'), p = p ? p + 1 : NULL) {
        if (strncmp(p, key, n) == 0 && (p[n] == ' ' || p[n] == ':')) {
            return strtoull(p + n + 1, NULL, 10);
        }
    }
    return 0;
}

static int list_has(const char *list, const char *word)
{
    size_t n = strlen(word);
    for (const char *p = list; p; p = strchr(p, ','), p = p ? p + 1 : NULL) {
        if (strncmp(p, word, n) == 0 && (p[n] == ',' || p[n] == '\0')) {
            return 1;
        }
    }
    return 0;
}

/* Path of our group in the tree of `controller` ("" = version 2), from the text of
 * /proc/self/cgroup. */
static int own_path(const char *text, const char *controller, char *out, size_t n_out)
{
    char line[PATH_BYTES];
    for (const char *p = text; *p;) {
        size_t n = strcspn(p, "\n");
        if (n < sizeof line) {
            memcpy(line, p, n);
            line[n] = '\0';
            char *names = strchr(line, ':');
            char *path = names ? strchr(names + 1, ':') : NULL;
            if (path) {
                *path++ = '\0';
                names++;
                if (*controller ? list_has(names, controller) : *names == '\0') {
                    return (size_t)snprintf(out, n_out, "%s", path) < n_out ? 0 : -1;
                }
            }
        }
        p += n + (p[n] == '\n');
    }
    return -1;
}

/* Mount point and root of the tree of `controller`, from the text of /proc/self/mountinfo. */
static int find_mount(const char *text, const char *controller, char *root, char *point)
{
    char line[PATH_BYTES], type[64], options[1024];
    for (const char *p = text; *p;) {
        size_t n = strcspn(p, "\n");
        if (n < sizeof line) {
            memcpy(line, p, n);
            line[n] = '\0';
            const char *tail = strstr(line, " - ");
            if (tail && sscanf(line, "%*s %*s %*s %4095s %4095s", root, point) == 2 &&
                sscanf(tail, " - %63s %*s %1023s", type, options) == 2) {
                if (*controller ? strcmp(type, "cgroup") == 0 && list_has(options, controller)
                                : strcmp(type, "cgroup2") == 0) {
                    return 0;
                }
            }
        }
        p += n + (p[n] == '\n');
    }
    return -1;
}

/* A walk from our group's folder up to the root of its mount. */
struct walk {
    char dir[2 * PATH_BYTES];
    size_t n_top; /* length of the mount point: the walk ends there */
};

static int walk_start(struct walk *w, const char *root_dir, const char *controller, struct buf *b)
{
    char path[PATH_BYTES], mount_root[PATH_BYTES], point[PATH_BYTES], file[PATH_BYTES + 64];
    struct stat st;
    snprintf(file, sizeof file, "%s/proc/self/cgroup", root_dir);
    if (own_path(read_text(b, file), controller, path, sizeof path) < 0) {
        return -1;
    }
    snprintf(file, sizeof file, "%s/proc/self/mountinfo", root_dir);
    if (find_mount(read_text(b, file), controller, mount_root, point) < 0) {
        return -1;
    }
    size_t n_root = strcmp(mount_root, "/") == 0 ? 0 : strlen(mount_root);
    const char *rest = path;
    if (n_root && strncmp(path, mount_root, n_root) == 0 &&
        (path[n_root] == '/' || !path[n_root])) {
        rest = path + n_root;
    }
    w->n_top = (size_t)snprintf(w->dir, sizeof w->dir, "%s%s", root_dir, point);
    if (w->n_top >= sizeof w->dir) {
        return -1;
    }
    if (strcmp(rest, "/") != 0 && *rest) {
        snprintf(w->dir + w->n_top, sizeof w->dir - w->n_top, "%s", rest);
        if (stat(w->dir, &st) < 0) {
            w->dir[w->n_top] =
                '\0'; /* a path from outside our namespace: the mount itself is our group */
        }
    }
    return 0;
}

static int walk_up(struct walk *w)
{
    if (strlen(w->dir) <= w->n_top) {
        return 0;
    }
    char *slash = strrchr(w->dir, '/');
    *slash = '\0';
    return strlen(w->dir) >= w->n_top;
}

static void read_cpu_quota(struct cpu_limits *out, const char *root_dir, struct buf *b)
{
    static const char *const trees[] = {"", "cpu"};
    struct walk w;
    for (int v = 0; v < 2; v++) {
        if (walk_start(&w, root_dir, trees[v], b) < 0) {
            continue;
        }
        do {
            double quota = 0, period = 0;
            if (v == 0) {
                if (sscanf(read_in(b, w.dir, "cpu.max"), "%lf %lf", &quota, &period) != 2) {
                    continue;
                }
            } else {
                quota = strtod(read_in(b, w.dir, "cpu.cfs_quota_us"), NULL);
                period = strtod(read_in(b, w.dir, "cpu.cfs_period_us"), NULL);
            }
            if (quota > 0 && period > 0) {
                double cpus = quota / period;
                if (out->cgroup_cpus <= 0 || cpus < out->cgroup_cpus) {
                    out->cgroup_cpus = cpus;
                }
            }
        } while (walk_up(&w));
    }
}

static void read_cgroup_memory(struct cpu_limits *out, const char *root_dir, struct buf *b)
{
    static const struct {
        const char *tree, *limit, *usage, *cache[3];
    } versions[2] = {
        {"", "memory.max", "memory.current", {"inactive_file", "active_file", "slab_reclaimable"}},
        {"memory",
         "memory.limit_in_bytes",
         "memory.usage_in_bytes",
         {"total_inactive_file", "total_active_file", "total_slab_reclaimable"}},
    };
    struct walk w;
    for (int v = 0; v < 2; v++) {
        if (walk_start(&w, root_dir, versions[v].tree, b) < 0) {
            continue;
        }
        do {
            uint64_t limit =
                strtoull(read_in(b, w.dir, versions[v].limit), NULL, 10); /* "max": 0 */
            if (limit == 0 || limit >= NO_LIMIT_BYTES) {
                continue;
            }
            uint64_t used = strtoull(read_in(b, w.dir, versions[v].usage), NULL, 10);
            const char *stat_text = read_in(b, w.dir, "memory.stat");
            uint64_t cache = 0;
            for (int i = 0; i < 3; i++) {
                cache += field(stat_text, versions[v].cache[i]);
            }
            used -= cache < used ? cache : used;
            uint64_t free_bytes = limit > used ? limit - used : 0;
            if (limit < out->memory_limit_bytes) {
                out->memory_limit_bytes = limit;
            }
            if (free_bytes < out->memory_available_bytes) {
                out->memory_available_bytes = free_bytes;
            }
        } while (walk_up(&w));
    }
}

/* Whether `cpu` is the lowest CPU of the mask on its physical core. */
static int is_first_of_core(int cpu, const cpu_set_t *set, size_t set_bytes, const char *root_dir,
                            struct buf *b)
{
    char path[PATH_BYTES];
    snprintf(path, sizeof path, "%s/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list",
             root_dir, cpu);
    for (const char *p = read_text(b, path); *p >= '0' && *p <= '9';) {
        char *end;
        long first = strtol(p, &end, 10), last = first;
        if (*end == '-') {
            last = strtol(end + 1, &end, 10);
        }
        for (long c = first; c <= last && c < cpu; c++) {
            if (c >= 0 && c < AFFINITY_CPUS && CPU_ISSET_S((size_t)c, set_bytes, set)) {
                return 0;
            }
        }
        p = *end == ',' ? end + 1 : end;
    }
    return 1;
}

static int choose_cpus(struct cpu_limits *out, const char *root_dir, struct buf *b, struct err *e)
{
    size_t set_bytes = CPU_ALLOC_SIZE(AFFINITY_CPUS);
    cpu_set_t *set = CPU_ALLOC(AFFINITY_CPUS);
    if (!set) {
        return err_set(e, ERR_NOMEM, "CPU affinity: out of memory");
    }
    CPU_ZERO_S(set_bytes, set);
    if (sched_getaffinity(0, set_bytes, set) < 0) {
        CPU_FREE(set);
        return err_set(e, ERR_IO, "CPU affinity: the system does not tell the mask");
    }
    out->n_affinity = CPU_COUNT_S(set_bytes, set);
    int max_threads = (int)(sizeof out->cpu_ids / sizeof out->cpu_ids[0]);
    int want = out->n_affinity < max_threads ? out->n_affinity : max_threads;
    if (out->cgroup_cpus > 0 && out->cgroup_cpus < want) {
        want = out->cgroup_cpus < 1 ? 1 : (int)out->cgroup_cpus;
    }
    int n = 0;
    for (int siblings = 0; siblings < 2; siblings++) {
        for (int cpu = 0; cpu < AFFINITY_CPUS && n < want; cpu++) {
            if (CPU_ISSET_S((size_t)cpu, set_bytes, set) &&
                is_first_of_core(cpu, set, set_bytes, root_dir, b) == !siblings) {
                out->cpu_ids[n++] = cpu;
            }
        }
    }
    out->n_threads = n;
    CPU_FREE(set);
    return 0;
}

int cpu_limits_read_at(struct cpu_limits *out, const char *root, struct err *e)
{
    struct buf b;
    char path[PATH_BYTES];
    memset(out, 0, sizeof *out);
    buf_init(&b);
    snprintf(path, sizeof path, "%s/proc/meminfo", root);
    const char *text = read_text(&b, path);
    out->host_memory_bytes = field(text, "MemTotal") * 1024;
    out->memory_available_bytes = field(text, "MemAvailable") * 1024;
    out->memory_limit_bytes = out->host_memory_bytes;
    int rc = 0;
    if (out->host_memory_bytes == 0) {
        rc = err_set(e, ERR_IO, "%s: no MemTotal", path);
        goto done;
    }
    read_cgroup_memory(out, root, &b);
    read_cpu_quota(out, root, &b);
    rc = choose_cpus(out, root, &b, e);
done:
    buf_fini(&b);
    return rc;
}

int cpu_limits_read(struct cpu_limits *out, struct err *e)
{
    return cpu_limits_read_at(out, "", e);
}
