/* SPDX-License-Identifier: Apache-2.0
 *
 * api/results.c - see results.h.
 */
#include "results.h"

#include <stdio.h>
#include <string.h>

#include "number.h"

static bool check_listed_heads(struct request *request, struct job *job) {
    const struct options *o = &job->options;
    size_t h = job->problem.h;
    if (!o->heads) return true;
    enum mem_status why;
    unsigned char *seen = mem_alloc(request->arena, h, &why);
    if (!seen) return problem_memory(request->problem, why, request->budget, "/attention_heads", h, "attention_heads");
    memset(seen, 0, h);
    for (size_t i = 0; i < o->n_heads; i++) {
        char pointer[PROBLEM_POINTER_MAX];
        problem_pointer_index(pointer, "attention_heads", &i, 1);
        if (o->heads[i] >= h) {
            problem_set(request->problem, PROBLEM_OUT_OF_RANGE, pointer,
                        "attention_heads names head %zu, but there are %zu heads, 0 to %zu.", o->heads[i], h, h - 1);
            problem_actual(request->problem, "%zu", o->heads[i]);
            return false;
        }
        if (seen[o->heads[i]])
            return problem_set(request->problem, PROBLEM_OUT_OF_RANGE, pointer, "attention_heads names head %zu twice.",
                               o->heads[i]);
        seen[o->heads[i]] = 1;
    }
    job->result.heads_listed = o->heads;
    job->result.n_heads_listed = o->n_heads;
    return true;
}

/* One tensor of the answer: where core writes it and its dimensions without the batch. */
struct output {
    enum output_id id;
    const char *member;
    void **slot;
    size_t rank;
    size_t dim[3];
};

#define OUTPUT_TENSORS 11

/* All that could be asked for, in the order of the contract. */
static void list_outputs(struct job *job, struct output out[OUTPUT_TENSORS]) {
    const struct mha_problem *p = &job->problem;
    struct mha_result *r = &job->result;
    size_t n_kv = p->n_past + p->n_k, listed = job->options.heads ? job->options.n_heads : p->h;
    bool mean = job->options.attention_mean;
    const struct output all[OUTPUT_TENSORS] = {
        {OUT_OUTPUT, NULL, &r->output, 2, {p->n_q, p->d_out}},
        {OUT_ATTENTION, NULL, &r->attention, mean ? 2 : 3, {mean ? p->n_q : listed, mean ? n_kv : p->n_q, n_kv}},
        {OUT_HEADS, NULL, &r->heads, 3, {p->h, p->n_q, p->d_v}},
        {OUT_PROJECTIONS, "Q", &r->proj_Q, 3, {p->h, p->n_q, p->d_k}},
        {OUT_PROJECTIONS, "K", &r->proj_K, 3, {p->h_kv, p->n_k, p->d_k}},
        {OUT_PROJECTIONS, "V", &r->proj_V, 3, {p->h_kv, p->n_k, p->d_v}},
        {OUT_SCORES, NULL, &r->scores, 3, {listed, p->n_q, n_kv}},
        {OUT_LOGSUMEXP, NULL, &r->logsumexp, 2, {p->h, p->n_q}},
        {OUT_CONCAT, NULL, &r->concat, 2, {p->n_q, p->h * p->d_v}},
        {OUT_PRESENT, "K", &r->present_K, 3, {p->h_kv, n_kv, p->d_k}},
        {OUT_PRESENT, "V", &r->present_V, 3, {p->h_kv, n_kv, p->d_v}},
    };
    memcpy(out, all, sizeof all);
}

static bool result_too_large(struct request *request, const char *name, const size_t *dim, size_t rank, size_t element,
                             size_t bytes) {
    char shape[PROBLEM_SHAPE_MAX], size[48] = "more bytes than can be counted";
    if (bytes != SIZE_MAX) snprintf(size, sizeof size, "%zu bytes", bytes);
    problem_set(request->problem, PROBLEM_RESULT_TOO_LARGE, "/return",
                "%s would be %s, %zu bytes a number, which takes the results to %s; the memory limit is %zu bytes "
                "(--max-memory). Ask for less, for fewer heads (attention_heads), or send fewer queries at once.",
                name, problem_shape(shape, dim, rank), element, size, request->budget->limit);
    request->problem->limit = request->budget->limit;
    request->problem->size = bytes;
    return false;
}

