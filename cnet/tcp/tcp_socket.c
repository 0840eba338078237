/* Descriptors of TCP sockets: made, tuned and closed here alone. */
#define _GNU_SOURCE
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/sockaddr.h"
#include "tcp/tcp_state.h"

#define DESCRIPTORS (1 << 20) /* fs.nr_open, the most that a process may have by default */
#define IPV4_HEADERS 40       /* of a segment without options (RFC 9293, 3.7.1) */
#define IPV6_HEADERS 60

/* A bit for each that is open: all that a child of fork needs to find them. */
static _Atomic uint64_t kept[DESCRIPTORS / 64];

void tcp_keep(int fd)
{
    if (fd >= 0 && fd < DESCRIPTORS)
        atomic_fetch_or(&kept[fd / 64], UINT64_C(1) << fd % 64);
}

/* In a child of fork it is closed already, and its number may be another file's. */
void tcp_shut(int *fd)
{
    int old = *fd;
    *fd = -1;
    if (old < 0)
        return;
    uint64_t bit = UINT64_C(1) << old % 64;
    if (old >= DESCRIPTORS || atomic_fetch_and(&kept[old / 64], ~bit) & bit)
        close(old);
}

void tcp_forked(void)
{
    for (int word = 0; word < DESCRIPTORS / 64; word++)
        for (uint64_t bits = atomic_exchange(&kept[word], 0); bits; bits &= bits - 1)
            close(word * 64 + __builtin_ctzll(bits));
}

static void set_number(int fd, int level, int name, uint32_t value)
{
    int number = (int)value;
    setsockopt(fd, level, name, &number, sizeof number);
}

int tcp_socket(const struct harp_address *local, bool will_connect, int *error)
{
    union harp_sockaddr address;
    socklen_t bytes = harp_sockaddr_write(local, 0, &address);
    int fd = socket(address.any.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    tcp_keep(fd);
    if (fd >= 0 && will_connect) /* ip(7): for sockets of IPv6, too */
        set_number(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 1);
    if (fd >= 0 && bind(fd, &address.any, bytes) == 0)
        return fd;
    *error = errno;
    tcp_shut(&fd);
    return -1;
}

static uint32_t at_least_one(uint32_t n)
{
    return n ? n : 1;
}

/* A third of the time waiting, then a probe each sixth. What is under way on the control socket is
 * little and read soon; on the others the time limit would also end those whose reader is slow. */
static void watch_host(int fd, uint32_t timeout_s, bool control)
{
    uint32_t idle_s = at_least_one(timeout_s / 3), pause_s = at_least_one(timeout_s / 6);
    set_number(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
    set_number(fd, IPPROTO_TCP, TCP_KEEPIDLE, idle_s);
    set_number(fd, IPPROTO_TCP, TCP_KEEPINTVL, pause_s);
    set_number(fd, IPPROTO_TCP, TCP_KEEPCNT, at_least_one((timeout_s - idle_s) / pause_s));
    if (control)
        set_number(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, timeout_s * 1000);
}

void tcp_tune(int fd, const struct tcp_config *config, bool control)
{
    union harp_sockaddr address;
    socklen_t room = sizeof address;
    getsockname(fd, &address.any, &room);
    bool v4 = address.any.sa_family == AF_INET;
    set_number(fd, IPPROTO_TCP, TCP_NODELAY, 1);
    watch_host(fd, config->timeout_s, control);
    if (config->traffic_class)
        set_number(fd, v4 ? IPPROTO_IP : IPPROTO_IPV6, v4 ? IP_TOS : IPV6_TCLASS,
                   config->traffic_class);
    if (config->mtu)
        set_number(fd, IPPROTO_TCP, TCP_MAXSEG, config->mtu - (v4 ? IPV4_HEADERS : IPV6_HEADERS));
}

uint64_t tcp_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

void tcp_count(const struct tcp_connection *connection, struct tcp_counters *counters)
{
    const struct tcp_stream *data = connection->sends ? &connection->out : &connection->in;
    *counters = (struct tcp_counters){
        .messages = data->done, .bytes = data->bytes, .sockets = data->sockets_n};
    for (uint32_t i = data->sockets_n; i-- > 0;) {
        struct tcp_info info = {0};
        socklen_t room = sizeof info;
        if (getsockopt(data->sockets[i].fd, IPPROTO_TCP, TCP_INFO, &info, &room) != 0)
            continue;
        counters->again += info.tcpi_total_retrans;
        counters->rtt_us = info.tcpi_rtt;
    }
}
