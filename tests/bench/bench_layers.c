/* SPDX-License-Identifier: Apache-2.0
 *
 * tests/bench/bench_layers.c - resident layers over the wire: JSON and safetensors, TCP and Unix socket, weights resident and
 * sent inline, against the bare compute in this process and (with BENCH_PEER_PYTHON=python) against FastAPI + orjson + NumPy.
 *
 * Model. One client, one keep-alive connection per contender, one request at a time; wall-clock time from the first byte
 * sent to the last byte read, and the CPU time of the server's process, which tells more on a machine that others use. Contenders take turns, ROUNDS times, a slice of time each; a cell is the median over the rounds
 * of the mean in a slice. The client is a bare socket that reads without parsing, the same for all. The answers of all
 * contenders are compared once before anything is timed. Exit status 1 if they differ, or (BENCH_STRICT=1) a target is missed.
 *
 * Bare compute is mha_run_here or a pool of the server's size, whichever the server would take. "The bytes alone" is what no server
 * can do without: a process that reads the same safetensors request and writes an answer as long, with blocking calls of a MiB and
 * nothing else.
 */
#include <arpa/inet.h>
#include <cjson/cJSON.h>
#include <math.h>
#include <netinet/tcp.h>
#include <semaphore.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../../api/safetensors.h"
#include "../../core/mha.h"
#include "../../server/admission.h"
#include "../../server/cpus.h"

enum { D = 512, H = 8, ROUNDS = 7, CONTENDERS_MAX = 12 };
#define SLICE         0.15 /* seconds of one contender in one round, at least two requests */
#define PEER_TARGET   5.0
#define BINARY_TARGET 1.15 /* of the bare compute, at n 512 */

/* ---- data -------------------------------------------------------------------------------------------------------- */

static double number_at(unsigned seed, size_t i) {
    uint32_t x = seed * 2654435761u ^ (uint32_t)i * 2246822519u;
    x ^= x >> 15;
    x *= 3266489917u;
    x ^= x >> 13;
    return ((double)x - 2147483648.0) / 2147483648.0 / sqrt(D);
}

static double *matrix(unsigned seed, size_t rows) {
    double *data = aligned_alloc(64, rows * D * sizeof *data);
    for (size_t i = 0; i < rows * D; i++) data[i] = number_at(seed, i);
    return data;
}

static double *weight[4];
static const char *const weight_names[4] = {"W_q", "W_k", "W_v", "W_o"};

/* The queries are not small like the weights, so that the softmax is not flat. */
static double *queries(size_t n) {
    double *q = matrix(9, n);
    for (size_t i = 0; i < n * D; i++) q[i] *= sqrt(D);
    return q;
}

static void print_matrix(FILE *out, const double *data, size_t rows) {
    for (size_t i = 0; i < rows * D; i++) fprintf(out, "%s%.17g", i == 0 ? "[[" : i % D ? "," : "],[", data[i]);
    fputs("]]", out);
}

struct bytes {
    char *data;
    size_t size;
};

/* {"layer":"bench","Q":...} or with the weights. */
static struct bytes json_body(const double *q, size_t n, bool resident) {
    struct bytes body = {0};
    FILE *out = open_memstream(&body.data, &body.size);
    fputs(resident ? "{\"layer\":\"bench\"" : "{\"num_heads\":8", out);
    for (int i = 0; i < 4 && !resident; i++) {
        fprintf(out, ",\"%s\":", weight_names[i]);
        print_matrix(out, weight[i], D);
    }
    fputs(",\"Q\":", out);
    print_matrix(out, q, n);
    fputs("}", out);
    fclose(out);
    return body;
}

static struct bytes binary_body(const double *q, size_t n, bool resident, bool layer) {
    struct st_out tensors[5];
    size_t count = 0, head = 0, dim_q[] = {n, D}, dim_w[] = {D, D};
    struct st_metadata metadata = {"mha", resident ? "{\"layer\":\"bench\"}" : "{\"num_heads\":8}"};
    for (int i = 0; i < 4 && (!resident || layer); i++)
        tensors[count++] =
            (struct st_out){.name = weight_names[i], .dtype = ST_F64, .rank = 2, .dim = dim_w, .data = weight[i]};
    if (!layer) tensors[count++] = (struct st_out){.name = "Q", .dtype = ST_F64, .rank = 2, .dim = dim_q, .data = q};
    char *header = st_write_header(tensors, count, &metadata, 1, &head);
    struct bytes body = {NULL, head + tensors[count - 1].end};
    body.data = malloc(body.size);
    memcpy(body.data, header, head);
    for (size_t i = 0; i < count; i++)
        memcpy(body.data + head + tensors[i].begin, tensors[i].data, tensors[i].end - tensors[i].begin);
    free(header);
    return body;
}

