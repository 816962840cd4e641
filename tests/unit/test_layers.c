/* SPDX-License-Identifier: Apache-2.0
 *
 * tests/unit/test_layers.c - resident layers: the same bytes as weights sent inline, from any element type and from slices;
 * memory counted and given back; replaced and deleted while in use.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../../api/layers.h"
#include "support/half.h"

enum { H = 2, H_KV = 1, D_K = 3, D_V = 2, D_Q = 5, D_KIN = 4, D_VIN = 6, D_OUT = 7, N_Q = 3, N_K = 4 };

static struct mem_budget budget;
static struct problem problem;

static int fresh(void **state) {
    (void)state;
    budget.limit = 64u << 20;
    atomic_store(&budget.used, 0);
    problem_init(&problem);
    return 0;
}

/* Everything charged in a test is given back at its end. */
static int all_given_back(void **state) {
    (void)state;
    if (atomic_load(&budget.used) != 0) print_error("%zu bytes are still charged\n", atomic_load(&budget.used));
    return atomic_load(&budget.used) == 0 ? 0 : -1;
}

/* ---- a source of known numbers ----------------------------------------------------------------------------------- */

static const size_t shapes[LAYER_TENSORS][2] = {{D_Q, H *D_K}, {D_KIN, H_KV *D_K}, {D_VIN, H_KV *D_V}, {H * D_V, D_OUT},
                                                {H * D_K, 0},  {H_KV * D_K, 0},    {H_KV * D_V, 0},    {D_OUT, 0}};

/* Numbers that every type can hold exactly, so that sources of all types mean the same weights: multiples of 1/16. */
static double number_at(unsigned seed, size_t tensor, size_t i) {
    unsigned x = (seed * 2654435761u) ^ (unsigned)(tensor * 40503u + i * 2246822519u);
    x ^= x >> 13;
    x *= 3266489917u;
    return ((double)(x >> 28) - 8) / 16;
}

static void store_as(enum tensor_type type, unsigned char *out, size_t i, double value) {
    float f = (float)value;
    uint32_t bits;
    memcpy(&bits, &f, 4);
    uint16_t half = half_bits(f);
    switch (type) {
    case TENSOR_F64:
        memcpy(out + 8 * i, &value, 8);
        break;
    case TENSOR_F32:
        memcpy(out + 4 * i, &f, 4);
        break;
    case TENSOR_F16:
        memcpy(out + 2 * i, &half, 2);
        break;
    default:
        memcpy(out + 2 * i, (unsigned char *)&bits + 2, 2);
        break;
    }
}

/* `stretch`: rows of matrices lie that many times further apart than they need to. Data begin at an odd address. */
static struct layer_source make_source(enum tensor_type type, unsigned seed, size_t stretch) {
    struct layer_source source = {.num_heads = H, .num_kv_heads = H_KV, .layout = MHA_IN_OUT};
    source.arena = mem_arena_new(&budget);
    assert_non_null(source.arena);
    for (size_t t = 0; t < LAYER_TENSORS; t++) {
        size_t rank = shapes[t][1] ? 2 : 1, row = rank == 2 ? shapes[t][1] : 1, count = shapes[t][0] * row;
        size_t apart = rank == 2 ? stretch : 1; /* biases are always dense */
        unsigned char *data = (unsigned char *)mem_alloc(source.arena, count * apart * 8 + 1, NULL) + 1;
        memset(data, 0xff, count * apart * tensor_type_size(type)); /* NaN where nobody may look */
        for (size_t i = 0; i < count; i++) store_as(type, data, i / row * row * apart + i % row, number_at(seed, t, i));
        source.tensor[t] = (struct layer_tensor){.given = true,
                                                 .type = type,
                                                 .rank = rank,
                                                 .dim = {shapes[t][0], shapes[t][1]},
                                                 .stride = row * apart,
                                                 .data = data};
    }
    return source;
}

static struct layer *make_layer(enum tensor_type type, unsigned seed, size_t stretch) {
    struct layer_source source = make_source(type, seed, stretch);
    struct layer *layer = layer_new(&budget, &source, "test", &problem);
    if (!layer) fail_msg("%s", problem.detail);
    return layer;
}

/* ---- runs -------------------------------------------------------------------------------------------------------- */

struct inputs {
    double q[N_Q * D_Q], k[N_K * D_KIN], v[N_K * D_VIN];
};

