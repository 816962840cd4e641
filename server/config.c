/* SPDX-License-Identifier: Apache-2.0
 *
 * server/config.c - the table of options and the small readers behind it; see config.h.
 */
#include "config.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "../core/mha.h"

enum option_type {
    OPTION_TEXT,     /* const char * */
    OPTION_COUNT,    /* uint64_t, decimal */
    OPTION_BYTES,    /* uint64_t, with an optional unit */
    OPTION_DURATION, /* uint64_t, nanoseconds */
    OPTION_MODE,     /* uint64_t, octal */
    OPTION_CHOICE,   /* uint64_t, index into `choices` */
    OPTION_SWITCH,   /* bool, takes no value on the command line */
};

struct option {
    const char *flag; /* without the two dashes; the variable is MHAD_ and the flag in capitals with _ for - */
    enum option_type type;
    size_t offset; /* in struct config */
    uint64_t min, max;
    const char *preset;  /* the default, as one would write it; a test reads each of them back */
    const char *choices; /* OPTION_CHOICE: "json|text|off" */
    const char *value;   /* name of the value in --help */
    const char *help;
};

#define AT(field) offsetof(struct config, field)
#define SECOND    UINT64_C(1000000000)
#define HOUR      (3600 * SECOND)
#define MIB       (UINT64_C(1) << 20)
#define SIZES_MAX (UINT64_C(1) << 46)