/* ---- a client that only moves bytes ------------------------------------------------------------------------------ */

static void die(const char *what) {
    perror(what);
    exit(1);
}

static int connect_tcp(int port) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (connect(fd, (struct sockaddr *)&address, sizeof address) == 0) return fd;
    close(fd);
    return -1;
}

static int connect_unix(const char *path) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
    if (connect(fd, (struct sockaddr *)&address, sizeof address) == 0) return fd;
    close(fd);
    return -1;
}

/* head + body in one buffer. */
static struct bytes make_request(const char *method, const char *path, struct bytes body, bool binary) {
    const char *type = binary ? "application/vnd.safetensors" : "application/json";
    struct bytes request = {malloc(body.size + 512), 0};
    request.size = (size_t)snprintf(
        request.data, 512, "%s %s HTTP/1.1\r\nHost: x\r\nContent-Type: %s\r\nAccept: %s\r\nContent-Length: %zu\r\n\r\n",
        method, path, type, strcmp(method, "PUT") ? type : "application/json", body.size);
    memcpy(request.data + request.size, body.data, body.size);
    request.size += body.size;
    return request;
}

static void send_all(int fd, struct bytes bytes) {
    for (size_t at = 0; at < bytes.size;) {
        ssize_t n = send(fd, bytes.data + at, bytes.size - at, MSG_NOSIGNAL);
        if (n <= 0) die("send");
        at += (size_t)n;
    }
}

static size_t receive(int fd, char *out, size_t room) {
    ssize_t n = recv(fd, out, room, 0);
    if (n <= 0) die("recv");
    return (size_t)n;
}

/* Walks the chunks in [at, end); true when the last one is there. *at: the first chunk not complete yet. */
static bool chunks_end(const char *data, size_t *at, size_t end) {
    for (;;) {
        const char *line = memchr(data + *at, '\n', end - *at);
        if (!line) return false;
        size_t size = strtoul(data + *at, NULL, 16), next = (size_t)(line - data) + 1 + size + 2;
        if (next > end) return false;
        if (size == 0) return true;
        *at = next;
    }
}

#define ROOM ((size_t)48 << 20)
static char *room;

/* One answer into room, as it came; its size, *body where the body begins. Only status 2xx is accepted. */
static size_t receive_answer(int fd, size_t *body, bool *chunked) {
    size_t size = 0;
    char *end = NULL;
    while (!end) {
        size += receive(fd, room + size, ROOM - 1 - size);
        room[size] = '\0';
        end = memmem(room, size, "\r\n\r\n", 4);
    }
    *body = (size_t)(end - room) + 4;
    if (strncmp(room, "HTTP/1.1 2", 10) != 0) {
        fprintf(stderr, "bench_layers: %.600s\n", room);
        exit(1);
    }
    *end = '\0';
    const char *length = strcasestr(room, "\r\nContent-Length:");
    size_t at = *body;
    *chunked = !length;
    if (length) {
        size_t total = *body + strtoul(length + 17, NULL, 10);
        while (size < total) size += receive(fd, room + size, ROOM - 1 - size);
        return size;
    }
    while (!chunks_end(room, &at, size)) {
        size += receive(fd, room + size, ROOM - 1 - size);
        room[size] = '\0';
    }
    return size;
}

/* Puts the body's bytes together; terminated. */
static size_t join_chunks(size_t at, size_t end) {
    size_t out = 0;
    while (at < end) {
        char *line = memchr(room + at, '\n', end - at);
        size_t size = strtoul(room + at, NULL, 16);
        if (size == 0) break;
        memmove(room + out, line + 1, size);
        out += size;
        at = (size_t)(line - room) + 1 + size + 2;
    }
    room[out] = '\0';
    return out;
}

