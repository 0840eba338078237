/* Sending: slots, headers and completions. */
#include "ports/xdp_port.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdlib.h>

#include "base/bytes.h"

enum {
    IP4_LENGTH = 2,
    IP4_SUM = 10,
    IP6_LENGTH = 4,
    UDP_LENGTH = 4,
    UDP_SUM = 6,
    PAUSE_NS = 1000 * 1000,
    PAUSE_MOST_NS = 1000 * 1000 * 1000,
};

/* The sum of 16-bit words, as RFC 1071 has it, not folded; a last odd byte is followed by a 0. */
static uint64_t sum_words(const uint8_t *bytes, uint32_t count)
{
    uint64_t sum = 0;
    uint32_t i = 0;
    for (; i + 4 <= count; i += 4)
        sum += harp_load32(bytes + i);
    if (i + 2 <= count) {
        sum += harp_load16(bytes + i);
        i += 2;
    }
    return i < count ? sum + bytes[i] : sum;
}

static uint16_t fold_sum(uint64_t sum)
{
    sum = (sum >> 32) + (sum & UINT32_MAX);
    sum = (sum >> 32) + (sum & UINT32_MAX);
    sum = (sum >> 16) + (sum & 0xffff);
    sum = (sum >> 16) + (sum & 0xffff);
    return (uint16_t)~((sum >> 16) + sum);
}

/* Ethernet, IP and UDP, which end where the datagram begins. Returns how many bytes they have. */
static uint32_t write_headers(const struct harp_xdp_hop *hop, uint8_t *datagram, uint32_t bytes)
{
    uint16_t udp_bytes = htons((uint16_t)(bytes + UDP_BYTES));
    uint8_t *udp = datagram - UDP_BYTES;
    if (harp_address_is_ipv4(&hop->to)) {
        uint8_t *ip = udp - IP4_BYTES;
        uint16_t ip_bytes = htons((uint16_t)(bytes + UDP_BYTES + IP4_BYTES));
        memcpy(datagram - XDP_HEADERS4, hop->header, XDP_HEADERS4);
        harp_store16(ip + IP4_LENGTH, ip_bytes);
        harp_store16(ip + IP4_SUM, fold_sum((uint64_t)hop->sum + ip_bytes));
        harp_store16(udp + UDP_LENGTH, udp_bytes);
        return XDP_HEADERS4; /* the UDP checksum is 0: none, HARP has its own */
    }
    memcpy(datagram - XDP_HEADERS_MAX, hop->header, XDP_HEADERS_MAX);
    harp_store16(datagram - XDP_HEADERS_MAX + ETHERNET_BYTES + IP6_LENGTH, udp_bytes);
    harp_store16(udp + UDP_LENGTH, udp_bytes);
    /* The length is in the pseudo header and in UDP's. IPv6 has no datagrams without a checksum. */
    uint16_t sum = fold_sum(sum_words(datagram, bytes) + hop->sum + 2u * udp_bytes);
    harp_store16(udp + UDP_SUM, sum ? sum : 0xffff);
    return XDP_HEADERS_MAX;
}

int harp_xdp_send_open(struct harp_xdp *xdp, uint32_t slots)
{
    xdp->send.slots_free = calloc(slots, sizeof *xdp->send.slots_free);
    xdp->send.pending = calloc(xdp->send.outstanding_most, sizeof *xdp->send.pending);
    if (!xdp->send.slots_free || !xdp->send.pending)
        return -ENOMEM;
    xdp->send.slots_free_n =
        harp_frames_take(xdp->frames, HARP_FRAME_DRAFT, xdp->send.slots_free, slots);
    for (uint32_t i = 0; i < xdp->send.slots_free_n; i++)
        xdp->holds[xdp->send.slots_free[i]] = XDP_SLOT;
    return xdp->send.slots_free_n >= XDP_BATCH ? 0 : -ENOBUFS;
}

