/* SPDX-License-Identifier: Apache-2.0
 *
 * tests/fuzz/fuzz_safetensors_body.c - safetensors bodies through whole calls: POST /v1/mha, PUT of a layer, PUT of a checkpoint.
 *
 * The first byte chooses the endpoint and how the body is cut. Beyond not crashing: the body whole and in pieces gives the same
 * status and the same answer, a binary answer is a valid file, and nothing stays charged at the end.
 */
#include <stdlib.h>
#include <string.h>

#include "../../api/call.h"
#include "../../api/layers.h"
#include "../../api/safetensors.h"

int LLVMFuzzerTestOneInput(const unsigned char *bytes, size_t size);

static void must(bool ok) {
    if (!ok) abort();
}

#define ANSWER_MAX ((size_t)1 << 20)

struct answer {
    int status;
    size_t size;
    char *data;
};

/* One call from open to close. `piece` 0: whole. */
static struct answer run(const struct api_env *env, enum api_endpoint endpoint, bool checkpoint,
                         const unsigned char *body, size_t size, size_t piece) {
    struct answer answer = {0, 0, malloc(ANSWER_MAX)};
    struct api_call *call = api_call_open(env, endpoint, API_SAFETENSORS, API_SAFETENSORS, SIZE_MAX);
    must(call && answer.data);
    if (endpoint == API_LAYER_PUT) api_call_layer(call, "fuzz", checkpoint, size % 3);
    for (size_t at = 0; at < size;) {
        size_t n = piece && piece < size - at ? piece : size - at;
        unsigned char *copy = malloc(n); /* so that a read past a piece is seen */
        must(copy != NULL);
        memcpy(copy, body + at, n);
        api_call_feed(call, copy, n);
        free(copy);
        at += n;
    }
    api_call_end(call);
    struct mha_run *mha_run = api_call_run(call);
    if (mha_run) {
        mha_run_here(mha_run);
        api_call_computed(call);
    }
    api_call_request_id(call, "fuzz");
    answer.status = api_call_status(call);
    bool binary = strcmp(api_call_content_type(call), "application/vnd.safetensors") == 0;
    for (size_t n; answer.size + 4096 <= ANSWER_MAX; answer.size += n)
        if ((n = api_call_read(call, answer.data + answer.size, 4096)) == 0) break;
    must(answer.status >= 200 && answer.status < 600 && answer.size > 0);
    if (binary && answer.size + 4096 <= ANSWER_MAX) {
        struct st_error error;
        size_t length = 0;
        must(answer.size >= 8 && st_header_length((unsigned char *)answer.data, &length, &error) == ST_OK);
        struct st_header *header = st_header_parse(answer.data + 8, length, &error);
        must(header && st_header_fits(header, answer.size - 8 - length, &error) == ST_OK);
        st_header_free(header);
    }
    api_call_close(call);
    return answer;
}

int LLVMFuzzerTestOneInput(const unsigned char *bytes, size_t size) {
    static struct mem_budget budget = {.limit = 16u << 20};
    if (size < 1) return 0;
    unsigned choice = bytes[0] % 3, piece = 1 + bytes[0] / 3 % 16;
    enum api_endpoint endpoint = choice ? API_LAYER_PUT : API_MHA;
    struct answer answers[2];
    for (int i = 0; i < 2; i++) {
        struct api_env env = {.budget = &budget, .max_body = 4u << 20, .threads = 1, .layers = layer_store_new()};
        must(env.layers != NULL);
        answers[i] = run(&env, endpoint, choice == 2, bytes + 1, size - 1, i ? piece : 0);
        layer_store_free(env.layers);
        must(atomic_load(&budget.used) == 0);
    }
    must(answers[0].status == answers[1].status);
    /* the position of what is wrong with the data may depend on the cut; everything else may not */
    if (answers[0].status < 400)
        must(answers[0].size == answers[1].size && !memcmp(answers[0].data, answers[1].data, answers[0].size));
    free(answers[0].data);
    free(answers[1].data);
    return 0;
}
