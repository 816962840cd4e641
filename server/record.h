/* SPDX-License-Identifier: Apache-2.0
 *
 * server/record.h - what stays of a request that has ended: its line in the log and its share of the metrics.
 *
 * Never the contents of tensors.
 */
#ifndef MHA_SERVER_RECORD_H
#define MHA_SERVER_RECORD_H

#include <stdint.h>

struct request;

/* status: what the client was told, 499 when it was told nothing. now: ns, monotonic. */
void record_request(struct request *request, int status, uint64_t now);

#endif
