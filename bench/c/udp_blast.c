/* The ceiling of UDP sockets: datagrams in one direction, as fast as they go, unchecked and
 * never retransmitted.
 *
 *   udp_blast receive [options]            prints one line of JSON, exits with 0 if bytes came
 *   udp_blast send --to IP [options]       until the receiver has had enough
 *
 * The sender hands over as many datagrams as one system call takes (UDP_SEGMENT), the receiver
 * gets them coalesced (UDP_GRO). Calls go through BENCH_BYTES of memory, piece by piece;
 * bench.h says when the receiver's clock runs.
 */
#define _GNU_SOURCE
#include "bench.h"

#include "options.h"

#include <arpa/inet.h>
#include <sys/socket.h>

#ifndef UDP_SEGMENT
#define UDP_SEGMENT 103
#define UDP_GRO 104
#endif

enum {
    DATAGRAM_MAX = 65507,
    SEGMENTS_MAX = 64,     /* the kernel has taken 128 since 6.9 */
    QUEUE_BYTES = 8 << 20, /* of the receiver's socket */
};

struct settings {
    struct sockaddr_in address;
    int segment; /* payload of a datagram */
    int cpu;     /* below 0: any */
    double seconds;
};

static int receive_bytes(const struct settings *s, int fd)
{
    struct bench_window window;
    uint8_t *memory = bench_memory(BENCH_BYTES);
    size_t at = 0;
    const int on = 1, bytes = QUEUE_BYTES;
    if (bind(fd, (const struct sockaddr *)&s->address, sizeof(s->address)) < 0)
        bench_die("the port is taken");
    if (setsockopt(fd, IPPROTO_UDP, UDP_GRO, &on, sizeof(on)) < 0)
        bench_die("UDP_GRO");
    if (setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &bytes, sizeof(bytes)) < 0)
        setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof(bytes));
    bench_window(&window, s->seconds);
    for (;;) {
        ssize_t got = recv(fd, bench_piece(memory, &at, 1 << 16), 1 << 16, 0);
        if (got < 0)
            bench_die("receiving");
        if (!bench_count(&window, (uint64_t)got, (uint64_t)((got + s->segment - 1) / s->segment)))
            break;
    }
    bench_print(&window, ", \"program\": \"udp_blast receive\"");
    return 0;
}

static int send_bytes(const struct settings *s, int fd)
{
    int fit = DATAGRAM_MAX / s->segment;
    size_t bytes = (size_t)(fit < SEGMENTS_MAX ? fit : SEGMENTS_MAX) * (size_t)s->segment, at = 0;
    uint8_t *memory = bench_memory(BENCH_BYTES);
    if (connect(fd, (const struct sockaddr *)&s->address, sizeof(s->address)) < 0)
        bench_die("no route");
    if (setsockopt(fd, IPPROTO_UDP, UDP_SEGMENT, &s->segment, sizeof(s->segment)) < 0)
        bench_die("segments of %d bytes", s->segment);
    for (;;) {
        if (send(fd, bench_piece(memory, &at, bytes), bytes, 0) >= 0 || errno == EAGAIN ||
            errno == ENOBUFS)
            continue;
        if (errno == ECONNREFUSED)
            return 0; /* the receiver has had enough */
        bench_die("sending");
    }
}

static const char USAGE[] =
    "usage: udp_blast send|receive [--to IP] [--port N] [--segment BYTES] [--seconds S]\n"
    "           [--cpu N]\n";

int main(int count, char **words)
{
    uint16_t port = 4793;
    struct settings s = {
        .address = {.sin_family = AF_INET}, .segment = 1472, .cpu = -1, .seconds = 5};
    const struct bench_option options[] = {
        BENCH_OPTION("to", &s.address.sin_addr), BENCH_OPTION("port", &port),
        BENCH_OPTION("segment", &s.segment), BENCH_OPTION("seconds", &s.seconds),
        BENCH_OPTION("cpu", &s.cpu)};
    int rest = bench_read_options(count, words, options, sizeof(options) / sizeof(*options), USAGE);
    if (rest != 1 || s.segment < 1 || s.segment > DATAGRAM_MAX)
        bench_usage(USAGE);
    s.address.sin_port = htons(port);
    bench_pin(s.cpu);
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        bench_die("no socket");
    if (strcmp(words[1], "send") == 0)
        return send_bytes(&s, fd);
    if (strcmp(words[1], "receive") == 0)
        return receive_bytes(&s, fd);
    bench_usage(USAGE);
}