/* Puts `output` on the answer's list with its size. *total: bytes of all so far. */
static bool add_output(struct request *request, struct job *job, const struct output *output, size_t *total) {
    struct response_tensor *t = &job->response.tensor[job->response.count++];
    size_t element = mha_dtype_size(job->problem.dtype), bytes = element;
    t->name = output_names[output->id];
    t->member = output->member;
    t->rank = 0;
    t->data = NULL;
    if (job->batched) t->dim[t->rank++] = job->problem.B;
    for (size_t axis = 0; axis < output->rank; axis++) t->dim[t->rank++] = output->dim[axis];
    bool counted = true, empty = false;
    for (size_t axis = 0; axis < t->rank; axis++) {
        empty = empty || t->dim[axis] == 0;
        counted = counted && (t->dim[axis] == 0 || mem_mul(bytes, t->dim[axis], &bytes));
    }
    t->bytes = empty ? 0 : bytes;
    if (!counted || !mem_add(*total, t->bytes, total))
        return result_too_large(request, t->name, t->dim, t->rank, element, SIZE_MAX);
    if (mem_would(request->arena, *total) == MEM_TOO_LARGE)
        return result_too_large(request, t->name, t->dim, t->rank, element, *total);
    t->slot = output->slot;
    *t->slot = job; /* wanted; the memory comes when all sizes are known */
    return true;
}

/* "trace" answers in the order of the paper, projections first; everything else in the order of the contract. Places in the
 * list of list_outputs. */
static const unsigned char paper_order[OUTPUT_TENSORS] = {3, 4, 5, 6, 7, 1, 2, 8, 0, 9, 10};

static bool choose_outputs(struct request *request, struct job *job, size_t *total) {
    struct output all[OUTPUT_TENSORS];
    list_outputs(job, all);
    for (size_t place = 0; place < OUTPUT_TENSORS; place++) {
        const struct output *output = &all[job->options.trace ? paper_order[place] : place];
        if (!(job->options.outputs & 1u << output->id)) continue;
        if (!add_output(request, job, output, total)) return false;
    }
    job->response.dtype = job->problem.dtype;
    job->response.format = job->options.format;
    job->result.attention_mean = job->options.attention_mean;
    return true;
}

/* scale or softcap, which are finite, but not in float32; or a softcap that would become 0, which means off. */
static bool option_refused(struct request *request, const struct job *job, const char *field) {
    char pointer[PROBLEM_POINTER_MAX], number[NUMBER_ROOM];
    double value = strcmp(field, "softcap") == 0 ? job->problem.softcap : job->problem.scale;
    number[number_write_f64(number, value)] = 0;
    problem_set(request->problem, PROBLEM_OUT_OF_RANGE, problem_pointer_index(pointer, field, NULL, 0),
                "%s is %s, which float32, the working precision, cannot hold (it reaches from 1.4e-45 to 3.4e38). Use "
                "\"dtype\": \"float64\", or another %s.",
                field, number, field);
    problem_actual(request->problem, "%s", number);
    return false;
}

/* What core refuses although everything above let it pass. */
static bool refused_by_core(struct request *request, const struct job *job, const struct mha_detail *detail) {
    char pointer[PROBLEM_POINTER_MAX];
    const char *field = detail->field ? detail->field : "";
    problem_pointer_index(pointer, field, detail->index, detail->rank);
    switch (detail->code) {
    case MHA_ERR_OVERFLOW:
        return problem_memory(request->problem, MEM_TOO_LARGE, request->budget, "", SIZE_MAX, "The computation");
    case MHA_ERR_OPTION:
        return option_refused(request, job, field);
    case MHA_ERR_DIMENSION:
        return problem_set(request->problem, PROBLEM_SHAPE_MISMATCH, pointer,
                           "%s does not fit (%zu, but %zu is needed): %s.", field, detail->actual, detail->expected,
                           mha_error_text(detail->code));
    default:
        return problem_set(request->problem, PROBLEM_INTERNAL, "", "core refused the problem at %s: %s.", field,
                           mha_error_text(detail->code));
    }
}

/* Memory for the results and the workspace, after both sizes are known to be allowed. */
static bool allocate(struct request *request, struct job *job, size_t results) {
    size_t total;
    enum mem_status why =
        mem_add(results, job->need.workspace, &total) ? mem_would(request->arena, total) : MEM_TOO_LARGE;
    if (why != MEM_OK) return problem_memory(request->problem, why, request->budget, "", total, "The computation");
    for (size_t i = 0; i < job->response.count; i++) {
        struct response_tensor *t = &job->response.tensor[i];
        *t->slot = t->data = mem_alloc(request->arena, t->bytes, &why);
        if (!t->data) return problem_memory(request->problem, why, request->budget, "", t->bytes, t->name);
    }
    job->workspace = mem_alloc(request->arena, job->need.workspace, &why);
    return job->workspace ||
           problem_memory(request->problem, why, request->budget, "", job->need.workspace, "The computation");
}

bool results_build(struct request *request, struct job *job, size_t threads) {
    struct mha_detail detail;
    size_t results = 0;
    if (!check_listed_heads(request, job) || !choose_outputs(request, job, &results)) return false;
    if (mha_plan(&job->problem, &job->result, threads, &job->need, &detail) != MHA_OK)
        return refused_by_core(request, job, &detail);
    return allocate(request, job, results);
}
