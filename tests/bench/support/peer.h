/* SPDX-License-Identifier: Apache-2.0
 *
 * tests/bench/support/peer.h - another library as a yardstick: tests/bench/peers.py in a process of its own.
 *
 * Model. The peer is started once and told by lines on its standard input what to do: load the tensors of a case from a file,
 * run it K times, write its output. It times itself, so that the pipe costs nobody anything. Between commands the whole process
 * is stopped (SIGSTOP): the threads of OpenBLAS go on spinning for some 20 ms after their last product, on a core that
 * whoever is measured next would miss. OPENBLAS_CORETYPE and OPENBLAS_L2_SIZE are removed from its environment only.
 */
#ifndef MHA_BENCH_PEER_H
#define MHA_BENCH_PEER_H

#include <stdbool.h>
#include <stdio.h>
#include <sys/types.h>

struct peer {
    const char *name; /* "numpy", "torch", "onnxruntime" */
    pid_t pid;
    FILE *to, *from;
    char about[256]; /* version and kernel, as the peer tells */
};

/* `python` runs peers.py with the name and the number of threads. False: it did not start (not installed), with a line on stderr. */
bool peer_start(struct peer *peer, const char *python, const char *name, size_t threads);
/* Loads "FILE n d h f64|f32 causal n_past". False: the peer cannot do this case. */
bool peer_load(struct peer *peer, const char *arguments);
/* Seconds per call over `count` calls in a row. < 0: it failed. */
double peer_run(struct peer *peer, unsigned count);
/* Writes the output of the last call, dense, in the case's type, to `path`. */
bool peer_output(struct peer *peer, const char *path);
void peer_stop(struct peer *peer);

#endif
