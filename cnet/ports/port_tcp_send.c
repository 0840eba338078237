/* Frames of a tcp port on their way into the stream.
 *
 *     out      | header A | header B | all of C | header D | ...        each flow's
 *     pieces   header A, payload A, header B, payload B, C, header D ... payload D
 *                        ^ application's memory
 *
 * A flush gives all pieces to the kernel. Those that it does not take stay where they lie, and
 * nothing follows until they have left: the kernel says when there is room for a third of its
 * buffer (sk_stream_is_writeable). Whoever gets memory back before that has them copied (let_go).
 */
#define _GNU_SOURCE
#include <assert.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <string.h>

#include "ports/port_tcp.h"

static struct tcp_flow *flow_of(struct harp_port *port, int hop)
{
    const struct tcp_port *tcp = (struct tcp_port *)port;
    assert(hop >= 0 && (uint32_t)hop < tcp->flows_n && tcp->flows[hop]);
    return tcp->flows[hop];
}

static uint32_t frames_of_room(const struct tcp_flow *flow)
{
    uint32_t used = flow->out.bytes + flow->out.gathered_bytes;
    uint32_t frames = (TCP_OUT_BYTES - used) / (TCP_FRAME_MAX + 64u);
    uint32_t pieces = (TCP_PIECES - flow->out.pieces_n) / 2;
    return frames < pieces ? frames : pieces;
}

/* While it connects one frame may wait: the first of a handshake, which is sent again anyway. */
size_t tcp_port_room(struct harp_port *port, int hop)
{
    const struct tcp_flow *flow = flow_of(port, hop);
    if (flow->state == TCP_BROKEN)
        return HARP_BATCH; /* it is dropped */
    if (flow->state == TCP_CONNECTING)
        return flow->out.bytes == 0;
    return flow->out.kept || flow->full ? 0 : frames_of_room(flow);
}

/* A piece more, joined to the last one if it lies behind that. */
static void add_piece(struct tcp_flow *flow, const uint8_t *bytes, uint32_t count)
{
    struct iovec *last = flow->out.pieces_n ? &flow->out.pieces[flow->out.pieces_n - 1] : NULL;
    if (last && (uint8_t *)last->iov_base + last->iov_len == bytes)
        last->iov_len += count;
    else
        flow->out.pieces[flow->out.pieces_n++] = (struct iovec){(void *)(uintptr_t)bytes, count};
}

static uint8_t *take_out(struct tcp_port *tcp, int hop, uint32_t bytes, uint32_t gathered)
{
    struct tcp_flow *flow = tcp->flows[hop];
    uint32_t at = (flow->out.bytes + 3u) & ~3u;
    if (flow->state == TCP_BROKEN || flow->out.pieces_n + 2 > TCP_PIECES ||
        at + bytes + flow->out.gathered_bytes + gathered > TCP_OUT_BYTES) {
        tcp->port.counters.dropped++;
        return NULL;
    }
    if (!flow->dirty)
        tcp->dirty[tcp->dirty_n++] = (uint32_t)hop;
    flow->dirty = true;
    flow->out.bytes = at + bytes;
    add_piece(flow, flow->out.memory + at, bytes);
    tcp->port.counters.sent++;
    tcp->port.counters.sent_bytes += bytes + gathered;
    return flow->out.memory + at;
}

uint8_t *tcp_port_slot(struct harp_port *port, int hop, uint32_t bytes)
{
    (void)flow_of(port, hop);
    assert(bytes <= TCP_FRAME_MAX);
    return take_out((struct tcp_port *)port, hop, bytes, 0);
}

uint8_t *tcp_port_gather(struct harp_port *port, int hop, const uint8_t *payload, uint32_t bytes)
{
    struct tcp_flow *flow = flow_of(port, hop);
    assert(bytes <= TCP_PAYLOAD_MOST);
    uint8_t *header = take_out((struct tcp_port *)port, hop, HARP_HEADER_BYTES, bytes);
    if (!header)
        return NULL;
    flow->out.gathered_bytes += bytes;
    add_piece(flow, payload, bytes);
    return header;
}

/* The kernel has taken `sent` bytes of the pieces, which is less than all. */
static void keep_rest(struct tcp_flow *flow, size_t sent)
{
    struct iovec *pieces = flow->out.pieces;
    uint32_t gone = 0;
    while (sent >= pieces[gone].iov_len)
        sent -= pieces[gone++].iov_len;
    flow->out.pieces_n -= gone;
    memmove(pieces, pieces + gone, flow->out.pieces_n * sizeof *pieces);
    pieces[0].iov_base = (uint8_t *)pieces[0].iov_base + sent;
    pieces[0].iov_len -= sent;
    flow->out.kept = true;
}

