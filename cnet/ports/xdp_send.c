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

/* Runs of adjacent frames, each a slot; frames that are in none go back. Returns how many. */
static uint32_t find_runs(struct harp_xdp *xdp, const uint32_t *taken, uint32_t count)
{
    uint32_t n = 0, i = 0;
    while (i < count) {
        uint32_t run = 1;
        while (run < xdp->slot_frames && i + run < count && taken[i + run] == taken[i] + run)
            run++;
        if (run == xdp->slot_frames) {
            for (uint32_t k = 0; k < run; k++)
                xdp->holds[taken[i] + k] = (uint16_t)n;
            xdp->slots[n++] = taken[i];
        } else {
            for (uint32_t k = 0; k < run; k++)
                harp_frames_move(xdp->frames, taken[i + k], HARP_FRAME_DRAFT, HARP_FRAME_FREE);
        }
        i += run;
    }
    return n;
}

static int by_number(const void *a, const void *b)
{
    uint32_t left = *(const uint32_t *)a, right = *(const uint32_t *)b;
    return left < right ? -1 : left > right;
}

int harp_xdp_send_open(struct harp_xdp *xdp, uint32_t frames)
{
    uint32_t frame_bytes = xdp->frames->frame_bytes;
    uint32_t most = XDP_SLOT_OFFSET + xdp->port.payload_max;
    xdp->slot_frames = (most + frame_bytes - 1) / frame_bytes;
    uint32_t wanted = frames / xdp->slot_frames;
    wanted = wanted < XDP_SLOTS_MAX ? wanted : XDP_SLOTS_MAX;
    uint32_t *taken = malloc((size_t)wanted * xdp->slot_frames * sizeof *taken + 1);
    xdp->slots = calloc(wanted + 1, sizeof *xdp->slots);
    xdp->busy = calloc(wanted + 1, sizeof *xdp->busy);
    xdp->slots_free = calloc(wanted + 1, sizeof *xdp->slots_free);
    xdp->pending = calloc(xdp->outstanding_most, sizeof *xdp->pending);
    if (!taken || !xdp->slots || !xdp->busy || !xdp->slots_free || !xdp->pending) {
        free(taken);
        return -ENOMEM;
    }
    uint32_t count =
        harp_frames_take(xdp->frames, HARP_FRAME_DRAFT, taken, wanted * xdp->slot_frames);
    qsort(taken, count, sizeof *taken, by_number);
    xdp->slots_n = find_runs(xdp, taken, count);
    free(taken);
    for (uint32_t i = 0; i < xdp->slots_n; i++)
        xdp->slots_free[i] = (uint16_t)(xdp->slots_n - 1 - i);
    xdp->slots_free_n = xdp->slots_n;
    return xdp->slots_n >= XDP_BATCH ? 0 : -ENOBUFS;
}

/* A frame is the engine's again. */
static void complete_frame(struct harp_xdp *xdp, uint32_t frame)
{
    uint16_t held = xdp->holds[frame];
    if (held == XDP_SENT) {
        bool kept = xdp->frames->state[frame] == HARP_FRAME_SENDING;
        xdp->holds[frame] = XDP_NOTHING;
        harp_frames_move(xdp->frames, frame, kept ? HARP_FRAME_SENDING : HARP_FRAME_LEAVING,
                         kept ? HARP_FRAME_KEPT : HARP_FRAME_FREE);
        return;
    }
    assert(held < xdp->slots_n && xdp->busy[held] > 0);
    if (--xdp->busy[held] == 0)
        xdp->slots_free[xdp->slots_free_n++] = held;
}

bool harp_xdp_reap(struct harp_xdp *xdp)
{
    struct harp_ring *ring = &xdp->socket.completion;
    uint32_t ready = harp_ring_ready(ring);
    if (ready == 0)
        return false;
    for (uint32_t i = 0; i < ready; i++) {
        uint32_t frame = harp_frame_of(xdp->frames, *harp_ring_offset(ring, i));
        assert(frame < xdp->frames->count && xdp->outstanding > 0);
        complete_frame(xdp, frame);
        xdp->outstanding--;
    }
    harp_ring_consume(ring, ready);
    return true;
}

static uint32_t frames_of(const struct harp_xdp *xdp, uint32_t bytes)
{
    return (XDP_SLOT_OFFSET + bytes + xdp->frames->frame_bytes - 1) / xdp->frames->frame_bytes;
}

size_t harp_xdp_room(struct harp_port *port, int hop)
{
    (void)hop; /* all leave by one ring */
    struct harp_xdp *xdp = harp_xdp_of(port);
    harp_xdp_reap(xdp);
    uint32_t descs = (xdp->outstanding_most - xdp->outstanding) / xdp->slot_frames;
    return descs < xdp->slots_free_n ? descs : xdp->slots_free_n;
}

