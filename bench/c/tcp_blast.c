/* Kernel TCP: one thread, 1 to 16 sockets, from one end's memory to the other's.
 *
 *   tcp_blast receive [options]            prints one line of JSON, exits with 0 if bytes came
 *   tcp_blast send --to IP [options]       until the receiver has had enough
 *
 * Calls go through BENCH_BYTES of memory, piece by piece; socket buffers grow as the kernel sees
 * fit. With --both each end sends and receives at once on every socket, and the receiving end
 * counts the bytes of both directions. bench.h says when the receiver's clock runs.
 */
#define _GNU_SOURCE
#include "bench.h"

#include "options.h"

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>

enum { SOCKETS_MAX = 16, PATIENCE_MS = 10000 };

struct settings {
    struct sockaddr_in address;
    uint32_t sockets;
    uint64_t chunk_bytes; /* of one system call */
    double seconds;
    const char *congestion; /* NULL: the kernel's choice */
    int cpu;                /* below 0: any */
    bool both;              /* directions at once */
};

static void choose_congestion_control(const struct settings *s, int fd)
{
    if (s->congestion && setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, s->congestion,
                                    (socklen_t)strlen(s->congestion)) < 0)
        bench_die("no such congestion control");
}

static bool is_end(int error)
{
    return error == EPIPE || error == ECONNRESET;
}

/* Send and receive on every socket as it comes, until the window closes, or without one until the
 * other end has had enough. */
static void move_both_ways(const struct settings *s, struct pollfd *ready,
                           struct bench_window *window)
{
    uint8_t *out = bench_memory(BENCH_BYTES), *in = bench_memory(BENCH_BYTES);
    size_t out_at = 0, in_at = 0;
    for (unsigned i = 0; i < s->sockets; i++)
        ready[i].events = POLLIN | POLLOUT;
    for (;;) {
        if (poll(ready, s->sockets, PATIENCE_MS) <= 0)
            bench_die("the other end stands still");
        for (unsigned i = 0; i < s->sockets; i++) {
            ssize_t sent = 0, got = 0;
            if (ready[i].revents & POLLOUT)
                sent = send(ready[i].fd, bench_piece(out, &out_at, s->chunk_bytes), s->chunk_bytes,
                            MSG_DONTWAIT);
            if (sent >= 0 && ready[i].revents & POLLIN) {
                got = recv(ready[i].fd, bench_piece(in, &in_at, s->chunk_bytes), s->chunk_bytes,
                           MSG_DONTWAIT);
                if (got == 0 && !window)
                    return;
            }
            if ((sent < 0 || got < 0) && is_end(errno) && !window)
                return;
            if ((sent < 0 || got < 0) && errno != EAGAIN)
                bench_die("sending and receiving");
            size_t moved = (sent > 0 ? (size_t)sent : 0) + (got > 0 ? (size_t)got : 0);
            if (window && moved && !bench_count(window, moved, 1))
                return;
        }
    }
}

static int send_bytes(const struct settings *s)
{
    signal(SIGPIPE, SIG_IGN);
    struct pollfd ready[SOCKETS_MAX];
    uint8_t *memory = bench_memory(BENCH_BYTES);
    size_t at = 0;
    for (unsigned i = 0; i < s->sockets; i++) {
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        choose_congestion_control(s, fd);
        if (connect(fd, (const struct sockaddr *)&s->address, sizeof(s->address)) < 0)
            bench_die("no connection");
        ready[i] = (struct pollfd){.fd = fd, .events = POLLOUT};
    }
    if (s->both) {
        move_both_ways(s, ready, NULL);
        return 0;
    }
    for (;;) {
        /* One socket blocks in send(), which costs less than to ask first. */
        if (s->sockets > 1 && poll(ready, s->sockets, PATIENCE_MS) <= 0)
            bench_die("the receiver stands still");
        int flags = s->sockets > 1 ? MSG_DONTWAIT : 0;
        for (unsigned i = 0; i < s->sockets; i++) {
            if (s->sockets > 1 && !ready[i].revents)
                continue;
            if (send(ready[i].fd, bench_piece(memory, &at, s->chunk_bytes), s->chunk_bytes, flags) <
                    0 &&
                errno != EAGAIN) {
                if (is_end(errno))
                    return 0; /* the receiver has had enough */
                bench_die("sending");
            }
        }
    }
}

