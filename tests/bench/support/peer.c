/* SPDX-License-Identifier: Apache-2.0
 *
 * tests/bench/support/peer.c - see peer.h.
 */
#include "peer.h"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define SCRIPT "tests/bench/peers.py"

/* One line of the peer, without its end. Output that the library itself prints is not ours: answers begin with '='. */
static bool answer(struct peer *peer, char *line, size_t size) {
    while (fgets(line, (int)size, peer->from)) {
        if (line[0] != '=') continue;
        line[strcspn(line, "\n")] = '\0';
        memmove(line, line + 1, strlen(line));
        return true;
    }
    return false;
}

static bool ask(struct peer *peer, char *line, size_t size) {
    kill(peer->pid, SIGCONT);
    const bool good = fflush(peer->to) == 0 && answer(peer, line, size) && strncmp(line, "error", 5) != 0;
    kill(peer->pid, SIGSTOP);
    return good;
}

static void become_peer(const int in[2], const int out[2], const char *python, const char *name, size_t threads) {
    char count[24];
    snprintf(count, sizeof count, "%zu", threads);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    dup2(in[0], 0);
    dup2(out[1], 1);
    close(in[0]), close(in[1]), close(out[0]), close(out[1]);
    unsetenv("OPENBLAS_CORETYPE");
    unsetenv("OPENBLAS_L2_SIZE");
    setenv("OMP_NUM_THREADS", count, 1);
    setenv("OPENBLAS_NUM_THREADS", count, 1);
    execl(python, python, SCRIPT, name, count, (char *)NULL);
    _exit(127);
}

bool peer_start(struct peer *peer, const char *python, const char *name, size_t threads) {
    int in[2], out[2];
    *peer = (struct peer){.name = name};
    /* closed on exec: a peer that holds the input of another would keep it alive */
    if (pipe2(in, O_CLOEXEC) != 0) return false;
    if (pipe2(out, O_CLOEXEC) != 0) return close(in[0]), close(in[1]), false;
    peer->pid = fork();
    if (peer->pid == 0) become_peer(in, out, python, name, threads);
    close(in[0]), close(out[1]);
    peer->to = fdopen(in[1], "w");
    peer->from = fdopen(out[0], "r");
    if (peer->pid > 0 && peer->to && peer->from && answer(peer, peer->about, sizeof peer->about) &&
        strncmp(peer->about, "error", 5) != 0)
        return true;
    fprintf(stderr, "bench: no %s here: %s\n", name, peer->about[0] ? peer->about : "it did not start");
    peer_stop(peer);
    return false;
}

bool peer_load(struct peer *peer, const char *arguments) {
    char line[256];
    fprintf(peer->to, "load %s\n", arguments);
    if (ask(peer, line, sizeof line)) return true;
    fprintf(stderr, "bench: %s cannot do %s: %s\n", peer->name, arguments, line);
    return false;
}

double peer_run(struct peer *peer, unsigned count) {
    char line[256];
    fprintf(peer->to, "run %u\n", count);
    return ask(peer, line, sizeof line) ? strtod(line, NULL) : -1;
}

bool peer_output(struct peer *peer, const char *path) {
    char line[256];
    fprintf(peer->to, "output %s\n", path);
    return ask(peer, line, sizeof line);
}

void peer_stop(struct peer *peer) {
    if (peer->pid > 0) kill(peer->pid, SIGCONT);
    if (peer->to) fclose(peer->to); /* the end of its input ends it */
    if (peer->from) fclose(peer->from);
    if (peer->pid > 0) waitpid(peer->pid, NULL, 0);
    *peer = (struct peer){0};
}
