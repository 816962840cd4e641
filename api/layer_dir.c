/* SPDX-License-Identifier: Apache-2.0
 *
 * api/layer_dir.c - see layer_dir.h.
 */
#include "layer_dir.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "checkpoint.h"
#include "document.h"
#include "number.h"
#include "safetensors_body.h"

#define TEMPORARY ".mhad-"
#define PATH_ROOM 4400 /* a directory of PATH_MAX and a name */

static bool system_problem(struct problem *problem, const char *what, const char *path) {
    char reason[96] = "";
    const char *text = strerror_r(errno, reason, sizeof reason);
    return problem_set(problem, PROBLEM_STORAGE, "", "%s %.300s: %s.", what, path, text);
}

static bool join(char out[PATH_ROOM], const char *directory, const char *name, const char *suffix,
                 struct problem *problem) {
    int n = snprintf(out, PATH_ROOM, "%s/%s%s", directory, name, suffix);
    if (n > 0 && n < PATH_ROOM) return true;
    return problem_set(problem, PROBLEM_STORAGE, "", "The path of the layers directory is too long.");
}

/* The part of a path that a description shows: "layers/a.json" and not where the directory lies. */
static const char *shown(const char *path) {
    const char *at = path + strlen(path);
    for (int slashes = 0; at > path; at--)
        if (at[-1] == '/' && ++slashes == 2) break;
    return at;
}

/* ---- one writer at a time ---------------------------------------------------------------------------------------- */

#define LOCK_TRIES   1000
#define LOCK_WAIT_NS 10000000 /* 10 s in all */

/* Servers that share the directory change it one after the other: their temporary files have the same names. The lock ends with
 * the descriptor, so also with a process that is killed. File systems without locks are used as they are. -1 and *problem. */
static int lock_directory(const char *directory, struct problem *problem) {
    const struct timespec wait = {.tv_nsec = LOCK_WAIT_NS};
    int fd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    bool taken = fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
    for (int i = 0; taken && i < LOCK_TRIES; i++) {
        nanosleep(&wait, NULL);
        taken = flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
    }
    if (fd >= 0 && !taken) return fd;
    system_problem(problem, fd < 0 ? "Cannot open" : "Another process keeps locked", shown(directory));
    if (fd >= 0) close(fd);
    return -1;
}

/* ---- loading one file -------------------------------------------------------------------------------------------- */

/* A request of the layer document in an arena of its own. */
struct reading {
    struct mem_arena *arena;
    struct request *request;
};

static bool reading_begin(struct reading *reading, struct mem_budget *budget, struct problem *problem) {
    reading->arena = mem_arena_new(budget);
    reading->request = malloc(sizeof *reading->request);
    if (!reading->arena || !reading->request) {
        mem_arena_free(reading->arena);
        free(reading->request);
        return problem_memory(problem, MEM_FAILED, budget, "", sizeof *reading->request, "The layer");
    }
    request_init(reading->request, IN_LAYER, reading->arena, budget, problem);
    return true;
}

static void reading_end(struct reading *reading) {
    free(reading->request);
    mem_arena_free(reading->arena);
}

static struct layer *layer_of_safetensors(const char *path, struct mem_budget *budget, struct problem *problem) {
    struct st_error error;
    struct st_file file;
    struct layer_source source;
    struct reading reading;
    struct layer *layer = NULL;
    if (!st_file_open(&file, path, &error)) {
        st_file_close(&file);
        safetensors_problem(problem, &error, budget);
        return NULL;
    }
    struct layer_file *shared = layer_file_new(&file);
    if (!shared) {
        st_file_close(&file);
        problem_memory(problem, MEM_FAILED, budget, "", sizeof file, "The layer");
        return NULL;
    }
    if (reading_begin(&reading, budget, problem)) {
        if (safetensors_request(file.header, file.data, reading.request) &&
            layer_read_request(reading.request, &source)) {
            source.file = shared;
            layer = layer_new(budget, &source, shown(path), problem);
        }
        reading_end(&reading);
    }
    if (!layer) layer_file_release(shared);
    return layer;
}

