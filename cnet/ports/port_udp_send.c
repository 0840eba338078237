#define _GNU_SOURCE
#include "ports/port_udp.h"

#include <assert.h>
#include <errno.h>
#include <netinet/udp.h>

#include "ports/control.h"

/* Where the next packet would begin. */
static uint32_t next_start(const struct udp_port *udp)
{
    return (udp->staged.used + UDP_ALIGN - 1) / UDP_ALIGN * UDP_ALIGN + HARP_DATAGRAM_AT;
}

size_t udp_room(struct harp_port *port, int hop)
{
    const struct udp_port *udp = (const struct udp_port *)port;
    (void)hop;
    uint32_t most = UDP_ALIGN + HARP_DATAGRAM_AT + port->payload_max;
    uint32_t by_bytes = (udp->staged.bytes - udp->staged.used) / most;
    uint32_t by_packets = UDP_GSO_PACKETS - udp->staged.packets_n;
    return by_bytes < by_packets ? by_bytes : by_packets;
}

/* The youngest packet, if what goes to this hop may leave with it: hops of several connections may
 * lead to one address. */
static struct udp_gso_packet *packet_to_join(struct udp_port *udp, int hop)
{
    if (udp->staged.last_hop < 0)
        return NULL;
    struct udp_gso_packet *packet = &udp->staged.packets[udp->staged.packets_n - 1];
    const struct udp_hop *way = &udp->hops[hop];
    bool same = udp->staged.last_hop == hop ||
                (packet->local == way->local && packet->traffic_class == way->traffic_class &&
                 harp_sockaddr_same(&packet->to, &way->to));
    return same ? packet : NULL;
}

/* Whether a datagram fits behind the youngest packet's last. */
static bool fits_behind_packet(struct udp_port *udp, int hop, uint32_t bytes)
{
    const struct udp_gso_packet *packet = packet_to_join(udp, hop);
    return packet && !packet->ended && bytes <= packet->segment &&
           packet->segments < UDP_GSO_SEGMENTS && packet->bytes + bytes <= UDP_GSO_BYTES &&
           udp->staged.used + bytes <= udp->staged.bytes;
}

/* The kernel cuts nothing that goes there. */
static bool goes_singly(const struct udp_port *udp, int hop)
{
    return !udp->gso || udp->now_ns < udp->hops[hop].single_until_ns;
}

static bool begin_packet(struct udp_port *udp, int hop, uint32_t bytes)
{
    uint32_t at = next_start(udp);
    if (udp->staged.packets_n == UDP_GSO_PACKETS || at + bytes > udp->staged.bytes)
        return false;
    const struct udp_hop *way = &udp->hops[hop];
    udp->staged.packets[udp->staged.packets_n++] = (struct udp_gso_packet){
        .to = way->to,
        .at = at,
        .segment = (uint16_t)bytes,
        .local = way->local,
        .traffic_class = way->traffic_class,
        .hop = hop,
        .ended = bytes % 4 != 0 || goes_singly(udp, hop), /* what follows would not be aligned */
    };
    udp->staged.used = at;
    udp->staged.last_hop = hop;
    return true;
}

/* Let a longer datagram go before the only one of the youngest packet. Not one of the same hop:
 * what takes one way keeps its order. */
static bool put_before_packet(struct udp_port *udp, int hop, uint32_t bytes)
{
    uint32_t at = next_start(udp);
    struct udp_gso_packet *packet = packet_to_join(udp, hop);
    if (!packet || packet->hop == hop || packet->segments != 1 || bytes <= packet->segment ||
        bytes % 4 != 0 || goes_singly(udp, packet->hop) || bytes + packet->bytes > UDP_GSO_BYTES ||
        at + bytes > udp->staged.bytes)
        return false;
    packet->tail_at = packet->at;
    packet->tail_bytes = packet->bytes;
    packet->at = udp->staged.used = at;
    packet->segment = (uint16_t)bytes;
    packet->ended = true;
    return true;
}

uint8_t *udp_slot(struct harp_port *port, int hop, uint32_t bytes)
{
    struct udp_port *udp = (struct udp_port *)port;
    assert(hop >= 0 && hop < udp->hops_n && udp->hops[hop].used);
    assert(bytes > 0 && bytes <= UDP_GSO_BYTES);
    if (!fits_behind_packet(udp, hop, bytes) && !put_before_packet(udp, hop, bytes) &&
        !begin_packet(udp, hop, bytes))
        return NULL;
    struct udp_gso_packet *packet = &udp->staged.packets[udp->staged.packets_n - 1];
    packet->ended |= bytes < packet->segment;
    packet->segments++;
    packet->bytes += bytes;
    uint8_t *slot = udp->staged.memory + udp->staged.used;
    udp->staged.used += bytes;
    return slot;
}

