#define _GNU_SOURCE
#include "ports/port_udp.h"

#include <assert.h>
#include <errno.h>
#include <netinet/udp.h>

#include "ports/control.h"

/* Where the next super would begin. */
static uint32_t next_start(const struct udp_port *udp)
{
    return (udp->used + UDP_ALIGN - 1) / UDP_ALIGN * UDP_ALIGN + HARP_DATAGRAM_AT;
}

size_t udp_room(struct harp_port *port, int hop)
{
    const struct udp_port *udp = (const struct udp_port *)port;
    (void)hop;
    uint32_t most = UDP_ALIGN + HARP_DATAGRAM_AT + port->payload_max;
    uint32_t by_bytes = (udp->staging_bytes - udp->used) / most;
    uint32_t by_supers = UDP_SUPERS - udp->supers_n;
    return by_bytes < by_supers ? by_bytes : by_supers;
}

/* The youngest super, if what goes to this hop may leave with it: hops of several connections may
 * lead to one address. */
static struct udp_super *super_to_join(struct udp_port *udp, int hop)
{
    if (udp->last_hop < 0)
        return NULL;
    struct udp_super *super = &udp->supers[udp->supers_n - 1];
    const struct udp_hop *way = &udp->hops[hop];
    bool same = udp->last_hop == hop ||
                (super->local == way->local && super->traffic_class == way->traffic_class &&
                 harp_sockaddr_same(&super->to, &way->to));
    return same ? super : NULL;
}

/* Whether a datagram fits behind the youngest super's last. */
static bool fits_behind_super(struct udp_port *udp, int hop, uint32_t bytes)
{
    const struct udp_super *super = super_to_join(udp, hop);
    return super && !super->ended && bytes <= super->segment &&
           super->segments < UDP_SUPER_SEGMENTS && super->bytes + bytes <= UDP_SUPER_BYTES &&
           udp->used + bytes <= udp->staging_bytes;
}

/* The kernel cuts nothing that goes there. */
static bool goes_singly(const struct udp_port *udp, int hop)
{
    return !udp->gso || udp->now_ns < udp->hops[hop].single_until_ns;
}

static bool begin_super(struct udp_port *udp, int hop, uint32_t bytes)
{
    uint32_t at = next_start(udp);
    if (udp->supers_n == UDP_SUPERS || at + bytes > udp->staging_bytes)
        return false;
    const struct udp_hop *way = &udp->hops[hop];
    udp->supers[udp->supers_n++] = (struct udp_super){
        .to = way->to,
        .at = at,
        .segment = (uint16_t)bytes,
        .local = way->local,
        .traffic_class = way->traffic_class,
        .hop = hop,
        .ended = bytes % 4 != 0 || goes_singly(udp, hop), /* what follows would not be aligned */
    };
    udp->used = at;
    udp->last_hop = hop;
    return true;
}

/* Let a longer datagram go before the only one of the youngest super. Not one of the same hop: what
 * takes one way keeps its order. */
static bool put_before_super(struct udp_port *udp, int hop, uint32_t bytes)
{
    uint32_t at = next_start(udp);
    struct udp_super *super = super_to_join(udp, hop);
    if (!super || super->hop == hop || super->segments != 1 || bytes <= super->segment ||
        bytes % 4 != 0 || goes_singly(udp, super->hop) || bytes + super->bytes > UDP_SUPER_BYTES ||
        at + bytes > udp->staging_bytes)
        return false;
    super->tail_at = super->at;
    super->tail_bytes = super->bytes;
    super->at = udp->used = at;
    super->segment = (uint16_t)bytes;
    super->ended = true;
    return true;
}

