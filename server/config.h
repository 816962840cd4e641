/* SPDX-License-Identifier: Apache-2.0
 *
 * server/config.h - what the operator asked for: one table of options (config.c), read once at start.
 *
 * Model. Every option has a flag (--max-body), an environment variable (MHAD_MAX_BODY), a type with bounds, a default and a
 * line of help. The flag beats the variable, the variable beats the default. A bad value or an unknown flag ends the program
 * with status 2 and one line on stderr that names it; an unknown MHAD_ variable is named and ignored. After config_read
 * nothing changes.
 *
 * What it does not do: look at files (tls.c, token.c) or ports (listen.c).
 */
#ifndef MHA_SERVER_CONFIG_H
#define MHA_SERVER_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum log_format { LOG_JSON = 0, LOG_TEXT, LOG_OFF };
enum log_level { LOG_DEBUG = 0, LOG_INFO, LOG_WARN, LOG_ERROR };

struct config {
    const char *host;         /* address to listen on */
    uint64_t port;            /* 0: the kernel picks one */
    const char *port_file;    /* where to write the port, "" = nowhere */
    const char *unix_path;    /* "" = no Unix socket */
    uint64_t unix_mode;       /* permission bits of that socket */
    uint64_t threads;         /* workers; 0 = what the cgroup and the affinity mask grant */
    uint64_t max_body;        /* bytes of one request body */
    uint64_t max_memory;      /* bytes of everything in flight */
    uint64_t max_queue;       /* runs that may wait for the pool */
    uint64_t max_connections; /* open at once */
    uint64_t max_per_ip;      /* of them from one address, 0 = no limit */
    uint64_t request_timeout; /* ns, from the end of the header to the start of the answer */
    uint64_t header_timeout;  /* ns, from the connect or the request line to the end of the header */
    uint64_t idle_timeout;    /* ns, between two requests of a connection */
    uint64_t write_timeout;   /* ns, in which a client may take nothing of its answer */
    uint64_t drain;           /* ns, for running requests after SIGTERM */
    uint64_t drain_delay;     /* ns, of accepting on after SIGTERM */
    const char *layers;       /* folder with layers to load, "" = none */
    bool layers_writable;     /* PUT and DELETE also change that folder */
    const char *checkpoint;   /* whole-model file whose attention layers become layers, "" = none */
    uint64_t num_heads;       /* of its layers, 0 = from config.json beside it */
    const char *list_layers;  /* print what that file holds and exit, "" = no */
    const char *token_file;   /* "" = no tokens */
    const char *tls_cert;     /* "" = no TLS */
    const char *tls_key;
    const char *cors_origin; /* "" = no CORS headers */
    bool no_page;            /* GET / is not served */
    uint64_t log;            /* enum log_format */
    uint64_t log_level;      /* enum log_level */
    uint64_t seccomp;        /* 1 = filter system calls after start */
    const char *isa;         /* "" = the best this CPU has (MHAD_ISA) */
    bool healthcheck, print_config, version, help;

    bool port_given, host_given; /* by flag or variable: decides whether --unix replaces TCP or joins it */
};

/* Fills *config from argv and the environment. Returns -1 to go on, or the status to exit with at once (0 after --help,
 * --version and --print-config; 2 after printing one line on `err`). Strings borrow argv's and environ's memory. */
int config_read(struct config *config, int argc, char **argv, char **environment, FILE *out, FILE *err);

/* "500ms", "30s", "2m", "30" (seconds), "1.5s" -> nanoseconds. False if it is none of these. */
bool config_duration(const char *text, uint64_t *ns);
/* "4096", "256MiB", "2GB" -> bytes. */
bool config_bytes(const char *text, uint64_t *bytes);

/* The options by number, for the test that compares them with the documents. NULL past the end. */
const char *config_flag(size_t i);

#endif
