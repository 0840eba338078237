/* Sockets of a tcp port: they connect, are accepted, become ready, and end. */
#define _GNU_SOURCE
#include "ports/port_tcp.h"

#include <assert.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/descriptors.h"

#ifndef IP_BIND_ADDRESS_NO_PORT
#define IP_BIND_ADDRESS_NO_PORT 24 /* linux/in.h, since 4.2 */
#endif
#define BACKLOG 4096
#define EVENTS 64
#define LISTENER UINT32_MAX /* instead of a flow's number, in epoll */
#define IPV4_HEADERS 40u    /* of TCP over it, without options */
#define IPV6_HEADERS 60u

static void set_number(int fd, int level, int option, int value)
{
    (void)setsockopt(fd, level, option, &value, sizeof value);
}

static void tune_socket(const struct tcp_port *tcp, int fd)
{
    bool v4 = tcp->nic.family == AF_INET;
    set_number(fd, IPPROTO_TCP, TCP_NODELAY, 1);
    set_number(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, TCP_UNACKED_MS);
    set_number(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
    set_number(fd, IPPROTO_TCP, TCP_KEEPIDLE, TCP_IDLE_S);
    set_number(fd, IPPROTO_TCP, TCP_KEEPINTVL, TCP_ASK_AGAIN_S);
    if (tcp->mtu)
        set_number(fd, IPPROTO_TCP, TCP_MAXSEG,
                   (int)(tcp->mtu - (v4 ? IPV4_HEADERS : IPV6_HEADERS)));
}

void tcp_flow_mark(struct tcp_port *tcp, const struct tcp_flow *flow)
{
    bool v4 = tcp->nic.family == AF_INET;
    if (flow->fd >= 0)
        set_number(flow->fd, v4 ? IPPROTO_IP : IPPROTO_IPV6, v4 ? IP_TOS : IPV6_TCLASS,
                   flow->traffic_class);
}

/* ---- Numbers ---- */

static int make_room(struct tcp_port *tcp)
{
    uint32_t room = tcp->flows_room ? 2 * tcp->flows_room : 16;
    struct tcp_flow **flows = realloc(tcp->flows, room * sizeof(struct tcp_flow *));
    if (!flows)
        return -ENOMEM;
    tcp->flows = flows;
    uint32_t *ready = realloc(tcp->ready, room * sizeof *ready);
    if (!ready)
        return -ENOMEM;
    tcp->ready = ready;
    uint32_t *dirty = realloc(tcp->dirty, room * sizeof *dirty);
    if (!dirty)
        return -ENOMEM;
    tcp->dirty = dirty;
    tcp->flows_room = room;
    return 0;
}

static int free_number(struct tcp_port *tcp)
{
    for (uint32_t i = 0; i < tcp->flows_n && tcp->used_n < tcp->flows_n; i++)
        if (!tcp->flows[i])
            return (int)i;
    if (tcp->flows_n == tcp->flows_room && make_room(tcp) != 0)
        return -ENOMEM;
    return (int)tcp->flows_n++;
}

/* The buffers are large: the kernel gives memory only for what is touched of them. */
int tcp_flow_new(struct tcp_port *tcp)
{
    struct tcp_flow *flow = calloc(1, sizeof *flow);
    uint8_t *out = malloc(TCP_OUT_BYTES), *stage = aligned_alloc(64, TCP_STAGE_BYTES);
    int number = flow && out && stage ? free_number(tcp) : -ENOMEM;
    if (number < 0) {
        free(flow);
        free(out);
        free(stage);
        return number;
    }
    flow->fd = -1;
    flow->out.memory = out;
    flow->in.stage = stage;
    flow->in.ahead = TCP_AHEAD_LEAST;
    flow->retry.wait_ns = TCP_RETRY_LEAST_NS;
    tcp->flows[number] = flow;
    tcp->used_n++;
    return number;
}

/* A child of fork may have the socket too, so that closing it would not end the watch. */
static void close_socket(struct tcp_port *tcp, struct tcp_flow *flow)
{
    static const struct sockaddr nowhere = {.sa_family = AF_UNSPEC};
    if (flow->fd < 0)
        return;
    if (tcp->owner == getpid()) {
        (void)epoll_ctl(tcp->epoll, EPOLL_CTL_DEL, flow->fd, NULL);
        if (flow->given_up)
            (void)connect(flow->fd, &nowhere, sizeof nowhere); /* a reset; its buffer is emptied */
        (void)shutdown(flow->fd, SHUT_WR); /* what the kernel has taken still goes there */
    }
    close(flow->fd);
    flow->fd = -1;
}

static void drop_from_list(uint32_t *list, uint32_t *n, uint32_t number)
{
    for (uint32_t i = 0; i < *n; i++)
        if (list[i] == number)
            list[i--] = list[--*n];
}

static void forget_state(struct tcp_port *tcp, struct tcp_flow *flow)
{
    tcp->counts.connecting -= flow->state == TCP_CONNECTING;
    tcp->counts.broken -= flow->state == TCP_BROKEN;
    tcp->counts.full -= flow->full;
    flow->full = false;
}

void tcp_flow_free(struct tcp_port *tcp, uint32_t number)
{
    struct tcp_flow *flow = tcp->flows[number];
    forget_state(tcp, flow);
    tcp->counts.to_tell -= flow->notice.broken + flow->notice.gone;
    tcp->counts.strangers -= flow->accepted && !flow->hops;
    drop_from_list(tcp->ready, &tcp->ready_n, number);
    drop_from_list(tcp->dirty, &tcp->dirty_n, number);
    close_socket(tcp, flow);
    free(flow->out.memory);
    free(flow->in.stage);
    free(flow);
    tcp->flows[number] = NULL;
    tcp->used_n--;
}

void tcp_flow_list(struct tcp_port *tcp, uint32_t number)
{
    if (tcp->flows[number]->listed)
        return;
    tcp->flows[number]->listed = true;
    tcp->ready[tcp->ready_n++] = number;
}

static int watch_socket(const struct tcp_port *tcp, int fd, uint32_t number)
{
    struct epoll_event event = {.events = EPOLLIN | EPOLLRDHUP | EPOLLET, .data.u32 = number};
    if (number != LISTENER)
        event.events |= EPOLLOUT;
    return epoll_ctl(tcp->epoll, EPOLL_CTL_ADD, fd, &event) < 0 ? -errno : 0;
}

/* ---- Break ---- */

static void forget_bytes(struct tcp_port *tcp, struct tcp_flow *flow, uint32_t number)
{
    drop_from_list(tcp->dirty, &tcp->dirty_n, number);
    flow->dirty = flow->out.corked = flow->out.kept = flow->in.placing = false;
    flow->out.pieces_n = flow->out.bytes = flow->out.gathered_bytes = 0;
    flow->in.stage_from = flow->in.stage_to = 0;
    flow->in.ahead = TCP_AHEAD_LEAST;
}

static void tell_end(struct tcp_port *tcp, struct tcp_flow *flow, bool gone)
{
    bool *tell = gone ? &flow->notice.gone : &flow->notice.broken;
    tcp->counts.to_tell += flow->hops && !*tell;
    *tell |= flow->hops != 0;
}

void tcp_flow_break(struct tcp_port *tcp, uint32_t number, int error)
{
    struct tcp_flow *flow = tcp->flows[number];
    bool was_open = flow->state == TCP_OPEN;
    forget_state(tcp, flow);
    close_socket(tcp, flow);
    forget_bytes(tcp, flow, number);
    flow->state = TCP_BROKEN;
    flow->notice.error = error;
    flow->narrow_segments |= was_open && error && tcp->now_ns - flow->opened_ns < TCP_SOON_NS;
    tcp->counts.broken++;
    flow->retry.at_ns = tcp->now_ns;
    if (!was_open) {
        flow->retry.at_ns += flow->retry.wait_ns;
        if (flow->retry.wait_ns < TCP_RETRY_MOST_NS)
            flow->retry.wait_ns *= 2;
    }
    tell_end(tcp, flow, !was_open && error == ECONNREFUSED);
}

/* ---- Connect ---- */

/* A socket at this source port, or at any. One that may have any takes it only as it connects:
 * connect picks one that is free towards its peer, so that two peers may have the same, whereas
 * bind would take it from every program of the host. */
static int source_socket(const struct tcp_port *tcp, uint16_t source)
{
    union harp_sockaddr own;
    struct harp_address local = tcp->locals[0];
    local.port = source;
    socklen_t bytes = harp_sockaddr_write(&local, tcp->nic.index, &own);
    int fd = socket(tcp->nic.family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -errno;
    set_number(fd, SOL_SOCKET, SO_REUSEADDR, source != 0); /* connections of a past job in it */
    set_number(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, source == 0);
    if (bind(fd, &own.any, bytes) == 0)
        return fd;
    int error = errno;
    close(fd);
    return -error;
}

int tcp_try_source(const struct tcp_port *tcp, uint16_t source)
{
    int fd = source_socket(tcp, source);
    if (fd < 0)
        return fd;
    close(fd);
    return 0;
}

static bool is_final(int error)
{
    return error == ENETUNREACH || error == EHOSTUNREACH || error == EACCES || error == EPERM ||
           error == EINVAL || error == EAFNOSUPPORT || error == ENOMEM;
}

int tcp_flow_connect(struct tcp_port *tcp, uint32_t number)
{
    struct tcp_flow *flow = tcp->flows[number];
    union harp_sockaddr to;
    assert(flow->fd < 0 && !flow->accepted);
    socklen_t bytes = harp_sockaddr_write(&flow->remote, tcp->nic.index, &to);
    int fd = source_socket(tcp, flow->local ? tcp->locals[flow->local].port : 0);
    if (fd < 0)
        return fd;
    tune_socket(tcp, fd);
    if (flow->narrow_segments)
        set_number(fd, IPPROTO_TCP, TCP_MAXSEG,
                   tcp->nic.family == AF_INET ? TCP_NARROW_IPV4 : TCP_NARROW_IPV6);
    int error = connect(fd, &to.any, bytes) < 0 && errno != EINPROGRESS ? errno : 0;
    if (!error)
        error = -watch_socket(tcp, fd, number);
    if (error) {
        close(fd);
        tcp_flow_break(tcp, number, error);
        return is_final(error) || (error == EADDRNOTAVAIL && flow->local) ? -error : 0;
    }
    forget_state(tcp, flow);
    flow->fd = fd;
    flow->state = TCP_CONNECTING;
    flow->ending = false;
    tcp->counts.connecting++;
    tcp_flow_mark(tcp, flow);
    return 0;
}

void tcp_connect_again(struct tcp_port *tcp)
{
    for (uint32_t i = 0; i < tcp->flows_n && tcp->counts.broken; i++) {
        struct tcp_flow *flow = tcp->flows[i];
        if (!flow || flow->state != TCP_BROKEN)
            continue;
        if (!flow->hops)
            tcp_flow_free(tcp, i);
        else if (!flow->accepted && flow->retry.at_ns <= tcp->now_ns &&
                 tcp_flow_connect(tcp, i) < 0)
            flow->retry.at_ns = tcp->now_ns + TCP_RETRY_MOST_NS;
    }
}

/* ---- Accept ---- */

int tcp_listen_at(struct tcp_port *tcp, const struct harp_address *local, char *why)
{
    union harp_sockaddr own;
    char text[64];
    socklen_t length = harp_sockaddr_write(local, tcp->nic.index, &own);
    harp_address_format(local, text, sizeof text);
    (void)harp_descriptors_raise();
    tcp->epoll = epoll_create1(EPOLL_CLOEXEC);
    tcp->listener = socket(tcp->nic.family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (tcp->epoll < 0 || tcp->listener < 0) {
        snprintf(why, HARP_WHY_BYTES, "a TCP socket could not be opened: %s", strerror(errno));
        return -errno;
    }
    if (tcp->nic.family == AF_INET6)
        set_number(tcp->listener, IPPROTO_IPV6, IPV6_V6ONLY, 1);
    set_number(tcp->listener, SOL_SOCKET, SO_REUSEADDR, local->port != 0);
    tune_socket(tcp, tcp->listener);
    if (bind(tcp->listener, &own.any, length) < 0 || listen(tcp->listener, BACKLOG) < 0 ||
        getsockname(tcp->listener, &own.any, &length) < 0) {
        snprintf(why, HARP_WHY_BYTES, "TCP address %s cannot be had: %s", text, strerror(errno));
        return -errno;
    }
    harp_sockaddr_read(&own.any, &tcp->locals[0]);
    tcp->locals[0].family = HARP_TCP;
    int error = watch_socket(tcp, tcp->listener, LISTENER);
    if (error)
        snprintf(why, HARP_WHY_BYTES, "epoll takes no TCP socket: %s", strerror(-error));
    return error;
}

/* A peer that connects and sends nothing of a connection loses its place to newcomers. */
static void drop_oldest_stranger(struct tcp_port *tcp)
{
    uint32_t oldest = UINT32_MAX;
    for (uint32_t i = 0; i < tcp->flows_n; i++) {
        const struct tcp_flow *flow = tcp->flows[i];
        if (flow && flow->accepted && !flow->hops &&
            (oldest == UINT32_MAX || flow->age < tcp->flows[oldest]->age))
            oldest = i;
    }
    if (oldest != UINT32_MAX)
        tcp_flow_free(tcp, oldest);
}

static void welcome_newcomer(struct tcp_port *tcp, int fd, const union harp_sockaddr *from)
{
    int number = tcp_flow_new(tcp);
    if (number < 0) {
        close(fd);
        return;
    }
    struct tcp_flow *flow = tcp->flows[number];
    flow->fd = fd;
    flow->accepted = true;
    flow->age = tcp->accepted++;
    harp_sockaddr_read(&from->any, &flow->remote);
    flow->remote.family = HARP_TCP;
    flow->own = tcp->locals[0];
    tcp->counts.strangers++;
    flow->state = TCP_OPEN;
    tune_socket(tcp, fd);
    if (watch_socket(tcp, fd, (uint32_t)number) != 0) {
        tcp_flow_free(tcp, (uint32_t)number);
        return;
    }
    tcp_flow_list(tcp, (uint32_t)number);
}

static void accept_newcomers(struct tcp_port *tcp)
{
    union harp_sockaddr from;
    tcp->more_wait = false;
    for (uint32_t taken = 0; taken < TCP_NEWCOMERS_AT_ONCE; taken++) {
        socklen_t length = sizeof from;
        int fd = accept4(tcp->listener, &from.any, &length, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0) {
            tcp->more_wait = errno == EMFILE || errno == ENFILE || errno == ENOMEM;
            return;
        }
        if (tcp->counts.strangers >= TCP_STRANGERS_MAX)
            drop_oldest_stranger(tcp);
        welcome_newcomer(tcp, fd, &from);
    }
    tcp->more_wait = true;
}

/* ---- Events ---- */

static int socket_error(int fd)
{
    int error = 0;
    socklen_t length = sizeof error;
    return getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length) < 0 ? errno : error;
}

static void become_open(struct tcp_port *tcp, struct tcp_flow *flow)
{
    union harp_sockaddr own;
    socklen_t length = sizeof own;
    tcp->counts.connecting--;
    flow->state = TCP_OPEN;
    flow->opened_ns = tcp->now_ns;
    flow->retry.wait_ns = TCP_RETRY_LEAST_NS;
    if (getsockname(flow->fd, &own.any, &length) == 0) {
        harp_sockaddr_read(&own.any, &flow->own);
        flow->own.family = HARP_TCP;
    }
}

static void hear_event(struct tcp_port *tcp, const struct epoll_event *event)
{
    uint32_t number = event->data.u32;
    struct tcp_flow *flow = number < tcp->flows_n ? tcp->flows[number] : NULL;
    if (!flow || flow->fd < 0)
        return;
    if (flow->state == TCP_CONNECTING && event->events & (EPOLLOUT | EPOLLERR | EPOLLHUP)) {
        int error = socket_error(flow->fd);
        if (error) {
            tcp_flow_break(tcp, number, error);
            return;
        }
        become_open(tcp, flow);
    }
    if (event->events & EPOLLOUT && flow->full) {
        flow->full = false;
        tcp->counts.full--;
    }
    flow->ending |= (event->events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0;
    if (event->events & ~(uint32_t)EPOLLOUT)
        tcp_flow_list(tcp, number);
}

void tcp_look(struct tcp_port *tcp)
{
    struct epoll_event events[EVENTS];
    bool newcomers = tcp->more_wait;
    int n;
    do {
        n = epoll_wait(tcp->epoll, events, EVENTS, 0);
        tcp->port.counters.receive_calls++;
        for (int i = 0; i < n; i++)
            if (events[i].data.u32 == LISTENER)
                newcomers = true;
            else
                hear_event(tcp, &events[i]);
    } while (n == EVENTS);
    if (newcomers)
        accept_newcomers(tcp);
}