/* Sanitizers and valgrind make system calls of their own, so the filter starts switched off in their builds. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || defined(MHA_NO_SECCOMP)
#define SECCOMP_PRESET "off"
#else
#define SECCOMP_PRESET "on"
#endif

/* clang-format off */
static const struct option options[] = {
    {"host", OPTION_TEXT, AT(host), 0, 0, "127.0.0.1", 0, "ADDRESS", "IPv4 or IPv6 address, or name, to listen on"},
    {"port", OPTION_COUNT, AT(port), 0, 65535, "8080", 0, "N", "TCP port; 0 lets the kernel pick one (see --port-file)"},
    {"port-file", OPTION_TEXT, AT(port_file), 0, 0, "", 0, "FILE", "write the TCP port there once it is open"},
    {"unix", OPTION_TEXT, AT(unix_path), 0, 0, "", 0, "PATH", "listen on a Unix socket; TCP then only if --host or --port is given too"},
    {"unix-mode", OPTION_MODE, AT(unix_mode), 0, 0777, "0660", 0, "OCTAL", "permissions of the Unix socket"},
    {"threads", OPTION_COUNT, AT(threads), 0, 1024, "0", 0, "N", "workers; 0 takes what the cgroup and the CPU affinity grant"},
    {"max-body", OPTION_BYTES, AT(max_body), 1024, SIZES_MAX, "256MiB", 0, "BYTES", "largest request body; larger ones get 413"},
    {"max-memory", OPTION_BYTES, AT(max_memory), MIB, SIZES_MAX, "2GiB", 0, "BYTES", "budget of connections, bodies, tensors, workspaces, answers and layers together"},
    {"max-queue", OPTION_COUNT, AT(max_queue), 0, 1000000, "64", 0, "N", "computations that may wait for the workers; more get 503"},
    {"max-connections", OPTION_COUNT, AT(max_connections), 1, 1000000, "12000", 0, "N", "open connections; one more gets 503. Each counts 36 KiB of --max-memory, 68 KiB with TLS"},
    {"max-connections-per-ip", OPTION_COUNT, AT(max_per_ip), 0, 1000000, "0", 0, "N", "open connections from one address; 0 = no limit"},
    {"request-timeout", OPTION_DURATION, AT(request_timeout), SECOND / 1000, 24 * HOUR, "30s", 0, "TIME", "for a request from the end of its header to its answer; X-Request-Timeout may lower it"},
    {"header-timeout", OPTION_DURATION, AT(header_timeout), SECOND / 1000, HOUR, "20s", 0, "TIME", "for the whole header to arrive, however slowly"},
    {"idle-timeout", OPTION_DURATION, AT(idle_timeout), SECOND / 1000, 24 * HOUR, "75s", 0, "TIME", "a connection may wait between two requests"},
    {"write-timeout", OPTION_DURATION, AT(write_timeout), SECOND / 1000, 24 * HOUR, "30s", 0, "TIME", "a client may take nothing of its answer; over all it must take 32 KiB a second"},
    {"layers", OPTION_TEXT, AT(layers), 0, 0, "", 0, "DIR", "load every layer file of this folder at start"},
    {"layers-writable", OPTION_SWITCH, AT(layers_writable), 0, 1, "", 0, 0, "PUT and DELETE of layers also change the folder"},
    {"checkpoint", OPTION_TEXT, AT(checkpoint), 0, 0, "", 0, "FILE", "make each attention layer of this whole-model safetensors file a layer"},
    {"num-heads", OPTION_COUNT, AT(num_heads), 0, 1000000, "0", 0, "N", "heads of the layers of --checkpoint and --list-layers; 0 reads config.json beside the file"},
    {"list-layers", OPTION_TEXT, AT(list_layers), 0, 0, "", 0, "FILE", "print the attention layers found in a whole-model safetensors file, exit"},
    {"token-file", OPTION_TEXT, AT(token_file), 0, 0, "", 0, "FILE", "ask for one of its lines as Bearer token; /healthz and /readyz stay open. Read again at SIGHUP"},
    {"tls-cert", OPTION_TEXT, AT(tls_cert), 0, 0, "", 0, "FILE", "certificate chain in PEM: speak TLS on TCP. Read again at SIGHUP"},
    {"tls-key", OPTION_TEXT, AT(tls_key), 0, 0, "", 0, "FILE", "its private key in PEM"},
    {"drain", OPTION_DURATION, AT(drain), 0, HOUR, "10s", 0, "TIME", "for running requests to end after SIGTERM"},
    {"drain-delay", OPTION_DURATION, AT(drain_delay), 0, HOUR, "0s", 0, "TIME", "keep accepting after SIGTERM (/readyz says 503 at once)"},
    {"cors-origin", OPTION_TEXT, AT(cors_origin), 0, 0, "", 0, "ORIGIN", "let pages of this origin call (https://app.example, or *)"},
    {"no-page", OPTION_SWITCH, AT(no_page), 0, 1, "", 0, 0, "do not serve GET /"},
    {"log", OPTION_CHOICE, AT(log), 0, 0, "json", "json|text|off", "FORMAT", "one line a request on stderr"},
    {"log-level", OPTION_CHOICE, AT(log_level), 0, 0, "info", "debug|info|warn|error", "LEVEL", "debug also shows probes and scrapes"},
    {"seccomp", OPTION_CHOICE, AT(seccomp), 0, 0, SECCOMP_PRESET, "off|on", "SWITCH", "after start, refuse system calls that the service never makes"},
    {"isa", OPTION_TEXT, AT(isa), 0, 0, "", 0, "NAME", "kernels to use instead of the best: x86-64, x86-64-v3, x86-64-v4, neon (for tests)"},
    {"healthcheck", OPTION_SWITCH, AT(healthcheck), 0, 1, "", 0, 0, "ask the running server /readyz, exit 0 or 1"},
    {"print-config", OPTION_SWITCH, AT(print_config), 0, 1, "", 0, 0, "print every option with its value and source, exit"},
    {"version", OPTION_SWITCH, AT(version), 0, 1, "", 0, 0, "print the version, exit"},
    {"help", OPTION_SWITCH, AT(help), 0, 1, "", 0, 0, "print this, exit"},
};
/* clang-format on */

#define OPTION_COUNT_ALL (sizeof options / sizeof options[0])

const char *config_flag(size_t i) { return i < OPTION_COUNT_ALL ? options[i].flag : NULL; }

/* ---- readers of values ------------------------------------------------------------------------------------------- */

/* Digits in `base` from *at on; false if there is none or they pass 2^64. */
static bool read_digits(const char **at, unsigned base, uint64_t *value) {
    const char *s = *at;
    uint64_t sum = 0;
    while (*s >= '0' && (unsigned)(*s - '0') < base) {
        if (__builtin_mul_overflow(sum, (uint64_t)base, &sum)) return false;
        if (__builtin_add_overflow(sum, (uint64_t)(*s - '0'), &sum)) return false;
        s++;
    }
    if (s == *at) return false;
    *at = s;
    *value = sum;
    return true;
}

static bool read_whole(const char *text, unsigned base, uint64_t *value) {
    return read_digits(&text, base, value) && *text == '\0';
}

struct unit {
    const char *name;
    uint64_t factor;
};

