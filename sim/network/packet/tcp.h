/* Kernel TCP at the ends of a connection, as Linux has it; for this folder's C only.
 *
 *   tcp_connection.c  sockets of a connection: pieces cut into parts, and put together again
 *   tcp_send.c        what a socket may send now: window, bursts, pace, queue limits
 *   tcp_ack.c         what an ACK says: SACK, rates, round trips, the end of a recovery
 *   tcp_loss.c        what is lost (RACK, RFC 8985), and how the window goes down (PRR, RFC 6937)
 *   tcp_timer.c       retransmission timeout, tail loss probe, window probe
 *   tcp_receive.c     reassembly, ACKs and the receive window
 *
 * A connection has several sockets, each with a five-tuple, hence a route, of its own. Data goes
 * one way, and a socket's two ends are one struct. Numbers of bytes count from 0 and do not wrap.
 *
 *     piece --parts--> send buffer --bursts--> network --> reassembly --parts--> piece
 *                        |   ^                                  |
 *                        +---+------------- ACKs ---------------+
 *
 * A piece has left its sender when its last byte is in the send buffer, as NCCL sees it; its parts
 * stay in the receiver's buffer until the piece has a slot there. Congestion control is that of
 * cnet/virtual/tcp_cc.h. The costs of ACKs are in the figures of the stack, as with HARP.
 *
 * Not modelled: F-RTO, ACK compression (tcp_comp_sack_delay_ns), autotuning of the receive buffer
 * (it has its greatest size from the start), NCCL's message of a piece's size, the segments that
 * close a connection.
 */
#ifndef SIM_PACKET_TCP_H
#define SIM_PACKET_TCP_H

#include "virtual/tcp_cc.h"
#include "world.h"

#define TCP_US UINT64_C(1000)
#define TCP_MS (1000 * TCP_US)
/* Linux, include/net/tcp.h. */
#define TCP_LEAST_TIMEOUT_NS (200 * TCP_MS) /* TCP_RTO_MIN */
#define TCP_MOST_TIMEOUT_NS (120000 * TCP_MS)
#define TCP_FIRST_TIMEOUT_NS (1000 * TCP_MS) /* RFC 6298, section 2 */
#define TCP_TIMER_SLACK_NS (8 * TCP_MS)      /* TCP_TIMEOUT_MIN: two jiffies, of 250 a second */
#define TCP_DELAYED_ACK_NS (40 * TCP_MS)     /* TCP_DELACK_MIN */
#define TCP_QUICK_ACKS 16                    /* TCP_MAX_QUICKACKS */
#define TCP_RETRIES 15                       /* sysctl tcp_retries2 */
#define TCP_REORDERING 3                     /* sysctl tcp_reordering */
/* Buffers: the last figures of sysctl tcp_wmem and tcp_rmem; half of the latter is for what it
 * costs the kernel to keep it (tcp_win_from_space). */
#define TCP_SEND_BUFFER (4u << 20)
#define TCP_RECEIVE_WINDOW (3u << 20)
#define TCP_BURST_BYTES 65536      /* GSO_LEGACY_MAX_SIZE, for segmentation and for GRO */
#define TCP_QUEUE_BYTES (4u << 20) /* sysctl tcp_limit_output_bytes */
#define TCP_BURST_RTT_SHIFT 9      /* sysctl tcp_tso_rtt_log */
#define TCP_DEFER_SHARE 3          /* sysctl tcp_tso_win_divisor */
/* Segments that come this soon after one another are one NAPI poll, and acknowledged together: the
 * interrupt moderation of mlx5 (MLX5E_PARAMS_DEFAULT_RX_CQ_MODERATION_USEC). */
#define TCP_POLL_NS (16 * TCP_US)

enum tcp_sent_flags {
    TCP_SACKED = 1,
    TCP_LOST = 2,   /* taken for lost, and ... */
    TCP_RESENT = 4, /* ... sent again, and not lost again yet */
    TCP_WAS_RESENT = 8,
    TCP_LIMITED = 16, /* the application had no more when it was sent */
};

