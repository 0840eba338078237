/* The reference of the kernel's stack: bulk data one way over one or more TCP connections.
 *
 *     tcp_stream recv ADDRESS PORT CPU CONNECTIONS CONTROL SECONDS
 *     tcp_stream send ADDRESS PORT CPU CONNECTIONS CONTROL
 *
 * CONTROL is the congestion control: cubic, bbr ... One thread a side, which takes the connections
 * in turn. Calls are of 256 KiB; socket buffers grow as the kernel sees fit.
 */
#define _GNU_SOURCE
#include <netinet/tcp.h>
#include <poll.h>

#include "inet.h"

#define MOST 64
#define CALL_BYTES (256u << 10)

static void set_control(int fd, const char *control)
{
    if (setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, control, (socklen_t)strlen(control)))
        bench_die("congestion control %s", control);
}

/* Wait for one of the connections; with a single one a blocking call does it. */
static void wait_for(struct pollfd *connections, int count)
{
    if (poll(connections, (nfds_t)count, -1) < 0)
        bench_die("poll");
}

static void receive(struct pollfd *connections, int count, double seconds, int listener)
{
    struct bench_window window;
    uint8_t *memory = bench_memory(BENCH_BYTES);
    size_t at = 0;
    int flags = count > 1 ? MSG_DONTWAIT : 0;
    bench_window(&window, seconds);
    for (int i = 0; i < count; i++)
        connections[i] = (struct pollfd){accept(listener, NULL, NULL), POLLIN, 0};
    for (;;) {
        if (count > 1)
            wait_for(connections, count);
        for (int i = 0; i < count; i++) {
            ssize_t got =
                recv(connections[i].fd, bench_piece(memory, &at, CALL_BYTES), CALL_BYTES, flags);
            if (got < 0 && errno == EAGAIN)
                continue;
            if (got <= 0)
                bench_die("the sender closed after %llu bytes", (unsigned long long)window.bytes);
            if (!bench_count(&window, (uint64_t)got, 1)) {
                bench_print(&window, "");
                return;
            }
        }
    }
}

static void transmit(struct pollfd *connections, int count)
{
    uint8_t *memory = bench_memory(BENCH_BYTES);
    size_t at = 0;
    int flags = MSG_NOSIGNAL | (count > 1 ? MSG_DONTWAIT : 0);
    for (;;) {
        if (count > 1)
            wait_for(connections, count);
        for (int i = 0; i < count; i++)
            if (send(connections[i].fd, bench_piece(memory, &at, CALL_BYTES), CALL_BYTES, flags) <
                    0 &&
                errno != EAGAIN)
                return; /* the receiver has seen enough */
    }
}

int main(int count, char **words)
{
    bool receives = count == 8 && !strcmp(words[1], "recv");
    struct pollfd connections[MOST];
    if (!receives && !(count == 7 && !strcmp(words[1], "send")))
        bench_die("tcp_stream recv|send ADDRESS PORT CPU CONNECTIONS CONTROL [SECONDS]");
    int connections_n = atoi(words[5]);
    if (connections_n < 1 || connections_n > MOST)
        bench_die("%d connections; 1 to %d are possible", connections_n, MOST);
    bench_pin(atoi(words[4]));
    if (receives) {
        int listener = inet_socket(SOCK_STREAM, words[2], words[3], false);
        set_control(listener, words[6]);
        if (listen(listener, MOST))
            bench_die("listen");
        receive(connections, connections_n, atof(words[7]), listener);
    } else {
        struct addrinfo *to;
        if (getaddrinfo(words[2], words[3], NULL, &to))
            bench_die("%s is no address", words[2]);
        for (int i = 0; i < connections_n; i++) {
            int fd = inet_socket(SOCK_STREAM, words[2], words[3], true);
            set_control(fd, words[6]);
            if (connect(fd, to->ai_addr, to->ai_addrlen))
                bench_die("connect to %s port %s", words[2], words[3]);
            connections[i] = (struct pollfd){fd, POLLOUT, 0};
        }
        freeaddrinfo(to);
        transmit(connections, connections_n);
    }
    return 0;
}