/* number[.fraction][unit]; the first unit is the one meant when none is written. Nine digits of fraction count. */
static bool read_with_unit(const char *text, const struct unit *units, uint64_t *value) {
    uint64_t whole, fraction = 0, scale = 1;
    if (!read_digits(&text, 10, &whole)) return false;
    if (*text == '.') {
        text++;
        if (!isdigit((unsigned char)*text)) return false;
        for (; isdigit((unsigned char)*text); text++) {
            if (scale == 1000000000) continue;
            fraction = fraction * 10 + (uint64_t)(*text - '0');
            scale *= 10;
        }
    }
    const struct unit *unit = units;
    while (unit->name && strcmp(unit->name, text) != 0) unit++;
    if (*text == '\0') unit = units;
    if (!unit->name) return false;
    uint64_t part = (uint64_t)((unsigned __int128)fraction * unit->factor / scale);
    return !__builtin_mul_overflow(whole, unit->factor, value) && !__builtin_add_overflow(*value, part, value);
}

bool config_duration(const char *text, uint64_t *ns) {
    static const struct unit units[] = {{"s", SECOND},      {"ms", 1000000}, {"us", 1000},
                                        {"m", 60 * SECOND}, {"h", HOUR},     {0, 0}};
    return read_with_unit(text, units, ns);
}

bool config_bytes(const char *text, uint64_t *bytes) {
    static const struct unit units[] = {{"B", 1},
                                        {"KiB", 1 << 10},
                                        {"MiB", 1 << 20},
                                        {"GiB", 1 << 30},
                                        {"TiB", UINT64_C(1) << 40},
                                        {"kB", 1000},
                                        {"KB", 1000},
                                        {"MB", 1000000},
                                        {"GB", 1000000000},
                                        {"TB", UINT64_C(1000000000000)},
                                        {"K", 1 << 10},
                                        {"M", 1 << 20},
                                        {"G", 1 << 30},
                                        {0, 0}};
    return read_with_unit(text, units, bytes);
}

static bool read_choice(const char *text, const char *choices, uint64_t *index) {
    size_t length = strlen(text);
    for (*index = 0; choices; (*index)++) {
        const char *end = strchr(choices, '|');
        size_t size = end ? (size_t)(end - choices) : strlen(choices);
        if (size == length && memcmp(text, choices, size) == 0) return true;
        choices = end ? end + 1 : NULL;
    }
    return false;
}

static bool read_switch(const char *text, bool *on) {
    static const char *const words[] = {"0", "1", "false", "true", "no", "yes", "off", "on"};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        if (strcmp(text, words[i]) != 0) continue;
        *on = i % 2 == 1;
        return true;
    }
    return false;
}

/* ---- printing ---------------------------------------------------------------------------------------------------- */

static void print_bytes(FILE *out, uint64_t n) {
    static const char *const names[] = {"B", "KiB", "MiB", "GiB"};
    size_t i = 0;
    while (i < 3 && n && n % 1024 == 0) {
        n /= 1024;
        i++;
    }
    fprintf(out, "%" PRIu64 "%s", n, i ? names[i] : "");
}

static void print_duration(FILE *out, uint64_t ns) {
    if (ns % SECOND == 0)
        fprintf(out, "%" PRIu64 "s", ns / SECOND);
    else if (ns % 1000000 == 0)
        fprintf(out, "%" PRIu64 "ms", ns / 1000000);
    else
        fprintf(out, "%" PRIu64 "us", ns / 1000);
}

static void print_choice(FILE *out, const char *choices, uint64_t index) {
    for (; index; index--) choices = strchr(choices, '|') + 1;
    fprintf(out, "%.*s", (int)strcspn(choices, "|"), choices);
}

static void print_value(FILE *out, const struct config *config, const struct option *option) {
    const char *field = (const char *)config + option->offset;
    uint64_t number = 0;
    if (option->type != OPTION_TEXT && option->type != OPTION_SWITCH) memcpy(&number, field, sizeof number);
    switch (option->type) {
    case OPTION_TEXT:
        fprintf(out, "%s", *(const char *const *)field);
        break;
    case OPTION_COUNT:
        fprintf(out, "%" PRIu64, number);
        break;
    case OPTION_BYTES:
        print_bytes(out, number);
        break;
    case OPTION_DURATION:
        print_duration(out, number);
        break;
    case OPTION_MODE:
        fprintf(out, "%04" PRIo64, number);
        break;
    case OPTION_CHOICE:
        print_choice(out, option->choices, number);
        break;
    case OPTION_SWITCH:
        fprintf(out, "%s", *(const bool *)field ? "true" : "false");
        break;
    }
}

