/* SPDX-License-Identifier: Apache-2.0
 *
 * server/cpus.h - how many CPUs this process may really use.
 *
 * The smaller of the affinity mask and the CPU quota of its cgroups (v2 cpu.max, v1 cpu.cfs_quota_us / cpu.cfs_period_us, of
 * the own group and all above it), at least 1. A quota of 1.5 CPUs gives 2 workers: the half is used, the throttling is mild.
 */
#ifndef MHA_SERVER_CPUS_H
#define MHA_SERVER_CPUS_H

#include <stddef.h>

size_t cpus_granted(void);

/* The same from other places, for tests: `mounts` replaces /sys/fs/cgroup and `membership` /proc/self/cgroup. */
size_t cpus_from_cgroup(const char *mounts, const char *membership, size_t otherwise);

#endif
