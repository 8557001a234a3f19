/* The least that streaming can cost: floor PORT TICK_US
 *
 * A server without an engine. It answers every request at once with a ready-made head; then a clock sends a ready-made
 * event of 256 bytes to each connection that waits for one, in a send() of its own, as often as the request's max_tokens
 * says, and the end of the body. Nothing is parsed, decoded, rendered or stored.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <unistd.h>

enum { MOST_DESCRIPTORS = 1 << 16, EVENT_BYTES = 256, MOST_NEWS = 1024 };

static const char HEAD[] = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";
static const char BEGIN[] = "100\r\ndata: {\"choices\":[{\"delta\":{\"content\":\""; /* 100: EVENT_BYTES in hexadecimal */
static const char CLOSE[] = "\"}}]}\n\n\r\n";
static const char END[] = "e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n";

static int owed[MOST_DESCRIPTORS]; /* events, by connection */
static int highest;                /* descriptor */

static int check(int result, const char *what) {
    if (result < 0) {
        perror(what);
        exit(1);
    }
    return result;
}

static void watch(int epoll, int descriptor) {
    struct epoll_event event = {.events = EPOLLIN, .data.fd = descriptor};
    check(epoll_ctl(epoll, EPOLL_CTL_ADD, descriptor, &event), "epoll_ctl");
}

static void give_up(int connection) {
    owed[connection] = 0;
    close(connection);
}

static void take_connection(int listener, int epoll) {
    int connection = accept4(listener, NULL, NULL, SOCK_NONBLOCK), on = 1;
    if (connection < 0)
        return;
    if (connection >= MOST_DESCRIPTORS) {
        close(connection);
        return;
    }
    setsockopt(connection, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    watch(epoll, connection);
    if (connection > highest)
        highest = connection;
}

static void take_request(int connection) {
    static char request[1 << 16];
    ssize_t size = recv(connection, request, sizeof request - 1, 0);
    if (size <= 0) {
        if (size == 0 || errno != EAGAIN)
            give_up(connection);
        return;
    }
    request[size] = 0;
    const char *tokens = strstr(request, "\"max_tokens\": ");
    if (!tokens)
        return; /* the rest of a long one */
    owed[connection] = atoi(tokens + strlen("\"max_tokens\": "));
    send(connection, HEAD, sizeof HEAD - 1, MSG_NOSIGNAL);
}

static void tick(const char *event, size_t size) {
    for (int connection = 0; connection <= highest; connection++) {
        if (!owed[connection])
            continue;
        if (send(connection, event, size, MSG_NOSIGNAL) < 0)
            owed[connection] = 0; /* its client is gone, as epoll will tell */
        else if (--owed[connection] == 0)
            send(connection, END, sizeof END - 1, MSG_NOSIGNAL);
    }
}

int main(int count, char **arguments) {
    int port = count == 3 ? atoi(arguments[1]) : 0;
    long microseconds = count == 3 ? atol(arguments[2]) : 0;
    if (port <= 0 || microseconds <= 0) {
        fprintf(stderr, "usage: floor PORT TICK_US\n");
        return 2;
    }
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    struct rlimit descriptors;
    getrlimit(RLIMIT_NOFILE, &descriptors);
    descriptors.rlim_cur = descriptors.rlim_max;
    setrlimit(RLIMIT_NOFILE, &descriptors);

    char event[sizeof BEGIN + EVENT_BYTES];
    size_t size = strlen("100\r\n") + EVENT_BYTES + strlen("\r\n");
    memset(event, 'x', size);
    memcpy(event, BEGIN, strlen(BEGIN));
    memcpy(event + size - strlen(CLOSE), CLOSE, strlen(CLOSE));

    struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int listener = check(socket(AF_INET, SOCK_STREAM, 0), "socket");
    check(bind(listener, (struct sockaddr *)&address, sizeof address), "bind");
    check(listen(listener, 4096), "listen");

    struct timespec period = {microseconds / 1000000, microseconds % 1000000 * 1000};
    struct itimerspec clock = {period, period};
    int timer = check(timerfd_create(CLOCK_MONOTONIC, 0), "timerfd_create");
    check(timerfd_settime(timer, 0, &clock, NULL), "timerfd_settime");
    int epoll = check(epoll_create1(0), "epoll_create1");
    watch(epoll, listener);
    watch(epoll, timer);

    for (;;) {
        struct epoll_event news[MOST_NEWS];
        int ready = epoll_wait(epoll, news, MOST_NEWS, -1);
        for (int i = 0; i < ready; i++) {
            int descriptor = news[i].data.fd;
            unsigned long long expired;
            if (descriptor == listener)
                take_connection(listener, epoll);
            else if (descriptor != timer)
                take_request(descriptor);
            else if (read(timer, &expired, sizeof expired) == sizeof expired)
                tick(event, size);
        }
    }
}