static bool feed_file(int fd, const char *path, struct document *document, struct problem *problem) {
    char *bytes = malloc(1 << 16);
    ssize_t n = -1;
    if (!bytes) return problem_set(problem, PROBLEM_OUT_OF_MEMORY, "", "Out of memory.");
    while (problem->code == PROBLEM_NONE && (n = read(fd, bytes, 1 << 16)) > 0)
        document_feed(document, bytes, (size_t)n);
    free(bytes);
    return n >= 0 || system_problem(problem, "Cannot read", path);
}

static struct layer *layer_of_json(const char *path, struct mem_budget *budget, struct problem *problem) {
    struct layer_source source;
    struct reading reading;
    struct layer *layer = NULL;
    struct stat status;
    struct document *document = malloc(sizeof *document);
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (!document || fd < 0) {
        system_problem(problem, "Cannot open", path);
    } else if (fstat(fd, &status) != 0 || !S_ISREG(status.st_mode)) { /* a device may never end */
        problem_set(problem, PROBLEM_OUT_OF_RANGE, "", "It is not a regular file.");
    } else if (reading_begin(&reading, budget, problem)) {
        document_init(document, reading.request);
        if (feed_file(fd, path, document, problem) && document_end(document) &&
            layer_read_request(reading.request, &source)) {
            source.arena = reading.arena;
            layer = layer_new(budget, &source, shown(path), problem);
            if (layer) reading.arena = NULL;
        }
        reading_end(&reading);
    }
    if (fd >= 0) close(fd);
    free(document);
    return layer;
}

/* ---- loading the directory --------------------------------------------------------------------------------------- */

static bool has_suffix(const char *name, const char *suffix) {
    size_t n = strlen(name), m = strlen(suffix);
    return n > m && strcmp(name + n - m, suffix) == 0;
}

static int is_candidate(const struct dirent *entry) {
    return entry->d_name[0] != '.' && (has_suffix(entry->d_name, ".safetensors") || has_suffix(entry->d_name, ".json"));
}

static int is_leftover(const struct dirent *entry) { return strncmp(entry->d_name, TEMPORARY, strlen(TEMPORARY)) == 0; }

static void free_entries(struct dirent **entries, int count) {
    for (int i = 0; i < count; i++) free(entries[i]);
    free(entries);
}

/* What cannot be removed does no harm. */
static void remove_leftovers(const char *directory) {
    struct dirent **entries;
    struct problem ignored;
    char path[PATH_ROOM];
    problem_init(&ignored);
    int lock = lock_directory(directory, &ignored),
        count = lock < 0 ? -1 : scandir(directory, &entries, is_leftover, alphasort);
    for (int i = 0; i < count; i++)
        if (join(path, directory, entries[i]->d_name, "", &ignored)) unlink(path);
    if (count >= 0) free_entries(entries, count);
    if (lock >= 0) close(lock);
}

/* Puts the file's name before what is wrong with it. */
static bool name_file(struct problem *problem, const char *file, const struct problem *why) {
    const char *hint = why->code == PROBLEM_UNKNOWN_FIELD ? " (A whole model is loaded with --checkpoint FILE.)" : "";
    return problem_set(problem, why->code, "", "%.250s: %.480s%s", file, why->detail, hint);
}

