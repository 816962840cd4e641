/* SPDX-License-Identifier: Apache-2.0
 *
 * server/sandbox.h - what the process gives up once it has started.
 *
 * no_new_privs always; with --seccomp on also a filter (libseccomp) that lets through only the system calls the service makes
 * after its start: reading and writing sockets that it has, memory without execute permission, time, files for reading (and
 * writing for --layers-writable). Opening sockets of its own, connecting anywhere, executing programs, making processes,
 * tracing, mounting, loading modules answer EPERM. Where the kernel or the container does not allow a filter the service runs
 * without one and says so in the log.
 */
#ifndef MHA_SERVER_SANDBOX_H
#define MHA_SERVER_SANDBOX_H

#include <stdbool.h>

/* A constant text for the log: "seccomp", "off", or why there is none. */
const char *sandbox_enter(bool filter);

#endif
