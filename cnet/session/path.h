/* One path of a session: its packets in both directions, delay, window and state.
 *
 *              no news for 3 timeouts in which the peer is heard elsewhere, or dead_ns
 *      ALIVE ------------------------------------> DEAD: carries PROBE only, ever more rarely
 *        ^                                            |
 *        +------ any of its packets acknowledged -----+
 *
 * Packets in flight on a path that dies are given up and sent on the others. A peer that is off
 * its core is silent on all paths, which makes none look dead before dead_ns (loss.h).
 */
#ifndef HARP_PATH_H
#define HARP_PATH_H

#include <stdbool.h>
#include <stdint.h>

#include "cc/cc.h"
#include "session/loss.h"
#include "session/pacer.h"
#include "session/reverse.h"
#include "session/rtt.h"
#include "session/sack.h"
#include "session/sent.h"
#include "session/service.h"

#define HARP_PATH_REPEATS 8 /* ACKs in a row that report each packet again */

enum harp_probe { HARP_PROBE_NONE, HARP_PROBE_PLAIN, HARP_PROBE_TAIL };

struct harp_path {
    /* towards the peer */
    struct harp_sent_ring sent;
    struct harp_rtt rtt;
    struct harp_reverse reverse;
    struct harp_loss loss;
    struct harp_cc cc;
    struct harp_pacer pacer;
    struct harp_service service;
    /* The latest loss. */
    struct {
        uint64_t end;      /* packets before this number belong to it */
        uint32_t suspects; /* of these, those that have not arrived late */
        bool timed_out;    /* it was all that was in flight, for want of news */
    } episode;
    bool dead;
    bool no_data;           /* carries no data although it may live (session.h says why) */
    bool spare;             /* carries data when no other path can take any now */
    uint32_t marks;         /* congestion marks that the peer has reported */
    uint64_t full_until_ns; /* its port has no room before */
    /* PROBEs, which timers ask for and the next send writes. */
    struct {
        enum harp_probe due; /* to be sent now */
        uint64_t at_ns;      /* dead: when to probe */
        uint64_t wait_ns;    /* dead: pause after the next probe */
    } probe;
    /* from the peer */
    struct harp_sack sack;
    uint64_t arrived;    /* packets */
    uint64_t largest_ns; /* when the largest packet came */
    uint32_t marked;
    /* Contents and time of our next ACK: arrivals write it, and the ACK clears it. */
    struct {
        uint32_t packets;                     /* that arrived since our last ACK */
        bool now;                             /* do not wait for more */
        uint64_t at_ns;                       /* when it is due; HARP_NEVER if none is */
        uint64_t latest_ns;                   /* when one is for the first packet since the last */
        uint64_t fresh;                       /* lowest packet that has arrived since the last */
        uint64_t reported[HARP_PATH_REPEATS]; /* what that was at each of our last ACKs */
        uint32_t oldest;                      /* of `reported` */
    } ack;
};

/* A fresh path with `slots_n` slots for packets, which start at `first` here and at `peer_first`
 * there. */
void harp_path_init(struct harp_path *path, struct harp_sent *slots, uint32_t slots_n,
                    uint64_t first, uint64_t peer_first, const struct harp_cc_ops *cc,
                    const struct harp_cc_config *window);

/* A packet that asks for an ACK has arrived and counts; it came to this host at `came_ns`. */
void harp_path_arrived(struct harp_path *path, uint64_t packet, uint64_t came_ns, uint64_t now_ns,
                       uint32_t ack_every, uint64_t ack_delay_ns);

/* The peer says that `marked` packets came with a congestion mark since the beginning: how many of
 * them are news. */
uint32_t harp_path_marks(struct harp_path *path, uint32_t marked);

/* An ACK is written: the first packet that its map should cover. Not the whole map each time:
 * what the last ACKs said may be lost with some of them, but hardly with all. */
uint64_t harp_path_tell_since(struct harp_path *path);

/* Whether window, ring and the far end's buffer allow another `bytes` in flight. A path with
 * nothing in flight always does: a window smaller than a frame slows down, by pacing, and does not
 * stop. */
bool harp_path_has_room(struct harp_path *path, uint32_t bytes);

/* Choose a path for a burst of `burst_bytes` that begins with a frame of `bytes`: of two drawn at
 * random by *random (power of two choices, Mitzenmacher, IEEE TPDS 12(10), 2001), the one where the
 * burst is expected to have arrived first (Lim et al., ECF, CoNEXT 2017). Those are drawn that are
 * alive, have room for the frame there and at their ports, and have a ready pacer; spare ones only
 * if there are no others. Bytes in flight count as soon as they are sent; delays that were measured
 * are a round trip old, and to follow them alone sends all bursts to one path until the next ACK.
 * An unmeasured path counts as fastest. Returns its index or -1; then *ready_ns is when a pacer or
 * a port may be ready, or HARP_NEVER. */
int harp_path_choose(struct harp_path *paths, uint32_t count, uint32_t bytes, uint32_t burst_bytes,
                     uint64_t now_ns, uint64_t *random, uint64_t *ready_ns);

#endif
