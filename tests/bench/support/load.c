/* SPDX-License-Identifier: Apache-2.0
 *
 * tests/bench/support/load.c - see load.h.
 */
#include "load.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "rows.h"

enum { CONNECTIONS_MAX = 256, ANSWER_MAX = 65536 };

struct link {
    int fd;
    size_t got;
    char answer[ANSWER_MAX + 1];
};

int load_connect(int port) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (fd >= 0 && connect(fd, (struct sockaddr *)&address, sizeof address) == 0) return fd;
    if (fd >= 0) close(fd);
    return -1;
}

/* The size of the whole answer, 0 while its head has not come whole. */
static size_t answer_size(const char *answer) {
    const char *end = strstr(answer, "\r\n\r\n");
    if (!end) return 0;
    const char *length = strcasestr(answer, "\r\nContent-Length:");
    size_t body = length && length < end ? (size_t)strtoul(length + 17, NULL, 10) : 0;
    return (size_t)(end + 4 - answer) + body;
}

static bool send_request(struct link *link, const char *request, size_t size) {
    link->got = 0;
    return send(link->fd, request, size, MSG_NOSIGNAL) == (ssize_t)size; /* small: the socket buffer takes it whole */
}

/* Takes what has come; sends the next request if that was the end of an answer. False: the connection is of no use any more. */
static bool advance(struct link *link, struct load *load, const char *request, size_t size) {
    ssize_t got = recv(link->fd, link->answer + link->got, ANSWER_MAX - link->got, 0);
    if (got <= 0) return false;
    link->got += (size_t)got;
    link->answer[link->got] = '\0';
    size_t whole = answer_size(link->answer);
    if (whole == 0 || link->got < whole) return link->got < ANSWER_MAX;
    load->answers++;
    load->wrong += memcmp(link->answer, "HTTP/1.1 200 ", 13) != 0;
    return send_request(link, request, size);
}

struct load load_run(int port, const char *request, size_t size, size_t connections, double seconds) {
    struct load load = {0};
    struct link *links = must_alloc(sizeof *links * connections);
    struct epoll_event events[CONNECTIONS_MAX];
    int epoll = epoll_create1(EPOLL_CLOEXEC);
    for (size_t i = 0; i < connections; i++) {
        links[i].fd = load_connect(port);
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = &links[i]};
        if (links[i].fd < 0 || epoll_ctl(epoll, EPOLL_CTL_ADD, links[i].fd, &event) != 0 ||
            !send_request(&links[i], request, size))
            load.wrong++;
    }
    double begun = wall_seconds(), stop = begun + seconds;
    while (wall_seconds() < stop) {
        int ready = epoll_wait(epoll, events, CONNECTIONS_MAX, 100);
        for (int i = 0; i < ready; i++) {
            struct link *link = events[i].data.ptr;
            if (advance(link, &load, request, size)) continue;
            load.wrong++;
            epoll_ctl(epoll, EPOLL_CTL_DEL, link->fd, NULL);
        }
    }
    load.seconds = wall_seconds() - begun;
    for (size_t i = 0; i < connections; i++)
        if (links[i].fd >= 0) close(links[i].fd);
    close(epoll);
    free(links);
    return load;
}

double process_cpu_of(pid_t pid) {
    char path[320], line[128];
    double total = 0;
    snprintf(path, sizeof path, "/proc/%d/task", (int)pid);
    DIR *tasks = opendir(path);
    for (struct dirent *entry; tasks && (entry = readdir(tasks));) {
        if (entry->d_name[0] == '.') continue;
        snprintf(path, sizeof path, "/proc/%d/task/%s/schedstat", (int)pid, entry->d_name);
        FILE *file = fopen(path, "r");
        if (file && fgets(line, sizeof line, file)) total += strtod(line, NULL) * 1e-9; /* ns on a CPU */
        if (file) fclose(file);
    }
    if (tasks) closedir(tasks);
    return total;
}
