#define _GNU_SOURCE
#include "ports/port_udp.h"

#include <errno.h>
#include <netinet/udp.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/descriptors.h"
#include "ports/headers.h"

uint32_t udp_payload_of_mtu(const struct udp_port *udp, uint32_t mtu)
{
    uint32_t headers = udp->nic.family == AF_INET ? IP4_UDP_BYTES : IP6_UDP_BYTES;
    uint32_t payload = mtu > headers ? mtu - headers : 0;
    return payload < UDP_GSO_BYTES ? payload : UDP_GSO_BYTES;
}

/* Large buffers; the kernel's limit does not bind those who may administer the network. */
static void set_buffers(struct udp_port *udp, int fd)
{
    static const int options[2][2] = {{SO_RCVBUFFORCE, SO_RCVBUF}, {SO_SNDBUFFORCE, SO_SNDBUF}};
    for (int i = 0; i < 2; i++) {
        int bytes = HARP_SOCKET_BYTES, got = 0;
        socklen_t length = sizeof got;
        if (setsockopt(fd, SOL_SOCKET, options[i][0], &bytes, sizeof bytes) < 0)
            setsockopt(fd, SOL_SOCKET, options[i][1], &bytes, sizeof bytes);
        getsockopt(fd, SOL_SOCKET, options[i][1], &got, &length);
        udp->sockets.kernel_bytes[i] = (uint32_t)got / 2; /* it doubles what it is asked for */
    }
}

static int set_option(int fd, int level, int option, int value)
{
    return setsockopt(fd, level, option, &value, sizeof value);
}

static void set_options(struct udp_port *udp, int fd)
{
    if (udp->nic.family == AF_INET) {
        set_option(fd, IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_PROBE);
        set_option(fd, IPPROTO_IP, IP_TOS, HARP_ECT0);
    } else {
        set_option(fd, IPPROTO_IPV6, IPV6_V6ONLY, 1);
        set_option(fd, IPPROTO_IPV6, IPV6_MTU_DISCOVER, IPV6_PMTUDISC_PROBE);
        set_option(fd, IPPROTO_IPV6, IPV6_TCLASS, HARP_ECT0);
    }
    harp_icmp_ask_for(fd, udp->nic.family == AF_INET, true);
    udp->gso = set_option(fd, IPPROTO_UDP, UDP_SEGMENT, 0) == 0;
    udp->gro = harp_gro_ask_for(fd, udp->nic.family == AF_INET);
    set_buffers(udp, fd);
}

static int socket_open(struct udp_port *udp, uint16_t i, const struct harp_address *local,
                       char *why)
{
    union harp_sockaddr own;
    char text[64];
    harp_address_format(local, text, sizeof text);
    int fd = socket(udp->nic.family, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) {
        snprintf(why, HARP_WHY_BYTES, "a UDP socket could not be opened: %s", strerror(errno));
        return -errno;
    }
    udp->sockets.fds[udp->sockets.n++] = fd;
    set_options(udp, fd);
    socklen_t length = harp_sockaddr_write(local, udp->nic.index, &own);
    if (bind(fd, &own.any, length) < 0) {
        snprintf(why, HARP_WHY_BYTES, "UDP address %s cannot be had: %s", text, strerror(errno));
        return -errno;
    }
    if (getsockname(fd, &own.any, &length) < 0) {
        snprintf(why, HARP_WHY_BYTES, "UDP socket at %s: %s", text, strerror(errno));
        return -errno;
    }
    harp_sockaddr_read(&own.any, &udp->sockets.locals[i]);
    return 0;
}

int udp_watch(struct udp_port *udp, bool on)
{
    for (uint16_t i = 0; i < udp->sockets.n && udp->sockets.watching != on; i++) {
        struct epoll_event event = {.events = EPOLLIN, .data.u32 = i};
        if (epoll_ctl(udp->sockets.epoll, on ? EPOLL_CTL_ADD : EPOLL_CTL_DEL, udp->sockets.fds[i],
                      &event) < 0)
            return -errno;
    }
    udp->sockets.watching = on;
    return 0;
}

int udp_sockets_open(struct udp_port *udp, const struct harp_address *local, uint16_t locals,
                     char *why)
{
    struct harp_address own = *local;
    udp->sockets.epoll = epoll_create1(EPOLL_CLOEXEC);
    if (udp->sockets.epoll < 0) {
        snprintf(why, HARP_WHY_BYTES, "no epoll descriptor: %s", strerror(errno));
        return -errno;
    }
    for (uint16_t i = 0; i < locals; i++) {
        int error = socket_open(udp, i, &own, why);
        if (error)
            return error;
        own.port = 0;
    }
    int error = locals > 1 ? udp_watch(udp, true) : 0;
    if (error)
        snprintf(why, HARP_WHY_BYTES, "epoll takes no UDP socket: %s", strerror(-error));
    return error;
}

int udp_add_local(struct harp_port *port, uint16_t udp_port, char *why)
{
    struct udp_port *udp = (struct udp_port *)port;
    struct harp_address own = udp->sockets.locals[0];
    uint16_t i = udp->sockets.n;
    struct epoll_event event = {.events = EPOLLIN, .data.u32 = i};
    if (i == UDP_LOCALS_MAX) {
        snprintf(why, HARP_WHY_BYTES, "a udp port has %u own addresses at most", UDP_LOCALS_MAX);
        return -ENOSPC;
    }
    own.port = udp_port;
    snprintf(why, HARP_WHY_BYTES, "no descriptor is left for a further UDP socket");
    int error = udp_watch(udp, true); /* a single one was watched only in sleep */
    if (!error)
        error = socket_open(udp, i, &own, why);
    if (!error && !harp_descriptor_leaves_half(udp->sockets.fds[i]))
        error = -EMFILE;
    if (!error && epoll_ctl(udp->sockets.epoll, EPOLL_CTL_ADD, udp->sockets.fds[i], &event) < 0)
        error = -errno;
    if (error) {
        while (udp->sockets.n > i)
            close(udp->sockets.fds[--udp->sockets.n]);
        return error;
    }
    port->locals_n = udp->sockets.n;
    return i;
}

int udp_route_payload(const struct udp_port *udp, const union harp_sockaddr *to)
{
    union harp_sockaddr own;
    struct harp_address local = udp->sockets.locals[0];
    int mtu = 0;
    local.port = 0;
    socklen_t length = harp_sockaddr_write(&local, udp->nic.index, &own), mtu_length = sizeof mtu;
    bool v4 = udp->nic.family == AF_INET;
    int fd = socket(udp->nic.family, SOCK_DGRAM | SOCK_CLOEXEC, 0), error = 0;
    if (fd < 0)
        return -errno;
    if (bind(fd, &own.any, length) < 0 || connect(fd, &to->any, length) < 0 ||
        getsockopt(fd, v4 ? IPPROTO_IP : IPPROTO_IPV6, v4 ? IP_MTU : IPV6_MTU, &mtu, &mtu_length) <
            0)
        error = -errno;
    close(fd);
    return error ? error : (int)udp_payload_of_mtu(udp, (uint32_t)mtu);
}
