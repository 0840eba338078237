/* Sending by a TCP socket: what its window and timers allow now. */
#include <assert.h>

#include "base/sequence.h"
#include "tcp.h"

#define NS_PER_S UINT64_C(1000000000)

static void emit_segment(struct packet_world *w, const struct tcp_socket *socket, uint32_t number,
                         const struct tcp_segment *segment, uint32_t payload, uint64_t at_ns)
{
    uint32_t taken = take_packet(w);
    const struct end *end = &w->hosts.ends[number];
    struct packet *packet = &w->pool.packets[taken];
    uint32_t options = segment->sacks ? 4 + 8 * segment->sacks : 0;
    packet->tcp = *segment;
    packet->path = socket->number;
    packet->incarnation = socket->of->incarnation;
    packet->marked = false;
    packet->can_mark = payload && socket->of->congestion == TCP_DCTCP;
    packet->end = number ^ 1;
    packet->hop = w->hosts.first_hops[end->routes + socket->number] + 1;
    packet->link = w->fabric.hops[packet->hop - 1];
    packet->payload = payload;
    packet->bytes = (uint32_t)harp_max(socket->of->headers + options + payload, ETHERNET_LEAST);
    packet->process = payload ? end->process : NOBODY;
    packet->body = NO_PACKET;
    if (payload)
        leave_process(w, taken, at_ns);
    else
        put_on_link(w, taken);
}

void tcp_send_control(struct packet_world *w, const struct tcp_socket *socket, uint32_t end,
                      const struct tcp_segment *segment)
{
    emit_segment(w, socket, end, segment, 0, w->now_ns);
}

void tcp_drive_soon(struct packet_world *w, struct tcp_socket *socket)
{
    socket->of->ready |= UINT64_C(1) << socket->number;
    drive_soon(w, socket->of->end);
}

/* ---- timers for what is sent */

void tcp_arm_timeout(struct tcp_sender *s, uint64_t now_ns)
{
    uint64_t wait_ns = harp_min(s->rtt.rto_ns << s->rtt.backoff, TCP_MOST_TIMEOUT_NS);
    s->timers.rto_at_ns = now_ns + wait_ns;
}

void tcp_arm_probe(struct tcp_sender *s, uint64_t now_ns)
{
    s->timers.probe_at_ns = HARP_NEVER;
    if (s->state != TCP_OPEN || s->scoreboard.sacked_n || s->tlp.end_seq || !s->rtt.srtt_ns)
        return;
    uint64_t more_ns = s->scoreboard.sent_n == 1 ? TCP_LEAST_TIMEOUT_NS : TCP_TIMER_SLACK_NS;
    s->timers.probe_at_ns = now_ns + harp_min(2 * s->rtt.srtt_ns + more_ns, s->rtt.rto_ns);
}

/* ---- how much */

static struct tcp_sent *append_sent(struct tcp_sender *s)
{
    if (s->scoreboard.sent_n == s->scoreboard.sent_room) {
        uint32_t room = s->scoreboard.sent_room ? 2 * s->scoreboard.sent_room : 64;
        struct tcp_sent *ring = zeroed_array(room, sizeof *ring);
        for (uint32_t i = 0; i < s->scoreboard.sent_n; i++)
            ring[i] = *sent_at(s, i);
        free(s->scoreboard.sent);
        s->scoreboard.sent = ring;
        s->scoreboard.sent_room = room;
        s->scoreboard.sent_first = 0;
    }
    return sent_at(s, s->scoreboard.sent_n++);
}

/* Bytes that leave together: a millisecond's pace, and more on short round trips
 * (tcp_tso_autosize). */
static uint32_t burst_segments(const struct tcp_socket *socket)
{
    const struct tcp_sender *s = &socket->s;
    uint64_t shift = s->rtt.min_ns / TCP_US >> TCP_BURST_RTT_SHIFT;
    uint64_t bytes = s->cc.pace >> 10;
    if (shift < 32)
        bytes += TCP_BURST_BYTES >> shift;
    bytes = harp_min(bytes, TCP_BURST_BYTES - 1);
    return (uint32_t)harp_max(bytes / socket->of->mss, 2);
}

/* The queues before the line hold what two bursts or a millisecond's pace are at most (TCP small
 * queues, tcp_small_queue_check). */
