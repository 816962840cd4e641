/* SPDX-License-Identifier: Apache-2.0
 *
 * api/layers.c - resident layers and the store of their names; see layers.h.
 *
 * Packing goes through the same checks and conversions as weights that come with a request (weights.h): the source becomes a
 * `struct request` of the layer document whose tensors are borrowed, in an arena that lives as long as the packing. So a layer
 * gives the same bytes as the same weights sent inline.
 */
#include "layers.h"

#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "number.h"
#include "weights.h"

#define ORIGIN_MAX 200

/* ---- files ------------------------------------------------------------------------------------------------------- */

struct layer_file {
    atomic_size_t references;
    struct st_file file;
    size_t page;
    atomic_bool torn; /* a page could not be read: the file is shorter now, or its disk failed */
};

/* The file whose pages this thread reads now. */
static _Thread_local struct layer_file *volatile reading;

struct layer_file *layer_file_new(const struct st_file *file) {
    struct layer_file *shared = malloc(sizeof *shared);
    if (!shared) return NULL;
    shared->file = *file;
    shared->page = (size_t)sysconf(_SC_PAGESIZE);
    atomic_init(&shared->torn, false);
    atomic_init(&shared->references, 1);
    return shared;
}

struct layer_file *layer_file_keep(struct layer_file *file) {
    atomic_fetch_add_explicit(&file->references, 1, memory_order_relaxed);
    return file;
}

void layer_file_release(struct layer_file *file) {
    if (!file || atomic_fetch_sub_explicit(&file->references, 1, memory_order_acq_rel) != 1) return;
    st_file_close(&file->file);
    free(file);
}

