/* SPDX-License-Identifier: Apache-2.0
 *
 * server/loop.c - see loop.h.
 */
#include "loop.h"

#include <errno.h>
#include <microhttpd.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "drain.h"
#include "handler.h"
#include "request.h"
#include "service.h"

/* What an entry of our epoll set is; anything else is a listener, or a struct conn whose client closed its side. */
static const char from_plain[] = "plain", from_secure[] = "secure", from_runs[] = "runs", from_signals[] = "signals";

#define EVENTS_AT_ONCE 64
#define ACCEPT_PAUSE   (100 * NS_PER_MS)
#define RUN_AT_ONCE    (NS_PER_MS / 2)
#define QUIET          NS_PER_SECOND /* without an event: time to give back the mappings that wait for the next request */
/* libmicrohttpd 0.9.75 asks to be called again at once, and does nothing, for as long as a connection has filled its memory with
 * the beginning of a line (a chunk's size of 32 KiB). After so many turns in vain it gets its turns at this pace instead, until
 * the deadline of that request ends it; whatever else happens is still an event and wakes the loop. */
#define VAIN_TURNS    100
#define VAIN_PAUSE_MS 20

/* ---- the daemons -------------------------------------------------------------------------------------------------- */

static void mhd_says(void *context, const char *format, va_list arguments) __attribute__((format(printf, 2, 0)));
static void mhd_says(void *context, const char *format, va_list arguments) {
    struct service *service = context;
    char message[512];
    if (service->log.level > LOG_DEBUG) return;
    vsnprintf(message, sizeof message, format, arguments);
    message[strcspn(message, "\n")] = '\0';
    log_message(&service->log, LOG_DEBUG, "libmicrohttpd", "%s", message);
}

/* MHD_USE_NO_THREAD_SAFETY, which 0.9.77 brought: all calls come from this thread, so MHD_add_connection need not queue. conns.c
 * depends on that: the connection has started when the call returns. Older versions do so anyway and ignore the bit; it is set
 * by value because a binary built with them may meet a later library, which has the same soname. */
#define MHD_FROM_ONE_THREAD (1u << 19)

/* libmicrohttpd's variable arguments, with their exact types, in one place. */
static struct MHD_Daemon *start_daemon(struct service *service, bool secure) {
    struct MHD_OptionItem options[8];
    size_t n = 0;
    if (secure) {
        tls_options(options);
        n = 2;
    }
#if MHD_VERSION >= 0x00097701
    options[n++] = (struct MHD_OptionItem){MHD_OPTION_CLIENT_DISCIPLINE_LVL, 1, NULL};
#endif
    options[n] = (struct MHD_OptionItem){MHD_OPTION_END, 0, NULL};
    unsigned flags =
        MHD_USE_EPOLL | MHD_USE_NO_LISTEN_SOCKET | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ERROR_LOG | MHD_FROM_ONE_THREAD;
    return MHD_start_daemon(flags | (secure ? MHD_USE_TLS : 0), 0, NULL, NULL, handler_access, service, //
                            MHD_OPTION_EXTERNAL_LOGGER, mhd_says, (void *)service,                      //
                            MHD_OPTION_URI_LOG_CALLBACK, handler_line, (void *)service,                 //
                            MHD_OPTION_NOTIFY_COMPLETED, handler_completed, (void *)service,            //
                            MHD_OPTION_NOTIFY_CONNECTION, conns_notify, (void *)service,                //
                            MHD_OPTION_CONNECTION_LIMIT, (unsigned)service->conns.limit + 16,           //
                            MHD_OPTION_CONNECTION_TIMEOUT, 0u,                                          //
                            MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)CONN_POOL_BYTES,                //
                            MHD_OPTION_ARRAY, options, MHD_OPTION_END);
}

static bool watch(struct service *service, int fd, const void *what) {
    union {
        const void *in;
        void *out;
    } pointer = {.in = what};
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = pointer.out};
    return epoll_ctl(service->epoll, EPOLL_CTL_ADD, fd, &event) == 0;
}

static bool watch_daemon(struct service *service, struct MHD_Daemon *daemon, const void *what) {
    const union MHD_DaemonInfo *info = daemon ? MHD_get_daemon_info(daemon, MHD_DAEMON_INFO_EPOLL_FD) : NULL;
    return info && watch(service, info->epoll_fd, what);
}

