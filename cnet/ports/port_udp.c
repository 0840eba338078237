#define _GNU_SOURCE
#include "ports/port_udp.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static void udp_release(struct harp_port *port, struct harp_arrival *arrivals, size_t count)
{
    (void)port, (void)arrivals, (void)count; /* the buffers are free again with the next receive */
}

static bool udp_notice(struct harp_port *port, struct harp_notice *notice)
{
    struct udp_port *udp = (struct udp_port *)port;
    if (udp->notices.n == 0)
        return false;
    *notice = udp->notices.ring[udp->notices.first];
    udp->notices.first = (udp->notices.first + 1) % UDP_NOTICES;
    udp->notices.n--;
    return true;
}

/* A free place for a hop, or -1. */
static int hop_place(struct udp_port *udp)
{
    for (int i = 0; i < udp->hops_n; i++)
        if (!udp->hops[i].used)
            return i;
    int wider = udp->hops_n ? udp->hops_n * 2 : 16, place = udp->hops_n;
    struct udp_hop *hops = realloc(udp->hops, (size_t)wider * sizeof *hops);
    if (!hops)
        return -1;
    memset(hops + place, 0, (size_t)(wider - place) * sizeof *hops);
    udp->hops = hops;
    udp->hops_n = wider;
    return place;
}

static int udp_hop(struct harp_port *port, const struct harp_address *to, uint16_t local, char *why)
{
    struct udp_port *udp = (struct udp_port *)port;
    struct udp_hop made = {.local = local, .used = true};
    char text[64], own[64];
    assert(local < udp->sockets.n);
    harp_address_format(to, text, sizeof text);
    harp_address_format(&udp->sockets.locals[local], own, sizeof own);
    if (to->family != HARP_INET || to->port == 0 ||
        harp_address_is_ipv4(to) != (udp->nic.family == AF_INET)) {
        snprintf(why, HARP_WHY_BYTES,
                 "%s cannot be reached from %s: it takes an %s address and a"
                 " UDP port",
                 text, own, udp->nic.family == AF_INET ? "IPv4" : "IPv6");
        return -EAFNOSUPPORT;
    }
    harp_sockaddr_write(to, udp->nic.index, &made.to);
    int payload = udp_route_payload(udp, &made.to);
    if (payload < 0) {
        snprintf(why, HARP_WHY_BYTES, "there is no way from %s to %s: %s", own, text,
                 strerror(-payload));
        return payload;
    }
    made.payload_max =
        (uint32_t)payload < port->payload_max ? (uint32_t)payload : port->payload_max;
    int place = hop_place(udp);
    if (place < 0) {
        snprintf(why, HARP_WHY_BYTES, "no memory for a way to %s", text);
        return -ENOMEM;
    }
    udp->hops[place] = made;
    return place;
}

static void udp_unhop(struct harp_port *port, int hop)
{
    struct udp_port *udp = (struct udp_port *)port;
    assert(hop >= 0 && hop < udp->hops_n && udp->hops[hop].used);
    udp->hops[hop].used = false;
    if (udp->staged.last_hop == hop)
        udp->staged.last_hop = -1;
}

static void udp_set_traffic_class(struct harp_port *port, int hop, uint8_t traffic_class)
{
    struct udp_port *udp = (struct udp_port *)port;
    assert(hop >= 0 && hop < udp->hops_n && udp->hops[hop].used);
    udp->hops[hop].traffic_class = traffic_class & (uint8_t)~HARP_ECN_MASK;
    if (udp->staged.last_hop == hop)
        udp->staged.last_hop = -1;
}

static uint32_t udp_hop_payload_max(const struct harp_port *port, int hop)
{
    const struct udp_port *udp = (const struct udp_port *)port;
    assert(hop >= 0 && hop < udp->hops_n && udp->hops[hop].used);
    return udp->hops[hop].payload_max;
}

static int udp_fd(const struct harp_port *port)
{
    return ((const struct udp_port *)port)->sockets.epoll;
}

static bool udp_sleep(struct harp_port *port)
{
    struct udp_port *udp = (struct udp_port *)port;
    return !harp_gro_any(&udp->inbound) && udp->sockets.ready_n == 0 && udp_watch(udp, true) == 0;
}

static uint64_t udp_deadline_ns(const struct harp_port *port)
{
    return ((const struct udp_port *)port)->retry_ns;
}

static void udp_close(struct harp_port *port)
{
    struct udp_port *udp = (struct udp_port *)port;
    for (uint16_t i = 0; i < udp->sockets.n; i++)
        close(udp->sockets.fds[i]);
    if (udp->sockets.epoll >= 0)
        close(udp->sockets.epoll);
    if (udp->arena.base)
        harp_arena_close(&udp->arena);
    free(udp->sockets.fds);
    free(udp->sockets.locals);
    free(udp->hops);
    free(udp);
}