/* Zeros take the place of what cannot be read, so that the reader comes to its end; file_is_good then says no. */
static bool fill_page(struct layer_file *file, uintptr_t address) {
    uintptr_t begin = (uintptr_t)file->file.map, end = (uintptr_t)file->file.data + file->file.header->data_bytes;
    uintptr_t page = address & ~((uintptr_t)file->page - 1);
    if (address < begin || address >= end) return false;
    atomic_store(&file->torn, true); /* before the zeros: other threads may read them */
    return mmap((void *)page, end - page, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != MAP_FAILED;
}

static void bus_error(int number, siginfo_t *info, void *context) {
    (void)context;
    int code = errno;
    if (!reading || !fill_page(reading, (uintptr_t)info->si_addr))
        signal(number, SIG_DFL); /* comes again and ends us */
    errno = code;
}

bool layer_file_catch_faults(void) {
    struct sigaction action = {.sa_sigaction = bus_error, .sa_flags = SA_SIGINFO};
    sigemptyset(&action.sa_mask);
    return sigaction(SIGBUS, &action, NULL) == 0;
}

static bool file_is_good(const struct layer_file *file) {
    return !atomic_load(&file->torn) && st_file_unchanged(&file->file);
}

const struct st_file *layer_file_get(const struct layer_file *file) { return &file->file; }

/* ---- one layer --------------------------------------------------------------------------------------------------- */

struct layer {
    atomic_size_t references;
    struct mem_budget *budget;
    struct layer_source source;
    struct mha_layer_shape shape;
    char origin[ORIGIN_MAX + 1];
    pthread_mutex_t packing;               /* held while a packed form is made */
    _Atomic(struct mha_layer *) packed[2]; /* by enum mha_dtype; set once */
    size_t packed_bytes[2];                /* charged for it; written before packed */
};

/* The source as a request of the layer document. Strided tensors are gathered into the arena. */
static bool make_request(const struct layer_source *source, struct mem_arena *arena, struct mem_budget *budget,
                         struct request *request, struct options *options, bool gather, struct problem *problem);

static size_t dense_stride(const struct layer_tensor *t) {
    size_t stride = 1;
    for (size_t i = 1; i < t->rank; i++) stride *= t->dim[i];
    return stride;
}

/* Rows of a slice side by side. NULL and *problem when there is no memory. */
static void *gather_rows(const struct layer_tensor *t, struct mem_arena *arena, struct mem_budget *budget,
                         const char *name, struct problem *problem) {
    size_t size = tensor_type_size(t->type), row = dense_stride(t) * size, step = t->stride * size, bytes;
    enum mem_status why = MEM_TOO_LARGE;
    char *rows = mem_mul(row, t->dim[0], &bytes) ? mem_alloc(arena, bytes, &why) : NULL;
    if (!rows) {
        problem_memory(problem, why, budget, "", row, name);
        return NULL;
    }
    for (size_t i = 0; i < t->dim[0]; i++) memcpy(rows + i * row, t->data + i * step, row);
    return rows;
}

/* float32 with one rounding of the JSON text; NULL without *problem when one is too large for it, which tensor_convert tells. */
static float *round_once(const struct layer_tensor *t, struct mem_arena *arena, struct mem_budget *budget, size_t count,
                         const char *name, struct problem *problem) {
    enum mem_status why = MEM_TOO_LARGE;
    size_t bytes, note = SIZE_MAX;
    float *narrow = mem_mul(count, sizeof *narrow, &bytes) ? mem_alloc(arena, bytes, &why) : NULL;
    const char *tie = t->ties, *end = tie + t->ties_size;
    if (!narrow) {
        problem_memory(problem, why, budget, "", count, name);
        return NULL;
    }
    memcpy(&note, tie, sizeof note);
    for (size_t i = 0; i < count; i++) {
        double wide;
        memcpy(&wide, t->data + i * sizeof wide, sizeof wide);
        narrow[i] = (float)wide;
        if (note >> 1 == i) {
            narrow[i] = tensor_text_round_tie(wide, note & 1);
            note = SIZE_MAX;
            if ((tie += sizeof note) != end) memcpy(&note, tie, sizeof note);
        }
        if (isinf(narrow[i])) return NULL;
    }
    return narrow;
}

static bool make_tensor(const struct layer_tensor *from, enum tensor_id id, struct request *request, bool gather) {
    struct tensor *to = &request->tensor[id];
    if (!from->given) {
        to->null = id <= T_W_o;
        return true;
    }
    to->given = true;
    to->type = from->type;
    to->rank = from->rank;
    to->count = 1;
    for (size_t i = 0; i < from->rank; i++) {
        to->dim[i] = from->dim[i];
        to->count *= from->dim[i];
    }
    to->data = (void *)(uintptr_t)from->data; /* borrowed: tensor_convert writes only to memory of its own */
    if (!gather || from->rank < 2 || from->stride == dense_stride(from)) return true;
    to->data = gather_rows(from, request->arena, request->budget, field_of_tensor(id)->name, request->problem);
    return to->data != NULL;
}

static bool make_request(const struct layer_source *source, struct mem_arena *arena, struct mem_budget *budget,
                         struct request *request, struct options *options, bool gather, struct problem *problem) {
    request_init(request, IN_LAYER, arena, budget, problem);
    *options = (struct options){.has_num_heads = true,
                                .num_heads = source->num_heads,
                                .has_num_kv_heads = source->num_kv_heads != source->num_heads,
                                .num_kv_heads = source->num_kv_heads,
                                .has_layout = true,
                                .layout = source->layout};
    for (size_t i = 0; i < LAYER_TENSORS; i++)
        if (!make_tensor(&source->tensor[i], (enum tensor_id)(T_W_q + i), request, gather)) return false;
    return true;
}

static const struct input_widths unknown_widths = {WIDTH_UNKNOWN, WIDTH_UNKNOWN, WIDTH_UNKNOWN, "Q", "K", "V"};

static struct layer_tensor view_of(const struct tensor *tensor) {
    struct layer_tensor view = {
        .given = tensor->given, .type = tensor->type, .rank = tensor->rank, .data = tensor->data};
    for (size_t i = 0; i < tensor->rank && i < 3; i++) view.dim[i] = tensor->dim[i];
    view.stride = dense_stride(&view);
    return view;
}

bool layer_read_request(struct request *request, struct layer_source *source) {
    struct options options;
    struct mha_layer_shape shape;
    if (!options_read(request, &options) || !weights_shape(request, &options, &unknown_widths, &shape)) return false;
    *source = (struct layer_source){.num_heads = options.num_heads,
                                    .num_kv_heads = options.num_kv_heads,
                                    .layout = options.layout,
                                    .dtype = options.dtype,
                                    .has_scale = options.has_scale,
                                    .has_softcap = options.softcap > 0,
                                    .scale = options.scale,
                                    .softcap = options.softcap};
    for (size_t i = 0; i < LAYER_TENSORS; i++) {
        struct tensor *tensor = &request->tensor[T_W_q + i];
        const char *name = field_of_tensor((enum tensor_id)(T_W_q + i))->name;
        if (tensor->from_text &&
            !tensor_convert(tensor, name, options.dtype, false, request->arena, request->budget, request->problem))
            return false;
        source->tensor[i] = view_of(tensor);
        if (options.has_dtype || !tensor->text) continue; /* said: what is kept is that dtype's number */
        source->tensor[i].ties = tensor->ties.data;
        source->tensor[i].ties_size = tensor->ties.size;
    }
    return true;
}

/* The dimensions of the source, if its weights fit together; nothing is read of their numbers. */
static bool check_source(const struct layer_source *source, struct mem_budget *budget, struct mha_layer_shape *shape,
                         struct problem *problem) {
    struct request *request = malloc(sizeof *request);
    struct options options;
    if (!request) return problem_memory(problem, MEM_FAILED, budget, "", sizeof *request, "The layer");
    bool ok = make_request(source, NULL, budget, request, &options, false, problem) &&
              weights_shape(request, &options, &unknown_widths, shape);
    free(request);
    return ok;
}

struct layer *layer_new(struct mem_budget *budget, const struct layer_source *source, const char *origin,
                        struct problem *problem) {
    struct mha_layer_shape shape;
    if (!check_source(source, budget, &shape, problem)) return NULL;
    struct layer *layer = mem_charge(budget, sizeof *layer) ? calloc(1, sizeof *layer) : NULL;
    if (!layer) {
        problem_memory(problem, MEM_BUSY, budget, "", sizeof *layer, "The layer");
        return NULL;
    }
    atomic_init(&layer->references, 1);
    layer->budget = budget;
    layer->source = *source;
    layer->shape = shape;
    layer_set_origin(layer, origin);
    pthread_mutex_init(&layer->packing, NULL);
    return layer;
}

void layer_take_packed(struct layer *to, struct layer *from) {
    for (int i = 0; i < 2; i++) {
        atomic_store(&to->packed[i], atomic_exchange(&from->packed[i], NULL));
        to->packed_bytes[i] = from->packed_bytes[i];
        from->packed_bytes[i] = 0;
    }
}

void layer_set_origin(struct layer *layer, const char *origin) {
    snprintf(layer->origin, sizeof layer->origin, "%s", origin);
}

struct layer *layer_keep(struct layer *layer) {
    atomic_fetch_add_explicit(&layer->references, 1, memory_order_relaxed);
    return layer;
}

void layer_release(struct layer *layer) {
    if (!layer || atomic_fetch_sub_explicit(&layer->references, 1, memory_order_acq_rel) != 1) return;
    for (int i = 0; i < 2; i++) {
        mha_layer_free(atomic_load(&layer->packed[i]));
        mem_uncharge(layer->budget, layer->packed_bytes[i]);
    }
    mem_arena_free(layer->source.arena);
    layer_file_release(layer->source.file);
    pthread_mutex_destroy(&layer->packing);
    mem_uncharge(layer->budget, sizeof *layer);
    free(layer);
}

const struct layer_source *layer_source(const struct layer *layer) { return &layer->source; }
const struct mha_layer_shape *layer_shape(const struct layer *layer) { return &layer->shape; }

/* ---- packing ----------------------------------------------------------------------------------------------------- */

/* From converted weights to core's form, charged. */
static struct mha_layer *pack_weights(struct layer *layer, const struct mha_layer_shape *shape,
                                      const struct mha_weights *weights, struct problem *problem) {
    struct mha_detail detail = {0};
    size_t bytes = mha_layer_bytes(shape, weights);
    size_t source = layer->source.arena ? mem_arena_used(layer->source.arena) : 0; /* stays beside it */
    bool too_large = source > layer->budget->limit || bytes > layer->budget->limit - source;
    if (too_large || !mem_charge(layer->budget, bytes)) {
        problem_memory(problem, too_large ? MEM_TOO_LARGE : MEM_BUSY, layer->budget, "", bytes, "The packed layer");
        return NULL;
    }
    struct mha_layer *packed = mha_layer_new(shape, weights, &detail);
    if (packed) {
        layer->packed_bytes[shape->dtype] = bytes;
        return packed;
    }
    mem_uncharge(layer->budget, bytes);
    if (detail.code == MHA_ERR_MEMORY)
        problem_memory(problem, MEM_FAILED, layer->budget, "", bytes, "The packed layer");
    else
        problem_set(problem, PROBLEM_INTERNAL, "", "The layer cannot be packed: %s (%s).", mha_error_text(detail.code),
                    detail.field ? detail.field : "?");
    return NULL;
}

/* Makes the tensors with ties float32. */
static bool use_ties(const struct layer *layer, struct request *request, struct problem *problem) {
    for (size_t i = 0; i < LAYER_TENSORS; i++) {
        const struct layer_tensor *from = &layer->source.tensor[i];
        struct tensor *to = &request->tensor[T_W_q + i];
        if (!from->ties_size) continue;
        float *narrow = round_once(from, request->arena, request->budget, to->count,
                                   field_of_tensor((enum tensor_id)(T_W_q + i))->name, problem);
        if (problem->code != PROBLEM_NONE) return false;
        if (!narrow) continue;
        to->data = narrow;
        to->type = TENSOR_F32;
    }
    return true;
}

static struct mha_layer *pack_in(struct layer *layer, enum mha_dtype dtype, struct mem_arena *arena,
                                 struct request *request, struct problem *problem) {
    struct options options;
    struct mha_layer_shape shape;
    struct mha_weights weights = {0};
    if (!make_request(&layer->source, arena, layer->budget, request, &options, true, problem)) return NULL;
    if (dtype == MHA_F32 && !use_ties(layer, request, problem)) return NULL;
    if (!weights_build(request, &options, dtype, &unknown_widths, &shape, &weights)) return NULL;
    return pack_weights(layer, &shape, &weights, problem);
}

static struct mha_layer *pack_source(struct layer *layer, enum mha_dtype dtype, struct problem *problem) {
    struct mem_arena *arena = mem_arena_new(layer->budget);
    struct request *request = malloc(sizeof *request);
    struct mha_layer *packed = NULL;
    if (arena && request)
        packed = pack_in(layer, dtype, arena, request, problem);
    else
        problem_memory(problem, MEM_FAILED, layer->budget, "", sizeof *request, "The layer");
    free(request);
    mem_arena_free(arena);
    return packed;
}

static struct mha_layer *changed_in_place(const struct layer *layer, struct problem *problem) {
    problem_init(problem);
    problem_set(
        problem, PROBLEM_STORAGE, "",
        "The file of this layer (%s) was changed in place after it was loaded. Files must be replaced by renaming "
        "a new one over them; restart the server to load this one.",
        layer->origin);
    return NULL;
}

/* What was packed while the file changed may be half of the old and half of the new. */
static struct mha_layer *pack(struct layer *layer, enum mha_dtype dtype, struct problem *problem) {
    struct layer_file *file = layer->source.file;
    if (!file) return pack_source(layer, dtype, problem);
    if (!file_is_good(file)) return changed_in_place(layer, problem);
    reading = file;
    struct mha_layer *packed = pack_source(layer, dtype, problem);
    reading = NULL;
    if (file_is_good(file)) return packed;
    mha_layer_free(packed);
    mem_uncharge(layer->budget, layer->packed_bytes[dtype]);
    layer->packed_bytes[dtype] = 0;
    return changed_in_place(layer, problem);
}

const struct mha_layer *layer_packed(struct layer *layer, enum mha_dtype dtype, struct problem *problem) {
    struct mha_layer *packed = atomic_load_explicit(&layer->packed[dtype], memory_order_acquire);
    if (packed) return packed;
    pthread_mutex_lock(&layer->packing);
    packed = atomic_load_explicit(&layer->packed[dtype], memory_order_acquire);
    if (!packed) {
        packed = pack(layer, dtype, problem);
        if (packed) atomic_store_explicit(&layer->packed[dtype], packed, memory_order_release);
    }
    pthread_mutex_unlock(&layer->packing);
    return packed;
}

bool layer_is_packed(const struct layer *layer, enum mha_dtype dtype) {
    return atomic_load_explicit(&layer->packed[dtype], memory_order_acquire) != NULL;
}

size_t layer_source_bytes(const struct layer *layer) {
    size_t bytes = 0;
    for (size_t i = 0; i < LAYER_TENSORS; i++) {
        const struct layer_tensor *t = &layer->source.tensor[i];
        if (t->given && t->rank) bytes += t->dim[0] * dense_stride(t) * tensor_type_size(t->type);
    }
    return bytes;
}

/* ---- description ------------------------------------------------------------------------------------------------- */

static void print_number(FILE *out, const char *name, double value) {
    char number[NUMBER_ROOM];
    size_t n = number_write_f64(number, value);
    fprintf(out, ",\"%s\":%.*s", name, (int)n, number);
}

static void print_tensors(FILE *out, const struct layer_source *source) {
    bool first = true;
    fprintf(out, ",\"tensors\":{");
    for (size_t i = 0; i < LAYER_TENSORS; i++) {
        const struct layer_tensor *t = &source->tensor[i];
        bool weight = i < LAYER_TENSOR(T_b_q);
        char shape[PROBLEM_SHAPE_MAX];
        if (!t->given && !weight) continue;
        fprintf(out, "%s\"%s\":", first ? "" : ",", field_of_tensor((enum tensor_id)(T_W_q + i))->name);
        first = false;
        if (t->given)
            fprintf(out, "{\"shape\":%s,\"dtype\":\"%s\"}", problem_shape(shape, t->dim, t->rank),
                    tensor_type_name(t->type));
        else
            fprintf(out, "null");
    }
    fprintf(out, "}");
}

/* As a JSON string: layer names and origins hold printable ASCII and file names. */
void layer_print_string(FILE *out, const char *text) {
    putc('"', out);
    for (; *text; text++) {
        unsigned char c = (unsigned char)*text;
        if (c < 0x20 || c == 0x7f)
            fprintf(out, "\\u%04x", c);
        else if (c == '"' || c == '\\')
            fprintf(out, "\\%c", c);
        else
            putc(c, out);
    }
    putc('"', out);
}

char *layer_describe(struct layer *layer, const char *name) {
    const struct mha_layer_shape *s = &layer->shape;
    const struct layer_source *source = &layer->source;
    char *text = NULL;
    size_t size = 0, bytes = sizeof *layer + (source->arena ? mem_arena_used(source->arena) : 0);
    FILE *out = open_memstream(&text, &size);
    if (!out) return NULL;
    fprintf(out, "{\"name\":");
    layer_print_string(out, name);
    fprintf(out,
            ",\"num_heads\":%zu,\"num_kv_heads\":%zu,\"d_k\":%zu,\"d_v\":%zu,\"d_q\":%zu,\"d_kin\":%zu,\"d_vin\":%zu,"
            "\"d_out\":%zu,\"weight_layout\":\"%s\"",
            s->h, s->h_kv, s->d_k, s->d_v, s->d_q, s->d_kin, s->d_vin, s->d_out, layout_name(source->layout));
    fprintf(out, ",\"dtype\":\"%s\"", source->dtype == MHA_F32 ? "float32" : "float64");
    if (source->has_scale) print_number(out, "scale", source->scale);
    if (source->has_softcap) print_number(out, "softcap", source->softcap);
    print_tensors(out, source);
    fprintf(out, ",\"packed\":[");
    bool first = true;
    for (int i = 0; i < 2; i++) {
        if (!atomic_load_explicit(&layer->packed[i], memory_order_acquire)) continue;
        fprintf(out, "%s\"%s\"", first ? "" : ",", i == MHA_F64 ? "float64" : "float32");
        bytes += layer->packed_bytes[i];
        first = false;
    }
    fprintf(out, "],\"bytes\":%zu,\"origin\":", bytes);
    layer_print_string(out, layer->origin);
    fprintf(out, "}\n");
    return fclose(out) == 0 ? text : NULL;
}

/* ---- the store --------------------------------------------------------------------------------------------------- */

struct entry {
    char *name;
    struct layer *layer;
};

struct layer_store {
    pthread_mutex_t lock;
    struct entry *entries; /* sorted by name */
    size_t count, capacity;
};

struct layer_store *layer_store_new(void) {
    struct layer_store *store = calloc(1, sizeof *store);
    if (store) pthread_mutex_init(&store->lock, NULL);
    return store;
}

void layer_store_free(struct layer_store *store) {
    if (!store) return;
    for (size_t i = 0; i < store->count; i++) {
        layer_release(store->entries[i].layer);
        free(store->entries[i].name);
    }
    free(store->entries);
    pthread_mutex_destroy(&store->lock);
    free(store);
}

bool layer_name_check(const char *name, struct problem *problem) {
    size_t length = strlen(name);
    bool ok = length > 0 && length <= LAYER_NAME_MAX && name[0] != '.' && name[0] != '-';
    for (const char *c = name; ok && *c; c++)
        ok = (*c >= 'a' && *c <= 'z') || (*c >= 'A' && *c <= 'Z') || (*c >= '0' && *c <= '9') || *c == '.' ||
             *c == '_' || *c == '-';
    if (ok || !problem) return ok;
    return problem_set(
        problem, PROBLEM_OUT_OF_RANGE, "",
        "A layer's name has 1 to %d characters, letters A-Z and a-z, digits, '.', '_' and '-', and does not "
        "begin with '.' or '-'; \"%.60s\" is none.",
        LAYER_NAME_MAX, name);
}

/* Where the name is or would be. */
static size_t place_of(const struct layer_store *store, const char *name, bool *found) {
    size_t low = 0, high = store->count;
    *found = false;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        int order = strcmp(store->entries[middle].name, name);
        if (order == 0) {
            *found = true;
            return middle;
        }
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static bool insert(struct layer_store *store, size_t place, const char *name, struct layer *layer) {
    if (store->count == store->capacity) {
        size_t capacity = store->capacity ? 2 * store->capacity : 16;
        struct entry *entries = reallocarray(store->entries, capacity, sizeof *entries);
        if (!entries) return false;
        store->entries = entries;
        store->capacity = capacity;
    }
    char *copy = strdup(name);
    if (!copy) return false;
    memmove(&store->entries[place + 1], &store->entries[place], (store->count - place) * sizeof *store->entries);
    store->entries[place] = (struct entry){copy, layer};
    store->count++;
    return true;
}

bool layer_store_put(struct layer_store *store, const char *name, struct layer *layer, bool *replaced) {
    bool found, ok = true;
    struct layer *old = NULL;
    pthread_mutex_lock(&store->lock);
    size_t place = place_of(store, name, &found);
    if (found) {
        old = store->entries[place].layer;
        store->entries[place].layer = layer;
    } else {
        ok = insert(store, place, name, layer);
    }
    pthread_mutex_unlock(&store->lock);
    layer_release(old); /* outside the lock: it may free gigabytes */
    if (replaced) *replaced = found;
    return ok;
}

struct layer *layer_store_get(struct layer_store *store, const char *name) {
    bool found;
    pthread_mutex_lock(&store->lock);
    size_t place = place_of(store, name, &found);
    struct layer *layer = found ? layer_keep(store->entries[place].layer) : NULL;
    pthread_mutex_unlock(&store->lock);
    return layer;
}

bool layer_store_delete(struct layer_store *store, const char *name) {
    bool found;
    struct entry old = {0};
    pthread_mutex_lock(&store->lock);
    size_t place = place_of(store, name, &found);
    if (found) {
        old = store->entries[place];
        store->count--;
        memmove(&store->entries[place], &store->entries[place + 1], (store->count - place) * sizeof *store->entries);
    }
    pthread_mutex_unlock(&store->lock);
    layer_release(old.layer);
    free(old.name);
    return found;
}

size_t layer_store_count(struct layer_store *store) {
    pthread_mutex_lock(&store->lock);
    size_t count = store->count;
    pthread_mutex_unlock(&store->lock);
    return count;
}

char *layer_store_list(struct layer_store *store) {
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    if (!out) return NULL;
    pthread_mutex_lock(&store->lock);
    fprintf(out, "{\"layers\":[");
    for (size_t i = 0; i < store->count; i++) fprintf(out, "%s\"%s\"", i ? "," : "", store->entries[i].name);
    fprintf(out, "]}\n");
    pthread_mutex_unlock(&store->lock);
    return fclose(out) == 0 ? text : NULL;
}

/* Among so many names a near one is looked for; a message must not need memory. */
#define SUGGEST_MAX 256

void layer_store_suggest(struct layer_store *store, const char *name, char out[LAYER_NAME_MAX + 1]) {
    const char *names[SUGGEST_MAX];
    out[0] = '\0';
    pthread_mutex_lock(&store->lock);
    size_t count = store->count < SUGGEST_MAX ? store->count : SUGGEST_MAX;
    for (size_t i = 0; i < count; i++) names[i] = store->entries[i].name;
    const char *near = word_suggest(name, names, count);
    if (near) snprintf(out, LAYER_NAME_MAX + 1, "%s", near);
    pthread_mutex_unlock(&store->lock);
}