static void receive_until(const struct settings *s, struct pollfd *ready,
                          struct bench_window *window)
{
    uint8_t *memory = bench_memory(BENCH_BYTES);
    size_t at = 0;
    for (;;) {
        int flags = s->sockets > 1 ? MSG_DONTWAIT : 0;
        if (s->sockets > 1 && poll(ready, s->sockets, PATIENCE_MS) <= 0)
            bench_die("the sender stands still");
        for (unsigned i = 0; i < s->sockets; i++) {
            if (s->sockets > 1 && !ready[i].revents)
                continue;
            ssize_t count =
                recv(ready[i].fd, bench_piece(memory, &at, s->chunk_bytes), s->chunk_bytes, flags);
            if (count == 0 || (count < 0 && errno != EAGAIN))
                bench_die("the sender left early");
            if (count > 0 && !bench_count(window, (uint64_t)count, 1))
                return;
        }
    }
}

static int receive_bytes(const struct settings *s)
{
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const int yes = 1;
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
    choose_congestion_control(s, listener); /* what it accepts has the same */
    if (bind(listener, (const struct sockaddr *)&s->address, sizeof(s->address)) < 0 ||
        listen(listener, SOCKETS_MAX) < 0)
        bench_die("the port is taken");
    struct bench_window window;
    char more[64];
    bench_window(&window, s->seconds);
    struct pollfd ready[SOCKETS_MAX];
    for (unsigned i = 0; i < s->sockets; i++) {
        struct pollfd caller = {.fd = listener, .events = POLLIN};
        if (poll(&caller, 1, PATIENCE_MS) <= 0)
            bench_die("nobody connected");
        ready[i] = (struct pollfd){.fd = accept(listener, NULL, NULL), .events = POLLIN};
    }
    if (s->both)
        move_both_ways(s, ready, &window);
    else
        receive_until(s, ready, &window);
    snprintf(more, sizeof(more), ", \"program\": \"tcp_blast receive\", \"sockets\": %u",
             s->sockets);
    bench_print(&window, more);
    return 0;
}

static const char USAGE[] =
    "usage: tcp_blast send|receive [--to IP] [--port N] [--sockets 1..16] [--chunk BYTES]\n"
    "           [--congestion NAME] [--seconds S] [--cpu N] [--both]\n";

int main(int count, char **words)
{
    uint16_t port = 4792;
    struct settings s = {.address = {.sin_family = AF_INET},
                         .sockets = 1,
                         .chunk_bytes = 256 << 10,
                         .seconds = 5,
                         .cpu = -1};
    const struct bench_option options[] = {BENCH_OPTION("to", &s.address.sin_addr),
                                           BENCH_OPTION("port", &port),
                                           BENCH_OPTION("sockets", &s.sockets),
                                           BENCH_OPTION("chunk", &s.chunk_bytes),
                                           BENCH_OPTION("congestion", &s.congestion),
                                           BENCH_OPTION("seconds", &s.seconds),
                                           BENCH_OPTION("cpu", &s.cpu),
                                           BENCH_OPTION("both", &s.both)};
    int rest = bench_read_options(count, words, options, sizeof(options) / sizeof(*options), USAGE);
    if (rest != 1 || s.sockets == 0 || s.sockets > SOCKETS_MAX || s.chunk_bytes == 0 ||
        s.chunk_bytes > BENCH_BYTES)
        bench_usage(USAGE);
    s.address.sin_port = htons(port);
    bench_pin(s.cpu);
    if (strcmp(words[1], "send") == 0)
        return send_bytes(&s);
    if (strcmp(words[1], "receive") == 0)
        return receive_bytes(&s);
    bench_usage(USAGE);
}
