/* The ceiling of UDP sockets: datagrams one way, as fast as they go, nothing checked, nothing sent
 * again.
 *
 *     udp_blast recv ADDRESS PORT CPU SEGMENT SECONDS
 *     udp_blast send ADDRESS PORT CPU SEGMENT
 *
 * The sender hands over as many datagrams of SEGMENT bytes as one system call takes (UDP_SEGMENT),
 * the receiver takes them in as they are joined (UDP_GRO).
 */
#define _GNU_SOURCE
#include "inet.h"

#ifndef UDP_SEGMENT
#define UDP_SEGMENT 103
#define UDP_GRO 104
#endif
#define DATAGRAM_MAX 65507
#define SEGMENTS_MAX 64       /* the kernel has taken 128 since 6.9 */
#define QUEUE_BYTES (8 << 20) /* of the receiver's socket */

static void receive(int fd, double seconds, int segment)
{
    struct bench_window window;
    uint8_t *memory = bench_memory(BENCH_BYTES);
    size_t at = 0;
    int on = 1, bytes = QUEUE_BYTES;
    if (setsockopt(fd, IPPROTO_UDP, UDP_GRO, &on, sizeof on))
        bench_die("UDP_GRO");
    if (setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &bytes, sizeof bytes))
        setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes);
    ssize_t got;
    bench_window(&window, seconds);
    do {
        struct iovec piece = {bench_piece(memory, &at, 1 << 16), 1 << 16};
        struct msghdr message = {.msg_iov = &piece, .msg_iovlen = 1};
        got = recvmsg(fd, &message, 0);
        if (got < 0)
            bench_die("recvmsg");
    } while (bench_count(&window, (uint64_t)got, (uint64_t)((got + segment - 1) / segment)));
    bench_print(&window, "");
}

static void transmit(int fd, int segment)
{
    int segments = DATAGRAM_MAX / segment < SEGMENTS_MAX ? DATAGRAM_MAX / segment : SEGMENTS_MAX;
    size_t bytes = (size_t)segments * (size_t)segment;
    uint8_t *memory = bench_memory(BENCH_BYTES);
    size_t at = 0;
    if (setsockopt(fd, IPPROTO_UDP, UDP_SEGMENT, &segment, sizeof segment))
        bench_die("UDP_SEGMENT of %d", segment);
    for (;;) {
        struct iovec piece = {bench_piece(memory, &at, bytes), bytes};
        struct msghdr message = {.msg_iov = &piece, .msg_iovlen = 1};
        if (sendmsg(fd, &message, 0) < 0 && errno != EAGAIN && errno != ENOBUFS)
            return; /* ECONNREFUSED: the receiver has seen enough */
    }
}

int main(int count, char **words)
{
    bool receives = count == 7 && !strcmp(words[1], "recv");
    if (!receives && !(count == 6 && !strcmp(words[1], "send")))
        bench_die("udp_blast recv|send ADDRESS PORT CPU SEGMENT [SECONDS]");
    int segment = atoi(words[5]);
    if (segment < 1 || segment > DATAGRAM_MAX)
        bench_die("segments of %d bytes; 1 to %d are possible", segment, DATAGRAM_MAX);
    bench_pin(atoi(words[4]));
    int fd = inet_socket(SOCK_DGRAM, words[2], words[3], !receives);
    if (receives)
        receive(fd, atof(words[6]), segment);
    else
        transmit(fd, segment);
    return 0;
}
