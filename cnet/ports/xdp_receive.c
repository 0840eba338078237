/* Receiving: descriptors become arrivals. Headers are checked and stripped, nothing is copied. */
#include "ports/xdp_port.h"

#include <arpa/inet.h>

#include "base/bytes.h"

enum {
    FILL_AT_ONCE = 256,
    POLL_NS = 5000,
    WAITED_MOST_NS = 1000 * 1000 * 1000,
};

/* The UDP payload of a packet. */
struct inside {
    uint32_t offset, bytes;
    struct harp_address from, to;
    bool marked;
};

static uint16_t load_big16(const uint8_t *at)
{
    return ntohs(harp_load16(at));
}

static bool read_ip4(const uint8_t *ip, uint32_t bytes, struct inside *in)
{
    uint32_t total = load_big16(ip + 2);
    if (bytes < IP4_BYTES + UDP_BYTES || ip[0] != 0x45 || total < IP4_BYTES + UDP_BYTES ||
        total > bytes)
        return false;
    in->marked = (ip[1] & 3) == 3;
    in->from.ip[10] = in->from.ip[11] = in->to.ip[10] = in->to.ip[11] = 0xff;
    memcpy(in->from.ip + 12, ip + 12, 4);
    memcpy(in->to.ip + 12, ip + 16, 4);
    in->offset += IP4_BYTES;
    in->bytes = total - IP4_BYTES;
    return true;
}

static bool read_ip6(const uint8_t *ip, uint32_t bytes, struct inside *in)
{
    uint32_t total = IP6_BYTES + load_big16(ip + 4);
    if (bytes < IP6_BYTES + UDP_BYTES || ip[0] >> 4 != 6 || total < IP6_BYTES + UDP_BYTES ||
        total > bytes)
        return false;
    in->marked = (ip[1] >> 4 & 3) == 3;
    memcpy(in->from.ip, ip + 8, 16);
    memcpy(in->to.ip, ip + 24, 16);
    in->offset += IP6_BYTES;
    in->bytes = total - IP6_BYTES;
    return true;
}

static bool read_headers(const uint8_t *packet, uint32_t bytes, struct inside *in)
{
    *in = (struct inside){.offset = ETHERNET_BYTES};
    in->from.family = in->to.family = HARP_INET;
    if (bytes < ETHERNET_BYTES + IP4_BYTES + UDP_BYTES)
        return false;
    uint16_t type = load_big16(packet + 12);
    if (type == 0x8100) {
        in->offset += VLAN_TAG_BYTES;
        type = load_big16(packet + 12 + VLAN_TAG_BYTES);
    }
    const uint8_t *ip = packet + in->offset;
    if (bytes < in->offset + (type == 0x0800 ? IP4_BYTES : IP6_BYTES) + UDP_BYTES)
        return false;
    uint32_t behind = bytes - in->offset;
    if (type == 0x0800 ? !read_ip4(ip, behind, in) : type != 0x86dd || !read_ip6(ip, behind, in))
        return false;
    const uint8_t *udp = packet + in->offset;
    uint32_t udp_bytes = load_big16(udp + 4);
    if (udp_bytes < UDP_BYTES || udp_bytes > in->bytes)
        return false;
    in->from.port = load_big16(udp);
    in->to.port = load_big16(udp + 2);
    in->offset += UDP_BYTES;
    in->bytes = udp_bytes - UDP_BYTES;
    return true;
}

static void fill_one(struct harp_xdp *xdp, uint32_t ahead, uint32_t frame)
{
    *harp_ring_offset(&xdp->socket.fill, ahead) = (uint64_t)frame * xdp->frames->frame_bytes;
    xdp->holds[frame] = XDP_FILL;
    xdp->fill.held++;
}

/* Take a frame back from the kernel. */
static uint32_t take_frame_back(struct harp_xdp *xdp, const struct xdp_desc *desc)
{
    uint32_t frame = harp_frame_of(xdp->frames, desc->addr);
    assert(frame < xdp->frames->count && xdp->holds[frame] == XDP_FILL);
    xdp->holds[frame] = XDP_NOTHING;
    xdp->fill.held--;
    harp_frames_move(xdp->frames, frame, HARP_FRAME_FILL, HARP_FRAME_ARRIVED);
    return frame;
}

/* How long a packet has lain here, by the time that the program wrote before it; 0 if what stands
 * there is no time of late. */