static bool reads_from(const struct tcp_flow *flow, const uint8_t *bytes, size_t size)
{
    for (uint32_t i = 0; i < flow->out.pieces_n; i++) {
        const uint8_t *piece = flow->out.pieces[i].iov_base;
        if (!bytes || (piece < bytes + size && bytes < piece + flow->out.pieces[i].iov_len))
            return true;
    }
    return false;
}

void tcp_port_let_go(struct harp_port *port, int hop, const uint8_t *bytes, size_t size)
{
    struct tcp_port *tcp = (struct tcp_port *)port;
    struct tcp_flow *flow = flow_of(port, hop);
    uint8_t *copy = tcp->spare;
    uint32_t copied = 0;
    if (!flow->out.gathered_bytes || !reads_from(flow, bytes, size))
        return;
    for (uint32_t i = 0; i < flow->out.pieces_n; i++) {
        memcpy(copy + copied, flow->out.pieces[i].iov_base, flow->out.pieces[i].iov_len);
        copied += (uint32_t)flow->out.pieces[i].iov_len;
    }
    tcp->spare = flow->out.memory;
    flow->out.memory = copy;
    flow->out.bytes = copied;
    flow->out.gathered_bytes = 0;
    flow->out.pieces[0] = (struct iovec){copy, copied};
    flow->out.pieces_n = 1;
    flow->out.kept = true;
}

static void note_full(struct tcp_port *tcp, struct tcp_flow *flow)
{
    tcp->counts.full += !flow->full;
    flow->full = true;
}

static size_t bytes_of_pieces(const struct tcp_flow *flow)
{
    size_t bytes = 0;
    for (uint32_t i = 0; i < flow->out.pieces_n; i++)
        bytes += flow->out.pieces[i].iov_len;
    return bytes;
}

/* A cork holds the last segment back until it is full. MSG_MORE would not do: the next ACK that
 * comes has the kernel send it. */
static void cork_flow(struct tcp_flow *flow, int on)
{
    if (flow->state == TCP_OPEN && flow->out.corked != on)
        (void)setsockopt(flow->fd, IPPROTO_TCP, TCP_CORK, &on, sizeof on);
    flow->out.corked = on;
}

/* Whether all of a flow's pieces have left, and it need not be looked at again. A caller that has
 * filled `out` goes on in this turn: packets of the card are then filled from one call to the next.
 */
static bool flush_flow(struct tcp_port *tcp, uint32_t number)
{
    struct tcp_flow *flow = tcp->flows[number];
    const struct msghdr message = {.msg_iov = flow->out.pieces, .msg_iovlen = flow->out.pieces_n};
    size_t bytes = bytes_of_pieces(flow);
    bool gathered = flow->out.gathered_bytes > 0, more = gathered && frames_of_room(flow) == 0;
    ssize_t sent = 0;
    if (!bytes) {
        cork_flow(flow, false);
        flow->dirty = false;
        return true;
    }
    if (more)
        cork_flow(flow, true);
    if (flow->state == TCP_OPEN && !flow->full) {
        tcp->port.counters.send_calls++;
        sent = sendmsg(flow->fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (sent < 0 && errno != EAGAIN && errno != EINTR) {
            tcp_flow_break(tcp, number, errno == EPIPE ? 0 : errno);
            return true;
        }
        if (sent < (ssize_t)bytes)
            note_full(tcp, flow);
    }
    if (sent == (ssize_t)bytes) {
        flow->out.pieces_n = flow->out.bytes = flow->out.gathered_bytes = 0;
        flow->out.kept = false;
        flow->dirty = more;
        cork_flow(flow, more);
        return !more;
    }
    if (sent > 0 || gathered)
        keep_rest(flow, sent > 0 ? (size_t)sent : 0);
    return false;
}

void tcp_port_flush(struct harp_port *port, uint64_t now_ns)
{
    struct tcp_port *tcp = (struct tcp_port *)port;
    uint32_t left = 0, n = tcp->dirty_n;
    uint32_t *dirty = tcp->dirty;
    tcp->now_ns = now_ns;
    tcp->dirty_n = 0; /* a flow that breaks takes itself out of no list that we walk */
    for (uint32_t i = 0; i < n; i++)
        if (!flush_flow(tcp, dirty[i]))
            dirty[left++] = dirty[i];
    tcp->dirty_n = left;
}
