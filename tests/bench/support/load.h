/* SPDX-License-Identifier: Apache-2.0
 *
 * tests/bench/support/load.h - a load generator for one request over kept-alive connections, and what a process has used.
 *
 * Model. One thread, one epoll set; each connection has one request under way and sends the next when the whole answer is
 * there (Content-Length only). It checks the status of every answer. The client costs both servers of a comparison the same.
 */
#ifndef MHA_BENCH_LOAD_H
#define MHA_BENCH_LOAD_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

struct load {
    size_t answers, wrong; /* wrong: not status 200, or the connection broke */
    double seconds;
};

/* Sends `request` (head and body) over `connections` connections to 127.0.0.1:port for `seconds`. */
struct load load_run(int port, const char *request, size_t size, size_t connections, double seconds);

/* CPU time of all threads of a process that are alive, seconds. */
double process_cpu_of(pid_t pid);

/* Connects to 127.0.0.1:port, blocking; -1: cannot. */
int load_connect(int port);

#endif
