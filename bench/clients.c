/* The clients of a benchmark: clients PORT STREAMS TOKENS SECONDS|hold REQUEST
 *
 * So many connections send the request, and send it again as soon as its answer is whole. REQUEST is HTTP as it goes over
 * the wire. The number after its "max_tokens": is replaced, with spaces before it so that the length stays: by TOKENS,
 * but in a connection's first request by less, from one token upwards, so that later answers neither begin nor end
 * together. When each has had its first answer, counting begins, and a line says so: "begin". When the time is up and
 * something has been counted, all connections are closed, and there is a second line:
 *
 *     end ELAPSED CPU_SECONDS REQUESTS TOKENS ERRORS FIRSTS GAPS
 *
 * and then so many doubles of each kind, in seconds: from a request to its first token, and between two arrivals at a
 * connection. An answer that was counted in part adds its part to REQUESTS and TOKENS, by its bytes. CPU_SECONDS were
 * used here. Standard error tells the first errors, which are answers that did not come in full.
 *
 * With "hold" each connection asks once, for TOKENS. The line "held ERRORS" says that all have their first token, and the
 * streams stay open until the standard input ends.
 *
 * It is in C because clients that are slower than the gateway under test would never sleep while that is sending, and
 * spare it what it costs to wake them.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { MOST_NEWS = 1024, MOST_BYTES = 1 << 16, MOST_HEAD = 4096, TAIL = 64, MOST_MESSAGES = 10 };
enum {
    PATIENCE_MS = 60000, /* without any arrival */
    SETTLE_S = 120,      /* until each has had its first answer */
};

static const char LAST_CHUNK[] = "0\r\n\r\n", DONE[] = "[DONE]", CONTENT[] = "\"content\":", MAX_TOKENS[] = "\"max_tokens\":";

struct samples {
    double *values;
    size_t count, room;
};

struct client {
    int descriptor;
    int asked;    /* requests */
    bool begun;   /* its first token is here */
    bool headed;  /* and before that, its head */
    bool streams; /* events: the last one says [DONE] */
    long left;    /* bytes of a body of known length, else -1 */
    long bytes;   /* of the present answer */
    double last;  /* when it asked, then the last arrival */
    int head_size;
    char head[MOST_HEAD];
    char tail[TAIL];
};

static struct samples firsts, gaps;
static long answers, answers_bytes; /* whole */
static long bytes, errors;
static int live, waiting, unsettled; /* connections: all, without a first token, at their first request */
static char *request, *number; /* the place of the request's max_tokens */
static size_t request_size;
static int digits;

static double now(clockid_t clock) {
    struct timespec time;
    clock_gettime(clock, &time);
    return time.tv_sec + time.tv_nsec * 1e-9;
}

static void add(struct samples *samples, double value) {
    if (samples->count == samples->room) {
        samples->room = samples->room ? 2 * samples->room : 1 << 16;
        samples->values = realloc(samples->values, samples->room * sizeof value);
        if (!samples->values)
            abort();
    }
    samples->values[samples->count++] = value;
}

static void give_up(struct client *client, const char *format, ...) {
    if (errors++ < MOST_MESSAGES) {
        va_list arguments;
        va_start(arguments, format);
        fputs("clients: ", stderr);
        vfprintf(stderr, format, arguments);
        fputc('\n', stderr);
        va_end(arguments);
    }
    close(client->descriptor);
    live--;
    waiting -= !client->begun;
    unsettled -= client->asked == 1;
}

static void ask(struct client *client, int wanted) {
    char text[16];
    snprintf(text, sizeof text, "%*d", digits, wanted);
    memcpy(number, text, digits);
    unsettled += ++client->asked == 1;
    unsettled -= client->asked == 2;
    client->begun = client->headed = false;
    client->left = -1;
    client->bytes = 0;
    client->head_size = 0;
    memset(client->tail, 0, TAIL);
    waiting++;
    client->last = now(CLOCK_MONOTONIC);
    if (send(client->descriptor, request, request_size, MSG_NOSIGNAL) != (ssize_t)request_size)
        give_up(client, "send: %s", strerror(errno));
}

/* Returns how much of the arrival belongs to the head. */
static int take_head(struct client *client, const char *data, int size) {
    int room = MOST_HEAD - 1 - client->head_size, before = client->head_size, taken = size < room ? size : room;
    memcpy(client->head + before, data, taken);
    client->head[client->head_size += taken] = 0;
    char *end = strstr(client->head, "\r\n\r\n");
    if (!end) {
        if (taken < size)
            give_up(client, "a head of more than %d bytes", MOST_HEAD);
        return size;
    }
    if (strncmp(client->head, "HTTP/1.1 200", 12)) {
        char *line = strstr(client->head, "\r\n");
        give_up(client, "%.*s %.300s", (int)(line - client->head), client->head, end + 4);
        return size;
    }
    client->headed = true;
    end[2] = 0;
    client->streams = strcasestr(client->head, "text/event-stream");
    char *length = strcasestr(client->head, "\r\ncontent-length:");
    client->left = length ? atol(length + strlen("\r\ncontent-length:")) : -1;
    return end + 4 - client->head - before;
}

/* The event before the first token names the role, with an empty content or none. */
static bool has_content(const char *data, int size) {
    const char *end = data + size;
    for (const char *at = data; (at = memmem(at, end - at, CONTENT, strlen(CONTENT)));) {
        at += strlen(CONTENT);
        if (at < end && *at == ' ')
            at++;
        if (end - at >= 2 && at[0] == '"' && at[1] != '"')
            return true;
    }
    return false;
}