static struct mha_problem make_problem(enum mha_dtype dtype, const struct inputs *in) {
    return (struct mha_problem){.dtype = dtype,
                                .B = 1,
                                .n_q = N_Q,
                                .n_k = N_K,
                                .h = H,
                                .h_kv = H_KV,
                                .d_k = D_K,
                                .d_v = D_V,
                                .d_q = D_Q,
                                .d_kin = D_KIN,
                                .d_vin = D_VIN,
                                .d_out = D_OUT,
                                .Q = in->q,
                                .K = in->k,
                                .V = in->v,
                                .scale = 1 / sqrt(D_K)};
}

/* Q, K and V in the working precision, in place. */
static void make_inputs(enum mha_dtype dtype, struct inputs *in) {
    double *parts[] = {in->q, in->k, in->v};
    size_t counts[] = {N_Q * D_Q, N_K * D_KIN, N_K * D_VIN};
    for (size_t p = 0; p < 3; p++)
        for (size_t i = 0; i < counts[p]; i++)
            store_as(dtype == MHA_F64 ? TENSOR_F64 : TENSOR_F32, (unsigned char *)parts[p], i, number_at(99, p, i));
}

static void run(const struct mha_problem *p, double output[N_Q * D_OUT]) {
    struct mha_result result = {.output = output};
    struct mha_need need;
    struct mha_detail detail;
    memset(output, 0, N_Q * D_OUT * sizeof *output);
    enum mha_error code = mha_plan(p, &result, 1, &need, &detail);
    if (code != MHA_OK) fail_msg("plan: %s (%s)", mha_error_text(code), detail.field);
    void *workspace = aligned_alloc(MHA_ALIGN, (need.workspace + MHA_ALIGN) / MHA_ALIGN * MHA_ALIGN);
    assert_non_null(workspace);
    assert_int_equal(mha_run_here(mha_run_init(workspace, p, &result, 1)), MHA_OK);
    free(workspace);
}

static void run_inline(enum mha_dtype dtype, unsigned seed, double output[N_Q * D_OUT]) {
    struct inputs in;
    static double weights[LAYER_TENSORS][64];
    make_inputs(dtype, &in);
    struct mha_problem p = make_problem(dtype, &in);
    for (size_t t = 0; t < LAYER_TENSORS; t++)
        for (size_t i = 0; i < shapes[t][0] * (shapes[t][1] ? shapes[t][1] : 1); i++)
            store_as(dtype == MHA_F64 ? TENSOR_F64 : TENSOR_F32, (unsigned char *)weights[t], i, number_at(seed, t, i));
    p.weights = (struct mha_weights){MHA_IN_OUT, weights[0], weights[1], weights[2], weights[3],
                                     weights[4], weights[5], weights[6], weights[7]};
    run(&p, output);
}

static void run_layer(enum mha_dtype dtype, struct layer *layer, double output[N_Q * D_OUT]) {
    struct inputs in;
    struct problem own;
    problem_init(&own);
    make_inputs(dtype, &in);
    struct mha_problem p = make_problem(dtype, &in);
    p.layer = layer_packed(layer, dtype, &own);
    if (!p.layer) fail_msg("%s", own.detail);
    run(&p, output);
}

static void every_source_type_gives_the_bytes_of_inline_weights(void **state) {
    (void)state;
    static const enum tensor_type types[] = {TENSOR_F64, TENSOR_F32, TENSOR_F16, TENSOR_BF16};
    double expected[N_Q * D_OUT], actual[N_Q * D_OUT];
    for (int dtype = MHA_F64; dtype <= MHA_F32; dtype++) {
        run_inline((enum mha_dtype)dtype, 1, expected);
        for (size_t t = 0; t < 4; t++)
            for (size_t stretch = 1; stretch <= 3; stretch += 2) {
                struct layer *layer = make_layer(types[t], 1, stretch);
                run_layer((enum mha_dtype)dtype, layer, actual);
                if (memcmp(expected, actual, sizeof expected) != 0)
                    fail_msg("%s, stretch %zu, working in %d", tensor_type_name(types[t]), stretch, dtype);
                layer_release(layer);
            }
        double other[N_Q * D_OUT]; /* and the comparison can tell weights apart */
        run_inline((enum mha_dtype)dtype, 2, other);
        assert_memory_not_equal(expected, other, sizeof expected);
    }
}

