/* SPDX-License-Identifier: Apache-2.0
 *
 * api/layer_answers.h - GET /v1/layers, GET and DELETE /v1/layers/{name}, as functions for the route table.
 */
#ifndef MHA_API_LAYER_ANSWERS_H
#define MHA_API_LAYER_ANSWERS_H

#include "answer.h"

void layers_list_answer(const struct api_env *env, const char *name, enum api_media out, struct api_answer *answer);
void layers_get_answer(const struct api_env *env, const char *name, enum api_media out, struct api_answer *answer);
void layers_delete_answer(const struct api_env *env, const char *name, enum api_media out, struct api_answer *answer);

#endif