static bool load_file(const char *directory, const char *file, struct mem_budget *budget, struct layer_store *store,
                      size_t *count, struct problem *problem) {
    char path[PATH_ROOM], name[LAYER_NAME_MAX + 1];
    struct problem why;
    bool json = has_suffix(file, ".json");
    problem_init(&why);
    snprintf(name, sizeof name, "%.*s", (int)(strrchr(file, '.') - file), file);
    size_t length = (size_t)(strrchr(file, '.') - file);
    if (length > LAYER_NAME_MAX || !layer_name_check(name, &why)) {
        problem_set(&why, PROBLEM_OUT_OF_RANGE, "", "The file's name is too long for a layer.");
        return name_file(problem, file, &why);
    }
    if (json && join(path, directory, name, ".safetensors", &why) && access(path, F_OK) == 0)
        return true; /* that one counts */
    if (!join(path, directory, file, "", &why)) return name_file(problem, file, &why);
    struct layer *layer = json ? layer_of_json(path, budget, &why) : layer_of_safetensors(path, budget, &why);
    if (!layer) return name_file(problem, file, &why);
    if (layer_store_put(store, name, layer, NULL)) {
        ++*count;
        return true;
    }
    layer_release(layer);
    return problem_set(problem, PROBLEM_OUT_OF_MEMORY, "", "Out of memory.");
}

bool layer_dir_load(const char *directory, bool writable, struct mem_budget *budget, struct layer_store *store,
                    size_t *count, struct problem *problem) {
    struct dirent **entries;
    if (writable) remove_leftovers(directory);
    int found = scandir(directory, &entries, is_candidate, alphasort);
    if (found < 0) return system_problem(problem, "Cannot list the layers directory", directory);
    bool ok = true;
    if (writable && access(directory, W_OK) != 0)
        ok = system_problem(problem, "Cannot write to the layers directory", directory);
    size_t loaded = 0;
    for (int i = 0; ok && i < found; i++)
        ok = load_file(directory, entries[i]->d_name, budget, store, &loaded, problem);
    free_entries(entries, found);
    if (count) *count = loaded;
    return ok;
}

/* ---- writing ----------------------------------------------------------------------------------------------------- */

static bool write_all(int fd, const void *bytes, size_t size) {
    const char *at = bytes;
    while (size > 0) {
        ssize_t n = write(fd, at, size < 1u << 30 ? size : 1u << 30);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return false;
        at += n;
        size -= (size_t)n;
    }
    return true;
}

/* {"num_heads":2,...}: everything that is not a tensor, nulls among the weights included. */
static char *options_text(const struct layer_source *s) {
    static const char *const weights[] = {"W_q", "W_k", "W_v", "W_o"};
    char *text = NULL, number[NUMBER_ROOM];
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    if (!out) return NULL;
    fprintf(out, "{\"num_heads\":%zu,\"num_kv_heads\":%zu,\"weight_layout\":\"%s\",\"dtype\":\"%s\"", s->num_heads,
            s->num_kv_heads, layout_name(s->layout), s->dtype == MHA_F32 ? "float32" : "float64");
    if (s->has_scale) fprintf(out, ",\"scale\":%.*s", (int)number_write_f64(number, s->scale), number);
    if (s->has_softcap) fprintf(out, ",\"softcap\":%.*s", (int)number_write_f64(number, s->softcap), number);
    for (size_t i = 0; i < 4; i++)
        if (!s->tensor[i].given) fprintf(out, ",\"%s\":null", weights[i]);
    fprintf(out, "}");
    return fclose(out) == 0 ? text : NULL;
}

static bool write_rows(int fd, const struct layer_tensor *t) {
    size_t row = tensor_type_size(t->type), step = t->stride * row;
    for (size_t i = 1; i < t->rank; i++) row *= t->dim[i];
    if (row == step) return write_all(fd, t->data, t->dim[0] * row);
    for (size_t i = 0; i < t->dim[0]; i++)
        if (!write_all(fd, t->data + i * step, row)) return false;
    return true;
}