static void a_layer_is_packed_once_per_precision(void **state) {
    (void)state;
    struct layer *layer = make_layer(TENSOR_F32, 1, 1);
    size_t before = atomic_load(&budget.used);
    const struct mha_layer *wide = layer_packed(layer, MHA_F64, &problem);
    size_t after = atomic_load(&budget.used);
    assert_non_null(wide);
    assert_true(after > before);
    assert_ptr_equal(layer_packed(layer, MHA_F64, &problem), wide);
    assert_int_equal(atomic_load(&budget.used), after);
    assert_ptr_not_equal(layer_packed(layer, MHA_F32, &problem), wide);
    assert_int_equal(mha_layer_shape(wide)->dtype, MHA_F64);
    assert_int_equal(mha_layer_shape(wide)->d_out, D_OUT);
    layer_release(layer);
}

static void weights_that_do_not_fit_together_are_refused_and_stay_the_callers(void **state) {
    (void)state;
    struct layer_source source = make_source(TENSOR_F64, 1, 1);
    source.tensor[LAYER_TENSOR(T_W_o)].dim[0] = 5;
    assert_null(layer_new(&budget, &source, "test", &problem));
    assert_int_equal(problem.code, PROBLEM_SHAPE_MISMATCH);
    assert_string_equal(problem.pointer, "/W_o");
    problem_init(&problem);
    source.tensor[LAYER_TENSOR(T_W_o)].dim[0] = H * D_V;
    source.num_heads = 4;
    assert_null(layer_new(&budget, &source, "test", &problem));
    assert_int_equal(problem_status(problem.code), 422);
    problem_init(&problem);
    source.num_heads = H;
    source.tensor[0].given = false;
    assert_null(layer_new(&budget, &source, "test", &problem));
    assert_int_equal(problem.code, PROBLEM_MISSING_FIELD);
    mem_arena_free(source.arena);
}

static void a_weight_that_is_not_finite_or_too_large_for_float32_is_refused_when_packed(void **state) {
    (void)state;
    struct layer_source source = make_source(TENSOR_F64, 1, 1);
    double huge = 1e39, not_a_number = NAN;
    memcpy((unsigned char *)(uintptr_t)source.tensor[2].data + 8, &huge, 8);
    struct layer *layer = layer_new(&budget, &source, "test", &problem);
    assert_non_null(layer);
    assert_non_null(layer_packed(layer, MHA_F64, &problem));
    assert_null(layer_packed(layer, MHA_F32, &problem));
    assert_int_equal(problem.code, PROBLEM_NON_FINITE_INPUT);
    assert_string_equal(problem.pointer, "/W_v/0/1");
    layer_release(layer);
    problem_init(&problem);
    source = make_source(TENSOR_F64, 1, 1);
    memcpy((unsigned char *)(uintptr_t)source.tensor[7].data, &not_a_number, 8);
    layer = layer_new(&budget, &source, "test", &problem);
    assert_null(layer_packed(layer, MHA_F64, &problem));
    assert_string_equal(problem.pointer, "/b_o/0");
    layer_release(layer);
}

static void packing_is_refused_when_the_budget_is_taken_and_leaves_nothing_charged(void **state) {
    (void)state;
    struct layer *layer = make_layer(TENSOR_F64, 1, 1);
    size_t used = atomic_load(&budget.used);
    budget.limit = used;
    assert_null(layer_packed(layer, MHA_F64, &problem));
    assert_true(problem_status(problem.code) == 503 || problem_status(problem.code) == 413);
    assert_int_equal(atomic_load(&budget.used), used);
    budget.limit = 64u << 20;
    assert_non_null(layer_packed(layer, MHA_F64, &problem)); /* and works once there is room */
    layer_release(layer);
}

static void null_projections_are_refused_because_nothing_says_their_width(void **state) {
    (void)state;
    struct layer_source source = make_source(TENSOR_F64, 1, 1);
    source.tensor[LAYER_TENSOR(T_W_v)].given = false;
    assert_null(layer_new(&budget, &source, "test", &problem));
    assert_string_equal(problem.pointer, "/W_v");
    problem_init(&problem);
    source.tensor[LAYER_TENSOR(T_W_v)].given = true;
    source.tensor[LAYER_TENSOR(T_W_o)].given = false; /* that one is known: the concatenated heads */
    source.tensor[LAYER_TENSOR(T_b_o)].given = false;
    struct layer *layer = layer_new(&budget, &source, "test", &problem);
    assert_non_null(layer);
    assert_int_equal(layer_shape(layer)->d_out, H * D_V);
    char *text = layer_describe(layer, "a");
    assert_non_null(strstr(text, "\"W_o\":null"));
    assert_null(strstr(text, "\"b_o\""));
    free(text);
    layer_release(layer);
}

