/* Timers of a TCP socket: retransmission timeout (RFC 6298), tail loss probe (RFC 8985, section 7),
 * RACK's reordering timer, pacing, delayed ACKs, and zero-window probes (RFC 9293, section
 * 3.8.6.1). */
#include "base/sequence.h"
#include "tcp.h"

static void give_up(struct packet_world *w, const struct tcp_socket *socket)
{
    snprintf(w->why, sizeof w->why, "TCP sent a segment %d times and got no answer", TCP_RETRIES);
    w->closed = (int32_t)w->hosts.ends[socket->of->end].channel;
}

static void begin_again(struct tcp_sender *s)
{
    for (uint32_t i = 0; i < s->scoreboard.sent_n; i++)
        if (!(sent_at(s, i)->flags & TCP_SACKED))
            tcp_mark_lost(s, sent_at(s, i));
    if (s->state != TCP_TIMED_OUT)
        tcp_cc_timed_out(&s->cc);
    s->cc.window = tcp_in_flight(s) + 1;
    s->state = TCP_TIMED_OUT;
    s->recovery.high_seq = s->next;
    s->tlp.end_seq = 0;
    s->recovery.undo_left = -1;
    s->timers.probe_at_ns = s->timers.reorder_at_ns = HARP_NEVER;
}

static void time_out(struct packet_world *w, struct tcp_socket *socket)
{
    uint32_t end = socket->of->end;
    struct tcp_sender *s = &socket->s;
    if (++s->rtt.backoff > TCP_RETRIES) {
        give_up(w, socket);
        return;
    }
    if (s->state == TCP_CLOSED)
        tcp_send_control(w, socket, end, &(struct tcp_segment){.kind = TCP_SYN});
    else if (s->scoreboard.sent_n)
        begin_again(s);
    else /* the window is closed; the receiver answers what it has already */
        tcp_send_control(w, socket, end, &(struct tcp_segment){.kind = TCP_DATA, .seq = s->una});
    tcp_arm_timeout(s, w->now_ns);
}

static void send_probe(struct packet_world *w, struct tcp_socket *socket)
{
    socket->s.timers.probe_at_ns = HARP_NEVER;
    if (!socket->s.scoreboard.sent_n || socket->s.state != TCP_OPEN)
        return;
    tcp_probe_tail(w, socket);
    tcp_arm_timeout(&socket->s, w->now_ns);
}

static void look_for_lost(struct packet_world *w, struct tcp_sender *s)
{
    if (tcp_rack_detect(s, w->now_ns) && (s->state == TCP_OPEN || s->state == TCP_REDUCING))
        tcp_begin_recovery(s);
}

void tcp_run_timers(struct packet_world *w, struct tcp_socket *socket)
{
    struct tcp_sender *s = &socket->s;
    if (s->timers.reorder_at_ns <= w->now_ns)
        look_for_lost(w, s);
    if (s->timers.probe_at_ns <= w->now_ns)
        send_probe(w, socket);
    if (s->timers.rto_at_ns <= w->now_ns)
        time_out(w, socket);
    if (s->timers.pace_at_ns <= w->now_ns)
        s->timers.pace_at_ns = HARP_NEVER;
}

uint64_t tcp_deadline_ns(const struct tcp_sender *s)
{
    return harp_min(harp_min(s->timers.rto_at_ns, s->timers.probe_at_ns),
                    harp_min(s->timers.reorder_at_ns, s->timers.pace_at_ns));
}