/* The whole file. Sets errno when false. */
static bool write_source(int fd, const struct layer_source *source) {
    static const enum st_dtype dtypes[] = {
        [TENSOR_F64] = ST_F64, [TENSOR_F32] = ST_F32, [TENSOR_F16] = ST_F16, [TENSOR_BF16] = ST_BF16};
    struct st_out out[LAYER_TENSORS];
    size_t count = 0, bytes = 0;
    for (size_t i = 0; i < LAYER_TENSORS; i++) {
        const struct layer_tensor *t = &source->tensor[i];
        if (!t->given) continue;
        out[count++] = (struct st_out){.name = field_of_tensor((enum tensor_id)(T_W_q + i))->name,
                                       .dtype = dtypes[t->type],
                                       .rank = t->rank,
                                       .dim = t->dim,
                                       .data = t};
    }
    char *options = options_text(source);
    struct st_metadata metadata = {"mha", options ? options : ""};
    char *header = options ? st_write_header(out, count, &metadata, 1, &bytes) : NULL;
    bool ok = header && write_all(fd, header, bytes);
    for (size_t i = 0; ok && i < count; i++) ok = write_rows(fd, out[i].data);
    if (!header) errno = ENOMEM;
    free(header);
    free(options);
    return ok;
}

/* Writes to `temporary`, which must not exist, and syncs it. */
static bool write_temporary(const char *temporary, const struct layer_source *source, struct problem *problem) {
    int fd = open(temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (fd < 0) return system_problem(problem, "Cannot create", shown(temporary));
    bool ok = write_source(fd, source) && fsync(fd) == 0;
    if (!ok) system_problem(problem, "Cannot write", shown(temporary));
    if (close(fd) != 0 && ok) ok = system_problem(problem, "Cannot write", shown(temporary));
    if (!ok) unlink(temporary);
    return ok;
}

/* A file holds one number for an element, and says of which dtype. */
static bool can_be_kept(const struct layer_source *source, struct problem *problem) {
    for (size_t i = 0; i < LAYER_TENSORS; i++)
        if (source->tensor[i].ties_size)
            return problem_set(problem, PROBLEM_MISSING_FIELD, "/dtype",
                               "%s holds numbers that float32 rounds one way from the text and another way from "
                               "float64, and a layer's file "
                               "keeps one of them: say \"dtype\": \"float64\" or \"float32\".",
                               field_of_tensor((enum tensor_id)(T_W_q + i))->name);
    return true;
}

int layer_dir_begin(const char *directory, struct problem *problem) { return lock_directory(directory, problem); }

void layer_dir_end(int lock) {
    if (lock < 0) return;
    fsync(lock); /* what can fail here is only how soon it is durable */
    close(lock);
}

struct layer *layer_dir_stage(const char *directory, const char *name, const struct layer *layer,
                              struct mem_budget *budget, struct problem *problem) {
    char temporary[PATH_ROOM];
    if (!can_be_kept(layer_source(layer), problem) || !join(temporary, directory, TEMPORARY, name, problem))
        return NULL;
    unlink(temporary); /* of an earlier life */
    if (!write_temporary(temporary, layer_source(layer), problem)) return NULL;
    struct layer *stored = layer_of_safetensors(temporary, budget, problem);
    if (!stored) unlink(temporary);
    return stored;
}

bool layer_dir_commit(const char *directory, const char *name, struct layer *stored, struct problem *problem) {
    char final[PATH_ROOM], json[PATH_ROOM], temporary[PATH_ROOM];
    if (!join(final, directory, name, ".safetensors", problem) || !join(json, directory, name, ".json", problem) ||
        !join(temporary, directory, TEMPORARY, name, problem))
        return false;
    if (rename(temporary, final) != 0) return system_problem(problem, "Cannot rename to", shown(final));
    layer_set_origin(stored, shown(final));
    unlink(json);
    return true;
}

void layer_dir_discard(const char *directory, const char *name) {
    char temporary[PATH_ROOM];
    struct problem ignored;
    problem_init(&ignored);
    if (join(temporary, directory, TEMPORARY, name, &ignored)) unlink(temporary);
}

struct layer *layer_dir_put(const char *directory, const char *name, const struct layer *layer,
                            struct mem_budget *budget, struct problem *problem) {
    int lock = layer_dir_begin(directory, problem);
    struct layer *stored = lock < 0 ? NULL : layer_dir_stage(directory, name, layer, budget, problem);
    if (stored && !layer_dir_commit(directory, name, stored, problem)) {
        layer_dir_discard(directory, name);
        layer_release(stored);
        stored = NULL;
    }
    layer_dir_end(lock);
    return stored;
}

static bool remove_files(const char *directory, const char *name, struct problem *problem) {
    static const char *const suffixes[] = {
        ".json", ".safetensors"}; /* in this order: a crash between leaves the one that counts */
    char path[PATH_ROOM];
    for (int i = 0; i < 2; i++) {
        if (!join(path, directory, name, suffixes[i], problem)) return false;
        if (unlink(path) != 0 && errno != ENOENT) return system_problem(problem, "Cannot remove", shown(path));
    }
    return true;
}

bool layer_dir_delete(const char *directory, const char *name, struct problem *problem) {
    int lock = lock_directory(directory, problem);
    if (lock < 0) return false;
    bool ok = remove_files(directory, name, problem);
    if (ok && fsync(lock) != 0) ok = system_problem(problem, "Cannot sync", shown(directory));
    close(lock);
    return ok;
}

/* ---- checkpoints ------------------------------------------------------------------------------------------------- */

/* Opens the file and finds its layers. */
static bool open_checkpoint(const char *path, size_t num_heads, struct st_file *file, struct checkpoint *found,
                            struct problem *problem) {
    struct st_error error;
    if (!st_file_open(file, path, &error))
        return problem_set(problem, PROBLEM_SAFETENSORS, "", "%.300s: %s.", path, error.text);
    char *config = checkpoint_config_beside(path);
    bool ok = checkpoint_find(file->header, file->data, config, num_heads, found, &error);
    free(config);
    return ok || problem_set(problem, PROBLEM_OUT_OF_RANGE, "", "%.300s: %s.", path, error.text);
}

static bool put_layer(struct checkpoint_layer *found, struct layer_file *file, const char *path,
                      struct mem_budget *budget, struct layer_store *store, struct problem *problem) {
    char origin[LAYER_NAME_MAX + 1];
    struct problem why;
    problem_init(&why);
    snprintf(origin, sizeof origin, "%.150s (%s)", shown(path), found->family);
    found->source.file = layer_file_keep(file);
    struct layer *layer = layer_new(budget, &found->source, origin, &why);
    if (layer && layer_store_put(store, found->name, layer, NULL)) return true;
    layer_release(layer);
    if (!layer) layer_file_release(file);
    problem_init(problem); /* more than the refusal of another layer */
    return problem_set(problem, layer ? PROBLEM_OUT_OF_MEMORY : why.code, "", "%.300s: layer %.100s: %.300s", path,
                       found->name, why.detail);
}

bool layer_checkpoint_load(const char *path, size_t num_heads, struct mem_budget *budget, struct layer_store *store,
                           size_t *count, size_t *refused, struct problem *problem) {
    struct st_file file = {.fd = -1};
    struct checkpoint found = {0};
    struct layer_file *shared = NULL;
    bool ok = open_checkpoint(path, num_heads, &file, &found, problem) && (shared = layer_file_new(&file)) != NULL;
    for (size_t i = 0; ok && i < found.count; i++) {
        struct checkpoint_layer *layer = &found.layers[i];
        if (layer->usable)
            ok = put_layer(layer, shared, path, budget, store, problem);
        else
            problem_set(problem, PROBLEM_OUT_OF_RANGE, "", "%.300s: layer %.100s is refused: %.240s.", path,
                        layer->name, layer->refusal);
    }
    ok = ok && found.usable > 0;
    *count = found.usable;
    if (refused) *refused = found.count - found.usable;
    checkpoint_free(&found);
    if (shared)
        layer_file_release(shared);
    else
        st_file_close(&file);
    return ok;
}

char *layer_checkpoint_list(const char *path, size_t num_heads, struct problem *problem) {
    struct st_file file = {.fd = -1};
    struct checkpoint found = {0};
    char *text = open_checkpoint(path, num_heads, &file, &found, problem) ? checkpoint_table(&found) : NULL;
    checkpoint_free(&found);
    st_file_close(&file);
    return text;
}
