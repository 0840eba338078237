/* The kernel's UDP sockets beside the AF_XDP one, one for each local address.
 *
 * They hold the port number, receive what came to a wrong queue or from this host, carry datagrams
 * for which the port has no route of its own, and read ICMP errors about both kinds of datagrams.
 */
#define _GNU_SOURCE
#include "ports/xdp_port.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/descriptors.h"
#include "base/sockaddr.h"
#include "ports/control.h"

enum {
    BUFFER_BYTES = 4 << 20,
    STRAYS_POLL_NS = 10 * 1000 * 1000, /* how long to look each turn after one came */
};

static void set_option(int fd, int level, int option, int value)
{
    (void)setsockopt(fd, level, option, &value, sizeof value);
}

/* A socket at `address` of that interface; its port is filled in if it was 0. */
static int open_one(struct harp_address *address, uint32_t interface)
{
    union harp_sockaddr name;
    bool v4 = harp_address_is_ipv4(address);
    int fd = socket(v4 ? AF_INET : AF_INET6, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    socklen_t bytes = harp_sockaddr_write(address, interface, &name);
    if (fd < 0)
        return -errno;
    if (v4) {
        set_option(fd, IPPROTO_IP, IP_TOS, HARP_ECT0);
        set_option(fd, IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_DO);
    } else {
        set_option(fd, IPPROTO_IPV6, IPV6_TCLASS, HARP_ECT0);
        set_option(fd, IPPROTO_IPV6, IPV6_MTU_DISCOVER, IPV6_PMTUDISC_DO);
    }
    (void)harp_gro_ask_for(fd, v4);
    harp_icmp_ask_for(fd, v4, true);
    set_option(fd, SOL_SOCKET, SO_RCVBUFFORCE, BUFFER_BYTES);
    if (bind(fd, &name.any, bytes) < 0 || getsockname(fd, &name.any, &bytes) < 0) {
        int error = errno;
        close(fd);
        return -error;
    }
    harp_sockaddr_read(&name.any, address);
    return fd;
}

/* The next local, at this address. */
static int open_local(struct harp_xdp *xdp, const struct harp_address *address, char *why)
{
    uint16_t i = xdp->port.locals_n;
    struct harp_address *local = &xdp->locals[i];
    struct epoll_event event = {.events = EPOLLIN, .data.u32 = i};
    *local = *address;
    int fd = open_one(local, xdp->link.index);
    int error = fd < 0 ? fd : 0;
    if (fd >= 0 && epoll_ctl(xdp->epoll, EPOLL_CTL_ADD, fd, &event) < 0) {
        error = -errno;
        close(fd);
    }
    if (error < 0) {
        char text[64];
        harp_address_format(local, text, sizeof text);
        snprintf(why, HARP_WHY_BYTES, "no UDP socket can be bound to %s: %s%s", text,
                 strerror(-error),
                 error == -EADDRINUSE ? ": choose another port, or 0 for any" : "");
        return error;
    }
    xdp->kernel.sockets[i] = fd;
    xdp->port.locals_n++;
    xdp->local_of[htons(local->port)] = (uint16_t)(i + 1);
    return i;
}

int harp_xdp_kernel_open(struct harp_xdp *xdp, const struct harp_port_config *config, char *why)
{
    struct harp_address address = config->local;
    xdp->icmp.v4 = harp_address_is_ipv4(&config->local);
    xdp->kernel.sockets = malloc(XDP_LOCALS_MAX * sizeof *xdp->kernel.sockets);
    xdp->kernel.strays.least = xdp->kernel.strays.most = HARP_GRO_AT_ONCE;
    xdp->kernel.strays.at_once = HARP_GRO_AT_ONCE;
    xdp->kernel.strays.buffers = calloc(HARP_GRO_AT_ONCE, HARP_GRO_BUFFER_BYTES);
    if (!xdp->kernel.sockets || !xdp->kernel.strays.buffers)
        return -ENOMEM;
    for (uint32_t i = 0; i < config->locals; i++) {
        int error = open_local(xdp, &address, why);
        if (error < 0)
            return error;
        address.port = 0;
    }
    return 0;
}

/* The last local is not to be, after all. */
static void close_last_local(struct harp_xdp *xdp)
{
    uint16_t i = --xdp->port.locals_n;
    xdp->local_of[htons(xdp->locals[i].port)] = 0;
    xdp->kernel.ready_n -= xdp->kernel.ready[i];
    xdp->kernel.ready[i] = false;
    close(xdp->kernel.sockets[i]);
}

int harp_xdp_add_local(struct harp_port *port, uint16_t udp_port, char *why)
{
    struct harp_xdp *xdp = harp_xdp_of(port);
    struct harp_address address = xdp->locals[0];
    if (port->locals_n == XDP_LOCALS_MAX) {
        snprintf(why, HARP_WHY_BYTES, "an xdp port has %d own addresses at most", XDP_LOCALS_MAX);
        return -ENOSPC;
    }
    address.port = udp_port;
    int local = open_local(xdp, &address, why);
    if (local < 0)
        return local;
    int error = harp_descriptor_leaves_half(xdp->kernel.sockets[local])
                    ? harp_xdp_nic_steer(&xdp->nic, &xdp->locals[local], xdp->socket.queue)
                    : -EMFILE;
    if (error == 0)
        return local;
    snprintf(why, HARP_WHY_BYTES, "no further UDP port of %s is taken for queue %u: %s",
             xdp->link.name, xdp->socket.queue, strerror(-error));
    close_last_local(xdp);
    return error;
}

void harp_xdp_kernel_close(struct harp_xdp *xdp)
{
    for (uint32_t i = 0; i < xdp->port.locals_n; i++)
        close(xdp->kernel.sockets[i]);
    free(xdp->kernel.sockets);
    free(xdp->kernel.strays.buffers);
}

void harp_xdp_notice_add(struct harp_xdp *xdp, const struct harp_notice *notice)
{
    if (xdp->notices.n == XDP_NOTICES)
        return; /* what is lost here shows as silence later */
    uint32_t at = (xdp->notices.first + xdp->notices.n++) % XDP_NOTICES;
    xdp->notices.ring[at] = *notice;
}

/* Say that `error` befell what was sent to `to`; `mtu` goes with EMSGSIZE, `quote` (or NULL) with
 * ECONNREFUSED. */
static void put_notice(struct harp_xdp *xdp, const struct harp_address *to, int error, uint32_t mtu,
                       const uint8_t *quote)
{
    uint32_t headers = harp_address_is_ipv4(to) ? 28 : 48;
    struct harp_notice notice = {.about = *to};
    if (error == EMSGSIZE && mtu > headers) {
        notice.type = HARP_NOTICE_MTU;
        notice.payload_max = mtu - headers;
        for (uint32_t i = 0; i < xdp->hops_n; i++)
            if (memcmp(xdp->hops[i].to.ip, to->ip, sizeof to->ip) == 0 &&
                xdp->hops[i].payload_max > notice.payload_max)
                xdp->hops[i].payload_max = notice.payload_max;
    } else if (error == ECONNREFUSED && quote) {
        notice.type = HARP_NOTICE_REFUSED;
        memcpy(notice.quote, quote, sizeof notice.quote);
    } else if (error == ECONNREFUSED || error == EHOSTUNREACH || error == ENETUNREACH ||
               error == EACCES || error == EPERM || error == ENOPROTOOPT) {
        notice.type = HARP_NOTICE_UNREACHABLE;
    } else {
        return;
    }
    harp_xdp_notice_add(xdp, &notice);
}

void harp_xdp_kernel_send(struct harp_xdp *xdp, const struct harp_xdp_hop *hop,
                          const uint8_t *bytes, uint32_t count)
{
    union harp_sockaddr name;
    socklen_t name_bytes = harp_sockaddr_write(&hop->to, xdp->link.index, &name);
    int fd = xdp->kernel.sockets[hop->local];
    struct iovec part = {(void *)(uintptr_t)bytes, count};
    struct msghdr header = {
        .msg_name = &name, .msg_namelen = name_bytes, .msg_iov = &part, .msg_iovlen = 1};
    union harp_control control;
    ssize_t sent;
    int error = 0;
    harp_control_add_class(&header, &control, harp_address_is_ipv4(&hop->to), hop->traffic_class);
    /* The first call may return what ICMP said about an earlier datagram, and send nothing. */
    for (int i = 0; i < 2; i++) {
        sent = sendmsg(fd, &header, MSG_DONTWAIT);
        error = sent < 0 ? errno : 0;
        xdp->port.counters.send_calls++;
        if (sent >= 0 || error == EAGAIN || error == EMSGSIZE)
            break;
    }
    xdp->port.counters.sent_copied += xdp->socket.zero_copy;
    if (sent >= 0)
        return;
    xdp->port.counters.dropped++;
    if (error != EMSGSIZE)
        put_notice(xdp, &hop->to, error, 0, NULL);
}

void harp_xdp_kernel_ready(struct harp_xdp *xdp, uint32_t local)
{
    xdp->kernel.ready_n += !xdp->kernel.ready[local];
    xdp->kernel.ready[local] = true;
}

/* See which kernel sockets have datagrams, and leave the rest for later. One system call. */
static void look_for_strays(struct harp_xdp *xdp)
{
    struct epoll_event events[XDP_EVENTS];
    int count = epoll_wait(xdp->epoll, events, XDP_EVENTS, 0);
    xdp->port.counters.receive_calls++;
    for (int i = 0; i < count; i++)
        if (events[i].data.u32 < XDP_EVENT_SOCKET && events[i].events & EPOLLIN)
            harp_xdp_kernel_ready(xdp, events[i].data.u32);
}

/* A local whose socket has something; locals_n if there is none. */
static uint32_t next_ready(struct harp_xdp *xdp)
{
    uint32_t locals = xdp->port.locals_n;
    if (xdp->kernel.ready_n == 0 && locals > 1)
        look_for_strays(xdp);
    else if (xdp->kernel.ready_n == 0)
        xdp->kernel.ready[0] = true, xdp->kernel.ready_n = 1; /* it is cheaper to try than to ask */
    for (uint32_t i = 0; xdp->kernel.ready_n > 0 && i < locals; i++) {
        uint32_t local = xdp->kernel.strays_next++ % locals;
        if (xdp->kernel.ready[local])
            return local;
    }
    return locals;
}

size_t harp_xdp_kernel_receive(struct harp_xdp *xdp, struct harp_arrival *arrivals, size_t room)
{
    struct harp_port *port = &xdp->port;
    if (!harp_gro_any(&xdp->kernel.strays)) {
        uint32_t local = next_ready(xdp);
        if (local == port->locals_n)
            return 0;
        port->counters.receive_calls++;
        if (harp_gro_read(&xdp->kernel.strays, xdp->kernel.sockets[local], (uint16_t)local)) {
            xdp->kernel.ready[local] = false;
            xdp->kernel.ready_n--;
        }
    }
    size_t made = harp_gro_arrive(&xdp->kernel.strays, port, arrivals, room);
    for (size_t i = 0; i < made; i++)
        arrivals[i].stray = true;
    port->counters.strays += made;
    if (made > 0)
        xdp->kernel.strays_until_ns = xdp->now_ns + STRAYS_POLL_NS;
    return made;
}

void harp_xdp_kernel_errors(struct harp_xdp *xdp, uint32_t local)
{
    struct harp_icmp_error error;
    int pending;
    socklen_t bytes = sizeof pending;
    (void)getsockopt(xdp->kernel.sockets[local], SOL_SOCKET, SO_ERROR, &pending, &bytes);
    for (int i = 0; i < HARP_ICMP_AT_ONCE; i++) {
        if (!harp_icmp_next(xdp->kernel.sockets[local], &error))
            return;
        put_notice(xdp, &error.to, error.error, error.mtu,
                   error.quoted == sizeof error.quote ? error.quote : NULL);
    }
    struct harp_notice notice = {.type = HARP_NOTICE_TROUBLE, .trouble = HARP_TROUBLE_ICMP};
    if (harp_icmp_flood(&xdp->icmp, xdp->kernel.sockets, xdp->port.locals_n, xdp->now_ns))
        harp_xdp_notice_add(xdp, &notice);
}
