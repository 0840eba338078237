/* Hops: headers for a destination, made of its route and neighbour. */
#define _GNU_SOURCE
#include "ports/xdp_port.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>

#include "base/bytes.h"

enum {
    HOPS_MAX = 65536,
    TEND_AT_ONCE = 16, /* hops looked after in one go: some system calls each */
    LOOK_AT_ONCE = 1024,
    HOP_LIMIT = 64,
};

static uint32_t sum_words(const uint8_t *bytes, uint32_t count)
{
    uint32_t sum = 0;
    for (uint32_t i = 0; i < count; i += 2)
        sum += harp_load16(bytes + i);
    return sum;
}

/* Headers but for lengths and checksums, and the sum of what the checksum covers of them. */
static void write_template(struct harp_xdp_hop *hop, const struct harp_address *from,
                           const uint8_t mac_from[6], const uint8_t mac_to[6])
{
    bool v4 = harp_address_is_ipv4(&hop->to);
    uint8_t *ethernet = hop->header, *ip = ethernet + ETHERNET_BYTES,
            *udp = ip + (v4 ? IP4_BYTES : IP6_BYTES);
    uint8_t traffic_class = hop->traffic_class | HARP_ECT0;
    memset(hop->header, 0, sizeof hop->header);
    memcpy(ethernet, mac_to, 6);
    memcpy(ethernet + 6, mac_from, 6);
    harp_store16(ethernet + 12, htons(v4 ? 0x0800 : 0x86dd));
    harp_store16(udp, htons(from->port));
    harp_store16(udp + 2, htons(hop->to.port));
    if (v4) {
        ip[0] = 0x45;
        ip[1] = traffic_class;
        ip[6] = 0x40; /* never in fragments */
        ip[8] = HOP_LIMIT;
        ip[9] = IPPROTO_UDP;
        memcpy(ip + 12, from->ip + 12, 4);
        memcpy(ip + 16, hop->to.ip + 12, 4);
        hop->sum = sum_words(ip, IP4_BYTES);
    } else {
        ip[0] = 0x60 | traffic_class >> 4;
        ip[1] = (uint8_t)(traffic_class << 4);
        ip[6] = IPPROTO_UDP;
        ip[7] = HOP_LIMIT;
        memcpy(ip + 8, from->ip, 16);
        memcpy(ip + 24, hop->to.ip, 16);
        hop->sum = sum_words(ip + 8, 32) + sum_words(udp, 4) + htons(IPPROTO_UDP);
    }
}

static uint32_t payload_of(const struct harp_xdp *xdp, const struct harp_xdp_hop *hop, uint32_t mtu)
{
    uint32_t headers = (harp_address_is_ipv4(&hop->to) ? IP4_BYTES : IP6_BYTES) + UDP_BYTES;
    uint32_t most = mtu > headers ? mtu - headers : 0;
    return most < xdp->port.payload_max ? most : xdp->port.payload_max;
}

static void go_directly(struct harp_xdp *xdp, struct harp_xdp_hop *hop, const uint8_t mac[6])
{
    write_template(hop, &xdp->locals[hop->local], xdp->link.mac, mac);
    hop->direct = true;
}

/* Its neighbour's Ethernet address: as another hop has it, or from the kernel. */
static void find_neighbour(struct harp_xdp *xdp, struct harp_xdp_hop *hop)
{
    uint8_t mac[6];
    for (uint32_t i = 0; i < xdp->hops_n; i++) {
        const struct harp_xdp_hop *other = &xdp->hops[i];
        if (!other->used || !other->direct || other->changed ||
            !harp_address_same(&other->next, &hop->next))
            continue;
        memcpy(mac, other->header, sizeof mac);
        hop->stale = other->stale;
        go_directly(xdp, hop, mac);
        return;
    }
    if (harp_netlink_neighbour(&xdp->netlink, xdp->link.index, &hop->next, mac, &hop->stale) == 0)
        go_directly(xdp, hop, mac);
}

/* MTU of another interface; 0 if that is unknown. This needs no lock of the kernel's. */
static uint32_t mtu_of(const struct harp_xdp *xdp, uint32_t interface)
{
    struct ifreq request = {.ifr_ifindex = (int)interface};
    int any = xdp->kernel.sockets[0];
    bool known = ioctl(any, SIOCGIFNAME, &request) == 0 && ioctl(any, SIOCGIFMTU, &request) == 0;
    return known ? (uint32_t)request.ifr_mtu : 0;
}

/* Find the way. Without a neighbour's address it leads through the kernel. Returns -errno if there
 * is no route. */
static int resolve_hop(struct harp_xdp *xdp, struct harp_xdp_hop *hop)
{
    struct harp_route route;
    hop->changed = hop->direct = hop->stale = hop->near = false;
    int error = harp_netlink_route(&xdp->netlink, &xdp->locals[hop->local], &hop->to, &route);
    if (error < 0)
        return error;
    bool here = route.interface == xdp->link.index;
    uint32_t most = here ? xdp->link.mtu : mtu_of(xdp, route.interface);
    hop->payload_max = payload_of(xdp, hop, route.mtu && route.mtu < most ? route.mtu : most);
    hop->next = route.next;
    hop->near = here && !route.to_self;
    if (hop->near)
        find_neighbour(xdp, hop);
    return 0;
}

