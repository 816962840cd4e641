/* SPDX-License-Identifier: Apache-2.0
 *
 * api/layer_dir.h - layers in files: a directory with one file per layer, and whole-model checkpoints.
 *
 * Model. NAME.safetensors (or NAME.json) in the directory is the layer NAME; both hold what the body of PUT /v1/layers/NAME
 * may hold. Where both are there, the safetensors file counts. Names beginning with '.' are ignored, and so are files of other
 * kinds. A safetensors file is mapped, not read: its pages come when the layer is packed.
 *
 * Changes are crash-safe: a new file is written under a temporary name (.mhad-...), synced, renamed over the old one, and the
 * directory is synced. Whoever looks at any moment, also after a crash, finds the old file or the new one, whole. Servers that
 * share a directory change it one after the other (flock on the directory); each sees the others' changes at its next start.
 *
 * What it does not do: watch the directory. Files that others put there are seen at the next start.
 */
#ifndef MHA_API_LAYER_DIR_H
#define MHA_API_LAYER_DIR_H

#include "layers.h"

/* Loads every layer of the directory; *count (may be NULL) says how many. `writable`: also removes temporary files that a
 * crash left. False and *problem: the first file that is no layer, named. */
bool layer_dir_load(const char *directory, bool writable, struct mem_budget *budget, struct layer_store *store,
                    size_t *count, struct problem *problem);

/* Writes the layer's source to NAME.safetensors and returns a layer that reads it from there (one reference). NULL and
 * *problem if anything failed; the directory is then as before. */
struct layer *layer_dir_put(const char *directory, const char *name, const struct layer *layer,
                            struct mem_budget *budget, struct problem *problem);

/* The same in steps, for several layers that come together: begin (locks; -1 and *problem if it cannot), stage each (written under its
 * temporary name; the layer that reads it, or NULL and *problem), commit each (false and *problem: the file is as before), end. What
 * was staged and not committed is discarded. */
int layer_dir_begin(const char *directory, struct problem *problem);
struct layer *layer_dir_stage(const char *directory, const char *name, const struct layer *layer,
                              struct mem_budget *budget, struct problem *problem);
bool layer_dir_commit(const char *directory, const char *name, struct layer *stored, struct problem *problem);
void layer_dir_discard(const char *directory, const char *name);
void layer_dir_end(int lock); /* -1 is fine */

/* Removes the layer's files, if there are any. False and *problem if one could not be removed. */
bool layer_dir_delete(const char *directory, const char *name, struct problem *problem);

/* Makes every usable attention layer of a whole-model file a layer. num_heads 0: from config.json beside it. *count: how many.
 * *refused (may be NULL): how many were found but cannot be used; problem->detail then names the first with its reason, though
 * the call succeeds. False and *problem when none can be used. */
bool layer_checkpoint_load(const char *path, size_t num_heads, struct mem_budget *budget, struct layer_store *store,
                           size_t *count, size_t *refused, struct problem *problem);

/* What `mhad --list-layers FILE` prints (malloc'd), or NULL and *problem. */
char *layer_checkpoint_list(const char *path, size_t num_heads, struct problem *problem);

#endif