static const struct harp_port_ops udp_ops = {
    .name = "udp",
    .receive = udp_receive,
    .release = udp_release,
    .room = udp_room,
    .slot = udp_slot,
    .flush = udp_flush,
    .tend = udp_tend,
    .notice = udp_notice,
    .hop = udp_hop,
    .unhop = udp_unhop,
    .set_traffic_class = udp_set_traffic_class,
    .add_local = udp_add_local,
    .hop_payload_max = udp_hop_payload_max,
    .fd = udp_fd,
    .sleep = udp_sleep,
    .deadline_ns = udp_deadline_ns,
    .close = udp_close,
};

static int allocate_memory(struct udp_port *udp, char *why)
{
    size_t buffers = (size_t)UDP_RECEIVE_MOST * HARP_GRO_BUFFER_BYTES;
    udp->staged.bytes = UDP_STAGED * (udp->port.payload_max + UDP_ALIGN + HARP_DATAGRAM_AT);
    if (udp->staged.bytes < UDP_STAGING_LEAST)
        udp->staged.bytes = UDP_STAGING_LEAST;
    udp->staged.bytes = (udp->staged.bytes + UDP_ALIGN - 1) / UDP_ALIGN * UDP_ALIGN;
    udp->sockets.fds = calloc(UDP_LOCALS_MAX, sizeof *udp->sockets.fds);
    udp->sockets.locals = calloc(UDP_LOCALS_MAX, sizeof *udp->sockets.locals);
    if (!udp->sockets.fds || !udp->sockets.locals ||
        harp_arena_open(&udp->arena, udp->staged.bytes + buffers, HARP_ARENA_LOCAL)) {
        snprintf(why, HARP_WHY_BYTES, "no memory for a udp port's buffers");
        return -ENOMEM;
    }
    udp->staged.memory = harp_arena_take(&udp->arena, udp->staged.bytes, UDP_ALIGN);
    udp->inbound.buffers = harp_arena_take(&udp->arena, buffers, UDP_ALIGN);
    udp->inbound.at_once = udp->inbound.least = UDP_RECEIVE_AT_ONCE;
    udp->inbound.most = UDP_RECEIVE_MOST;
    assert(udp->staged.memory && udp->inbound.buffers);
    return 0;
}

static void write_line(struct udp_port *udp)
{
    static const char *const offload[] = {"no GSO, no GRO", "GRO, no GSO", "GSO, no GRO",
                                          "GSO and GRO"};
    char own[64], *line = udp->port.line;
    size_t room = sizeof udp->port.line;
    harp_address_format(&udp->sockets.locals[0], own, sizeof own);
    size_t n = (size_t)snprintf(line, room, "udp: %s %s, MTU %u, %s", udp->nic.name, own,
                                udp->nic.mtu, offload[udp->gso * 2 + udp->gro]);
    uint32_t least = udp->sockets.kernel_bytes[0] < udp->sockets.kernel_bytes[1]
                         ? udp->sockets.kernel_bytes[0]
                         : udp->sockets.kernel_bytes[1];
    if (least < HARP_SOCKET_BYTES && n < room)
        snprintf(line + n, room - n,
                 "; socket buffers of %u KiB: sysctl -w net.core.rmem_max=%d net.core.wmem_max=%d",
                 least >> 10, HARP_SOCKET_BYTES, HARP_SOCKET_BYTES);
}

int harp_port_udp_open(struct harp_port **port, const struct harp_port_config *config, char *why)
{
    struct harp_address local = {0};
    if (config->locals < 1 || config->locals > UDP_LOCALS_MAX) {
        snprintf(why, HARP_WHY_BYTES, "a udp port has 1 to %u own addresses, not %u",
                 UDP_LOCALS_MAX, config->locals);
        return -EINVAL;
    }
    struct udp_port *udp = calloc(1, sizeof *udp);
    if (!udp) {
        snprintf(why, HARP_WHY_BYTES, "no memory for a udp port");
        return -ENOMEM;
    }
    udp->sockets.epoll = udp->staged.last_hop = -1;
    udp->retry_ns = UINT64_MAX;
    int error = harp_interface_find(&udp->nic, "udp", config, &local, why);
    udp->port.payload_max = udp_payload_of_mtu(udp, udp->nic.mtu);
    if (!error)
        error = allocate_memory(udp, why);
    if (!error)
        error = udp_sockets_open(udp, &local, config->locals, why);
    if (error) {
        udp_close(&udp->port);
        return error;
    }
    udp->port.ops = &udp_ops;
    udp->icmp.v4 = udp->nic.family == AF_INET;
    udp->port.locals = udp->sockets.locals;
    udp->port.locals_n = udp->sockets.n;
    udp->port.holds_bytes = udp->sockets.kernel_bytes[0] * 2 / UDP_PAGE_SHARE;
    write_line(udp);
    *port = &udp->port;
    return 0;
}