static bool is_queue_full(struct tcp_socket *socket)
{
    struct tcp_sender *s = &socket->s;
    uint64_t most =
        harp_max(2 * (uint64_t)burst_segments(socket) * socket->of->mss, s->cc.pace >> 10);
    s->is_throttled = s->queued_bytes > harp_min(most, TCP_QUEUE_BYTES);
    return s->is_throttled;
}

/* A burst that the window cuts short waits for more, if less than a third of the window is free
 * and an ACK will come (tcp_tso_should_defer). */
static bool should_defer(const struct tcp_socket *socket, uint64_t room, uint64_t wanted)
{
    const struct tcp_sender *s = &socket->s;
    uint64_t window = (uint64_t)s->cc.window * socket->of->mss;
    return s->state == TCP_OPEN && tcp_in_flight(s) && room < wanted &&
           room < window / TCP_DEFER_SHARE;
}

/* ---- sending */

static void note_sent(struct packet_world *w, struct tcp_sender *s, struct tcp_sent *sent)
{
    sent->sent_ns = w->now_ns;
    sent->first_ns = s->rate.first_ns;
    sent->delivered_ns = s->rate.delivered_ns;
    sent->delivered = s->rate.delivered;
    if (s->rate.limited_until)
        sent->flags |= TCP_LIMITED;
    if (s->state == TCP_RECOVERING || s->state == TCP_REDUCING)
        s->recovery.prr_out++;
}

static void note_burst(struct packet_world *w, struct tcp_sender *s, uint64_t bytes)
{
    if (s->cc.is_paced && s->cc.pace)
        s->timers.pace_at_ns =
            harp_max(s->timers.pace_at_ns == HARP_NEVER ? 0 : s->timers.pace_at_ns, w->now_ns) +
            bytes * NS_PER_S / s->cc.pace;
    s->usage.last_sent_ns = w->now_ns;
    s->usage.most_in_flight = (uint32_t)harp_max(s->usage.most_in_flight, tcp_in_flight(s));
    if (s->timers.rto_at_ns == HARP_NEVER)
        tcp_arm_timeout(s, w->now_ns);
}

/* The stack works on the whole burst, and its segments then leave one behind the other. */
static uint64_t emit_burst(struct packet_world *w, struct tcp_socket *socket, uint32_t first,
                           uint32_t n)
{
    uint32_t end = socket->of->end;
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < n; i++)
        bytes += sent_at(&socket->s, first + i)->length;
    uint64_t at_ns = pass_chain(w, (uint32_t)w->hosts.ends[end].send_chain, bytes);
    socket->s.queued_bytes += bytes;
    for (uint32_t i = 0; i < n; i++) {
        const struct tcp_sent *sent = sent_at(&socket->s, first + i);
        const struct tcp_segment segment = {.kind = TCP_DATA, .seq = sent->seq};
        emit_segment(w, socket, end, &segment, sent->length, at_ns);
    }
    note_burst(w, &socket->s, bytes);
    return at_ns;
}

static void mark_resent(struct packet_world *w, struct tcp_sender *s, struct tcp_sent *sent)
{
    sent->flags |= TCP_RESENT | TCP_WAS_RESENT;
    s->scoreboard.resent_n++;
    s->again++;
    s->scoreboard.resent_end = harp_max(s->scoreboard.resent_end, sent->seq + sent->length);
    if (s->recovery.undo_left >= 0)
        s->recovery.undo_left++;
    note_sent(w, s, sent);
}

/* Lost segments go first, those that follow one another as a burst; whether there were any. */
static bool send_lost(struct packet_world *w, struct tcp_socket *socket, uint32_t quota,
                      uint64_t *busy_ns)
{
    struct tcp_sender *s = &socket->s;
    if (s->scoreboard.lost_n == s->scoreboard.resent_n)
        return false;
    uint32_t first = 0, n = 0;
    while ((sent_at(s, first)->flags & (TCP_LOST | TCP_RESENT)) != TCP_LOST)
        first++;
    quota = (uint32_t)harp_min(quota, burst_segments(socket));
    while (n < quota && first + n < s->scoreboard.sent_n &&
           (sent_at(s, first + n)->flags & (TCP_LOST | TCP_RESENT)) == TCP_LOST)
        mark_resent(w, s, sent_at(s, first + n++));
    *busy_ns = harp_max(*busy_ns, emit_burst(w, socket, first, n));
    return true;
}