uint8_t *udp_slot(struct harp_port *port, int hop, uint32_t bytes)
{
    struct udp_port *udp = (struct udp_port *)port;
    assert(hop >= 0 && hop < udp->hops_n && udp->hops[hop].used);
    assert(bytes > 0 && bytes <= UDP_SUPER_BYTES);
    if (!fits_behind_super(udp, hop, bytes) && !put_before_super(udp, hop, bytes) &&
        !begin_super(udp, hop, bytes))
        return NULL;
    struct udp_super *super = &udp->supers[udp->supers_n - 1];
    super->ended |= bytes < super->segment;
    super->segments++;
    super->bytes += bytes;
    uint8_t *slot = udp->staging + udp->used;
    udp->used += bytes;
    return slot;
}

/* The message that brings `bytes` of a super from `at` on, whole datagrams. */
static void write_message(struct udp_port *udp, const struct udp_super *super, uint32_t at,
                          uint32_t bytes, struct msghdr *header, struct iovec parts[2],
                          union harp_control *control)
{
    bool v4 = udp->family == AF_INET;
    uint32_t in_row = super->bytes - super->tail_bytes;
    uint32_t first = at < in_row && at + bytes > in_row ? in_row - at : bytes;
    parts[0] =
        (struct iovec){udp->staging + (at < in_row ? super->at + at : super->tail_at), first};
    parts[1] = (struct iovec){udp->staging + super->tail_at, bytes - first};
    *header = (struct msghdr){
        .msg_name = (void *)&super->to,
        .msg_namelen = v4 ? sizeof super->to.v4 : sizeof super->to.v6,
        .msg_iov = parts,
        .msg_iovlen = first < bytes ? 2 : 1,
    };
    if (bytes > super->segment)
        harp_control_add(header, control, IPPROTO_UDP, UDP_SEGMENT, &super->segment,
                         sizeof super->segment);
    harp_control_add_class(header, control, v4, super->traffic_class);
}

static void note_departure(struct udp_port *udp, struct udp_super *super)
{
    struct harp_port_counters *counters = &udp->port.counters;
    super->gone = true;
    if (super->segments > 1)
        udp->hops[super->hop].single_ns = 0;
    counters->sent += super->segments;
    counters->sent_bytes += super->bytes;
    counters->sent_copied += super->segments;
}

static void give_up_super(struct udp_port *udp, struct udp_super *super)
{
    super->gone = true;
    udp->port.counters.dropped += super->segments;
}

/* Its datagrams one by one, where the kernel or the card does not cut this one. */
static void send_singly(struct udp_port *udp, struct udp_super *super)
{
    for (uint32_t at = 0; at < super->bytes; at += super->segment) {
        uint32_t rest = super->bytes - at, bytes = rest < super->segment ? rest : super->segment;
        struct msghdr header;
        struct iovec parts[2];
        union harp_control control;
        write_message(udp, super, at, bytes, &header, parts, &control);
        ssize_t sent = sendmsg(udp->sockets[super->local], &header, MSG_DONTWAIT);
        udp->port.counters.send_calls++;
        udp->port.counters.sent += sent >= 0;
        udp->port.counters.sent_copied += sent >= 0;
        udp->port.counters.sent_bytes += sent >= 0 ? bytes : 0;
        udp->port.counters.dropped += sent < 0;
    }
    super->gone = true;
}

/* The kernel or the card does not cut what goes there: whoever else's it does. It may be another
 * card's way tomorrow, so that is tried again. */
static void refuse_to_cut(struct udp_port *udp, const struct udp_super *super, int error)
{
    struct udp_hop *hop = &udp->hops[super->hop];
    uint64_t twice_ns = 2 * hop->single_ns;
    if (hop->single_ns == 0) {
        struct harp_notice notice = {
            .type = HARP_NOTICE_TROUBLE, .trouble = HARP_TROUBLE_SEGMENTATION, .error = error};
        harp_sockaddr_read(&super->to.any, &notice.about);
        udp_notify(udp, &notice);
        twice_ns = UDP_SINGLE_NS;
    }
    hop->single_ns = twice_ns < UDP_SINGLE_MOST_NS ? twice_ns : UDP_SINGLE_MOST_NS;
    hop->single_until_ns = udp->now_ns + hop->single_ns;
}