static bool watch_listeners(struct service *service) {
    for (size_t i = 0; i < service->listeners.count; i++)
        if (!watch(service, service->listeners.at[i].fd, &service->listeners.at[i])) return false;
    return true;
}

bool loop_open(struct service *service, int signal_fd) {
    service->epoll = epoll_create1(EPOLL_CLOEXEC);
    bool good = service->epoll >= 0 && watch(service, service->admission.ended.eventfd, from_runs);
    good = good && watch(service, signal_fd, from_signals) && watch_listeners(service);
    if (good) service->plain = start_daemon(service, false);
    good = good && watch_daemon(service, service->plain, from_plain);
    if (good && service->tls.on) {
        service->secure = start_daemon(service, true);
        good = watch_daemon(service, service->secure, from_secure);
    }
    if (!good) fprintf(stderr, "mhad: cannot start the I/O loop: %s\n", strerror(errno));
    return good;
}

void loop_close(struct service *service) {
    if (service->plain) MHD_stop_daemon(service->plain);
    if (service->secure) MHD_stop_daemon(service->secure);
    service->plain = service->secure = NULL;
    if (service->epoll >= 0) close(service->epoll);
    deadline_heap_free(&service->conns.deadlines);
}

/* ---- signals ------------------------------------------------------------------------------------------------------ */

static void read_files_again(struct service *service) {
    char why[300] = "";
    if (tokens_read(&service->tokens, service->config->token_file, why, sizeof why))
        log_message(&service->log, LOG_INFO, "reload", "%zu tokens", service->tokens.count);
    else
        log_message(&service->log, LOG_ERROR, "reload", "--token-file %s: %s; the old tokens stay",
                    service->config->token_file, why);
    if (!tls_read(&service->tls, service->config, clock_now(), why, sizeof why))
        log_message(&service->log, LOG_ERROR, "reload", "TLS: %s; the old certificate stays", why);
    else if (service->tls.on)
        log_message(&service->log, LOG_INFO, "reload", "certificate %s", service->config->tls_cert);
}

static void take_signals(struct service *service, struct drain *drain, int signal_fd) {
    struct signalfd_siginfo signal;
    while (read(signal_fd, &signal, sizeof signal) == sizeof signal) {
        if (signal.ssi_signo == SIGHUP)
            read_files_again(service);
        else
            drain_begin(drain, service, clock_now());
    }
}

/* ---- the loop ----------------------------------------------------------------------------------------------------- */

struct turn {
    struct drain drain;
    uint64_t accept_again_at; /* 0: accepting; else the listeners are out of the set until then */
    uint64_t drain_wake;
    int signal_fd;
    uint64_t ended_at;      /* when the last turn ended: near enough to when this one begins to wait */
    uint64_t event_at;      /* when an event came last */
    uint64_t progress_seen; /* service->progress after the last turn */
    unsigned vain;          /* turns since then that brought no event and no progress */
    bool runs_ended;        /* the eventfd of admission.c was readable in this turn */
};

static void pause_accepting(struct service *service, struct turn *turn) {
    for (size_t i = 0; i < service->listeners.count; i++)
        epoll_ctl(service->epoll, EPOLL_CTL_DEL, service->listeners.at[i].fd, NULL);
    turn->accept_again_at = clock_now() + ACCEPT_PAUSE;
    log_message(&service->log, LOG_WARN, "accept",
                "no file descriptor left (%zu connections): not accepting for 100 ms", service->conns.count);
}

static bool wants_turn(struct MHD_Daemon *daemon) {
    MHD_UNSIGNED_LONG_LONG ms;
    return daemon && MHD_get_timeout(daemon, &ms) == MHD_YES && ms == 0;
}

static bool wants_turns(const struct service *service) {
    return wants_turn(service->plain) || wants_turn(service->secure);
}

static bool keeps_mappings(const struct service *service) {
    return atomic_load_explicit(&service->budget.mappings.held, memory_order_relaxed) > 0;
}