/* A segment in flight. */
struct tcp_sent {
    uint64_t seq, sent_ns;
    /* tcp_rate as of when it was sent. */
    uint64_t delivered, delivered_ns, first_ns;
    uint32_t length;
    uint8_t flags;
};

enum tcp_state {
    TCP_CLOSED,
    TCP_OPEN,
    TCP_REDUCING,   /* TCP_CA_CWR: after a mark */
    TCP_RECOVERING, /* TCP_CA_Recovery: after a loss */
    TCP_TIMED_OUT,  /* TCP_CA_Loss */
};

struct tcp_rack {
    uint64_t sent_ns, end; /* of the segment that was sent last among those that arrived */
    uint64_t rtt_ns;
    bool sees_reordering;
    uint32_t steps, persist; /* of the reordering window, in quarters of a round trip */
    uint64_t step_after;     /* no step before all of this is acknowledged */
};

/* Segments in flight, and which of them arrived or are taken for lost (RFC 6675). */
struct tcp_scoreboard {
    struct tcp_sent *sent; /* a ring, in order of bytes */
    uint32_t sent_first, sent_n, sent_room;
    uint32_t sacked_n, lost_n, resent_n;
    uint64_t sacked_end, resent_end; /* the furthest of each */
};

/* Round trips, and the timeout that follows from them (RFC 6298). */
struct tcp_rtt {
    uint64_t srtt_ns, rttvar_ns, rto_ns, min_ns;
    uint32_t backoff;
};

/* The delivery rate (tcp_rate.c; draft-cheng-iccrg-delivery-rate-estimation). */
struct tcp_rate {
    uint64_t delivered, delivered_ns, first_ns;
    uint64_t limited_until; /* `delivered` at which the application's pause is over */
};

/* The window after a loss or a mark (PRR, RFC 6937), and as it was, should that be needless. */
struct tcp_recovery {
    uint64_t high_seq;     /* it ends when this is acknowledged: RecoveryPoint of RFC 6675 */
    uint32_t prior_window; /* as it began */
    uint32_t prr_delivered, prr_out;
    uint32_t undo_window, undo_threshold;
    int32_t undo_left; /* segments sent again that did not turn out needless; below 0: no undo */
};

/* How far the window was in use in this round trip (RFC 2861). */
struct tcp_usage {
    bool is_full;
    uint32_t most_in_flight;
    uint64_t end; /* of the round trip: all that was sent before is acknowledged */
    uint64_t last_sent_ns;
};

/* Deadlines; HARP_NEVER: off. */
struct tcp_timers {
    uint64_t rto_at_ns, probe_at_ns, reorder_at_ns, pace_at_ns;
};

/* Tail loss probe (RFC 8985, section 7). */
struct tcp_tlp {
    uint64_t end_seq; /* one is out; 0: none */
    bool is_retrans;
};

struct tcp_sender {
    enum tcp_state state;
    struct tcp_cc cc;
    uint64_t una, next;  /* first byte that is not acknowledged, and that was never sent */
    uint64_t written;    /* end of the send buffer */
    uint64_t window_end; /* as far as the receiver takes it */
    struct tcp_scoreboard scoreboard;
    uint64_t segments_acked, segments_sent; /* never before */
    struct tcp_rtt rtt;
    struct tcp_rate rate;
    struct tcp_rack rack;
    struct tcp_recovery recovery;
    struct tcp_usage usage;
    struct tcp_timers timers;
    struct tcp_tlp tlp;
    uint64_t queued_bytes; /* before the line */
    bool is_throttled;     /* it waits for them to shrink */
    uint64_t again;        /* segments sent again */
};

struct tcp_range {
    uint64_t from, to;
    uint64_t touched; /* the larger, the later */
};

struct tcp_receiver {
    uint64_t next;           /* the first byte that is missing */
    uint64_t read;           /* and that the application has not read */
    uint64_t edge;           /* of the window announced last */
    struct tcp_range *early; /* what came out of order, by number */
    size_t early_n, early_room;
    uint64_t touches;
    uint64_t waiting_bytes; /* that are not acknowledged */
    uint64_t ack_at_ns;
    uint32_t quick;
    bool marked;    /* the last segment was */
    bool twice;     /* the next ACK reports a segment that came twice */
    uint64_t fresh; /* segments that were new */
};

