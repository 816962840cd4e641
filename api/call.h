/* SPDX-License-Identifier: Apache-2.0
 *
 * api/call.h - one request as the api layer sees it: bytes in, a run for core, bytes out. The only header of api/ that the
 * server needs for /v1. Knows no sockets, threads or clocks (the server measures).
 *
 * Life of a call, always in this order:
 *   api_call_open      with the endpoint and the two media types
 *   api_call_feed      any number of times, any split; parses on the way; errors latch, the rest is read and dropped
 *   api_call_end       the body is complete: validate, plan, take the memory for workspace and results (or latch an error)
 *   api_call_run       the run to compute, NULL when the answer already stands; the server chooses where it runs
 *   api_call_computed  after the run ended (or was cancelled)
 *   api_call_status, api_call_length, api_call_read ...    the answer, generated block by block
 *   api_call_close     gives everything back
 * A call belongs to one thread at a time.
 */
#ifndef MHA_API_CALL_H
#define MHA_API_CALL_H

#include "../core/mha.h"
#include "memory.h"
#include "problem.h"

struct layer_store; /* api/layers.h */

/* What all calls share; immutable but for the budget. */
struct api_env {
    struct mem_budget *budget;
    size_t max_body;            /* bytes of one body */
    size_t threads;             /* that a run is planned for */
    struct layer_store *layers; /* NULL: there are none */
    const char *layers_dir;     /* where PUT and DELETE of layers also write, NULL: nowhere */
};

enum api_media { API_JSON = 0, API_SAFETENSORS, API_MEDIA_COUNT };

enum api_endpoint { API_MHA = 0, API_LAYER_PUT };

struct api_call;

/* NULL: out of memory (answer PROBLEM_OUT_OF_MEMORY). body_bytes: Content-Length or SIZE_MAX if unknown (a hint). */
struct api_call *api_call_open(const struct api_env *env, enum api_endpoint endpoint, enum api_media in,
                               enum api_media out, size_t body_bytes);
/* Before the first feed of API_LAYER_PUT: the name in the path, and whether the body is a whole model whose attention layers
 * become layers NAME.FOUND (num_heads 0: the metadata says). */
void api_call_layer(struct api_call *call, const char *name, bool checkpoint, size_t num_heads);
void api_call_feed(struct api_call *call, const void *bytes, size_t size);
void api_call_end(struct api_call *call);
/* The same, but leaves what may take long (packing large weights, writing a layer's file) and is then false: api_call_end does
 * the rest, on a thread that may wait. True: it has ended. */
bool api_call_end_soon(struct api_call *call);
/* Latches an error from outside (deadline, 413 while reading, draining). Later than an own error it changes nothing. */
struct problem *api_call_problem(struct api_call *call);
bool api_call_failed(const struct api_call *call);

struct mha_run *api_call_run(struct api_call *call);
double api_call_flops(const struct api_call *call); /* of the run */
/* The same in flops with what takes time without any: rows whose masks are looked at, results that are only copied. For choosing
 * inline or pool. */
double api_call_work(const struct api_call *call);
void api_call_computed(struct api_call *call);

int api_call_status(const struct api_call *call); /* 200, 201 (a new layer), 422 ... */
const char *api_call_content_type(const struct api_call *call);
/* Goes into problems; before api_call_read. */
void api_call_request_id(struct api_call *call, const char *id);
/* Bytes of the whole answer, SIZE_MAX where only writing it tells. */
size_t api_call_length(const struct api_call *call);
/* The next bytes of the answer; 0 = end. max >= 4096, or what is left of a known length. */
size_t api_call_read(struct api_call *call, char *out, size_t max);
/* "B=2 n_q=5 n_kv=5 h=8 d_k=64 ... float64": for the log, never numbers of tensors. */
size_t api_call_summary(const struct api_call *call, char *out, size_t max);
void api_call_close(struct api_call *call);

#endif