static void send_new(struct packet_world *w, struct tcp_socket *socket, uint64_t bytes,
                     uint64_t *busy_ns)
{
    struct tcp_sender *s = &socket->s;
    uint32_t first = s->scoreboard.sent_n;
    if (!first) /* rates count from here */
        s->rate.first_ns = s->rate.delivered_ns = w->now_ns;
    while (bytes) {
        uint32_t length = (uint32_t)harp_min(bytes, socket->of->mss);
        struct tcp_sent *sent = append_sent(s);
        *sent = (struct tcp_sent){.seq = s->next, .length = length};
        s->segments_sent++;
        s->next += length;
        bytes -= length;
        note_sent(w, s, sent);
    }
    *busy_ns = harp_max(*busy_ns, emit_burst(w, socket, first, s->scoreboard.sent_n - first));
    tcp_arm_probe(s, w->now_ns);
}

/* New data that windows, queues and bursts admit, and that is worth sending now. */
static uint64_t new_bytes(struct tcp_socket *socket, uint32_t quota)
{
    struct tcp_sender *s = &socket->s;
    uint64_t waiting = s->written - s->next;
    uint64_t window = s->window_end > s->next ? s->window_end - s->next : 0;
    uint64_t burst = (uint64_t)burst_segments(socket) * socket->of->mss;
    uint64_t room = harp_min((uint64_t)quota * socket->of->mss, window);
    uint64_t wanted = harp_min(waiting, burst);
    if (!wanted || !room || should_defer(socket, room, wanted))
        return 0;
    if (room >= wanted)
        return wanted;
    return window < socket->of->mss && window <= room ? window
                                                      : room / socket->of->mss * socket->of->mss;
}

static void resume_after_pause(struct packet_world *w, struct tcp_sender *s)
{
    if (s->scoreboard.sent_n || s->written == s->next || !s->usage.last_sent_ns ||
        s->state != TCP_OPEN)
        return;
    tcp_cc_resumed(&s->cc, w->now_ns, w->now_ns - s->usage.last_sent_ns, s->rtt.rto_ns);
    s->usage.last_sent_ns = w->now_ns;
}

bool tcp_send(struct packet_world *w, struct tcp_socket *socket, uint64_t *busy_ns)
{
    struct tcp_sender *s = &socket->s;
    if (s->cc.is_paced && s->timers.pace_at_ns != HARP_NEVER && s->timers.pace_at_ns > w->now_ns)
        return false;
    if (is_queue_full(socket))
        return false;
    resume_after_pause(w, s);
    uint32_t in_flight = tcp_in_flight(s);
    uint32_t quota = s->cc.window > in_flight ? s->cc.window - in_flight : 0;
    if (!quota) {
        s->usage.is_full = true;
        return false;
    }
    if (send_lost(w, socket, quota, busy_ns))
        return true;
    uint64_t bytes = new_bytes(socket, quota);
    if (bytes) {
        send_new(w, socket, bytes, busy_ns);
        return true;
    }
    if (s->written != s->next && s->window_end > s->next)
        s->usage.is_full = true; /* it waits for the window to open further */
    if (s->written == s->next && s->scoreboard.lost_n <= s->scoreboard.resent_n)
        s->rate.limited_until = harp_max(s->rate.delivered + in_flight, 1);
    return false;
}

static void resend_last(struct packet_world *w, struct tcp_socket *socket)
{
    struct tcp_sender *s = &socket->s;
    struct tcp_sent *sent = sent_at(s, s->scoreboard.sent_n - 1);
    sent->flags |= TCP_WAS_RESENT;
    s->again++;
    note_sent(w, s, sent);
    emit_burst(w, socket, s->scoreboard.sent_n - 1, 1);
}

void tcp_probe_tail(struct packet_world *w, struct tcp_socket *socket)
{
    struct tcp_sender *s = &socket->s;
    uint64_t busy_ns = 0, waiting = harp_min(s->written - s->next, socket->of->mss);
    s->tlp.is_retrans = !waiting || s->next + waiting > s->window_end;
    s->tlp.end_seq = s->next + 1; /* not armed again before this is acknowledged */
    if (!s->tlp.is_retrans)
        send_new(w, socket, waiting, &busy_ns);
    else
        resend_last(w, socket);
    s->tlp.end_seq = s->next;
    s->timers.probe_at_ns = HARP_NEVER;
}