/* The message that brings `bytes` of a packet from `at` on, whole datagrams. */
static void write_message(struct udp_port *udp, const struct udp_gso_packet *packet, uint32_t at,
                          uint32_t bytes, struct msghdr *header, struct iovec parts[2],
                          union harp_control *control)
{
    bool v4 = udp->nic.family == AF_INET;
    uint32_t in_row = packet->bytes - packet->tail_bytes;
    uint32_t first = at < in_row && at + bytes > in_row ? in_row - at : bytes;
    parts[0] = (struct iovec){
        udp->staged.memory + (at < in_row ? packet->at + at : packet->tail_at), first};
    parts[1] = (struct iovec){udp->staged.memory + packet->tail_at, bytes - first};
    *header = (struct msghdr){
        .msg_name = (void *)&packet->to,
        .msg_namelen = v4 ? sizeof packet->to.v4 : sizeof packet->to.v6,
        .msg_iov = parts,
        .msg_iovlen = first < bytes ? 2 : 1,
    };
    if (bytes > packet->segment)
        harp_control_add(header, control, IPPROTO_UDP, UDP_SEGMENT, &packet->segment,
                         sizeof packet->segment);
    harp_control_add_class(header, control, v4, packet->traffic_class);
}

static void note_departure(struct udp_port *udp, struct udp_gso_packet *packet)
{
    struct harp_port_counters *counters = &udp->port.counters;
    packet->gone = true;
    udp->hops[packet->hop].refused_ns = 0;
    if (packet->segments > 1)
        udp->hops[packet->hop].single_ns = 0;
    counters->sent += packet->segments;
    counters->sent_bytes += packet->bytes;
    counters->sent_copied += packet->segments;
}

static void give_up_packet(struct udp_port *udp, struct udp_gso_packet *packet)
{
    packet->gone = true;
    udp->port.counters.dropped += packet->segments;
}

/* Its datagrams one by one, where the kernel or the card does not cut this one. */
static void send_singly(struct udp_port *udp, struct udp_gso_packet *packet)
{
    for (uint32_t at = 0; at < packet->bytes; at += packet->segment) {
        uint32_t rest = packet->bytes - at, bytes = rest < packet->segment ? rest : packet->segment;
        struct msghdr header;
        struct iovec parts[2];
        union harp_control control;
        write_message(udp, packet, at, bytes, &header, parts, &control);
        ssize_t sent = sendmsg(udp->sockets.fds[packet->local], &header, MSG_DONTWAIT);
        udp->port.counters.send_calls++;
        udp->port.counters.sent += sent >= 0;
        udp->port.counters.sent_copied += sent >= 0;
        udp->port.counters.sent_bytes += sent >= 0 ? bytes : 0;
        udp->port.counters.dropped += sent < 0;
    }
    packet->gone = true;
}

/* The kernel or the card does not cut what goes there: whoever else's it does. It may be another
 * card's way tomorrow, so that is tried again. */
static void refuse_to_cut(struct udp_port *udp, const struct udp_gso_packet *packet, int error)
{
    struct udp_hop *hop = &udp->hops[packet->hop];
    uint64_t twice_ns = 2 * hop->single_ns;
    if (hop->single_ns == 0) {
        struct harp_notice notice = {
            .type = HARP_NOTICE_TROUBLE, .trouble = HARP_TROUBLE_SEGMENTATION, .error = error};
        harp_sockaddr_read(&packet->to.any, &notice.about);
        udp_notify(udp, &notice);
        twice_ns = UDP_SINGLE_NS;
    }
    hop->single_ns = twice_ns < UDP_SINGLE_MOST_NS ? twice_ns : UDP_SINGLE_MOST_NS;
    hop->single_until_ns = udp->now_ns + hop->single_ns;
}

