#define _GNU_SOURCE
#include "ports/port_udp.h"

#include <errno.h>
#include <sys/epoll.h>

/* Find the sockets that can be read. A single socket is cheaper to try. */
static void poll_sockets(struct udp_port *udp)
{
    struct epoll_event events[UDP_LOCALS_MAX];
    if (udp->sockets.n == 1) {
        udp_watch(udp, false);
        udp->sockets.ready[0] = 0;
        udp->sockets.ready_n = 1;
        return;
    }
    int n = epoll_wait(udp->sockets.epoll, events, UDP_LOCALS_MAX, 0);
    for (int i = 0; i < n; i++)
        udp->sockets.ready[i] = (uint16_t)events[i].data.u32;
    udp->sockets.ready_n = n > 0 ? (uint16_t)n : 0;
}

size_t udp_receive(struct harp_port *port, uint64_t now_ns, struct harp_arrival *arrivals,
                   size_t room)
{
    struct udp_port *udp = (struct udp_port *)port;
    udp->now_ns = now_ns;
    if (!harp_gro_any(&udp->inbound)) {
        if (udp->sockets.ready_n == 0)
            poll_sockets(udp);
        while (!harp_gro_any(&udp->inbound) && udp->sockets.ready_n > 0) {
            uint16_t local = udp->sockets.ready[--udp->sockets.ready_n];
            harp_gro_read(&udp->inbound, udp->sockets.fds[local], local);
            port->counters.receive_calls++;
        }
    }
    return harp_gro_arrive(&udp->inbound, port, arrivals, room);
}

void udp_notify(struct udp_port *udp, const struct harp_notice *notice)
{
    for (uint32_t i = 0; i < udp->notices.n; i++) {
        struct harp_notice *known = &udp->notices.ring[(udp->notices.first + i) % UDP_NOTICES];
        if (known->type == notice->type && harp_address_same(&known->about, &notice->about) &&
            memcmp(known->quote, notice->quote, sizeof known->quote) == 0) {
            known->payload_max = notice->payload_max;
            return;
        }
    }
    if (udp->notices.n < UDP_NOTICES)
        udp->notices.ring[(udp->notices.first + udp->notices.n++) % UDP_NOTICES] = *notice;
}

void udp_narrow(struct udp_port *udp, const union harp_sockaddr *to, uint32_t payload_max)
{
    struct harp_notice notice = {.type = HARP_NOTICE_MTU, .payload_max = payload_max};
    for (int i = 0; i < udp->hops_n; i++) {
        struct udp_hop *hop = &udp->hops[i];
        if (hop->used && hop->payload_max > payload_max && harp_sockaddr_same(&hop->to, to))
            hop->payload_max = payload_max;
    }
    harp_sockaddr_read(&to->any, &notice.about);
    udp_notify(udp, &notice);
}

void udp_unreachable(struct udp_port *udp, const union harp_sockaddr *to)
{
    struct harp_notice notice = {.type = HARP_NOTICE_UNREACHABLE};
    harp_sockaddr_read(&to->any, &notice.about);
    udp_notify(udp, &notice);
}

static void take_error(struct udp_port *udp, const struct harp_icmp_error *error)
{
    union harp_sockaddr to;
    harp_sockaddr_write(&error->to, udp->nic.index, &to);
    if (error->ours)
        return; /* it came with the system call, too */
    if (error->error == EMSGSIZE && error->mtu >= UDP_MTU_LEAST) {
        udp_narrow(udp, &to, udp_payload_of_mtu(udp, error->mtu));
    } else if (error->error == ECONNREFUSED && error->quoted >= HARP_QUOTE_BYTES) {
        struct harp_notice notice = {.type = HARP_NOTICE_REFUSED, .about = error->to};
        memcpy(notice.quote, error->quote, sizeof notice.quote);
        udp_notify(udp, &notice);
    } else if (error->error && error->error != EMSGSIZE) {
        udp_unreachable(udp, &to);
    }
}

static void read_errors(struct udp_port *udp, uint16_t local)
{
    struct harp_icmp_error error;
    for (int i = 0; i < HARP_ICMP_AT_ONCE; i++) {
        if (!harp_icmp_next(udp->sockets.fds[local], &error))
            return;
        take_error(udp, &error);
    }
    struct harp_notice notice = {.type = HARP_NOTICE_TROUBLE, .trouble = HARP_TROUBLE_ICMP};
    if (harp_icmp_flood(&udp->icmp, udp->sockets.fds, udp->sockets.n, udp->now_ns))
        udp_notify(udp, &notice);
}

void udp_tend(struct harp_port *port, uint64_t now_ns)
{
    struct udp_port *udp = (struct udp_port *)port;
    struct epoll_event events[UDP_LOCALS_MAX];
    udp->now_ns = now_ns;
    harp_icmp_tend(&udp->icmp, udp->sockets.fds, udp->sockets.n, now_ns);
    if (udp->sockets.n == 1) {
        read_errors(udp, 0);
        return;
    }
    int n = epoll_wait(udp->sockets.epoll, events, udp->sockets.n, 0);
    for (int i = 0; i < n; i++)
        if (events[i].events & EPOLLERR)
            read_errors(udp, (uint16_t)events[i].data.u32);
}
