/* The receiving end of a TCP socket: reassembly, ACKs, the window. */
#include "base/sequence.h"
#include "tcp.h"

/* ---- ACKs */

/* The ranges that came out of order, the last one touched first (RFC 2018, section 4). */
static void add_sacks(const struct tcp_receiver *r, struct tcp_segment *ack)
{
    uint64_t before = UINT64_MAX;
    while (ack->sacks < TCP_SACKS) {
        const struct tcp_range *newest = NULL;
        for (size_t i = 0; i < r->early_n; i++)
            if (r->early[i].touched < before && (!newest || r->early[i].touched > newest->touched))
                newest = &r->early[i];
        if (!newest)
            return;
        before = newest->touched;
        ack->sack[ack->sacks][0] = (uint32_t)(newest->from - r->next);
        ack->sack[ack->sacks++][1] = (uint32_t)(newest->to - r->next);
    }
}

void tcp_send_ack(struct packet_world *w, struct tcp_socket *socket)
{
    struct tcp_receiver *r = &socket->r;
    r->edge = harp_max(r->edge, r->read + TCP_RECEIVE_WINDOW);
    struct tcp_segment ack = {.kind = TCP_ACK,
                              .seq = r->next,
                              .window = (uint32_t)(r->edge - r->next),
                              .echo = r->marked,
                              .twice = r->twice};
    add_sacks(r, &ack);
    r->twice = false;
    r->waiting_bytes = 0;
    r->ack_at_ns = HARP_NEVER;
    r->quick -= r->quick > 0;
    tcp_send_control(w, socket, socket->of->end + 1, &ack);
}

/* An ACK of its own for a window that was all but closed (tcp_cleanup_rbuf). */
void tcp_tell_window(struct packet_world *w, struct tcp_socket *socket)
{
    const struct tcp_receiver *r = &socket->r;
    uint64_t announced = r->edge - r->next, now = r->read + TCP_RECEIVE_WINDOW - r->next;
    if (2 * announced <= TCP_RECEIVE_WINDOW && now && now >= 2 * announced)
        tcp_send_ack(w, socket);
}

/* One ACK for what a NAPI poll hands over, which GRO makes one segment of: more than a segment, or
 * one that its sender pushed; else the ACK waits for company. */
static void ack_later(struct packet_world *w, struct tcp_socket *socket, uint32_t length)
{
    struct tcp_receiver *r = &socket->r;
    r->waiting_bytes += length;
    if (r->waiting_bytes > TCP_BURST_BYTES - socket->of->mss) {
        tcp_send_ack(w, socket);
        return;
    }
    bool soon = r->quick || r->waiting_bytes > socket->of->mss || length < socket->of->mss;
    r->ack_at_ns = harp_min(r->ack_at_ns, w->now_ns + (soon ? TCP_POLL_NS : TCP_DELAYED_ACK_NS));
    wake_at(w, socket->of->end + 1, r->ack_at_ns);
}

/* ---- reassembly */

static void remove_early(struct tcp_receiver *r, size_t at)
{
    r->early_n--;
    memmove(&r->early[at], &r->early[at + 1], (r->early_n - at) * sizeof *r->early);
}

/* Keep a segment that came out of order; whether any of it is new. */
static bool keep_early(struct tcp_receiver *r, uint64_t from, uint64_t to)
{
    size_t at = 0;
    while (at < r->early_n && r->early[at].to < from)
        at++;
    struct tcp_range *range = &r->early[at];
    if (at < r->early_n && range->from <= from && to <= range->to) {
        range->touched = ++r->touches;
        return false;
    }
    if (at == r->early_n || to < range->from) {
        GROW_ARRAY(r->early);
        memmove(&r->early[at + 1], &r->early[at], (r->early_n++ - at) * sizeof *r->early);
        r->early[at] = (struct tcp_range){from, to, ++r->touches};
        return true;
    }
    range->from = harp_min(range->from, from);
    range->to = harp_max(range->to, to);
    range->touched = ++r->touches;
    if (at + 1 < r->early_n && r->early[at + 1].from <= range->to) {
        range->to = harp_max(range->to, r->early[at + 1].to);
        remove_early(r, at + 1);
    }
    return true;
}

static void take_in_order(struct tcp_receiver *r, uint64_t to)
{
    r->next = harp_max(r->next, to);
    while (r->early_n && r->early[0].from <= r->next) {
        r->next = harp_max(r->next, r->early[0].to);
        remove_early(r, 0);
    }
}

bool tcp_take_data(struct packet_world *w, struct tcp_socket *socket, const struct packet *packet)
{
    struct tcp_receiver *r = &socket->r;
    uint64_t from = packet->tcp.seq, to = from + packet->payload;
    /* A mark that begins or ends is reported at once, so that shares are right (RFC 8257, 3.2). */
    if (packet->marked != r->marked && r->waiting_bytes)
        tcp_send_ack(w, socket);
    r->marked = packet->marked;
    bool was_whole = !r->early_n, in_order = from <= r->next;
    bool is_new = in_order ? to > r->next : keep_early(r, from, to);
    if (in_order)
        take_in_order(r, to);
    r->fresh += is_new;
    r->twice |= !is_new && packet->payload;
    if (is_new && in_order && was_whole)
        ack_later(w, socket, packet->payload);
    else
        tcp_send_ack(w, socket);
    return in_order;
}
