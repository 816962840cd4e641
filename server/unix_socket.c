/* SPDX-License-Identifier: Apache-2.0
 *
 * server/unix_socket.c - see unix_socket.h.
 */
#include "unix_socket.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

/* Makes way at `path`: nothing there is fine, a socket that nobody listens on is unlinked, all else is somebody's. */
static bool make_way(const struct sockaddr_un *address, FILE *err) {
    struct stat there;
    if (lstat(address->sun_path, &there) != 0) return true; /* bind will say what else is wrong */
    if (!S_ISSOCK(there.st_mode)) {
        fprintf(err, "mhad: --unix %s: the path exists and is not a socket\n", address->sun_path);
        return false;
    }
    int probe = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    bool dead =
        probe >= 0 && connect(probe, (const struct sockaddr *)address, sizeof *address) != 0 && errno == ECONNREFUSED;
    if (probe >= 0) close(probe);
    if (!dead) {
        fprintf(err, "mhad: --unix %s: another process listens there\n", address->sun_path);
        return false;
    }
    return unlink(address->sun_path) == 0 || errno == ENOENT;
}

int unix_socket_open(struct listeners *listeners, const char *path, mode_t mode, int backlog, FILE *err) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct stat made;
    if (strlen(path) >= sizeof address.sun_path) {
        fprintf(err, "mhad: --unix: a path has at most %zu characters, this one %zu\n", sizeof address.sun_path - 1,
                strlen(path));
        return -1;
    }
    memcpy(address.sun_path, path, strlen(path) + 1);
    if (!make_way(&address, err)) return -1;
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    /* Born with no permissions, so that nobody can connect before it has the ones asked for. */
    mode_t before = umask(0777);
    bool bound = fd >= 0 && bind(fd, (const struct sockaddr *)&address, sizeof address) == 0;
    int why = errno;
    umask(before);
    bool good = bound && chmod(path, mode) == 0 && listen(fd, backlog) == 0 && stat(path, &made) == 0;
    if (good) {
        memcpy(listeners->unix_path, path, strlen(path) + 1);
        listeners->unix_device = made.st_dev;
        listeners->unix_inode = made.st_ino;
        return fd;
    }
    fprintf(err, "mhad: --unix %s: %s\n", path, strerror(bound ? errno : why));
    if (bound) unlink(path);
    if (fd >= 0) close(fd);
    return -1;
}

void unix_socket_remove(struct listeners *listeners) {
    struct stat there;
    const char *path = listeners->unix_path;
    if (path[0] && lstat(path, &there) == 0 && there.st_dev == listeners->unix_device &&
        there.st_ino == listeners->unix_inode)
        unlink(path);
    listeners->unix_path[0] = '\0';
}
