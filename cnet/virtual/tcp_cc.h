/* Congestion control of kernel TCP, as models for simulators and tests. No product links it.
 *
 *   tcp_cc.c      the calls below, passed on to one of:
 *   tcp_cubic.c   RFC 9438 with Linux's HyStart (net/ipv4/tcp_cubic.c)
 *   tcp_dctcp.c   RFC 8257 (net/ipv4/tcp_dctcp.c)
 *   tcp_bbr.c     BBR version 1 (Cardwell et al., ACM Queue 14(5), 2016; net/ipv4/tcp_bbr.c)
 *   tcp_growth.c  slow start and growth by counted segments, for CUBIC and DCTCP
 *
 * A sender passes each ACK to a flow, which sets a window, in segments, and a pace. The sender
 * detects losses and sends again. Integers only and no clock: the same
 * calls give the same answers on any machine.
 *
 *     tcp_cc_begin(&cc, TCP_CUBIC, mss, now, seed);
 *     tcp_cc_acked(&cc, &ack)       for each ACK
 *     tcp_cc_lost(&cc)              when the first loss of a window is found: a new threshold
 *     tcp_cc_marked(&cc)            when an ACK echoes a mark, the first of a window: the same
 *     tcp_cc_timed_out(&cc)         when a retransmission timeout takes all for lost
 *
 * CUBIC and DCTCP say what the window is to become after a loss (`threshold`), and the sender takes
 * it there over a round trip (RFC 6937). BBR alone sets its window itself, `owns_window`.
 */
#ifndef HARP_VIRTUAL_TCP_CC_H
#define HARP_VIRTUAL_TCP_CC_H

#include <stdbool.h>
#include <stdint.h>

#define TCP_FIRST_WINDOW 10         /* segments: RFC 6928 */
#define TCP_NO_THRESHOLD UINT32_MAX /* slow start goes on until a loss */
#define TCP_BBR_ROUNDS 10           /* over which BBR's bandwidth is the greatest seen */

enum tcp_cc_kind { TCP_CUBIC, TCP_DCTCP, TCP_BBR };

/* One ACK. Segments are counted; `next` and `acked_to` number them from the first. */
struct tcp_ack {
    uint64_t now_ns;
    uint64_t acked_to;  /* all before it are acknowledged */
    uint64_t next;      /* the next one that was never sent */
    uint32_t acked;     /* newly, in order */
    uint32_t delivered; /* newly acknowledged or selectively so */
    uint32_t lost;      /* newly taken for lost */
    uint32_t marked;    /* of `delivered`: with a congestion mark echoed */
    uint32_t in_flight; /* after this ACK */
    uint64_t rtt_ns;    /* of the newest segment that it acknowledges; 0: none */
    uint64_t smoothed_ns;
    /* A sample of the delivery rate (net/ipv4/tcp_rate.c): `sample` segments in interval_ns;
     * and the number delivered when the newest of them was sent. interval_ns 0: no sample. */
    uint64_t sample, interval_ns, delivered_before, delivered_total;
    bool app_limited;   /* nothing waited to be sent when the newest of them was */
    bool window_full;   /* the window held the sender back in this round */
    bool is_recovering; /* from losses, or a timeout */
};

struct tcp_cubic {
    uint64_t epoch_ns; /* 0: begins with the next ACK */
    uint64_t k_ms;
    uint32_t most, origin; /* window before the last loss, and at the plateau */
    uint32_t counted;      /* segments acknowledged towards the next one more */
    uint64_t reno_q16;     /* window of a Reno flow in the same place */
    uint64_t least_rtt_ns;
    /* HyStart */
    uint64_t round_from_ns, train_ns, round_rtt_ns, round_end;
    uint32_t samples;
    bool found;
};

struct tcp_dctcp {
    uint32_t alpha_q10;
    uint64_t round_end;
    uint64_t delivered, marked; /* in this round */
    uint32_t counted;
};

enum tcp_bbr_state { BBR_STARTUP, BBR_DRAIN, BBR_PROBE_BW, BBR_PROBE_RTT };

struct tcp_bbr {
    enum tcp_bbr_state state;
    uint64_t rates[TCP_BBR_ROUNDS]; /* segments/us << 24: the greatest of each of the last rounds */
    uint64_t round, round_end;      /* `delivered_total` at which the round ends */
    uint64_t full_rate;
    uint32_t full_rounds;
    bool is_full, round_began;
    uint64_t least_rtt_ns, least_at_ns;
    uint32_t cycle;
    uint64_t cycle_at_ns;
    uint64_t probe_until_ns; /* 0: the window has not drained yet */
    bool probe_round_done;
    uint32_t window_before;
    bool conserves; /* the first round of a recovery */
    bool was_recovering;
    uint64_t random;
    /* Bytes that ACKs bring beyond the rate (aggregation), over two windows of five rounds. */
    uint64_t extra_from_ns, extra_acked;
    uint32_t extra[2], extra_rounds, extra_which;
};

struct tcp_cc {
    enum tcp_cc_kind kind;
    uint32_t mss;
    uint32_t window, threshold;
    uint64_t pace; /* bytes/s: BBR's pace, or what others size bursts by; 0: not known */
    bool is_paced; /* nothing may leave faster than that */
    bool owns_window;
    union {
        struct tcp_cubic cubic;
        struct tcp_dctcp dctcp;
        struct tcp_bbr bbr;
    };
};

void tcp_cc_begin(struct tcp_cc *cc, enum tcp_cc_kind kind, uint32_t mss, uint64_t now_ns,
                  uint64_t seed);
void tcp_cc_acked(struct tcp_cc *cc, const struct tcp_ack *ack);
void tcp_cc_lost(struct tcp_cc *cc);
void tcp_cc_timed_out(struct tcp_cc *cc);
/* An ACK echoes a congestion mark: a new threshold. Once a round trip at most. Returns whether the
 * controller takes notice of marks at all. */
bool tcp_cc_marked(struct tcp_cc *cc);
/* Nothing was in flight for a while, and now something is sent. */
void tcp_cc_resumed(struct tcp_cc *cc, uint64_t now_ns, uint64_t idle_ns, uint64_t timeout_ns);

/* ---- inside: one of each for a controller */
void tcp_cubic_begin(struct tcp_cc *cc);
void tcp_cubic_acked(struct tcp_cc *cc, const struct tcp_ack *ack);
void tcp_cubic_lost(struct tcp_cc *cc);
void tcp_cubic_reset(struct tcp_cc *cc);
void tcp_cubic_resumed(struct tcp_cc *cc, uint64_t now_ns, uint64_t idle_ns);
void tcp_dctcp_begin(struct tcp_cc *cc);
void tcp_dctcp_acked(struct tcp_cc *cc, const struct tcp_ack *ack);
void tcp_dctcp_lost(struct tcp_cc *cc);
void tcp_dctcp_marked(struct tcp_cc *cc);
void tcp_bbr_begin(struct tcp_cc *cc, uint64_t now_ns, uint64_t seed);
void tcp_bbr_acked(struct tcp_cc *cc, const struct tcp_ack *ack);
void tcp_bbr_lost(struct tcp_cc *cc);
/* Slow start by `acked` segments; how many of them it had no use for. */
uint32_t tcp_slow_start(struct tcp_cc *cc, uint32_t acked);
/* One segment more for each `each` that are counted. */
void tcp_count_up(struct tcp_cc *cc, uint32_t *counted, uint32_t each, uint32_t acked);

#endif
