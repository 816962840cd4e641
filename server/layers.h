/* SPDX-License-Identifier: Apache-2.0
 *
 * server/layers.h - resident layers at start, and where PUT /v1/layers/{name} is aimed. What layers are: api/layers.h.
 */
#ifndef MHA_SERVER_LAYERS_H
#define MHA_SERVER_LAYERS_H

#include <stdbool.h>
#include <stdio.h>

struct config;
struct request;
struct service;

/* Loads --layers and --checkpoint. False, and why, when there is something in them that cannot be used. */
bool layers_open(struct service *service, const struct config *config, char *why, size_t size);
void layers_close(struct service *service);
/* Tells the call the {name} of the path and what the query says: checkpoint=1, num_heads=N. */
void layers_target(struct request *request);
/* --list-layers FILE. Returns the exit status. */
int layers_print(const struct config *config, FILE *out, FILE *err);

#endif