static void a_description_has_shapes_and_options_and_no_numbers_of_weights(void **state) {
    (void)state;
    struct layer_source source = make_source(TENSOR_BF16, 1, 1);
    source.has_scale = true;
    source.scale = 0.25;
    struct layer *layer = layer_new(&budget, &source, "a \"file\"", &problem);
    char *text = layer_describe(layer, "my.layer");
    static const char expected[] =
        "{\"name\":\"my.layer\",\"num_heads\":2,\"num_kv_heads\":1,\"d_k\":3,\"d_v\":2,\"d_"
        "q\":5,\"d_kin\":4,\"d_vin\":6,"
        "\"d_out\":7,\"weight_layout\":\"in_out\",\"dtype\":\"float64\",\"scale\":0.25,\"tensors\":{\"W_q\":{"
        "\"shape\":[5,6],\"dtype\":\"bfloat16\"},";
    assert_memory_equal(text, expected, strlen(expected));
    assert_non_null(strstr(text, "\"packed\":[]"));
    assert_non_null(strstr(text, "\"origin\":\"a \\\"file\\\"\"}"));
    free(text);
    assert_non_null(layer_packed(layer, MHA_F32, &problem));
    text = layer_describe(layer, "my.layer");
    assert_non_null(strstr(text, "\"packed\":[\"float32\"]"));
    free(text);
    layer_release(layer);
}

/* ---- names and the store ----------------------------------------------------------------------------------------- */

static void names_are_plain_and_can_never_be_a_path(void **state) {
    (void)state;
    static const char *const good[] = {"a", "encoder.layer.0.attention", "A-b_c.9", "0", "a..b"};
    static const char *const bad[] = {"",     ".",   "..",    ".hidden",  "-x",  "a/b", "a\\b",
                                      "../a", "a b", "a%2fb", "\xc3\xa9", "a\n", "a:b"};
    char long_name[LAYER_NAME_MAX + 2];
    memset(long_name, 'a', sizeof long_name);
    long_name[LAYER_NAME_MAX + 1] = '\0';
    assert_false(layer_name_check(long_name, NULL));
    long_name[LAYER_NAME_MAX] = '\0';
    assert_true(layer_name_check(long_name, NULL));
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) assert_true(layer_name_check(good[i], &problem));
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        if (layer_name_check(bad[i], NULL)) fail_msg("accepted: %s", bad[i]);
    assert_false(layer_name_check("../x", &problem));
    assert_int_equal(problem_status(problem.code), 422);
}

static void the_store_lists_in_order_and_says_what_it_replaced(void **state) {
    (void)state;
    struct layer_store *store = layer_store_new();
    static const char *const names[] = {"m", "b", "z", "a", "k"};
    bool replaced = true;
    for (unsigned round = 0; round < 2; round++)
        for (unsigned i = 0; i < 5; i++) {
            assert_true(layer_store_put(store, names[i], make_layer(TENSOR_F32, i, 1), &replaced));
            assert_int_equal(replaced, round);
        }
    char *list = layer_store_list(store);
    assert_string_equal(list, "{\"layers\":[\"a\",\"b\",\"k\",\"m\",\"z\"]}\n");
    free(list);
    assert_true(layer_store_delete(store, "k"));
    assert_false(layer_store_delete(store, "k"));
    assert_null(layer_store_get(store, "k"));
    assert_int_equal(layer_store_count(store), 4);
    char near[LAYER_NAME_MAX + 1];
    layer_store_suggest(store, "nothing.like.it", near);
    assert_string_equal(near, "");
    layer_store_free(store);
}

static void a_layer_in_use_outlives_its_name(void **state) {
    (void)state;
    double expected[N_Q * D_OUT], actual[N_Q * D_OUT];
    struct layer_store *store = layer_store_new();
    run_inline(MHA_F64, 1, expected);
    assert_true(layer_store_put(store, "a", make_layer(TENSOR_F64, 1, 1), NULL));
    struct layer *held = layer_store_get(store, "a");
    assert_true(layer_store_put(store, "a", make_layer(TENSOR_F64, 2, 1), NULL));
    assert_true(layer_store_delete(store, "a"));
    layer_store_free(store);
    run_layer(MHA_F64, held, actual);
    assert_memory_equal(expected, actual, sizeof expected);
    layer_release(held);
}