static void variable_name(const struct option *option, char out[64]) {
    size_t n = (size_t)snprintf(out, 64, "MHAD_%s", option->flag);
    for (size_t i = 5; i < n && i < 63; i++) out[i] = out[i] == '-' ? '_' : (char)toupper((unsigned char)out[i]);
}

static void print_help(FILE *out) {
    fprintf(out,
            "mhad %s - exact multi-head attention as a sidecar\n\nusage: mhad [--flag VALUE | --flag=VALUE] ...\n\n"
            "Every flag has an environment variable; the flag wins.\n\n",
            mha_version());
    for (size_t i = 0; i < OPTION_COUNT_ALL; i++) {
        const struct option *option = &options[i];
        char variable[64];
        variable_name(option, variable);
        const char *value = option->choices ? option->choices : option->value ? option->value : "";
        fprintf(out, "  --%s%s%s  (%s)\n        %s", option->flag, *value ? " " : "", value, variable, option->help);
        if (*option->preset) fprintf(out, " [%s]", option->preset);
        fprintf(out, "\n");
    }
}

enum source { SOURCE_DEFAULT, SOURCE_ENVIRONMENT, SOURCE_FLAG };

static void print_config(FILE *out, const struct config *config, const enum source *sources) {
    static const char *const names[] = {"default", "environment", "flag"};
    for (size_t i = 0; i < OPTION_COUNT_ALL; i++) {
        if (options[i].offset >= AT(healthcheck)) continue;
        fprintf(out, "%s=", options[i].flag);
        print_value(out, config, &options[i]);
        fprintf(out, "\t(%s)\n", names[sources[i]]);
    }
}

/* ---- reading everything ------------------------------------------------------------------------------------------ */

static void print_expected(FILE *err, const struct option *option) {
    static const struct config none;
    struct config bounds = none;
    switch (option->type) {
    case OPTION_CHOICE:
        fprintf(err, "expected one of %s", option->choices);
        return;
    case OPTION_SWITCH:
        fprintf(err, "expected true or false");
        return;
    case OPTION_TEXT:
        fprintf(err, "expected a text");
        return;
    case OPTION_COUNT:
        fprintf(err, "expected a whole number from ");
        break;
    case OPTION_BYTES:
        fprintf(err, "expected a size like 256MiB, from ");
        break;
    case OPTION_DURATION:
        fprintf(err, "expected a time like 500ms or 30s, from ");
        break;
    case OPTION_MODE:
        fprintf(err, "expected octal permissions from ");
        break;
    }
    memcpy((char *)&bounds + option->offset, &option->min, sizeof option->min);
    print_value(err, &bounds, option);
    fprintf(err, " to ");
    memcpy((char *)&bounds + option->offset, &option->max, sizeof option->max);
    print_value(err, &bounds, option);
}

static bool set(struct config *config, const struct option *option, const char *text) {
    char *field = (char *)config + option->offset;
    uint64_t number = 0;
    bool good = false;
    switch (option->type) {
    case OPTION_TEXT:
        memcpy(field, &text, sizeof text);
        return true;
    case OPTION_SWITCH:
        return read_switch(text, (bool *)field);
    case OPTION_COUNT:
        good = read_whole(text, 10, &number);
        break;
    case OPTION_MODE:
        good = read_whole(text, 8, &number);
        break;
    case OPTION_BYTES:
        good = config_bytes(text, &number);
        break;
    case OPTION_DURATION:
        good = config_duration(text, &number);
        break;
    case OPTION_CHOICE:
        if (!read_choice(text, option->choices, &number)) return false;
        memcpy(field, &number, sizeof number);
        return true;
    }
    if (!good || number < option->min || number > option->max) return false;
    memcpy(field, &number, sizeof number);
    return true;
}

/* One line, status 2. `name` is the flag or the variable as the operator wrote it. */
static int bad_value(FILE *err, const struct option *option, const char *name, const char *text) {
    fprintf(err, "mhad: %s: bad value \"%s\": ", name, text);
    print_expected(err, option);
    fprintf(err, "\n");
    return 2;
}

static const struct option *find(const char *flag, size_t length) {
    for (size_t i = 0; i < OPTION_COUNT_ALL; i++)
        if (strlen(options[i].flag) == length && memcmp(options[i].flag, flag, length) == 0) return &options[i];
    return NULL;
}

/* A service called "mhad" makes Kubernetes put MHAD_SERVICE_HOST, MHAD_PORT=tcp://10.0.0.1:80, MHAD_PORT_80_TCP ... into the
 * environment of every pod: none of them is meant for us. */