/* A packet is longer than its way takes, or the kernel does not cut it. */
static void refuse_size(struct udp_port *udp, struct udp_gso_packet *packet, int error)
{
    int payload_max = udp_route_payload(udp, &packet->to);
    if (payload_max <= 0) {
        udp_unreachable(udp, &packet->to);
        give_up_packet(udp, packet);
    } else if (packet->segment > payload_max) {
        udp_narrow(udp, &packet->to, (uint32_t)payload_max);
        give_up_packet(udp, packet);
    } else if (packet->segments > 1) {
        refuse_to_cut(udp, packet, error);
        send_singly(udp, packet);
    } else {
        give_up_packet(udp, packet);
    }
}

/* Whether the kernel has dropped for long what goes there, this packet first: others must not wait
 * for it. */
static bool is_refused_for_long(struct udp_port *udp, struct udp_gso_packet *packet)
{
    struct udp_hop *hop = &udp->hops[packet->hop];
    if (!hop->refused_ns)
        hop->refused_ns = udp->now_ns;
    if (udp->now_ns - hop->refused_ns < UDP_REFUSED_NS)
        return false;
    give_up_packet(udp, packet);
    return true;
}

/* Judge the kernel's answer to a packet. False: it may take it and the socket's rest later. */
static bool take_refusal(struct udp_port *udp, struct udp_gso_packet *packet, int error, bool again)
{
    switch (error) {
    case EAGAIN:
    case ENOBUFS: /* a full queue before the card */
    case ENOMEM:
        return is_refused_for_long(udp, packet);
    case EINVAL: /* a segment is longer than the MTU, or there is no such offload */
    case EIO:    /* the card does no checksums */
    case EMSGSIZE:
        refuse_size(udp, packet, error);
        return true;
    default:
        /* The kernel reports an earlier datagram (ICMP), once; about this one, if it does so
         * again. */
        if (again) {
            udp_unreachable(udp, &packet->to);
            give_up_packet(udp, packet);
        }
        return true;
    }
}

/* One system call for up to UDP_SEND_AT_ONCE packets of one socket, from the `*from`th on. False if
 * the socket takes no more. */
static bool send_some(struct udp_port *udp, uint16_t local, uint32_t *from, int *error_before)
{
    struct mmsghdr messages[UDP_SEND_AT_ONCE];
    struct iovec parts[UDP_SEND_AT_ONCE][2];
    union harp_control controls[UDP_SEND_AT_ONCE];
    struct udp_gso_packet *packets[UDP_SEND_AT_ONCE];
    unsigned count = 0;
    uint32_t at = *from;
    for (; at < udp->staged.packets_n && count < UDP_SEND_AT_ONCE; at++) {
        struct udp_gso_packet *packet = &udp->staged.packets[at];
        if (packet->gone || packet->local != local)
            continue;
        write_message(udp, packet, 0, packet->bytes, &messages[count].msg_hdr, parts[count],
                      &controls[count]);
        packets[count++] = packet;
    }
    if (count == 0) {
        *from = udp->staged.packets_n;
        return true;
    }
    int sent = sendmmsg(udp->sockets.fds[local], messages, count, MSG_DONTWAIT);
    int error = sent < 0 ? errno : 0;
    udp->port.counters.send_calls++;
    for (int i = 0; i < sent; i++)
        note_departure(udp, packets[i]);
    if (sent == (int)count)
        *from = at;
    bool goes_on = !error || take_refusal(udp, packets[0], error, *error_before != 0);
    *error_before = packets[0]->gone ? 0 : error;
    return goes_on;
}

/* Forget those that are gone. */
static void drop_gone_packets(struct udp_port *udp)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < udp->staged.packets_n; i++)
        if (!udp->staged.packets[i].gone)
            udp->staged.packets[kept++] = udp->staged.packets[i];
    udp->staged.packets_n = kept;
    if (kept == 0)
        udp->staged.used = 0;
}

void udp_flush(struct harp_port *port, uint64_t now_ns)
{
    struct udp_port *udp = (struct udp_port *)port;
    udp->now_ns = now_ns;
    if (udp->staged.packets_n == 0)
        return;
    for (uint16_t local = 0; local < udp->sockets.n; local++) {
        int error_before = 0;
        for (uint32_t from = 0; from < udp->staged.packets_n;)
            if (!send_some(udp, local, &from, &error_before))
                break;
    }
    drop_gone_packets(udp);
    udp->staged.last_hop = -1;
    udp->retry_ns = udp->staged.packets_n ? now_ns + UDP_RETRY_NS : UINT64_MAX;
}
