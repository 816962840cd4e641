/* SPDX-License-Identifier: Apache-2.0
 *
 * server/drain.c - see drain.h.
 */
#include "drain.h"

#include <inttypes.h>

#include "handler.h"
#include "request.h"
#include "service.h"

#define LINGER   (100 * NS_PER_MS) /* for a request that is already on the wire of an idle connection */
#define HOLD     (50 * NS_PER_MS)  /* for handshakes that have begun */
#define LAST_SAY NS_PER_SECOND     /* for the answers after the cut */

void drain_begin(struct drain *drain, struct service *service, uint64_t now) {
    if (drain->begun) {
        drain->close_at = drain->deadline = now;
        return;
    }
    drain->begun = true;
    service->draining = true;
    drain->close_at = now + service->config->drain_delay;
    drain->deadline = drain->close_at + service->config->drain;
    log_message(&service->log, LOG_INFO, "drain", "%" PRIu64 " requests in flight, %zu connections",
                service->metrics.in_flight, service->conns.count);
}

/* In two steps: who waits in the accept queue has been accepted by the kernel, so let him in before the door closes. */
static void stop_listening(struct drain *drain, struct service *service, uint64_t now) {
    if (!drain->listeners_held) {
        listeners_hold(&service->listeners);
        drain->listeners_held = true;
        drain->close_at = now + HOLD;
        return;
    }
    for (size_t i = 0; i < service->listeners.count; i++) conns_accept(service, &service->listeners.at[i]);
    listeners_close(&service->listeners);
    drain->listeners_closed = true;
}

static void cut(struct drain *drain, struct service *service, uint64_t now) {
    drain->cut = service->stopping = true;
    drain->give_up_at = now + LAST_SAY;
    for (struct conn *conn = service->conns.head; conn; conn = conn->next) {
        if (!conn->request) continue;
        drain->cut_count++;
        handler_cut(conn->request);
    }
    if (drain->cut_count)
        log_message(&service->log, LOG_WARN, "drain", "%" PRIu64 " requests were not done within --drain",
                    drain->cut_count);
}

static bool nothing_suspended(const struct service *service) {
    return service->admission.running == 0 && service->admission.waiting == 0 && service->keeper.count == 0;
}

bool drain_step(struct drain *drain, struct service *service, uint64_t now, uint64_t *wake) {
    if (!drain->begun) return false;
    if (!drain->listeners_closed && now >= drain->close_at) stop_listening(drain, service, now);
    if (!drain->listeners_closed) {
        *wake = drain->close_at;
        return false;
    }
    if (service->conns.count == 0) return true;
    if (service->metrics.in_flight)
        drain->quiet_since = 0;
    else if (!drain->quiet_since)
        drain->quiet_since = now;
    if (drain->quiet_since && now - drain->quiet_since >= LINGER) conns_shut_idle(service);
    if (!drain->cut && now >= drain->deadline) cut(drain, service, now);
    if (drain->cut && now >= drain->give_up_at && nothing_suspended(service)) {
        conns_shut_all(service);
        return true;
    }
    *wake = now + LINGER / 2;
    return false;
}
