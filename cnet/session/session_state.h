/* Inside a session; for the files session*.c of cnet/session only.
 *
 *   session.c             memory, the application's calls, events
 *   session_path_calls.c  calls of its owner about paths
 *   session_send.c        which frames go out, in which order
 *   session_timers.c      timeouts, the death of a path, probes, keep-alive
 *   session_receive.c     frames in, payload placed
 *   session_ack.c         ACK both ways: what arrived, credit, losses
 *   session_handshake.c   FIRST, COOKIE, ACCEPT, VERSION; CLOSE
 *   session_paths.c       which paths may carry data, and how long their frames may be
 *   session_core.c        clock, packet numbers, headers; how and why it ends
 *
 * In this order calls point one way: a file calls only those below it
 * (tests/system/test_c_layers.py).
 */
#ifndef HARP_SESSION_STATE_H
#define HARP_SESSION_STATE_H

#include "base/sequence.h"
#include "session/inbox.h"
#include "session/outbox.h"
#include "session/path.h"
#include "session/pmtu.h"
#include "session/reassembly.h"
#include "session/session.h"

/* News of credit that somebody waits for, and the ACK of a whole message unless it is configured
 * otherwise, leave this soon, not at once: an answer may go first, and more may come. */
#define HARP_ACK_SOON_NS UINT64_C(2000)

/* An ACK that leaves so much later than it was due says that the application has stopped driving.
 */
#define HARP_ACK_LATE_NS UINT64_C(50000)

/* A firewall that is loaded anew may refuse for a moment what it lets pass before and after. */
#define HARP_REFUSED_NS UINT64_C(500000000)

/* How long a peer may be quiet at most before it is asked for a sign of life. With HARP_REFUSED_NS
 * a killed one is noticed within 1.5 s. */
#define HARP_KEEP_NS UINT64_C(800000000)

enum harp_state {
    HARP_CONNECTING, /* FIRST is repeated until ACCEPT comes */
    HARP_ACCEPTING,  /* ACCEPT answers each FIRST until a frame under the new keys comes */
    HARP_OPEN,
    HARP_CLOSING, /* CLOSE is repeated until CLOSE comes */
    HARP_CLOSED,
};

enum harp_size_probe { HARP_SIZE_NONE, HARP_SIZE_DUE, HARP_SIZE_IN_FLIGHT };

/* State of a path beyond its packets. */
struct harp_path_state {
    uint64_t lost, spurious, bad_payloads, died; /* as harp_path_info has them */
    struct harp_pmtu pmtu;
    uint64_t unreachable_at_ns; /* when ICMP last made us probe */
    uint64_t narrowed_at_ns;    /* when it last made us confirm the size in use */
    uint64_t flag_largest;      /* the peer's flag is that of an ACK with this `largest` */
    uint16_t confirmed_bytes;
    uint16_t size_bytes; /* of the padded PROBE */
    enum harp_size_probe size;
    uint8_t long_lost; /* packets of the size in use that were lost since one arrived */
    bool heard;
    bool validating;          /* the peer's new address: until a packet is acknowledged that */
    uint64_t validating_from; /* has this number or a later one */
    bool off_queue;           /* the peer says so of what we send */
    bool arrives_off;         /* we say so of what the peer sends */
};

/* Packets whose fragments are being handed out: chunks of one length on one path. The first
 * fragments of all go first, then the second ones, so that frames of one size are in a row, as
 * segmentation offload wants them. */
struct harp_cut {
    uint64_t packet;   /* the number of the first, */
    uint8_t packets_n; /* and how many they are; 0: none */
    uint8_t next;      /* the packet of the next fragment, */
    uint32_t at;       /* and where in the chunk it begins */
    uint64_t again;    /* a bit for each packet: its chunk had been sent before */
    uint16_t length;   /* of the chunks */
    uint8_t path;
    uint8_t fragments;
};