/* Returns whether the answer ends with this arrival. */
static bool take(struct client *client, const char *data, int size, double arrived) {
    bytes += size;
    client->bytes += size;
    if (client->begun) {
        add(&gaps, arrived - client->last);
        client->last = arrived;
    } else {
        if (!client->headed) {
            int head = take_head(client, data, size);
            data += head;
            size -= head;
        }
        if (has_content(data, size)) {
            client->begun = true;
            waiting--;
            add(&firsts, arrived - client->last);
            client->last = arrived;
        }
    }
    if (!client->headed)
        return false;
    if (client->left >= 0)
        return (client->left -= size) <= 0;
    if (size >= TAIL) {
        memcpy(client->tail, data + size - TAIL, TAIL);
    } else {
        memmove(client->tail, client->tail + size, TAIL - size);
        memcpy(client->tail + TAIL - size, data, size);
    }
    return !memcmp(client->tail + TAIL - strlen(LAST_CHUNK), LAST_CHUNK, strlen(LAST_CHUNK));
}

static int connect_to(int port) {
    struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int descriptor = socket(AF_INET, SOCK_STREAM, 0);
    if (descriptor < 0 || connect(descriptor, (struct sockaddr *)&address, sizeof address)) {
        perror("clients: connect");
        exit(1);
    }
    return descriptor;
}

static void report(double elapsed, double cpu, int wanted) {
    double requests = answers ? (double)answers * bytes / answers_bytes : 0;
    printf("end %f %f %f %f %ld %zu %zu\n", elapsed, cpu, requests, requests * wanted, errors, firsts.count, gaps.count);
    fwrite(firsts.values, sizeof(double), firsts.count, stdout);
    fwrite(gaps.values, sizeof(double), gaps.count, stdout);
}

int main(int count, char **arguments) {
    if (count != 6 || !(number = strstr(arguments[5], MAX_TOKENS))) {
        fprintf(stderr, "usage: clients PORT STREAMS TOKENS SECONDS|hold REQUEST\n");
        return 2;
    }
    int port = atoi(arguments[1]), streams = atoi(arguments[2]), wanted = atoi(arguments[3]);
    bool hold = !strcmp(arguments[4], "hold");
    double seconds = atof(arguments[4]), begin = 0, cpu = 0;
    request = arguments[5];
    request_size = strlen(request);
    number += strlen(MAX_TOKENS);
    digits = strspn(number, " 0123456789");
    prctl(PR_SET_PDEATHSIG, SIGTERM);

    int epoll = epoll_create1(0);
    struct client *clients = calloc(streams, sizeof *clients);
    for (int i = 0; i < streams; i++) {
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = &clients[i]};
        clients[i].descriptor = connect_to(port);
        epoll_ctl(epoll, EPOLL_CTL_ADD, clients[i].descriptor, &event);
    }
    double started = now(CLOCK_MONOTONIC);
    live = streams;
    for (int i = 0; i < streams; i++)
        ask(&clients[i], hold ? wanted : 1 + (long)(wanted - 1) * (i + 1) / streams);

    for (;;) {
        if (hold && !waiting)
            break;
        if (!hold && !begin && !unsettled) {
            answers = answers_bytes = bytes = 0;
            firsts.count = gaps.count = 0;
            begin = now(CLOCK_MONOTONIC);
            cpu = now(CLOCK_PROCESS_CPUTIME_ID);
            puts("begin");
            fflush(stdout);
        }
        if (!live || (begin && now(CLOCK_MONOTONIC) > begin + seconds && answers && firsts.count))
            break;
        if (!begin && !hold && now(CLOCK_MONOTONIC) > started + SETTLE_S) {
            fprintf(stderr, "clients: %d first answers are not there after %d s\n", unsettled, SETTLE_S);
            return 1;
        }
        static struct epoll_event news[MOST_NEWS];
        static char data[MOST_BYTES];
        int ready = epoll_wait(epoll, news, MOST_NEWS, PATIENCE_MS);
        if (ready < 0 && errno == EINTR)
            continue;
        if (ready <= 0) {
            fprintf(stderr, "clients: %d answers stopped for %d s\n", live, PATIENCE_MS / 1000);
            errors += live;
            break;
        }
        for (int i = 0; i < ready; i++) {
            struct client *client = news[i].data.ptr;
            ssize_t size = recv(client->descriptor, data, sizeof data, MSG_DONTWAIT);
            if (size <= 0) {
                if (size == 0 || errno != EAGAIN)
                    give_up(client, "the connection ended before the answer");
                continue;
            }
            if (!take(client, data, size, now(CLOCK_MONOTONIC)))
                continue;
            if (hold || (client->streams && !memmem(client->tail, TAIL, DONE, strlen(DONE)))) {
                give_up(client, "the answer broke off");
                continue;
            }
            answers++;
            answers_bytes += client->bytes;
            ask(client, wanted);
        }
    }
    if (hold)
        printf("held %ld\n", errors);
    else
        report(now(CLOCK_MONOTONIC) - begin, now(CLOCK_PROCESS_CPUTIME_ID) - cpu, wanted);
    fflush(stdout);
    if (hold)
        while (read(STDIN_FILENO, &(char){0}, 1) > 0)
            ;
    return 0;
}