/* ---- all at once ------------------------------------------------------------------------------------------------- */

enum { READERS = 4, VERSIONS = 3, ROUNDS = 300, ENOUGH = 100 };

struct crowd {
    struct layer_store *store;
    double expected[VERSIONS][2][N_Q * D_OUT];
    atomic_bool stop;
    atomic_size_t wrong, computed, absent;
};

/* Takes the layer, packs it, computes: the answer must be that of one whole version. */
static void *reader(void *argument) {
    struct crowd *crowd = argument;
    double actual[N_Q * D_OUT];
    while (!atomic_load(&crowd->stop)) {
        for (int dtype = 0; dtype < 2; dtype++) {
            struct layer *layer = layer_store_get(crowd->store, "shared");
            if (!layer) {
                atomic_fetch_add(&crowd->absent, 1);
                continue;
            }
            run_layer((enum mha_dtype)dtype, layer, actual);
            bool found = false;
            for (int v = 0; v < VERSIONS; v++) found |= memcmp(actual, crowd->expected[v][dtype], sizeof actual) == 0;
            if (!found) atomic_fetch_add(&crowd->wrong, 1);
            atomic_fetch_add(&crowd->computed, 1);
            free(layer_describe(layer, "shared"));
            layer_release(layer);
        }
        free(layer_store_list(crowd->store));
    }
    return NULL;
}

static void *writer(void *argument) {
    struct crowd *crowd = argument;
    /* on a busy machine the readers may get their turn late */
    for (unsigned i = 0; i < ROUNDS || (atomic_load(&crowd->computed) < ENOUGH && i < 1000 * ROUNDS); i++) {
        layer_store_put(crowd->store, "shared", make_layer(i % 2 ? TENSOR_F32 : TENSOR_F64, i % VERSIONS, 1 + i % 2),
                        NULL);
        if (i % 7 == 6) layer_store_delete(crowd->store, "shared");
        if (i >= ROUNDS) sched_yield();
    }
    return NULL;
}

static void readers_see_whole_versions_while_writers_replace_and_delete(void **state) {
    (void)state;
    static struct crowd crowd;
    pthread_t readers[READERS], writers[2];
    crowd.store = layer_store_new();
    for (unsigned v = 0; v < VERSIONS; v++)
        for (int dtype = 0; dtype < 2; dtype++) run_inline((enum mha_dtype)dtype, v, crowd.expected[v][dtype]);
    for (int i = 0; i < READERS; i++) pthread_create(&readers[i], NULL, reader, &crowd);
    for (int i = 0; i < 2; i++) pthread_create(&writers[i], NULL, writer, &crowd);
    for (int i = 0; i < 2; i++) pthread_join(writers[i], NULL);
    atomic_store(&crowd.stop, true);
    for (int i = 0; i < READERS; i++) pthread_join(readers[i], NULL);
    layer_store_free(crowd.store);
    assert_int_equal(atomic_load(&crowd.wrong), 0);
    assert_true(atomic_load(&crowd.computed) >= ENOUGH);
}

/* ---- files that change under a layer ------------------------------------------------------------------------------ */

enum { WIDE = 128 }; /* four matrices of 32 pages each */

static size_t write_wide_file(const char *path) {
    static const char *const names[] = {"W_q", "W_k", "W_v", "W_o"};
    static const double numbers[WIDE * WIDE];
    const size_t dim[2] = {WIDE, WIDE};
    struct st_out out[4];
    size_t head;
    for (int i = 0; i < 4; i++) out[i] = (struct st_out){.name = names[i], .dtype = ST_F64, .rank = 2, .dim = dim};
    char *header = st_write_header(out, 4, NULL, 0, &head);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    fwrite(header, 1, head, f);
    for (int i = 0; i < 4; i++) fwrite(numbers, sizeof numbers, 1, f);
    fclose(f);
    free(header);
    return head + 4 * sizeof numbers;
}

/* Its four weights lie one after the other at `data`. */
static void take_wide_weights(struct layer_source *source, const unsigned char *data) {
    for (size_t i = 0; i < 4; i++)
        source->tensor[i] = (struct layer_tensor){.given = true,
                                                  .type = TENSOR_F64,
                                                  .rank = 2,
                                                  .dim = {WIDE, WIDE},
                                                  .stride = WIDE,
                                                  .data = data + i * WIDE * WIDE * sizeof(double)};
}