/* A super is longer than its way takes, or the kernel does not cut it. */
static void refuse_size(struct udp_port *udp, struct udp_super *super, int error)
{
    int payload_max = udp_route_payload(udp, &super->to);
    if (payload_max <= 0) {
        udp_unreachable(udp, &super->to);
        give_up_super(udp, super);
    } else if (super->segment > payload_max) {
        udp_narrow(udp, &super->to, (uint32_t)payload_max);
        give_up_super(udp, super);
    } else if (super->segments > 1) {
        refuse_to_cut(udp, super, error);
        send_singly(udp, super);
    } else {
        give_up_super(udp, super);
    }
}

/* What the kernel said of a super. False: it may take it later, and the rest of this socket's. */
static bool take_refusal(struct udp_port *udp, struct udp_super *super, int error, bool again)
{
    switch (error) {
    case EAGAIN:
    case ENOBUFS: /* a full queue before the card */
    case ENOMEM:
        return false;
    case EINVAL: /* a segment is longer than the MTU, or there is no such offload */
    case EIO:    /* the card does no checksums */
    case EMSGSIZE:
        refuse_size(udp, super, error);
        return true;
    default:
        /* The kernel tells about an earlier datagram (ICMP), once; about this one, if it does so
         * again. */
        if (again) {
            udp_unreachable(udp, &super->to);
            give_up_super(udp, super);
        }
        return true;
    }
}

/* One system call for up to UDP_SEND_AT_ONCE supers of one socket, from the `*from`th on. False if
 * the socket takes no more. */
static bool send_some(struct udp_port *udp, uint16_t local, uint32_t *from, int *error_before)
{
    struct mmsghdr messages[UDP_SEND_AT_ONCE];
    struct iovec parts[UDP_SEND_AT_ONCE][2];
    union harp_control controls[UDP_SEND_AT_ONCE];
    struct udp_super *supers[UDP_SEND_AT_ONCE];
    unsigned count = 0;
    uint32_t at = *from;
    for (; at < udp->supers_n && count < UDP_SEND_AT_ONCE; at++) {
        struct udp_super *super = &udp->supers[at];
        if (super->gone || super->local != local)
            continue;
        write_message(udp, super, 0, super->bytes, &messages[count].msg_hdr, parts[count],
                      &controls[count]);
        supers[count++] = super;
    }
    if (count == 0) {
        *from = udp->supers_n;
        return true;
    }
    int sent = sendmmsg(udp->sockets[local], messages, count, MSG_DONTWAIT);
    int error = sent < 0 ? errno : 0;
    udp->port.counters.send_calls++;
    for (int i = 0; i < sent; i++)
        note_departure(udp, supers[i]);
    if (sent == (int)count)
        *from = at;
    bool goes_on = !error || take_refusal(udp, supers[0], error, *error_before != 0);
    *error_before = supers[0]->gone ? 0 : error;
    return goes_on;
}

/* Forget those that are gone. */
static void drop_gone_supers(struct udp_port *udp)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < udp->supers_n; i++)
        if (!udp->supers[i].gone)
            udp->supers[kept++] = udp->supers[i];
    udp->supers_n = kept;
    if (kept == 0)
        udp->used = 0;
}

void udp_flush(struct harp_port *port, uint64_t now_ns)
{
    struct udp_port *udp = (struct udp_port *)port;
    udp->now_ns = now_ns;
    if (udp->supers_n == 0)
        return;
    for (uint16_t local = 0; local < udp->sockets_n; local++) {
        int error_before = 0;
        for (uint32_t from = 0; from < udp->supers_n;)
            if (!send_some(udp, local, &from, &error_before))
                break;
    }
    drop_gone_supers(udp);
    udp->last_hop = -1;
    udp->retry_ns = udp->supers_n ? now_ns + UDP_RETRY_NS : UINT64_MAX;
}