/* All of it is written by the one thread that drives the session (session.h). */
struct harp_session {
    struct harp_session_config config;
    struct harp_parameters own;
    struct harp_parameters peer;
    struct harp_session_counters counters;
    enum harp_state state;
    /* Events that harp_session_poll has yet to report. */
    struct {
        bool connected, closed;
    } to_report;
    /* The agreement of both ends; the handshake writes it, once. */
    struct {
        bool known; /* the peer's parameters are */
        uint16_t segment;
        uint16_t paths_n;
    } agreed;
    uint64_t now_ns;
    /* Times beside now_ns; harp_session_clock excuses pauses by them. */
    struct {
        uint64_t came_ns;  /* when the frame that is taken in came to this host */
        uint64_t asked_ns; /* the last deadline that we gave; HARP_NEVER if none */
        uint64_t lapse_ns; /* how far now_ns is behind the caller's clock */
    } clock;
    /* Whether the peer lives: signs of life, refusals and the timers write it. */
    struct {
        uint64_t heard_ns;            /* when the peer last showed that it lives */
        uint64_t keep_at_ns;          /* when to show and ask for a sign of life */
        struct harp_liveness *shared; /* with others to the same process; or NULL */
        uint64_t narrow_ns;  /* since when not even MIN_PLPMTU passes; HARP_NEVER if it does */
        uint64_t refused_ns; /* when its port was refused for the first time since it was heard */
        uint64_t broken_ns;  /* since when all paths are broken by the other end; HARP_NEVER: not */
        uint8_t heard_path;  /* where the last frame came */
    } liveness;
    /* FIRST, ACCEPT and CLOSE: which goes out, where and when. */
    struct {
        bool listening; /* this is the listening end */
        bool answer;    /* ACCEPT or CLOSE answers a frame that came on answer_path */
        uint8_t answer_path;
        uint8_t first_path; /* on which FIRST goes next */
        uint32_t repeats;
        uint64_t repeat_at_ns; /* when FIRST or CLOSE goes out (again) */
        uint64_t repeat_wait_ns;
        uint64_t began_ns; /* CONNECTING, ACCEPTING, CLOSING: since when */
        uint64_t first_sent_ns;
    } handshake;
    /* How and why it ends: closing, errors and the peer's CLOSE write it. */
    struct {
        bool by_peer;
        uint32_t reason;
        struct harp_close notice;      /* ours, then the peer's */
        struct harp_versions versions; /* the peer's, if that is why */
    } end;
    struct harp_far_buffer far; /* where paths lead that share no other session's */
    struct harp_outbox outbox;
    struct harp_inbox inbox;
    struct harp_reassembly reassembly;
    /* The next data to send, its path and its time; session_send.c writes it. */
    struct {
        struct harp_cut cut;
        uint64_t random;      /* state of the choice among paths */
        uint64_t pacer_at_ns; /* data waits for this, and for nothing else */
    } sending;
    /* Credit that our ACKs grant, and how long we wait for the peer's. */
    struct {
        bool news;                 /* the peer does not know of all credit, but of this: */
        uint64_t granted_messages; /* in 64 bits, as ACK has them */
        uint64_t granted_frames;
        uint64_t probe_at_ns; /* without credit: when to ask by PROBE */
        uint64_t probe_wait_ns;
        uint64_t starved_at_ns; /* when messages were last seen to wait for credit; HARP_NEVER: they
                                   do not */
    } credit;
    /* How soon ACKs leave: placed payload and ACKs that leave write it. */
    struct {
        bool patient;        /* nobody waits for the ACK of the last message (patient_bytes) */
        bool goes_quiet;     /* the application stops driving when all it waits for is there: no ACK
                                waits then */
        uint64_t at_once_ns; /* when an ACK last went at once for that */
        uint64_t steps;      /* words of maps and slots of packets that ACKs made us look at */
    } ack;
    /* The frame between harp_session_receive, which writes it, and harp_session_placed. */
    struct {
        bool pending;   /* there is one */
        bool marked;    /* it came with a congestion mark */
        bool completes; /* the chunk is whole with it */
        enum harp_fit fit;
        int entry;                 /* of the reassembly; -1: the chunk came whole */
        uint64_t come;             /* what of the chunk has come with it, as the entry has it */
        struct harp_header header; /* of the chunk, even if it came in fragments */
    } placing;
    uint64_t placed_ns; /* when payload last counted */
    uint64_t awake;     /* a bit for each path that has anything to wait for or to send */
    struct harp_path_state *path_state;
    /* Where its other parts lie behind it; written when it is created. */
    struct {
        void *outbox, *inbox;
        struct harp_sent *slots;
    } memory;
    struct harp_path paths[];
};

/* The peer shows that it lives. */
void harp_session_hears(struct harp_session *session);

/* A time of the caller's clock in ours, which never runs ahead. */
uint64_t harp_session_own_ns(const struct harp_session *session, uint64_t callers_ns);

/* All that this path has in flight, and will have, is on its way to this buffer. */
void harp_session_path_lands_in(struct harp_session *session, uint32_t path,
                                struct harp_far_buffer *far);

/* When its process last did, here or to others who share its liveness. */
uint64_t harp_session_process_heard_ns(const struct harp_session *session);

/* How long a peer may be quiet before it is asked for a sign of life: four times at least before it
 * counts as gone, and soon enough that a killed one is noticed though we only wait. */
static inline uint64_t harp_session_quiet_ns(const struct harp_session *session)
{
    return harp_min(session->config.dead_ns / 4, HARP_KEEP_NS);
}

/* A time from `least_ns` to twice that: thousands of connections that began or heard something at
 * the same moment do not ask at the same moment (multiplicative hashing: Knuth, The Art of Computer
 * Programming, vol. 3, 6.4). */
static inline uint64_t harp_session_spread_ns(const struct harp_session *session, uint64_t least_ns)
{
    uint64_t hash = (session->config.seed ^ session->now_ns) * UINT64_C(0x9e3779b97f4a7c15);
    return least_ns + (hash >> 32) * least_ns / UINT32_MAX;
}