/* A layer whose weights are in that file; takes it over. */
static struct layer *layer_in(const struct st_file *file) {
    struct layer_source source = {.num_heads = 1, .num_kv_heads = 1, .file = layer_file_new(file)};
    assert_non_null(source.file);
    take_wide_weights(&source, file->data);
    struct layer *layer = layer_new(&budget, &source, "a file", &problem);
    if (!layer) fail_msg("%s", problem.detail);
    return layer;
}

static void expect_changed(struct layer *layer, enum mha_dtype dtype) {
    size_t before = atomic_load(&budget.used);
    problem_init(&problem);
    assert_null(layer_packed(layer, dtype, &problem));
    assert_int_equal(problem.code, PROBLEM_STORAGE);
    assert_non_null(strstr(problem.detail, "changed in place"));
    assert_int_equal(atomic_load(&budget.used), before);
}

/* The cut comes between the look at the file's length and the reading: here the length that is remembered is the new one. */
static void a_file_that_is_cut_while_it_is_packed_fails_the_packing_and_not_the_process(void **state) {
    (void)state;
    char path[] = "/tmp/test_layers_XXXXXX";
    struct st_file file;
    struct st_error error;
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    size_t bytes = write_wide_file(path);
    assert_true(layer_file_catch_faults());
    assert_true(st_file_open(&file, path, &error));
    void *map = file.map;
    assert_int_equal(truncate(path, (off_t)(bytes / 2)), 0);
    struct stat status;
    assert_int_equal(stat(path, &status), 0);
    file.map_bytes = bytes / 2;
    file.mtime_ns = (int64_t)status.st_mtim.tv_sec * 1000000000 + status.st_mtim.tv_nsec;
    assert_true(st_file_unchanged(&file));
    struct layer *layer = layer_in(&file);
    expect_changed(layer, MHA_F64);
    expect_changed(layer, MHA_F32); /* what was lost stays lost */
    layer_release(layer);
    munmap(map, bytes);
    unlink(path);
}

/* Source and packed form together are more than the limit: no waiting for others helps. */
static void a_layer_that_can_never_be_held_is_told_from_one_that_must_wait(void **state) {
    (void)state;
    const size_t bytes = 4 * WIDE * WIDE * sizeof(double);
    enum mem_status why;
    struct layer_source source = {.num_heads = 1, .num_kv_heads = 1, .arena = mem_arena_new(&budget)};
    unsigned char *numbers = mem_alloc(source.arena, bytes, &why);
    assert_non_null(numbers);
    memset(numbers, 0, bytes);
    take_wide_weights(&source, numbers);
    struct layer *layer = layer_new(&budget, &source, "PUT", &problem);
    assert_non_null(layer);
    budget.limit = atomic_load(&budget.used) + bytes / 2;
    assert_null(layer_packed(layer, MHA_F64, &problem));
    assert_int_equal(problem_status(problem.code), 413);
    budget.limit = 64u << 20;
    size_t others = budget.limit - atomic_load(&budget.used) - bytes / 2;
    assert_true(mem_charge(&budget, others));
    problem_init(&problem);
    assert_null(layer_packed(layer, MHA_F64, &problem));
    assert_int_equal(problem_status(problem.code), 503);
    mem_uncharge(&budget, others);
    layer_release(layer);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, fresh, all_given_back)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(every_source_type_gives_the_bytes_of_inline_weights),
        TEST(a_layer_is_packed_once_per_precision),
        TEST(weights_that_do_not_fit_together_are_refused_and_stay_the_callers),
        TEST(a_weight_that_is_not_finite_or_too_large_for_float32_is_refused_when_packed),
        TEST(packing_is_refused_when_the_budget_is_taken_and_leaves_nothing_charged),
        TEST(null_projections_are_refused_because_nothing_says_their_width),
        TEST(a_description_has_shapes_and_options_and_no_numbers_of_weights),
        TEST(names_are_plain_and_can_never_be_a_path),
        TEST(the_store_lists_in_order_and_says_what_it_replaced),
        TEST(a_layer_in_use_outlives_its_name),
        TEST(a_file_that_is_cut_while_it_is_packed_fails_the_packing_and_not_the_process),
        TEST(a_layer_that_can_never_be_held_is_told_from_one_that_must_wait),
        TEST(readers_see_whole_versions_while_writers_replace_and_delete),
    };
    return cmocka_run_group_tests_name("layers", tests, NULL, NULL);
}
