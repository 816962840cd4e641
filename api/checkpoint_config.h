/* SPDX-License-Identifier: Apache-2.0
 *
 * api/checkpoint_config.h - what the config.json of a model says about one of its attention layers.
 *
 * Model. Models made of several parts have a config for each (text_config, vision_config, ...): the words of the layer's name tell
 * which. Of that part are read the head counts and widths, the scale and the softcap, whether Q and K are rotated, and what mhad
 * does not compute (relative positions, sparse attention, ...), as a reason in words.
 *
 * What it does not do: know the names of tensors (checkpoint.c), or decide.
 */
#ifndef MHA_API_CHECKPOINT_CONFIG_H
#define MHA_API_CHECKPOINT_CONFIG_H

#include <stdbool.h>
#include <stddef.h>

struct cJSON;

enum checkpoint_rotary { ROTARY_UNKNOWN, ROTARY_YES, ROTARY_NO };

#define CHECKPOINT_OBSTACLE_MAX 200

struct checkpoint_config {
    bool given;                                 /* there is a config.json */
    size_t num_heads, num_kv_heads, head_width; /* 0: it does not say */
    enum checkpoint_rotary rotary;
    double scale, softcap;                  /* 0: it gives none */
    char obstacle[CHECKPOINT_OBSTACLE_MAX]; /* why mhad cannot compute the layer; "": nothing against it */
};

/* Of the layer whose tensors' names begin with `prefix`. whole: the config as an object, or NULL for none. */
void checkpoint_config_read(const struct cJSON *whole, const char *prefix, struct checkpoint_config *out);

#endif
