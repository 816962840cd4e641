/* SPDX-License-Identifier: Apache-2.0
 *
 * server/loop.h - the I/O thread: one epoll set that drives libmicrohttpd, the listeners, the ended runs, signals, deadlines.
 *
 * Model. libmicrohttpd 0.9.75 stalls for good when exactly 128 connections are ready at once in its own epoll thread. So it
 * runs in external mode: its epoll descriptor is one of ours, MHD_get_timeout bounds our wait, and MHD_run does its work with
 * a timeout of zero, where the stall cannot happen. Everything that calls libmicrohttpd is on this thread; workers only push
 * on a list and write an eventfd.
 */
#ifndef MHA_SERVER_LOOP_H
#define MHA_SERVER_LOOP_H

#include <stdbool.h>

struct service;

/* Makes the epoll set and the libmicrohttpd daemons, and puts the listeners in. False: one line has been printed. */
bool loop_open(struct service *service, int signal_fd);
/* Until SIGTERM and the end of the drain (drain.h). */
void loop_run(struct service *service, int signal_fd);
/* Only when no connection is suspended (drain.h sees to that). */
void loop_close(struct service *service);

#endif