/* ---- contenders -------------------------------------------------------------------------------------------------- */

struct contender {
    const char *name;
    bool binary, peer, resident;
    int fd;
    struct bytes request;
    clockid_t cpu; /* of the server's process */
    double times[ROUNDS], cpu_times[ROUNDS];
};

struct bare {
    struct mha_problem problem;
    struct mha_result result;
    struct mha_need need;
    size_t threads;
    struct mha_pool *pool;
    void *workspace;
    sem_t done;
    double times[ROUNDS], cpu_times[ROUNDS];
};

static void done(void *semaphore) { sem_post(semaphore); }

static void compute(struct bare *bare) {
    struct mha_run *run = mha_run_init(bare->workspace, &bare->problem, &bare->result, bare->threads);
    if (admission_inline(bare->need.flops)) {
        mha_run_here(run);
        return;
    }
    mha_pool_submit(bare->pool, run, done, &bare->done);
    while (sem_wait(&bare->done) != 0) continue;
}

static double read_clock(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static double now(void) { return read_clock(CLOCK_MONOTONIC); }

static pid_t peer_pid;

static void ask(struct contender *c, size_t *body, size_t *size, bool *chunked) {
    send_all(c->fd, c->request);
    *size = receive_answer(c->fd, body, chunked);
}

/* The peer runs in its own turns only: OpenBLAS's threads spin for some 20 ms after their last product. */
static void slice_of(struct contender *c, int round) {
    if (c->peer) kill(peer_pid, SIGCONT);
    double start = now(), cpu = read_clock(c->cpu), end;
    size_t count = 0, body, size;
    bool chunked;
    do {
        ask(c, &body, &size, &chunked);
        count++;
        end = now();
    } while (end - start < SLICE || count < 2);
    c->times[round] = (end - start) / (double)count;
    c->cpu_times[round] = (read_clock(c->cpu) - cpu) / (double)count;
    if (c->peer) kill(peer_pid, SIGSTOP);
}

static void slice_of_bare(struct bare *bare, int round) {
    double start = now(), cpu = read_clock(CLOCK_PROCESS_CPUTIME_ID), end;
    size_t count = 0;
    do {
        compute(bare);
        count++;
        end = now();
    } while (end - start < SLICE || count < 2);
    bare->times[round] = (end - start) / (double)count;
    bare->cpu_times[round] = (read_clock(CLOCK_PROCESS_CPUTIME_ID) - cpu) / (double)count;
}

/* Reads requests of `in` bytes and answers `head` and `out` bytes, until the client closes. */
static void move_bytes(int fd, size_t in, const char *head, size_t out) {
    const size_t piece = (size_t)1 << 20;
    size_t head_size = strlen(head);
    char *data = calloc(1, (in > out ? in : out) + piece);
    for (;;) {
        for (size_t at = 0; at < in;) {
            ssize_t n = recv(fd, data + at, in - at < piece ? in - at : piece, 0);
            if (n <= 0) _exit(0);
            at += (size_t)n;
        }
        send_all(fd, (struct bytes){(char *)(uintptr_t)head, head_size});
        for (size_t at = 0; at < out; at += piece)
            send_all(fd, (struct bytes){data + at, out - at < piece ? out - at : piece});
    }
}

/* A process that only moves the bytes of this contender's request and of an answer of n rows, over TCP or a Unix socket. */
static struct contender bytes_alone(const struct contender *like, size_t n, bool local) {
    union {
        struct sockaddr any;
        struct sockaddr_in tcp;
        struct sockaddr_un unix_;
    } address = {.any.sa_family = local ? AF_UNIX : AF_INET};
    socklen_t size = local ? sizeof address.unix_.sun_family : sizeof address.tcp; /* the system chooses name or port */
    int listener = socket(address.any.sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1;
    if (!local) address.tcp.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (bind(listener, &address.any, size) != 0 || listen(listener, 1) != 0) die("bind");
    size = sizeof address;
    getsockname(listener, &address.any, &size);
    struct contender alone = {.name = "bytes", .request = like->request};
    alone.fd = socket(address.any.sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connect(alone.fd, &address.any, size) != 0) die("connect");
    if (!local) setsockopt(alone.fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    char head[64];
    snprintf(head, sizeof head, "HTTP/1.1 200 OK\r\nContent-Length: %zu\r\n\r\n", n * D * 8);
    pid_t pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        int fd = accept(listener, NULL, NULL);
        if (!local) setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        close(alone.fd);
        move_bytes(fd, alone.request.size, head, n * D * 8);
    }
    close(listener);
    clock_getcpuclockid(pid, &alone.cpu);
    return alone;
}

/* The output of one answer against the bare compute's. */
static void check_answer(struct contender *c, const double *expected, size_t count) {
    size_t body, size;
    bool chunked;
    double worst = 0;
    ask(c, &body, &size, &chunked);
    if (chunked) {
        size = join_chunks(body, size);
        body = 0;
    }
    if (c->binary) {
        struct st_error error;
        size_t length = 0;
        st_header_length((unsigned char *)room + body, &length, &error);
        double *actual = malloc(count * 8);
        memcpy(actual, room + body + 8 + length, count * 8);
        for (size_t i = 0; i < count; i++) worst = fmax(worst, fabs(actual[i] - expected[i]));
        free(actual);
    } else {
        cJSON *json = cJSON_ParseWithLength(room + body, size - body), *row;
        size_t i = 0;
        cJSON_ArrayForEach(row, cJSON_GetObjectItem(json, "output")) {
            const cJSON *item;
            cJSON_ArrayForEach(item, row) {
                if (i < count) worst = fmax(worst, fabs(item->valuedouble - expected[i]));
                i++;
            }
        }
        if (i != count) worst = INFINITY;
        cJSON_Delete(json);
    }
    if (!(worst <= 1e-12)) {
        fprintf(stderr, "bench_layers: the output of %s is off by %g\n", c->name, worst);
        exit(1);
    }
}

/* ---- the two servers --------------------------------------------------------------------------------------------- */

static char scratch[] = "/tmp/bench_layers_XXXXXX";
static char mhad_unix[64], peer_unix[64];
static pid_t mhad_pid;
static clockid_t mhad_cpu, peer_cpu;
static int mhad_port, peer_port;

static void stop_servers(void) {
    if (mhad_pid > 0) kill(mhad_pid, SIGTERM);
    if (peer_pid > 0) kill(peer_pid, SIGTERM), kill(peer_pid, SIGCONT);
    while (wait(NULL) > 0) continue;
    unlink(peer_unix);
    unlink(mhad_unix);
    rmdir(scratch);
}

static int free_port(void) {
    struct sockaddr_in address = {.sin_family = AF_INET};
    socklen_t size = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (bind(fd, (struct sockaddr *)&address, sizeof address) != 0) die("bind");
    getsockname(fd, (struct sockaddr *)&address, &size);
    close(fd);
    return ntohs(address.sin_port);
}

static pid_t start(char *const arguments[]) {
    pid_t pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        execv(arguments[0], arguments);
        _exit(127);
    }
    return pid;
}

static void wait_for(int port) {
    for (int i = 0; i < 600; i++) {
        int fd = connect_tcp(port);
        if (fd >= 0) {
            close(fd);
            return;
        }
        usleep(50000);
    }
    die("a server did not start");
}

static void start_servers(const char *python) {
    const char *binary = getenv("TEST_MHAD") ? getenv("TEST_MHAD") : "build/mhad";
    char port[16], d[16], h[16];
    mhad_port = free_port();
    snprintf(port, sizeof port, "%d", mhad_port);
    mhad_pid = start((char *[]){(char *)(uintptr_t)binary, "--host", "127.0.0.1", "--port", port, "--unix", mhad_unix,
                                "--log", "off", NULL});
    wait_for(mhad_port);
    clock_getcpuclockid(mhad_pid, &mhad_cpu);
    if (!python) return;
    do peer_port = free_port();
    while (peer_port == mhad_port);
    snprintf(port, sizeof port, "%d", peer_port);
    snprintf(d, sizeof d, "%d", D);
    snprintf(h, sizeof h, "%d", H);
    peer_pid = start((char *[]){(char *)(uintptr_t)python, "tests/bench/layers_peer.py", port, peer_unix, d, h, NULL});
    wait_for(peer_port);
    clock_getcpuclockid(peer_pid, &peer_cpu);
}

static void put_layer(void) {
    struct contender put = {.name = "PUT", .fd = connect_tcp(mhad_port)};
    size_t body, size;
    bool chunked;
    put.request = make_request("PUT", "/v1/layers/bench", binary_body(NULL, 0, false, true), true);
    ask(&put, &body, &size, &chunked);
    close(put.fd);
    free(put.request.data);
}

/* ---- the table --------------------------------------------------------------------------------------------------- */

static int by_value(const void *a, const void *b) { return *(const double *)a < *(const double *)b ? -1 : 1; }

static double median(const double times[ROUNDS]) {
    double sorted[ROUNDS];
    memcpy(sorted, times, sizeof sorted);
    qsort(sorted, ROUNDS, sizeof *sorted, by_value);
    return sorted[ROUNDS / 2];
}

static size_t add_contenders(struct contender *list, const double *q, size_t n, bool peer) {
    size_t count = 0;
    for (int weights = 0; weights < 2; weights++)
        for (int binary = 0; binary < 2; binary++) {
            struct bytes body = binary ? binary_body(q, n, !weights, false) : json_body(q, n, !weights);
            for (int local = 0; local < 2; local++)
                for (int other = 0; other <= peer; other++) {
                    if (weights && local) continue; /* inline weights: TCP is enough */
                    int fd = local ? connect_unix(other ? peer_unix : mhad_unix)
                                   : connect_tcp(other ? peer_port : mhad_port);
                    if (fd < 0) die("connect");
                    list[count++] = (struct contender){.name = other ? "peer" : "mhad",
                                                       .binary = binary,
                                                       .peer = other,
                                                       .resident = !weights,
                                                       .fd = fd,
                                                       .cpu = other ? peer_cpu : mhad_cpu,
                                                       .request = make_request("POST", "/v1/mha", body, binary)};
                }
            free(body.data);
        }
    return count;
}

static struct bare *make_bare(const double *q, size_t n, const struct mha_layer *layer, struct mha_pool *pool) {
    struct bare *bare = calloc(1, sizeof *bare);
    struct mha_detail detail;
    bare->problem = (struct mha_problem){.B = 1,
                                         .n_q = n,
                                         .n_k = n,
                                         .h = H,
                                         .h_kv = H,
                                         .d_k = D / H,
                                         .d_v = D / H,
                                         .d_q = D,
                                         .d_kin = D,
                                         .d_vin = D,
                                         .d_out = D,
                                         .Q = q,
                                         .K = q,
                                         .V = q,
                                         .layer = layer,
                                         .scale = 1 / sqrt(D / H)};
    bare->result.output = aligned_alloc(64, n * D * 8);
    bare->threads = mha_pool_threads(pool);
    bare->pool = pool;
    if (mha_plan(&bare->problem, &bare->result, bare->threads, &bare->need, &detail) != MHA_OK) die("mha_plan");
    bare->workspace = aligned_alloc(64, (bare->need.workspace + 64) / 64 * 64);
    sem_init(&bare->done, 0, 0);
    return bare;
}

/* One of our rows: time, times the bare compute, CPU of the server; then the peer's and the ratios. */
static bool print_row(const struct contender *c, const struct contender *peer, const char *socket_name, size_t n,
                      const struct bare *bare) {
    double ours = median(c->times), over = ours / median(bare->times), cpu = median(c->cpu_times);
    bool met = true;
    char name[64];
    snprintf(name, sizeof name, "%s, %s, weights %s", c->binary ? "safetensors" : "JSON", socket_name,
             c->resident ? "resident" : "inline");
    printf("%13s%-34s %9.3f %6.2fx %9.3f", "", name, 1e3 * ours, over, 1e3 * cpu);
    if (peer) {
        double ratio = median(peer->times) / ours;
        met = ratio >= PEER_TARGET;
        printf("  %9.3f %9.3f %6.1fx %6.1fx %s", 1e3 * median(peer->times), 1e3 * median(peer->cpu_times), ratio,
               median(peer->cpu_times) / cpu, met ? "met" : "MISSED");
    }
    if (c->binary && c->resident && n == 512) {
        printf("  (%.2f of bare: %s)", BINARY_TARGET, over <= BINARY_TARGET ? "met" : "MISSED");
        met = met && over <= BINARY_TARGET;
    }
    printf("\n");
    return met;
}

static bool print_rows(size_t n, const struct contender *list, size_t count, const struct contender alone[2],
                       const struct bare *bare, bool peer) {
    bool met = true;
    size_t step = peer ? 2 : 1;
    printf("(%3zu,%d,%d)  %-34s %9.3f %6.2fx %9.3f\n", n, D, H, "bare compute", 1e3 * median(bare->times), 1.0,
           1e3 * median(bare->cpu_times));
    for (int local = 0; local < 2; local++)
        printf("%13s%-34s %9.3f %6.2fx %9.3f\n", "",
               local ? "the bytes alone, safetensors, Unix" : "the bytes alone, safetensors, TCP",
               1e3 * median(alone[local].times), median(alone[local].times) / median(bare->times),
               1e3 * median(alone[local].cpu_times));
    for (size_t i = 0; i < count; i += step) {
        bool local = list[i].resident && i / step % 2 == 1;
        met = print_row(&list[i], peer ? &list[i + 1] : NULL, local ? "Unix" : "TCP", n, bare) && met;
    }
    fflush(stdout);
    return met;
}

static bool bench_shape(size_t n, const struct mha_layer *layer, struct mha_pool *pool, bool peer) {
    static struct contender list[CONTENDERS_MAX];
    double *q = queries(n);
    struct bare *bare = make_bare(q, n, layer, pool);
    size_t count = add_contenders(list, q, n, peer);
    const struct contender *binary = list;
    while (!binary->binary) binary++;
    struct contender alone[2] = {bytes_alone(binary, n, false), bytes_alone(binary, n, true)};
    compute(bare);
    if (peer) kill(peer_pid, SIGCONT);
    for (size_t i = 0; i < count; i++) check_answer(&list[i], bare->result.output, n * D);
    if (peer) kill(peer_pid, SIGSTOP);
    for (int round = 0; round < ROUNDS; round++) {
        slice_of_bare(bare, round);
        for (int local = 0; local < 2; local++) slice_of(&alone[local], round);
        for (size_t i = 0; i < count; i++) slice_of(&list[i], round);
    }
    bool met = print_rows(n, list, count, alone, bare, peer);
    for (int local = 0; local < 2; local++) close(alone[local].fd);
    for (size_t i = 0; i < count; i++) {
        close(list[i].fd);
        free(list[i].request.data);
    }
    free(bare->result.output);
    free(bare->workspace);
    free(bare);
    free(q);
    return met;
}

int main(void) {
    const char *python = getenv("BENCH_PEER_PYTHON");
    static const size_t shapes[] = {1, 128, 512};
    struct mha_layer_shape shape = {MHA_F64, H, H, D / H, D / H, D, D, D, D};
    struct mha_detail detail;
    bool met = true;
    if (!mkdtemp(scratch)) die("mkdtemp");
    snprintf(mhad_unix, sizeof mhad_unix, "%s/mhad", scratch);
    snprintf(peer_unix, sizeof peer_unix, "%s/peer", scratch);
    atexit(stop_servers);
    room = malloc(ROOM);
    for (unsigned i = 0; i < 4; i++) weight[i] = matrix(i + 1, D);
    struct mha_weights weights = {
        .layout = MHA_IN_OUT, .W_q = weight[0], .W_k = weight[1], .W_v = weight[2], .W_o = weight[3]};
    struct mha_layer *layer = mha_layer_new(&shape, &weights, &detail);
    struct mha_pool *pool = mha_pool_new(cpus_granted());
    if (!room || !layer || !pool) die("memory");
    start_servers(python);
    put_layer();
    printf("resident layers over the wire: one client, float64, (n, d_model, h); %s kernels, %zu threads%s\n",
           mha_isa_name(), mha_pool_threads(pool), python ? "" : "; no peer (make bench-layers adds FastAPI)");
    printf("%13s%-34s %9s %7s %9s%s\n", "", "", "ms", "of bare", "CPU ms",
           python ? "  FastAPI ms    CPU ms   ratio of CPU (target: ratio >= 5)" : "");
    for (size_t i = 0; i < 3; i++) met = bench_shape(shapes[i], layer, pool, python != NULL) && met;
    mha_pool_free(pool);
    mha_layer_free(layer);
    return met || !getenv("BENCH_STRICT") ? 0 : 1;
}
