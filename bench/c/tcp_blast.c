/* Kernel TCP: one thread, 1 to 16 sockets, from one end's memory to the other's.
 *
 *   tcp_blast receive [options]            prints one line of JSON, exits with 0 if bytes came
 *   tcp_blast send --to IP [options]       until the receiver has had enough
 *
 * The receiver's clock runs from its first byte.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { SOCKETS_MAX = 16, PATIENCE_MS = 10000 };

static char buffer[1 << 20];

struct settings {
    struct sockaddr_in address;
    unsigned sockets;
    size_t chunk_bytes; /* of one system call */
    double seconds;
    const char *congestion; /* NULL: the kernel's choice */
};

static void fail(const char *what)
{
    fprintf(stderr, "tcp_blast: %s: %s\n", what, strerror(errno));
    exit(1);
}

static double now_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static int send_bytes(const struct settings *s)
{
    signal(SIGPIPE, SIG_IGN);
    struct pollfd ready[SOCKETS_MAX];
    for (unsigned i = 0; i < s->sockets; i++) {
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (s->congestion && setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, s->congestion,
                                        (socklen_t)strlen(s->congestion)) < 0)
            fail("no such congestion control");
        if (connect(fd, (const struct sockaddr *)&s->address, sizeof(s->address)) < 0)
            fail("no connection");
        ready[i] = (struct pollfd){.fd = fd, .events = POLLOUT};
    }
    double end = now_s() + s->seconds;
    while (now_s() < end) {
        /* One socket blocks in send(), which costs less than to ask first. */
        if (s->sockets > 1 && poll(ready, s->sockets, PATIENCE_MS) <= 0)
            fail("the receiver stands still");
        int flags = s->sockets > 1 ? MSG_DONTWAIT : 0;
        for (unsigned i = 0; i < s->sockets; i++) {
            if (s->sockets > 1 && !ready[i].revents)
                continue;
            if (send(ready[i].fd, buffer, s->chunk_bytes, flags) < 0 && errno != EAGAIN) {
                if (errno == EPIPE || errno == ECONNRESET)
                    return 0; /* the receiver has had enough */
                fail("sending");
            }
        }
    }
    return 0;
}

static uint64_t receive_until(const struct settings *s, struct pollfd *ready, double end)
{
    uint64_t bytes = 0;
    while (now_s() < end) {
        int flags = s->sockets > 1 ? MSG_DONTWAIT : 0;
        if (s->sockets > 1 && poll(ready, s->sockets, PATIENCE_MS) <= 0)
            fail("the sender stands still");
        for (unsigned i = 0; i < s->sockets; i++) {
            if (s->sockets > 1 && !ready[i].revents)
                continue;
            ssize_t count = recv(ready[i].fd, buffer, s->chunk_bytes, flags);
            if (count == 0 || (count < 0 && errno != EAGAIN))
                fail("the sender left early");
            bytes += count > 0 ? (uint64_t)count : 0;
        }
    }
    return bytes;
}

static int receive_bytes(const struct settings *s)
{
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const int yes = 1;
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
    if (bind(listener, (const struct sockaddr *)&s->address, sizeof(s->address)) < 0 ||
        listen(listener, SOCKETS_MAX) < 0)
        fail("the port is not to be had");
    puts("ready");
    fflush(stdout);
    struct pollfd ready[SOCKETS_MAX];
    for (unsigned i = 0; i < s->sockets; i++) {
        struct pollfd caller = {.fd = listener, .events = POLLIN};
        if (poll(&caller, 1, PATIENCE_MS) <= 0)
            fail("nobody connected");
        ready[i] = (struct pollfd){.fd = accept(listener, NULL, NULL), .events = POLLIN};
    }
    if (poll(ready, s->sockets, PATIENCE_MS) <= 0)
        fail("no byte came");
    double begin = now_s();
    uint64_t bytes = receive_until(s, ready, begin + s->seconds);
    double seconds = now_s() - begin;
    printf("{\"program\": \"tcp_blast receive\", \"sockets\": %u, \"bytes\": %" PRIu64
           ", \"seconds\": %.3f, \"gbps\": %.3f}\n",
           s->sockets, bytes, seconds, (double)bytes * 8e-9 / seconds);
    return 0;
}

static void usage(void)
{
    fputs("usage: tcp_blast send|receive [--to IP] [--port N] [--sockets 1..16] [--chunk BYTES]\n"
          "           [--congestion NAME] [--seconds S]\n",
          stderr);
    exit(2);
}

static void read_option(struct settings *s, int option, const char *value)
{
    switch (option) {
    case 'o':
        if (!inet_aton(value, &s->address.sin_addr))
            usage();
        break;
    case 'p':
        s->address.sin_port = htons((uint16_t)atoi(value));
        break;
    case 'n':
        s->sockets = (unsigned)atoi(value);
        break;
    case 'k':
        s->chunk_bytes = (size_t)atol(value);
        break;
    case 'c':
        s->congestion = value;
        break;
    case 's':
        s->seconds = atof(value);
        break;
    default:
        usage();
    }
}

int main(int count, char **words)
{
    static const struct option names[] = {{"to", 1, 0, 'o'},
                                          {"port", 1, 0, 'p'},
                                          {"sockets", 1, 0, 'n'},
                                          {"chunk", 1, 0, 'k'},
                                          {"congestion", 1, 0, 'c'},
                                          {"seconds", 1, 0, 's'},
                                          {0}};
    struct settings s = {.address = {.sin_family = AF_INET, .sin_port = htons(4792)},
                         .sockets = 1,
                         .chunk_bytes = 256 << 10,
                         .seconds = 5};
    for (int option; (option = getopt_long(count, words, "", names, NULL)) != -1;)
        read_option(&s, option, optarg);
    if (count - optind != 1 || s.sockets == 0 || s.sockets > SOCKETS_MAX || s.chunk_bytes == 0 ||
        s.chunk_bytes > sizeof(buffer))
        usage();
    if (strcmp(words[optind], "send") == 0)
        return send_bytes(&s);
    if (strcmp(words[optind], "receive") == 0)
        return receive_bytes(&s);
    usage();
}