static bool set_by_kubernetes(const char *entry) {
    return strncmp(entry, "MHAD_SERVICE_", 13) == 0 || strncmp(entry, "MHAD_PORT_", 10) == 0
               ? strncmp(entry, "MHAD_PORT_FILE=", 15) != 0
               : strncmp(entry, "MHAD_PORT=tcp://", 16) == 0;
}

static int read_environment(struct config *config, enum source *sources, char **environment, FILE *err) {
    for (char **entry = environment; *entry; entry++) {
        if (strncmp(*entry, "MHAD_", 5) != 0) continue;
        const char *equals = strchr(*entry, '=');
        if (!equals) continue;
        const struct option *option = NULL;
        for (size_t i = 0; i < OPTION_COUNT_ALL && !option; i++) {
            char variable[64];
            variable_name(&options[i], variable);
            size_t length = (size_t)(equals - *entry);
            if (strlen(variable) == length && memcmp(variable, *entry, length) == 0) option = &options[i];
        }
        if (!option && !set_by_kubernetes(*entry))
            fprintf(err, "mhad: %.*s: no such option, ignored\n", (int)(equals - *entry), *entry);
        if (!option || set_by_kubernetes(*entry)) continue;
        if (equals[1] == '\0') continue; /* set but empty: as if it were not there, as compose files write it */
        char variable[64];
        variable_name(option, variable);
        if (!set(config, option, equals + 1)) return bad_value(err, option, variable, equals + 1);
        sources[option - options] = SOURCE_ENVIRONMENT;
    }
    return -1;
}

static int read_flags(struct config *config, enum source *sources, int argc, char **argv, FILE *err) {
    for (int i = 1; i < argc; i++) {
        const char *word = argv[i];
        if (strncmp(word, "--", 2) != 0 || word[2] == '\0') {
            fprintf(err, "mhad: unexpected argument \"%s\"; flags look like --port 8080\n", word);
            return 2;
        }
        size_t length = strcspn(word + 2, "=");
        const struct option *option = find(word + 2, length);
        if (!option) {
            fprintf(err, "mhad: no flag %.*s; `mhad --help` lists them\n", (int)(length + 2), word);
            return 2;
        }
        char name[64];
        snprintf(name, sizeof name, "--%s", option->flag);
        const char *text = word[2 + length] == '=' ? word + 2 + length + 1 : NULL;
        if (!text && option->type == OPTION_SWITCH) text = "true";
        if (!text && ++i < argc) text = argv[i];
        if (!text) {
            fprintf(err, "mhad: %s needs a value\n", name);
            return 2;
        }
        if (!set(config, option, text)) return bad_value(err, option, name, text);
        sources[option - options] = SOURCE_FLAG;
    }
    return -1;
}

/* Rules between options. */
static int check(const struct config *config, FILE *err) {
    const char *wrong = NULL;
    if (!*config->tls_cert != !*config->tls_key) wrong = "--tls-cert and --tls-key come together";
    if (config->layers_writable && !*config->layers) wrong = "--layers-writable needs --layers DIR";
    if (config->max_body > config->max_memory) wrong = "--max-body is larger than --max-memory";
    if (!*config->host) wrong = "--host is empty";
    if (!wrong) return -1;
    fprintf(err, "mhad: %s\n", wrong);
    return 2;
}

int config_read(struct config *config, int argc, char **argv, char **environment, FILE *out, FILE *err) {
    enum source sources[OPTION_COUNT_ALL] = {0};
    *config = (struct config){0};
    for (size_t i = 0; i < OPTION_COUNT_ALL; i++)
        if (options[i].type != OPTION_SWITCH && !set(config, &options[i], options[i].preset))
            return bad_value(err, &options[i], options[i].flag, options[i].preset);
    int status = read_environment(config, sources, environment, err);
    if (status < 0) status = read_flags(config, sources, argc, argv, err);
    if (status >= 0) return status;
    config->host_given = sources[find("host", 4) - options] != SOURCE_DEFAULT;
    config->port_given = sources[find("port", 4) - options] != SOURCE_DEFAULT;
    if (config->help) {
        print_help(out);
        return 0;
    }
    if (config->version) {
        fprintf(out, "mhad %s\n", mha_version());
        return 0;
    }
    status = check(config, err);
    if (status < 0 && config->print_config) {
        print_config(out, config, sources);
        return 0;
    }
    return status;
}