static uint32_t waited_ns(const struct harp_xdp *xdp, const uint8_t *packet)
{
    uint64_t waited = xdp->now_ns - harp_load64(packet - sizeof(uint64_t));
    return waited < WAITED_MOST_NS ? (uint32_t)waited : 0;
}

/* Make an arrival of a packet. A packet to another address is false, and its frame is free. */
static bool make_arrival(struct harp_xdp *xdp, const struct xdp_desc *desc,
                         struct harp_arrival *arrival, struct harp_address *from)
{
    const uint8_t *packet = xdp->frames->base + desc->addr;
    uint32_t frame = take_frame_back(xdp, desc);
    struct inside in;
    bool good = read_headers(packet, desc->len, &in);
    uint16_t local = good ? xdp->local_of[htons(in.to.port)] : 0;
    if (local == 0 || !harp_address_same(&in.to, &xdp->locals[local - 1])) {
        harp_frames_move(xdp->frames, frame, HARP_FRAME_ARRIVED, HARP_FRAME_FREE);
        return false;
    }
    *from = in.from;
    *arrival = (struct harp_arrival){.bytes = xdp->frames->base + desc->addr + in.offset,
                                     .length = in.bytes,
                                     .frame = frame,
                                     .from = from,
                                     .local = local - 1,
                                     .waited_ns = waited_ns(xdp, packet),
                                     .marked = in.marked};
    xdp->port.counters.received++;
    xdp->port.counters.received_bytes += in.bytes;
    xdp->port.counters.received_copied += !xdp->socket.zero_copy;
    return true;
}

/* Nothing is there. Busy polling more often than a card has something would only cost calls. */
static void wake_kernel(struct harp_xdp *xdp)
{
    if (xdp->socket.busy_poll && xdp->now_ns - xdp->woken_ns < POLL_NS)
        return;
    xdp->woken_ns = xdp->now_ns;
    harp_xdp_socket_wake(&xdp->socket, &xdp->port.counters.receive_calls);
}

size_t harp_xdp_receive_ring(struct harp_xdp *xdp, struct harp_arrival *arrivals, size_t room)
{
    uint32_t ready = harp_ring_ready(&xdp->socket.rx), seen = 0, made = 0;
    harp_xdp_reap(xdp);
    if (xdp->fill.most - xdp->fill.held >= XDP_BATCH)
        harp_xdp_refill(xdp); /* instead of those that the application was lent */
    if (xdp->send.unsent)
        harp_xdp_kick(xdp);
    for (; seen < ready && made < room; seen++)
        made += make_arrival(xdp, harp_ring_desc(&xdp->socket.rx, seen), &arrivals[made],
                             &xdp->from[made]);
    if (seen > 0)
        harp_ring_consume(&xdp->socket.rx, seen);
    else
        wake_kernel(xdp);
    return made;
}

void harp_xdp_refill(struct harp_xdp *xdp)
{
    uint32_t taken[FILL_AT_ONCE];
    while (xdp->fill.held < xdp->fill.most) {
        uint32_t wanted = xdp->fill.most - xdp->fill.held;
        uint32_t count = harp_frames_take(xdp->frames, HARP_FRAME_FILL, taken,
                                          wanted < FILL_AT_ONCE ? wanted : FILL_AT_ONCE);
        if (count == 0)
            return;
        assert(harp_ring_room(&xdp->socket.fill, count) >= count);
        for (uint32_t i = 0; i < count; i++)
            fill_one(xdp, i, taken[i]);
        harp_ring_produce(&xdp->socket.fill, count);
    }
}

void harp_xdp_release(struct harp_port *port, struct harp_arrival *arrivals, size_t count)
{
    struct harp_xdp *xdp = harp_xdp_of(port);
    uint32_t filled = 0;
    for (size_t i = 0; i < count; i++) {
        uint32_t frame = arrivals[i].frame;
        if (frame == HARP_NO_FRAME || arrivals[i].kept)
            continue;
        if (xdp->fill.held < xdp->fill.most) {
            harp_frames_move(xdp->frames, frame, HARP_FRAME_ARRIVED, HARP_FRAME_FILL);
            fill_one(xdp, filled++, frame);
        } else {
            harp_frames_move(xdp->frames, frame, HARP_FRAME_ARRIVED, HARP_FRAME_FREE);
        }
    }
    assert(harp_ring_room(&xdp->socket.fill, filled) >= filled);
    if (filled > 0)
        harp_ring_produce(&xdp->socket.fill, filled);
}