uint8_t *harp_xdp_slot(struct harp_port *port, int hop, uint32_t bytes)
{
    struct harp_xdp *xdp = harp_xdp_of(port);
    uint32_t frames = frames_of(xdp, bytes);
    assert(bytes <= port->payload_max && hop >= 0 && (uint32_t)hop < xdp->hops_n);
    if (xdp->slots_free_n == 0 || xdp->outstanding + frames > xdp->outstanding_most)
        if (harp_xdp_room(port, hop) == 0)
            return NULL;
    uint16_t slot = xdp->slots_free[--xdp->slots_free_n];
    assert(xdp->busy[slot] == 0);
    xdp->busy[slot] = (uint8_t)frames;
    xdp->outstanding += frames;
    xdp->pending[xdp->pending_n++] = (struct harp_xdp_pending){
        .frame = xdp->slots[slot], .offset = XDP_SLOT_OFFSET, .bytes = bytes, .hop = hop};
    return harp_frame_at(xdp->frames, xdp->slots[slot]) + XDP_SLOT_OFFSET;
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
    if (xdp->pending_n == 0)
        return NULL;
    struct harp_xdp_pending *last = &xdp->pending[xdp->pending_n - 1];
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
    if (xdp->outstanding >= xdp->outstanding_most && harp_xdp_room(port, hop) == 0)
        return false;
    xdp->holds[frame] = XDP_SENT;
    xdp->outstanding++;
    xdp->pending[xdp->pending_n++] =
        (struct harp_xdp_pending){.frame = frame, .offset = offset, .bytes = bytes, .hop = hop};
    return true;
}

/* Write a datagram's descriptors behind `ahead` others; how many. */
static uint32_t write_descriptors(struct harp_xdp *xdp, const struct harp_xdp_pending *one,
                                  const struct harp_xdp_hop *hop, uint32_t ahead)
{
    uint32_t frame_bytes = xdp->frames->frame_bytes, descs = 0;
    uint64_t at = (uint64_t)one->frame * frame_bytes + one->offset;
    uint32_t headers = write_headers(hop, xdp->frames->base + at, one->bytes);
    uint32_t left = headers + one->bytes;
    at -= headers;
    while (left > 0) {
        uint32_t here = frame_bytes - (uint32_t)(at % frame_bytes);
        here = here < left ? here : left;
        left -= here;
        *harp_ring_desc(&xdp->socket.tx, ahead + descs++) =
            (struct xdp_desc){.addr = at, .len = here, .options = left ? HARP_XDP_MORE : 0};
        at += here;
    }
    return descs;
}

/* By the kernel's socket; it has copied everything when it returns. */
static void send_slowly(struct harp_xdp *xdp, const struct harp_xdp_pending *one,
                        const struct harp_xdp_hop *hop)
{
    uint32_t frames =
        (one->offset + one->bytes + xdp->frames->frame_bytes - 1) / xdp->frames->frame_bytes;
    harp_xdp_kernel_send(xdp, hop, harp_frame_at(xdp->frames, one->frame) + one->offset,
                         one->bytes);
    for (uint32_t i = 0; i < frames; i++)
        complete_frame(xdp, one->frame + i);
    xdp->outstanding -= frames;
}

/* The card takes nothing for a reason that may pass without anybody telling of it. */
static void pause_sending(struct harp_xdp *xdp, int error)
{
    struct harp_notice notice = {
        .type = HARP_NOTICE_TROUBLE, .trouble = HARP_TROUBLE_SENDING, .error = -error};
    if (xdp->pause_ns == 0)
        harp_xdp_notice_add(xdp, &notice);
    xdp->pause_ns = xdp->pause_ns == 0                  ? PAUSE_NS
                    : 2 * xdp->pause_ns < PAUSE_MOST_NS ? 2 * xdp->pause_ns
                                                        : PAUSE_MOST_NS;
    xdp->resume_ns = xdp->now_ns + xdp->pause_ns;
}

void harp_xdp_kick(struct harp_xdp *xdp)
{
    if (xdp->pause_ns && xdp->now_ns < xdp->resume_ns)
        return;
    int error = harp_xdp_socket_send(&xdp->socket, &xdp->port.counters.send_calls);
    xdp->unsent = error < 0;
    if (error < 0 && error != -EAGAIN)
        pause_sending(xdp, error);
    else
        xdp->pause_ns = 0;
}

void harp_xdp_flush(struct harp_port *port, uint64_t now_ns)
{
    struct harp_xdp *xdp = harp_xdp_of(port);
    uint32_t descs = 0;
    uint64_t bytes = 0;
    xdp->now_ns = now_ns;
    for (uint32_t i = 0; i < xdp->pending_n; i++) {
        const struct harp_xdp_pending *one = &xdp->pending[i];
        struct harp_xdp_hop *hop = &xdp->hops[one->hop];
        bytes += one->bytes;
        /* The kernel does not see what leaves directly. One datagram that it sends itself lets it
         * ask whether a neighbour that it has not heard of for long is still there. */
        if (hop->direct && !hop->stale)
            descs += write_descriptors(xdp, one, hop, descs);
        else
            send_slowly(xdp, one, hop);
        hop->stale = false;
    }
    port->counters.sent += xdp->pending_n;
    port->counters.sent_bytes += bytes;
    if (!xdp->socket.zero_copy)
        port->counters.sent_copied += xdp->pending_n;
    xdp->pending_n = 0;
    if (descs > 0) {
        assert(harp_ring_room(&xdp->socket.tx, descs) >= descs);
        harp_ring_produce(&xdp->socket.tx, descs);
    }
    if (descs > 0 || xdp->unsent)
        harp_xdp_kick(xdp);
}