/* A frame is the engine's again. */
static void complete_frame(struct harp_xdp *xdp, uint32_t frame)
{
    uint8_t held = xdp->holds[frame];
    if (held == XDP_SENT) {
        bool kept = xdp->frames->state[frame] == HARP_FRAME_SENDING;
        xdp->holds[frame] = XDP_NOTHING;
        harp_frames_move(xdp->frames, frame, kept ? HARP_FRAME_SENDING : HARP_FRAME_LEAVING,
                         kept ? HARP_FRAME_KEPT : HARP_FRAME_FREE);
        return;
    }
    assert(held == XDP_SLOT);
    xdp->send.slots_free[xdp->send.slots_free_n++] = frame;
}

bool harp_xdp_reap(struct harp_xdp *xdp)
{
    struct harp_ring *ring = &xdp->socket.completion;
    uint32_t ready = harp_ring_ready(ring);
    if (ready == 0)
        return false;
    for (uint32_t i = 0; i < ready; i++) {
        uint32_t frame = harp_frame_of(xdp->frames, *harp_ring_offset(ring, i));
        assert(frame < xdp->frames->count && xdp->send.outstanding > 0);
        complete_frame(xdp, frame);
        xdp->send.outstanding--;
    }
    harp_ring_consume(ring, ready);
    return true;
}

size_t harp_xdp_room(struct harp_port *port, int hop)
{
    (void)hop; /* all leave by one ring */
    struct harp_xdp *xdp = harp_xdp_of(port);
    harp_xdp_reap(xdp);
    uint32_t descs = xdp->send.outstanding_most - xdp->send.outstanding;
    return descs < xdp->send.slots_free_n ? descs : xdp->send.slots_free_n;
}

uint8_t *harp_xdp_slot(struct harp_port *port, int hop, uint32_t bytes)
{
    struct harp_xdp *xdp = harp_xdp_of(port);
    assert(bytes <= port->payload_max && hop >= 0 && (uint32_t)hop < xdp->hops_n);
    if (xdp->send.slots_free_n == 0 || xdp->send.outstanding >= xdp->send.outstanding_most)
        if (harp_xdp_room(port, hop) == 0)
            return NULL;
    uint32_t frame = xdp->send.slots_free[--xdp->send.slots_free_n];
    xdp->send.outstanding++;
    xdp->send.pending[xdp->send.pending_n++] = (struct harp_xdp_pending){
        .frame = frame, .offset = XDP_SLOT_OFFSET, .bytes = bytes, .hop = hop};
    return harp_frame_at(xdp->frames, frame) + XDP_SLOT_OFFSET;
}

/* Hops of several connections may lead to one address. */
static bool is_same_way(const struct harp_xdp_hop *a, const struct harp_xdp_hop *b)
{
    return a == b || (a->local == b->local && a->traffic_class == b->traffic_class &&
                      harp_address_same(&a->to, &b->to));
}

uint8_t *harp_xdp_lengthen(struct harp_port *port, int hop, uint32_t bytes, uint32_t most)
{
    struct harp_xdp *xdp = harp_xdp_of(port);
    if (xdp->send.pending_n == 0)
        return NULL;
    struct harp_xdp_pending *last = &xdp->send.pending[xdp->send.pending_n - 1];
    most = most < port->payload_max ? most : port->payload_max;
    if (xdp->holds[last->frame] == XDP_SENT || last->bytes % 4 != 0 || last->bytes + bytes > most ||
        last->offset + last->bytes + bytes > xdp->frames->frame_bytes ||
        !is_same_way(&xdp->hops[last->hop], &xdp->hops[hop]))
        return NULL;
    last->bytes += bytes;
    return harp_frame_at(xdp->frames, last->frame) + last->offset + last->bytes - bytes;
}

bool harp_xdp_send_frame(struct harp_port *port, int hop, uint32_t frame, uint32_t offset,
                         uint32_t bytes)
{
    struct harp_xdp *xdp = harp_xdp_of(port);
    assert(offset >= port->headroom && offset + bytes <= xdp->frames->frame_bytes);
    assert(bytes <= port->payload_max && hop >= 0 && (uint32_t)hop < xdp->hops_n);
    assert(frame < xdp->frames->count && xdp->holds[frame] == XDP_NOTHING);
    if (xdp->send.outstanding >= xdp->send.outstanding_most && harp_xdp_room(port, hop) == 0)
        return false;
    xdp->holds[frame] = XDP_SENT;
    xdp->send.outstanding++;
    xdp->send.pending[xdp->send.pending_n++] =
        (struct harp_xdp_pending){.frame = frame, .offset = offset, .bytes = bytes, .hop = hop};
    return true;
}