/* How long a session may hear nothing itself while others hear the same process: always the same
 * for one session, and another for each. */
static inline uint64_t harp_session_patience_ns(const struct harp_session *session)
{
    uint64_t least_ns = session->config.dead_ns / 8;
    return least_ns + (session->config.seed >> 32) * least_ns / UINT32_MAX;
}

/* Time goes on; never back. */
void harp_session_clock(struct harp_session *session, uint64_t now_ns);

/* The peer's parameters are known: agree, set up paths and messages. */
void harp_session_agree(struct harp_session *session, const struct harp_parameters *peer);

/* The connection ends without more ado, or by a CLOSE that is repeated until it is answered. */
void harp_session_end(struct harp_session *session, uint32_t reason, bool by_peer);
void harp_session_part(struct harp_session *session, uint32_t reason);

/* Nothing was heard for too long: the connection ends, and one CLOSE says so. */
void harp_session_give_up_peer(struct harp_session *session);

/* Control frames of handshake and end, coming and going. */
enum harp_verdict harp_session_take_handshake(struct harp_session *session,
                                              const struct harp_header *header,
                                              const uint8_t *body);
enum harp_verdict harp_session_take_close(struct harp_session *session,
                                          const struct harp_header *header, const uint8_t *body);
size_t harp_session_send_handshake(struct harp_session *session, struct harp_frame *frame);
/* Where the next CLOSE goes. */
uint8_t harp_session_close_path(const struct harp_session *session);

/* The whole number of a frame that came: the one that an ACK names, or its own. Its path must
 * exist. */
uint64_t harp_session_number(const struct harp_session *session, const struct harp_header *header);

/* An ACK, coming and going. */
enum harp_verdict harp_session_take_ack(struct harp_session *session,
                                        const struct harp_header *header, const uint8_t *body);
size_t harp_session_send_acks(struct harp_session *session, struct harp_frame *frames, size_t room);

/* Paths: they begin; a frame came on one; a packet was settled, given up (`overtaken` by one that
 * arrived) or was not lost after all, or is one that only tries a size; a dead one answers again;
 * ACK's flag; the timer and its deadline; who may carry data. */
void harp_session_paths_begin(struct harp_session *session);
void harp_session_path_heard(struct harp_session *session, uint8_t path);
void harp_session_path_settled(struct harp_session *session, struct harp_path *path,
                               const struct harp_sent *sent);
void harp_session_path_lost(struct harp_session *session, struct harp_path *path,
                            const struct harp_sent *sent, bool overtaken);
bool harp_session_tries_size(const struct harp_session *session, const struct harp_path *path,
                             const struct harp_sent *sent);
void harp_session_path_returned(struct harp_session *session, struct harp_path *path);
void harp_session_path_found(struct harp_session *session, struct harp_path *path);
void harp_session_path_flag(struct harp_session *session, uint8_t path, uint64_t largest, bool off);
uint64_t harp_session_path_due_ns(const struct harp_session *session, uint8_t path);
void harp_session_paths_rate(struct harp_session *session);

/* Whether not even frames of MIN_PLPMTU pass on a path. */
static inline bool harp_session_is_too_narrow(const struct harp_path_state *path_state)
{
    return path_state->pmtu.state == HARP_PMTU_ERROR;
}

/* A path may carry less than before, as routes change: it has to show that it carries frames
 * of the size in use. `hint_bytes` is what ICMP says that it carries, or 0. */
void harp_session_path_confirm_again(struct harp_session *session, uint8_t path,
                                     uint32_t hint_bytes);

/* If it is time to: a frame of the size that is tried and then a small one, so that an ACK of
 * the small one settles both. */
void harp_session_path_try_size(struct harp_session *session, uint8_t path);

/* Something has happened to a path: look at it again, until nothing is due on it any more. */
static inline void harp_session_wake(struct harp_session *session, uint8_t path)
{
    session->awake |= UINT64_C(1) << path;
}

/* Take the lowest path out of a set of them that is not empty. */
static inline uint8_t harp_session_next_path(uint64_t *set)
{
    uint8_t path = (uint8_t)__builtin_ctzll(*set);
    *set &= *set - 1;
    return path;
}

/* Give up what RACK finds overdue on a path. */
void harp_session_detect(struct harp_session *session, struct harp_path *path);

/* Give up all that is in flight on a path; its chunks will be sent again. */
void harp_session_flush(struct harp_session *session, struct harp_path *path);

/* A living path for a single frame: the wanted one if it lives, or any; the wanted one if none
 * does. */
uint8_t harp_session_pick_path(const struct harp_session *session, uint8_t wanted);

/* See to all timers that are due. */
void harp_session_timers(struct harp_session *session);

/* Fill in what all frames of this connection have in common. */
void harp_session_header(const struct harp_session *session, struct harp_frame *frame,
                         enum harp_type type, uint8_t path);

#endif