/* A piece's share on a socket. */
struct tcp_part {
    uint32_t piece, bytes;
};

struct tcp_connection;

struct tcp_socket {
    struct tcp_connection *of;
    uint8_t number;
    struct tcp_part write[SLOTS_MAX], take[SLOTS_MAX]; /* rows of parts, by both applications */
    uint32_t write_first, write_n, take_first, take_n;
    struct tcp_sender s;
    struct tcp_receiver r;
};

/* State of all sockets of a connection; both ends have it while it is open. Pieces are numbered
 * in the order that they are sent. */
struct tcp_connection {
    uint32_t end; /* of the sender; the receiver's is the next one */
    uint32_t mss, headers;
    enum tcp_cc_kind congestion;
    uint8_t incarnation;
    uint32_t sockets, open_n;
    uint32_t next_socket, drive_next; /* that gets a part, and that sends */
    uint64_t ready;                   /* sockets that want to send, by bits */
    struct {
        uint32_t to_write, to_read;
    } piece[SLOTS_MAX];
    uint32_t given, written, left, read;
    uint32_t granted; /* pieces that have a slot at the receiver */
    struct tcp_socket socket[];
};

static inline struct tcp_sent *sent_at(const struct tcp_sender *s, uint32_t i)
{
    return &s->scoreboard.sent[(s->scoreboard.sent_first + i) & (s->scoreboard.sent_room - 1)];
}

static inline uint32_t tcp_in_flight(const struct tcp_sender *s)
{
    return s->scoreboard.sent_n - s->scoreboard.sacked_n - s->scoreboard.lost_n +
           s->scoreboard.resent_n;
}

/* ---- tcp_send.c */
/* Let a socket send when its process comes to it. */
void tcp_drive_soon(struct packet_world *w, struct tcp_socket *socket);
void tcp_arm_timeout(struct tcp_sender *s, uint64_t now_ns);
void tcp_arm_probe(struct tcp_sender *s, uint64_t now_ns);
/* Send a burst; whether there was one. */
bool tcp_send(struct packet_world *w, struct tcp_socket *socket, uint64_t *busy_ns);
/* A segment without payload from an end, which costs the host nothing. */
void tcp_send_control(struct packet_world *w, const struct tcp_socket *socket, uint32_t end,
                      const struct tcp_segment *segment);
/* A tail loss probe: a new segment, or the last one again. */
void tcp_probe_tail(struct packet_world *w, struct tcp_socket *socket);

/* ---- tcp_ack.c */
void tcp_take_ack(struct packet_world *w, struct tcp_socket *socket, const struct tcp_segment *ack);
void tcp_sample_rtt(struct tcp_sender *s, uint64_t rtt_ns);

/* ---- tcp_loss.c */
void tcp_rack_delivered(struct tcp_sender *s, const struct tcp_sent *sent, uint64_t now_ns);
/* Take for lost what RACK says; how many segments. */
uint32_t tcp_rack_detect(struct tcp_sender *s, uint64_t now_ns);
/* A segment has arrived twice. */
void tcp_take_twice(struct tcp_sender *s);
void tcp_mark_lost(struct tcp_sender *s, struct tcp_sent *sent);
void tcp_begin_recovery(struct tcp_sender *s);
void tcp_begin_reducing(struct tcp_sender *s);
/* The window on its way to the threshold. */
void tcp_reduce(struct tcp_sender *s, uint32_t delivered, bool in_order);
void tcp_end_recovery(struct tcp_sender *s);

/* ---- tcp_timer.c */
void tcp_run_timers(struct packet_world *w, struct tcp_socket *socket);
uint64_t tcp_deadline_ns(const struct tcp_sender *s);

/* ---- tcp_receive.c */
/* Whether there may be more in order now. */
bool tcp_take_data(struct packet_world *w, struct tcp_socket *socket, const struct packet *packet);
void tcp_send_ack(struct packet_world *w, struct tcp_socket *socket);
void tcp_tell_window(struct packet_world *w, struct tcp_socket *socket);

#endif
