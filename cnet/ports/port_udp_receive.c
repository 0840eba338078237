#define _GNU_SOURCE
#include "ports/port_udp.h"

#include <errno.h>
#include <linux/errqueue.h>
#include <netinet/icmp6.h>
#include <netinet/ip_icmp.h>
#include <sys/epoll.h>

union control {
    char bytes[256];
    struct cmsghdr align;
};

/* Which sockets have something. With one it is cheaper to try. */
static void ask(struct udp_port *udp)
{
    struct epoll_event events[UDP_LOCALS_MAX];
    if (udp->sockets_n == 1) {
        udp_watch(udp, false);
        udp->ready[0] = 0;
        udp->ready_n = 1;
        return;
    }
    int n = epoll_wait(udp->epoll, events, UDP_LOCALS_MAX, 0);
    for (int i = 0; i < n; i++)
        udp->ready[i] = (uint16_t)events[i].data.u32;
    udp->ready_n = n > 0 ? (uint16_t)n : 0;
}

size_t udp_receive(struct harp_port *port, uint64_t now_ns, struct harp_arrival *arrivals,
                   size_t room)
{
    struct udp_port *udp = (struct udp_port *)port;
    (void)now_ns;
    if (!harp_supers_any(&udp->inbound)) {
        if (udp->ready_n == 0)
            ask(udp);
        while (!harp_supers_any(&udp->inbound) && udp->ready_n > 0) {
            uint16_t local = udp->ready[--udp->ready_n];
            harp_supers_read(&udp->inbound, udp->sockets[local], local);
            port->counters.receive_calls++;
        }
    }
    return harp_supers_arrive(&udp->inbound, port, arrivals, room);
}

static void notify(struct udp_port *udp, const struct harp_notice *notice)
{
    for (uint32_t i = 0; i < udp->notices_n; i++) {
        struct harp_notice *known = &udp->notices[(udp->notices_first + i) % UDP_NOTICES];
        if (known->type == notice->type && harp_address_same(&known->about, &notice->about) &&
            memcmp(known->quote, notice->quote, sizeof known->quote) == 0) {
            known->payload_max = notice->payload_max;
            return;
        }
    }
    if (udp->notices_n < UDP_NOTICES)
        udp->notices[(udp->notices_first + udp->notices_n++) % UDP_NOTICES] = *notice;
}

void udp_narrow(struct udp_port *udp, const union harp_sockaddr *to, uint32_t payload_max)
{
    struct harp_notice notice = {.type = HARP_NOTICE_MTU, .payload_max = payload_max};
    for (int i = 0; i < udp->hops_n; i++) {
        struct udp_hop *hop = &udp->hops[i];
        if (hop->payload_max > payload_max && harp_sockaddr_same(&hop->to, to))
            hop->payload_max = payload_max;
    }
    harp_sockaddr_read(&to->any, &notice.about);
    notify(udp, &notice);
}

void udp_unreachable(struct udp_port *udp, const union harp_sockaddr *to)
{
    struct harp_notice notice = {.type = HARP_NOTICE_UNREACHABLE};
    harp_sockaddr_read(&to->any, &notice.about);
    notify(udp, &notice);
}

static void refused(struct udp_port *udp, const union harp_sockaddr *to, const uint8_t *quote)
{
    struct harp_notice notice = {.type = HARP_NOTICE_REFUSED};
    harp_sockaddr_read(&to->any, &notice.about);
    memcpy(notice.quote, quote, sizeof notice.quote);
    notify(udp, &notice);
}

/* An error that ICMP brought, about a datagram to `to`, of which it quotes so many bytes. */
static void icmp(struct udp_port *udp, const struct sock_extended_err *error,
                 const union harp_sockaddr *to, const uint8_t *quote, size_t quoted)
{
    if (error->ee_origin != SO_EE_ORIGIN_ICMP && error->ee_origin != SO_EE_ORIGIN_ICMP6)
        return; /* our own kernel's come with the system call that they are about */
    if (error->ee_errno == EMSGSIZE && error->ee_info >= UDP_MTU_LEAST)
        udp_narrow(udp, to, udp_payload_of_mtu(udp, error->ee_info));
    else if (error->ee_errno == ECONNREFUSED && quoted >= HARP_QUOTE_BYTES)
        refused(udp, to, quote);
    else if (error->ee_errno && error->ee_errno != EMSGSIZE)
        udp_unreachable(udp, to);
}

static bool read_error(struct udp_port *udp, uint16_t local)
{
    uint8_t quote[HARP_QUOTE_BYTES];
    union control control;
    union harp_sockaddr to;
    struct iovec part = {quote, sizeof quote};
    struct msghdr header = {.msg_name = &to,
                            .msg_namelen = sizeof to,
                            .msg_iov = &part,
                            .msg_iovlen = 1,
                            .msg_control = control.bytes,
                            .msg_controllen = sizeof control.bytes};
    ssize_t quoted = recvmsg(udp->sockets[local], &header, MSG_ERRQUEUE | MSG_DONTWAIT);
    if (quoted < 0)
        return false;
    for (struct cmsghdr *item = CMSG_FIRSTHDR(&header); item; item = CMSG_NXTHDR(&header, item)) {
        bool v4 = item->cmsg_level == IPPROTO_IP && item->cmsg_type == IP_RECVERR;
        bool v6 = item->cmsg_level == IPPROTO_IPV6 && item->cmsg_type == IPV6_RECVERR;
        struct sock_extended_err error;
        if (!v4 && !v6)
            continue;
        memcpy(&error, CMSG_DATA(item), sizeof error);
        icmp(udp, &error, &to, quote, (size_t)quoted);
    }
    return true;
}

static void read_errors(struct udp_port *udp, uint16_t local)
{
    for (int most = 64; most > 0 && read_error(udp, local); most--)
        ;
}

void udp_tend(struct harp_port *port, uint64_t now_ns)
{
    struct udp_port *udp = (struct udp_port *)port;
    struct epoll_event events[UDP_LOCALS_MAX];
    (void)now_ns;
    if (udp->sockets_n == 1) {
        read_errors(udp, 0);
        return;
    }
    int n = epoll_wait(udp->epoll, events, udp->sockets_n, 0);
    for (int i = 0; i < n; i++)
        if (events[i].events & EPOLLERR)
            read_errors(udp, (uint16_t)events[i].data.u32);
}