/* Milliseconds until something falls due, rounded up; -1: nothing does. */
static int time_to_wait(struct service *service, const struct turn *turn, uint64_t now) {
    bool again = wants_turns(service);
    if (again && turn->vain < VAIN_TURNS) return 0;
    const struct deadline *first = deadline_first(&service->conns.deadlines);
    uint64_t due = first ? first->at : UINT64_MAX;
    if (turn->accept_again_at && turn->accept_again_at < due) due = turn->accept_again_at;
    if (turn->drain.begun && turn->drain_wake < due) due = turn->drain_wake;
    if (keeps_mappings(service) && turn->event_at + QUIET < due) due = turn->event_at + QUIET;
    if (due == UINT64_MAX) return again ? VAIN_PAUSE_MS : -1;
    uint64_t wait = due > now ? (due - now + NS_PER_MS - 1) / NS_PER_MS : 0, most = again ? VAIN_PAUSE_MS : 60000;
    return (int)(wait > most ? most : wait);
}

static bool is_listener(const struct service *service, const void *what) {
    const struct listener *first = service->listeners.at;
    return (const struct listener *)what >= first && (const struct listener *)what < first + LISTENERS_MAX;
}

static void take_event(struct service *service, struct turn *turn, const struct epoll_event *event) {
    const void *what = event->data.ptr;
    if (what == from_plain || what == from_secure) return; /* MHD_run comes in every turn */
    if (what == from_runs)
        turn->runs_ended = true;
    else if (what == from_signals)
        take_signals(service, &turn->drain, turn->signal_fd);
    else if (!is_listener(service, what))
        handler_client_left(event->data.ptr);
    else if (!conns_accept(service, what) && !turn->accept_again_at)
        pause_accepting(service, turn);
}

/* For each, which it may let go. */
static void hand_on(struct request *request, void (*to)(struct request *request)) {
    while (request) {
        struct request *next = request->queue_next;
        to(request);
        request = next;
    }
}

static void take_ended_runs(struct service *service, struct turn *turn) {
    if (!turn->runs_ended) return;
    turn->runs_ended = false;
    hand_on(admission_collect(&service->admission), handler_run_ended);
    hand_on(keeper_collect(&service->keeper), handler_kept);
}

static void take_deadlines(struct service *service, uint64_t now) {
    struct deadline *first;
    while ((first = deadline_first(&service->conns.deadlines)) && first->at <= now) {
        struct conn *conn = (struct conn *)((char *)first - offsetof(struct conn, deadline));
        conn_arm(conn, 0);
        handler_deadline(conn);
    }
}

static void run_once(struct service *service) {
    MHD_run(service->plain);
    if (service->secure) MHD_run(service->secure);
}

/* libmicrohttpd takes one piece of a body, or sends one block of an answer, each time it is called. As long as that goes on it is
 * called again without a turn of ours in between, but not for longer than anybody else should wait. */
static void run_daemons(struct service *service) {
    uint64_t seen = service->progress, until = 0, now;
    run_once(service);
    while (service->progress != seen && wants_turns(service)) {
        now = clock_now();
        if (until == 0) until = now + RUN_AT_ONCE;
        if (now >= until) return;
        seen = service->progress;
        run_once(service);
    }
}

static bool take_turn(struct service *service, struct turn *turn) {
    struct epoll_event events[EVENTS_AT_ONCE];
    int count = epoll_wait(service->epoll, events, EVENTS_AT_ONCE, time_to_wait(service, turn, turn->ended_at));
    for (int i = 0; i < count; i++) take_event(service, turn, &events[i]);
    take_ended_runs(service, turn);
    take_deadlines(service, clock_now());
    run_daemons(service);
    conns_nudge_all(&service->conns);
    turn->vain = count == 0 && service->progress == turn->progress_seen ? turn->vain + 1 : 0;
    turn->progress_seen = service->progress;
    uint64_t now = turn->ended_at = clock_now();
    if (count > 0) turn->event_at = now;
    if (now - turn->event_at >= QUIET && keeps_mappings(service)) mappings_empty(&service->budget.mappings);
    if (turn->accept_again_at && now >= turn->accept_again_at) {
        turn->accept_again_at = 0;
        watch_listeners(service);
    }
    bool over = drain_step(&turn->drain, service, now, &turn->drain_wake);
    log_flush(&service->log);
    return !over;
}

void loop_run(struct service *service, int signal_fd) {
    struct turn turn = {.signal_fd = signal_fd, .ended_at = clock_now()};
    while (take_turn(service, &turn)) continue;
    run_daemons(service); /* lets libmicrohttpd see the sockets that the drain shut */
}
