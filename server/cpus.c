/* SPDX-License-Identifier: Apache-2.0
 *
 * server/cpus.c - see cpus.h. Formats: Documentation/admin-guide/cgroup-v2.rst ("cpu.max: $MAX $PERIOD") and
 * cgroup-v1/cpu of the Linux kernel; /proc/self/cgroup has lines "id:controllers:path", v2 being "0::path".
 */
#include "cpus.h"

#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

/* First line of a small file, without its newline. */
static int read_line(const char *path, char *line, size_t size) {
    FILE *file = fopen(path, "re");
    if (!file) return -1;
    int status = fgets(line, (int)size, file) ? 0 : -1;
    fclose(file);
    if (status == 0) line[strcspn(line, "\n")] = '\0';
    return status;
}

/* CPUs of a quota, rounded up; `otherwise` when there is none. */
static size_t cpus_of_quota(long long quota, long long period, size_t otherwise) {
    if (quota <= 0 || period <= 0) return otherwise;
    unsigned long long cpus = ((unsigned long long)quota + (unsigned long long)period - 1) / (unsigned long long)period;
    return cpus < otherwise ? (size_t)cpus : otherwise;
}

static size_t quota_v2(const char *folder, size_t otherwise) {
    char path[1200], line[64];
    long long quota, period;
    snprintf(path, sizeof path, "%s/cpu.max", folder);
    if (read_line(path, line, sizeof line) != 0) return otherwise;
    if (sscanf(line, "%lld %lld", &quota, &period) != 2) return otherwise; /* "max 100000" */
    return cpus_of_quota(quota, period, otherwise);
}

static size_t quota_v1(const char *folder, size_t otherwise) {
    char path[1200], line[64];
    long long quota, period;
    snprintf(path, sizeof path, "%s/cpu.cfs_quota_us", folder);
    if (read_line(path, line, sizeof line) != 0 || sscanf(line, "%lld", &quota) != 1) return otherwise;
    snprintf(path, sizeof path, "%s/cpu.cfs_period_us", folder);
    if (read_line(path, line, sizeof line) != 0 || sscanf(line, "%lld", &period) != 1) return otherwise;
    return cpus_of_quota(quota, period, otherwise);
}

/* The least quota of `group` and every group above it, up to the mount point itself. */
static size_t walk_up(const char *mount, const char *group, size_t (*quota)(const char *, size_t), size_t least) {
    char folder[1100];
    size_t root = (size_t)snprintf(folder, sizeof folder, "%s", mount);
    snprintf(folder + root, sizeof folder - root, "%s", group);
    for (;;) {
        least = quota(folder, least);
        char *slash = strrchr(folder, '/');
        if (!slash || (size_t)(slash - folder) < root) return least;
        *slash = '\0';
    }
}

/* Whether `controllers` ("cpu,cpuacct") has the cpu controller. */
static int has_cpu(const char *controllers) {
    for (const char *s = controllers; s; s = strchr(s, ',') ? strchr(s, ',') + 1 : NULL)
        if (strcspn(s, ",") == 3 && memcmp(s, "cpu", 3) == 0) return 1;
    return 0;
}

size_t cpus_from_cgroup(const char *mounts, const char *membership, size_t otherwise) {
    char line[1024], mount[600];
    size_t least = otherwise;
    FILE *file = fopen(membership, "re");
    if (!file) return least;
    while (fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = '\0';
        char *controllers = strchr(line, ':');
        char *group = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!group) continue;
        *controllers++ = '\0';
        *group++ = '\0';
        if (*controllers == '\0') least = walk_up(mounts, group, quota_v2, least);
        if (!has_cpu(controllers)) continue;
        snprintf(mount, sizeof mount, "%s/%.200s", mounts, controllers);
        least = walk_up(mount, group, quota_v1, least);
        snprintf(mount, sizeof mount, "%s/cpu", mounts);
        least = walk_up(mount, group, quota_v1, least);
    }
    fclose(file);
    return least;
}

size_t cpus_granted(void) {
    cpu_set_t set;
    size_t count = 1;
    if (sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) > 0) count = (size_t)CPU_COUNT(&set);
    return cpus_from_cgroup("/sys/fs/cgroup", "/proc/self/cgroup", count);
}
