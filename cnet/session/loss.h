/* Loss detection on a path: by time, never by a count of duplicates.
 *
 * Five alarms, from the mildest to the last:
 *
 * - REORDER: RACK (RFC 8985). Packets of a path are sent in the order of their numbers. As soon as
 *   one is known to have arrived, all that were sent before it are overdue once the round-trip
 *   time of that one, and a window for reordering, have passed since they were sent.
 * - PROBE: tail-loss probe. Nothing after the last packets shows that they are lost; so after about
 *   two round trips of silence one of them is sent once more, and its ACK wakes RACK.
 * - TIMEOUT: retransmission timeout, doubled each time: all in flight on the path is lost.
 * - ASK: the same time without a word from the peer on any path. That says nothing about this one:
 *   a scheduler takes a host off its core for many timeouts. So nothing is given up; it is asked
 *   again, as QUIC does by its PTO (RFC 9002, section 6.2).
 * - DEAD: no news for 3 timeouts in which the peer was heard elsewhere, at the latest after
 *   `dead_ns`: the path is out of use.
 *
 *   sent        2 srtt        1 RTO               3 RTO, or dead_ns
 *    |------------+-------------+-------------------+----------> silence on this path
 *               PROBE     TIMEOUT or ASK          DEAD
 *
 * If all that was in flight when it was first asked proves to be lost, the network swallowed a
 * whole window, as a timeout would have said: persistent congestion (RFC 9002, section 7.6).
 *
 * A peer that comes back is heard on one path first, and so is all that came while this host was
 * away itself. So when the peer is heard after half a timeout of silence, the time of all paths
 * that wait begins anew; a few times at most, for a peer may rarely have anything to say.
 *
 * The window for reordering starts at a quarter of the least round-trip time and grows by a quarter
 * with each loss that proves to be none. It is also at least 5/4 of the lateness of overtaken
 * packets, whether these had been given up or not (Linux measures reordering by SACK in the same
 * way, tcp_check_sack_reordering); each later packet lowers that lateness by a 1024th. So where
 * packets are sprayed, few count as lost while the window grows. Its limit is two least round trips
 * or, if longer, the smoothed one plus 4 rttvar: packets overtake one another in a queue by no more
 * than delays vary (RFC 6298).
 *
 * `dead_ns` must not undercut the path's own delay: where 1.5 timeouts are longer, those count.
 *
 * Owner: the session's path. No clock is read; `now_ns` comes from the caller and never goes back.
 */
#ifndef HARP_LOSS_H
#define HARP_LOSS_H

#include "session/rtt.h"
#include "session/sent.h"

enum harp_alarm {
    HARP_ALARM_NONE,
    HARP_ALARM_REORDER,
    HARP_ALARM_PROBE,
    HARP_ALARM_TIMEOUT,
    HARP_ALARM_ASK,
    HARP_ALARM_DEAD,
};

struct harp_loss_limits {
    uint64_t ack_delay_ns;   /* how long the far host may hold an ACK back */
    uint64_t min_rto_ns;     /* floor of the retransmission timeout */
    uint64_t initial_rto_ns; /* timeout before the first sample */
    uint64_t dead_ns;        /* a silent path is out of use after this, at the latest */
    uint32_t silences;       /* of the peer, after which the time begins anew, between two news */
};

struct harp_loss {
    uint64_t rack_sent_ns;  /* when the newest packet known to have arrived was sent */
    uint64_t rack_rtt_ns;   /* how long it took to come back */
    uint64_t reorder_at_ns; /* next time at which RACK finds something; HARP_NEVER for none */
    uint64_t waiting_ns;    /* since when we wait for news; HARP_NEVER if we do not */
    uint64_t timeout_ns;    /* from when the next TIMEOUT counts */
    uint64_t last_sent_ns;
    uint64_t late_ns;      /* by how much packets come late that others overtake */
    uint64_t rack_packet;  /* that newest packet */
    uint32_t quarters;     /* window for reordering, in quarters of the least round trip */
    uint32_t backoff;      /* TIMEOUTs and ASKs since then */
    uint32_t silences;     /* of the peer, after which it began anew, since the last news */
    bool probed;           /* PROBE has gone off since the last news */
    bool asked;            /* ASK has, and nothing sent before it has arrived since, */
    uint64_t asked_packet; /* hence before this packet */
};

void harp_loss_init(struct harp_loss *loss, uint64_t first);

/* A packet that will be acknowledged was sent. */
void harp_loss_sent(struct harp_loss *loss, uint64_t now_ns);

/* `sent` is known to have arrived, for the first time: news. */
void harp_loss_delivered(struct harp_loss *loss, const struct harp_sent *sent, uint64_t now_ns);

/* The peer is heard, for the first time since `before_ns`. */
void harp_loss_heard(struct harp_loss *loss, const struct harp_rtt *rtt,
                     const struct harp_loss_limits *limits, uint64_t before_ns, uint64_t now_ns);

/* After a batch of deliveries: whether anything is still in flight, to be waited for. */
void harp_loss_news(struct harp_loss *loss, bool in_flight, uint64_t now_ns);

/* The next overdue packet in flight from *cursor on (start with the ring's tail), or NULL when
 * there is no further one; then reorder_at_ns is when to look again. The caller marks each as lost.
 */
struct harp_sent *harp_loss_next(struct harp_loss *loss, struct harp_sent_ring *ring,
                                 const struct harp_rtt *rtt, uint64_t *cursor, uint64_t now_ns);

/* A packet that was given up has arrived after all. */
void harp_loss_spurious(struct harp_loss *loss);

/* The retransmission timeout without back-off. */
uint64_t harp_loss_rto_ns(const struct harp_rtt *rtt, const struct harp_loss_limits *limits);

/* Find the next alarm and its time, if the peer was last heard at `heard_ns`; *at_ns is HARP_NEVER
 * with HARP_ALARM_NONE. */
enum harp_alarm harp_loss_alarm(const struct harp_loss *loss, const struct harp_sent_ring *ring,
                                const struct harp_rtt *rtt, const struct harp_loss_limits *limits,
                                uint64_t heard_ns, uint64_t *at_ns);

/* The PROBE alarm was seen to, or TIMEOUT or ASK. */
void harp_loss_probed(struct harp_loss *loss);
void harp_loss_timed_out(struct harp_loss *loss, uint64_t now_ns);

/* ASK is about to be seen to; `next` is the number of the packet that will ask. */
void harp_loss_asks(struct harp_loss *loss, uint64_t next);

/* Packets were given up: whether nothing is left of what was in flight when ASK went off first, and
 * none of it arrived. True once. */
bool harp_loss_is_persistent(struct harp_loss *loss, const struct harp_sent_ring *ring);

#endif
