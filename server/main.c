/* SPDX-License-Identifier: Apache-2.0
 *
 * server/main.c - the process, from top to bottom.
 *
 * Where to go from here: config.c has every option, routes.c every path, handler.c the life of a request, loop.c the thread
 * that does all input and output, admission.c who computes, keeper.c who waits for the disk, drain.c how it ends.
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "../api/layers.h"
#include "cpus.h"
#include "healthcheck.h"
#include "layers.h"
#include "loop.h"
#include "mhd_errors.h"
#include "request.h"
#include "sandbox.h"
#include "service.h"
#include "text.h"

static int fail(const char *what, const char *why) {
    fprintf(stderr, "mhad: %s: %s\n", what, why);
    return 2;
}

/* Signals come as bytes of a descriptor, so that nothing runs inside a handler (but that of a mapped file's lost page). Before any thread: they inherit the mask. */
static int take_signals_as_bytes(void) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGHUP);
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN); /* write says EFBIG instead */
    layer_file_catch_faults();
    if (sigprocmask(SIG_BLOCK, &set, NULL) != 0) return -1;
    return signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC);
}

/* As many descriptors as we may have: each file of --layers keeps one. */
static void raise_file_limit(void) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
}

/* So many connections have a descriptor; called when all other files are open. */
static size_t files_for(size_t connections) {
    struct rlimit limit;
    int next = dup(STDERR_FILENO); /* the lowest that is free: as many are taken */
    size_t taken = next > 0 ? (size_t)next + 64 : 64;
    if (next >= 0) close(next);
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return connections;
    size_t room = limit.rlim_cur > taken + 64 ? limit.rlim_cur - taken : 64;
    return connections < room ? connections : room;
}

/* Mappings that wait for the next request (api/mappings.h): at most this part of --max-memory, and this much. */
#define KEEPS_PART 8
#define KEEPS_MOST ((size_t)128 << 20)

static bool set_up_memory(struct service *service, const struct config *config) {
    service->budget.limit = (size_t)config->max_memory;
    conns_set_aside(service);
    const size_t part = (size_t)config->max_memory / KEEPS_PART;
    mem_budget_keep(&service->budget, part < KEEPS_MOST ? part : KEEPS_MOST);
    service->env.budget = &service->budget;
    service->env.max_body = (size_t)config->max_body;
    service->env.threads = config->threads ? (size_t)config->threads : cpus_granted();
    service->scratch = malloc(SCRATCH_BYTES);
    return service->scratch != NULL;
}

static void set_up_limits(struct service *service, const struct config *config) {
    service->conns.limit = files_for((size_t)config->max_connections);
    service->conns.per_ip_limit = (size_t)config->max_per_ip;
    if (service->conns.limit < config->max_connections)
        log_message(&service->log, LOG_WARN, "limit", "--max-connections is %zu, the limit of open files allows %zu",
                    (size_t)config->max_connections, service->conns.limit);
}

static int set_up(struct service *service, const struct config *config, int signal_fd) {
    char why[700] = "";
    if (*config->isa && !mha_isa_force(config->isa)) return fail("--isa", "this CPU or this build does not have it");
    if (!mhd_errors_open()) return fail("libmicrohttpd", "it has no MHD_queue_response");
    if (!set_up_memory(service, config)) return fail("memory", "not enough to start");
    if (!tokens_read(&service->tokens, config->token_file, why, sizeof why)) return fail("--token-file", why);
    if (!tls_read(&service->tls, config, clock_now(), why, sizeof why)) return fail("TLS", why);
    raise_file_limit();
    if (!layers_open(service, config, why, sizeof why)) return fail("layers", why);
    if (!listeners_open(&service->listeners, config, stderr)) return 2;
    set_up_limits(service, config);
    if (!admission_open(&service->admission, service->env.threads, (size_t)config->max_queue))
        return fail("--threads", "cannot start the workers");
    if (!keeper_open(&service->keeper, service->admission.ended.eventfd))
        return fail("threads", "cannot start another");
    return loop_open(service, signal_fd) ? 0 : 2;
}

static void say_ready(struct service *service, const char *sandbox) {
    char addresses[1024];
    struct text out = text_in(addresses, sizeof addresses);
    for (size_t i = 0; i < service->listeners.count; i++)
        text_format(&out, "%s%s", i ? " " : "", service->listeners.at[i].address);
    service->ready = true;
    if (!log_begin(&service->log, LOG_INFO, "ready")) return;
    log_string(&service->log, "address", addresses);
    log_string(&service->log, "isa", mha_isa_name());
    log_count(&service->log, "threads", service->env.threads);
    log_string(&service->log, "version", mha_version());
    log_count(&service->log, "pid", (uint64_t)getpid());
    log_string(&service->log, "sandbox", sandbox);
    log_end(&service->log);
    log_flush(&service->log);
}

/* Workers first, since they may still use what connections own; then connections; then what all used. */
static void tear_down(struct service *service) {
    keeper_close(&service->keeper);
    admission_close(&service->admission);
    loop_close(service);
    listeners_close(&service->listeners);
    tokens_free(&service->tokens);
    tls_free(&service->tls);
    layers_close(service);
    shelf_clear(service);
    mem_budget_close(&service->budget);
    free(service->scratch);
}

int main(int argc, char **argv) {
    static struct service service;
    struct config config;
    int status = config_read(&config, argc, argv, environ, stdout, stderr);
    if (status >= 0) return status;
    if (*config.list_layers) return layers_print(&config, stdout, stderr);
    if (config.healthcheck) return healthcheck(&config, stderr);

    int signal_fd = take_signals_as_bytes();
    if (signal_fd < 0) return fail("signals", strerror(errno));
    service.config = &config;
    service.epoll = -1;
    service.admission.ended.eventfd = -1;
    service.metrics.started_wall_ns = clock_wall();
    log_open(&service.log, (enum log_format)config.log, (enum log_level)config.log_level, STDERR_FILENO);

    status = set_up(&service, &config, signal_fd);
    if (status == 0) {
        say_ready(&service, sandbox_enter(config.seccomp == 1));
        loop_run(&service, signal_fd);
        log_message(&service.log, LOG_INFO, "stopped", "bye");
    }
    tear_down(&service);
    log_close(&service.log);
    return status;
}
