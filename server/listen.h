/* SPDX-License-Identifier: Apache-2.0
 *
 * server/listen.h - the sockets that clients connect to: TCP, a Unix socket, or those that systemd hands over.
 *
 * Model. With LISTEN_PID and LISTEN_FDS set (sd_listen_fds(3)) the inherited sockets are used and nothing else. Otherwise
 * --unix opens a Unix socket, and TCP is opened when there is no --unix or when --host or --port is given too. A Unix socket
 * left over from a dead process is replaced; one that somebody listens on is not. Our own path is removed at the end.
 */
#ifndef MHA_SERVER_LISTEN_H
#define MHA_SERVER_LISTEN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/types.h>

#include "config.h"

#define LISTENERS_MAX 16

struct listener {
    int fd;
    bool tls, inherited; /* inherited: systemd's, which keeps it when we close it */
    unsigned port;       /* 0: Unix */
    char address[160];   /* "http://127.0.0.1:8080", "unix:/run/mhad.sock" */
};

struct listeners {
    struct listener at[LISTENERS_MAX];
    size_t count;
    char unix_path[108]; /* ours to remove, or "" */
    dev_t unix_device;
    ino_t unix_inode;
};

/* False after printing one line on err. Also writes --port-file. */
bool listeners_open(struct listeners *listeners, const struct config *config, FILE *err);
/* From now on nobody new gets in: what the accept queue holds then is all that there will be. */
void listeners_hold(struct listeners *listeners);
void listeners_close(struct listeners *listeners);

#endif