/* Write a datagram's descriptor behind `ahead` others. */
static void write_descriptor(struct harp_xdp *xdp, const struct harp_xdp_pending *one,
                             const struct harp_xdp_hop *hop, uint32_t ahead)
{
    uint64_t at = (uint64_t)one->frame * xdp->frames->frame_bytes + one->offset;
    uint32_t headers = write_headers(hop, xdp->frames->base + at, one->bytes);
    *harp_ring_desc(&xdp->socket.tx, ahead) =
        (struct xdp_desc){.addr = at - headers, .len = headers + one->bytes};
}

/* By the kernel's socket; it has copied everything when it returns. */
static void send_slowly(struct harp_xdp *xdp, const struct harp_xdp_pending *one,
                        const struct harp_xdp_hop *hop)
{
    harp_xdp_kernel_send(xdp, hop, harp_frame_at(xdp->frames, one->frame) + one->offset,
                         one->bytes);
    complete_frame(xdp, one->frame);
    xdp->send.outstanding--;
}

/* The card takes nothing for a reason that may pass without anybody telling of it. */
static void pause_sending(struct harp_xdp *xdp, int error)
{
    struct harp_notice notice = {
        .type = HARP_NOTICE_TROUBLE, .trouble = HARP_TROUBLE_SENDING, .error = -error};
    if (xdp->send.pause_ns == 0)
        harp_xdp_notice_add(xdp, &notice);
    xdp->send.pause_ns = xdp->send.pause_ns == 0                  ? PAUSE_NS
                         : 2 * xdp->send.pause_ns < PAUSE_MOST_NS ? 2 * xdp->send.pause_ns
                                                                  : PAUSE_MOST_NS;
    xdp->send.resume_ns = xdp->now_ns + xdp->send.pause_ns;
}

void harp_xdp_kick(struct harp_xdp *xdp)
{
    if (xdp->send.pause_ns && xdp->now_ns < xdp->send.resume_ns)
        return;
    int error = harp_xdp_socket_send(&xdp->socket, &xdp->port.counters.send_calls);
    xdp->send.unsent = error < 0;
    if (error < 0 && error != -EAGAIN)
        pause_sending(xdp, error);
    else
        xdp->send.pause_ns = 0;
}

void harp_xdp_flush(struct harp_port *port, uint64_t now_ns)
{
    struct harp_xdp *xdp = harp_xdp_of(port);
    uint32_t descs = 0;
    uint64_t bytes = 0;
    xdp->now_ns = now_ns;
    for (uint32_t i = 0; i < xdp->send.pending_n; i++) {
        const struct harp_xdp_pending *one = &xdp->send.pending[i];
        struct harp_xdp_hop *hop = &xdp->hops[one->hop];
        bytes += one->bytes;
        /* The kernel does not see what leaves directly. One datagram that it sends itself lets it
         * ask whether a neighbour that it has not heard of for long is still there. */
        if (hop->direct && !hop->stale)
            write_descriptor(xdp, one, hop, descs++);
        else
            send_slowly(xdp, one, hop);
        hop->stale = false;
    }
    port->counters.sent += xdp->send.pending_n;
    port->counters.sent_bytes += bytes;
    if (!xdp->socket.zero_copy)
        port->counters.sent_copied += xdp->send.pending_n;
    xdp->send.pending_n = 0;
    if (descs > 0) {
        assert(harp_ring_room(&xdp->socket.tx, descs) >= descs);
        harp_ring_produce(&xdp->socket.tx, descs);
    }
    if (descs > 0 || xdp->send.unsent)
        harp_xdp_kick(xdp);
}