/* A free place; -1 if there is none. */
static int find_place(struct harp_xdp *xdp)
{
    for (uint32_t i = 0; i < xdp->hops_n; i++)
        if (!xdp->hops[i].used)
            return (int)i;
    if (xdp->hops_n >= HOPS_MAX)
        return -1;
    if ((xdp->hops_n & (xdp->hops_n - 1)) == 0) {
        uint32_t room = xdp->hops_n ? 2 * xdp->hops_n : 1;
        struct harp_xdp_hop *more = realloc(xdp->hops, room * sizeof *more);
        if (!more)
            return -1;
        xdp->hops = more;
    }
    return (int)xdp->hops_n++;
}

int harp_xdp_hop_make(struct harp_port *port, const struct harp_address *to, uint16_t local,
                      char *why)
{
    struct harp_xdp *xdp = harp_xdp_of(port);
    char text[64];
    assert(local < port->locals_n);
    harp_address_format(to, text, sizeof text);
    if (to->family != HARP_INET || to->port == 0 ||
        harp_address_is_ipv4(to) != harp_address_is_ipv4(&xdp->locals[local])) {
        char own[64];
        harp_address_format(&xdp->locals[local], own, sizeof own);
        snprintf(why, HARP_WHY_BYTES, "there is no way from %s to %s: not the same kind of address",
                 own, text);
        return -EAFNOSUPPORT;
    }
    int place = find_place(xdp);
    if (place < 0) {
        snprintf(why, HARP_WHY_BYTES, "no memory for another destination, %s", text);
        return -ENOMEM;
    }
    struct harp_xdp_hop *hop = &xdp->hops[place];
    *hop = (struct harp_xdp_hop){.to = *to, .local = local, .used = true};
    int error = resolve_hop(xdp, hop);
    if (error < 0) {
        hop->used = false;
        snprintf(why, HARP_WHY_BYTES, "there is no route to %s: %s", text, strerror(-error));
        return error;
    }
    return place;
}

void harp_xdp_hop_drop(struct harp_port *port, int hop)
{
    struct harp_xdp *xdp = harp_xdp_of(port);
    assert(hop >= 0 && (uint32_t)hop < xdp->hops_n && xdp->hops[hop].used);
    if (xdp->send.pending_n > 0)
        harp_xdp_flush(port, xdp->now_ns);
    xdp->hops[hop].used = false;
}

void harp_xdp_hop_set_traffic_class(struct harp_port *port, int hop, uint8_t traffic_class)
{
    struct harp_xdp *xdp = harp_xdp_of(port);
    assert(hop >= 0 && (uint32_t)hop < xdp->hops_n && xdp->hops[hop].used);
    struct harp_xdp_hop *marked = &xdp->hops[hop];
    uint8_t mac[6];
    if (xdp->send.pending_n > 0)
        harp_xdp_flush(port, xdp->now_ns);
    marked->traffic_class = traffic_class & (uint8_t)~HARP_ECN_MASK;
    if (!marked->direct)
        return;
    memcpy(mac, marked->header, sizeof mac);
    go_directly(xdp, marked, mac);
}

uint32_t harp_xdp_hop_payload_max(const struct harp_port *port, int hop)
{
    return harp_xdp_of(port)->hops[hop].payload_max;
}

void harp_xdp_hops_change(struct harp_xdp *xdp)
{
    for (uint32_t i = 0; i < xdp->hops_n; i++)
        xdp->hops[i].changed = xdp->hops[i].used;
}

void harp_xdp_hops_neighbour(struct harp_xdp *xdp, const struct harp_change *change)
{
    for (uint32_t i = 0; i < xdp->hops_n; i++) {
        struct harp_xdp_hop *hop = &xdp->hops[i];
        if (!hop->used || !hop->near || !harp_address_same(&change->address, &hop->next))
            continue;
        hop->direct = false;
        hop->stale = change->stale;
        if (change->known)
            go_directly(xdp, hop, change->mac);
    }
}

/* The way to a destination takes less, or more, than it did. */
static void look_again(struct harp_xdp *xdp, struct harp_xdp_hop *hop)
{
    uint32_t before = hop->payload_max;
    int error = resolve_hop(xdp, hop);
    struct harp_notice notice = {.about = hop->to, .payload_max = hop->payload_max};
    if (error < 0)
        notice.type = HARP_NOTICE_UNREACHABLE;
    else if (hop->payload_max < before)
        notice.type = HARP_NOTICE_MTU;
    if (notice.type != HARP_NOTICE_NONE)
        harp_xdp_notice_add(xdp, &notice);
}

bool harp_xdp_hops_tend(struct harp_xdp *xdp)
{
    uint32_t done = 0, looked = 0;
    while (done < TEND_AT_ONCE && looked < LOOK_AT_ONCE && looked < xdp->hops_n) {
        struct harp_xdp_hop *hop = &xdp->hops[xdp->hops_at++ % xdp->hops_n];
        looked++;
        if (!hop->used || !hop->changed)
            continue;
        look_again(xdp, hop);
        done++;
    }
    return done < TEND_AT_ONCE;
}
