/* One end of a HARP connection: the protocol of docs/inside/wire.md, and nothing else.
 *
 * A session reads no clock, no socket and no random source, and it never touches payload. Headers
 * and times go in; headers, payload extents and deadlines come out. Same configuration and same
 * calls: same frames, on any machine, with payload and without. docs/inside/session.md draws its
 * states and timers.
 *
 *     frames from the wire                                 application
 *          |                                                   |
 *     open tag  --> harp_session_receive --> place?       harp_session_post
 *          |                                   |          harp_session_message
 *     check CRC, copy to place <---------------+          harp_session_poll
 *          |                                                   |
 *          +------> harp_session_placed                   harp_session_close
 *
 *     harp_session_send --> headers, extents --> CRC, tag, port
 *     harp_session_deadline_ns --> when to call harp_session_send again if nothing else happens
 *
 * Rules of use:
 * - One thread at a time.
 * - After any call but harp_session_poll, call harp_session_send until it returns fewer frames than
 *   it had room for; then wait until harp_session_deadline_ns or the next event.
 * - Only frames whose tag holds come in. A control frame comes with its body, whose CRC holds. A
 *   DATA frame comes without: when the answer is HARP_PLACE, check its CRC, put the payload where
 *   the answer says, and say so by harp_session_placed, before any other call.
 * - `now_ns` comes from a clock that does not go back. One that jumps, either way, costs nothing
 *   but the deadlines that it put off.
 * - The session lives in memory that the caller gives, harp_session_size bytes aligned to 64, and
 *   frees nothing. After HARP_EVENT_CLOSED it should be kept for a while, since it answers repeated
 *   CLOSE.
 *
 * How messages are received is the receiver's choice, for each direction of a connection:
 *
 *   posted    The application posts a buffer per message; payload is placed by offset. Credit is
 *             messages and bytes. Small messages may come before their buffer (eager slots).
 *   streamed  config.stream_frames > 0. HARP_PLACE says `streamed`: the caller keeps the frame,
 *             lends it to the application, and says harp_session_returned when it has it back.
 *             Credit is chunks: no more frames are lent than stream_frames. An application that
 *             gives frames back only when a message is complete can receive no message of more
 *             chunks than that.
 *
 * Errors of use by the application are refused (false); breaking the rules above is an assertion;
 * what the peer does wrong closes the connection with a reason and is never an assertion.
 */
#ifndef HARP_SESSION_H
#define HARP_SESSION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cc/cc.h"
#include "session/far_buffer.h"
#include "session/loss.h"
#include "session/outbox.h"
#include "wire/body.h"
#include "wire/wire.h"

#define HARP_PATHS_MAX 64
#define HARP_STREAM_MAX (UINT32_C(1) << 20) /* frames lent; more chunks are never in flight */
#define HARP_CLOSE_TEXT 120

struct harp_session;

/* cdef: begin */
/* Why a connection ended. Those below 256 are sent in CLOSE. */
enum harp_reason {
    HARP_REASON_DONE = 0,
    HARP_REASON_UNDER_WAY = 1,
    HARP_REASON_TOO_LONG = 2,
    HARP_REASON_PROTOCOL = 3,
    HARP_REASON_MEMORY = 4,
    HARP_REASON_VERSION = 5,
    HARP_REASON_MTU = 6,     /* no path carries frames of MIN_PLPMTU, though all carry small ones */
    HARP_REASON_UNHEARD = 7, /* SILENT of the other end, which this one reaches all the same */
    HARP_REASON_SILENT = 256,    /* nothing was heard for dead_ns */
    HARP_REASON_NO_ANSWER = 257, /* the handshake did not finish within dead_ns */
    HARP_REASON_REFUSED = 258,   /* no process has the peer's port any more */
};
/* cdef: end */

struct harp_session_config {
    uint64_t connection; /* own id, random, never 0 */
    uint64_t listener;   /* id to which FIRST goes; unused by the listening end */
    uint8_t nonce[16];
    uint64_t seed;          /* of the choice among paths */
    uint32_t first;         /* number of the first message and packets; random */
    uint16_t epoch;         /* of this process */
    uint16_t segment;       /* largest payload, a multiple of 128 */
    uint8_t traffic_class;  /* that the connecting end asks the listening one for */
    uint16_t paths;         /* at most HARP_PATHS_MAX; the lower of both ends counts */
    uint32_t holds_bytes;   /* of arrivals that its port holds until they are taken, as it tells the
                               other end; 0: nothing is said */
    uint32_t stream_frames; /* 0: receives are posted; else streamed, with this many frames lent */
    uint8_t addresses_n;    /* listening: further addresses to announce; connecting: usable ones */
    struct harp_wire_address addresses[HARP_ADDRESSES_MAX]; /* connecting: zeros */
    /* Memory, in powers of two. The defaults are the most; less memory slows long paths down. */
    uint16_t messages; /* open at once each way: 2 to HARP_MESSAGES; without room for another,
                          harp_session_message and harp_session_post are refused */
    uint16_t chunks;   /* of a message, from the first that is missing on: 64 to HARP_CHUNK_WINDOW;
                          what comes beyond counts as lost on the way */
    uint16_t packets;  /* of each path in flight: 16 to HARP_SENT_SLOTS */
    struct harp_loss_limits loss;
    uint64_t dead_ns;       /* a peer that is silent this long is gone */
    uint64_t probe_most_ns; /* longest pause between probes of a dead path, or for credit */
    /* Sizes of UDP payloads that path MTU discovery begins with (RFC 8899). */
    struct {
        uint16_t base_bytes;  /* that most paths take: BASE_PLPMTU, */
        uint16_t least_bytes; /* and the least that is tried: MIN_PLPMTU */
    } pmtu;
    bool app_drives; /* threads that may stop at any moment drive it, with a helper that comes late;
                        false: one that is always there */
    /* How long ACKs wait. */
    struct {
        uint32_t every;   /* packets of one path after which none waits */
        uint64_t soon_ns; /* after which a whole message is acknowledged: an answer may go first */
        uint32_t patient_bytes; /* no sender waits for the ACK of a message of up to this size; 0:
                                   senders wait for all */
        uint64_t patient_ns;    /* in place of soon_ns for such messages, and for the credit that is
                                   given behind them while others may still go ahead of it */
        bool after_last; /* that time begins anew with each further one, for ack_delay_ns at most */
        uint64_t along_ns; /* an ACK that is due within this time goes along with data; 0 where it
                              saves no call of the kernel, and only delays them */
    } ack;
    const struct harp_cc_ops *cc;
    struct harp_cc_config window;
};

/* Defaults for everything but ids, nonce, seed, first and epoch. */
void harp_session_defaults(struct harp_session_config *config, uint16_t segment, uint16_t paths);

/* Bytes of memory for a session with this configuration. */
size_t harp_session_size(const struct harp_session_config *config);

/* The connecting end; its first frame is FIRST. */
struct harp_session *harp_session_connect(void *memory, const struct harp_session_config *config,
                                          uint64_t now_ns);

/* The listening end, made of the parameters of a FIRST that came on `path` (listener.h says when).
 */
struct harp_session *harp_session_accept(void *memory, const struct harp_session_config *config,
                                         uint64_t now_ns, const struct harp_parameters *first,
                                         uint8_t path);

/* The peer's parameters, from which keys are derived; zeros while they are not known. */
const struct harp_parameters *harp_session_peer(const struct harp_session *session);

/* Bits 32 to 55 of the number of a frame that came, which its tag covers (seal.h); any value for a
 * frame that is not of this connection. */
uint32_t harp_session_lap(const struct harp_session *session, const struct harp_header *header);

enum harp_verdict {
    HARP_DROP,  /* nothing more to do with this frame */
    HARP_TAKEN, /* a control frame that was taken in */
    HARP_PLACE, /* put the payload where `place` says, then call harp_session_placed */
};

struct harp_place {
    uint8_t *buffer; /* the posted buffer; NULL with an eager slot, or without payload */
    uint32_t offset; /* where in it; streamed: where in the message the chunk begins */
    int eager;       /* the eager slot, or -1 */
    bool streamed;   /* keep the frame and lend it to the application; no buffer */
    /* Streamed, and not all of its chunk: put it into a frame beside, one for each entry, */
    int entry;            /* below HARP_REASSEMBLIES, or -1: the chunk is in this frame */
    uint32_t within;      /* where in that frame */
    bool completes;       /* if the CRC holds, the frame has the whole chunk: lend it, */
    uint16_t chunk_bytes; /* its length; and take another one for this entry next time */
};

/* Take a frame in. `waited_ns` is how long it had lain in this host when the caller took it up, 0
 * if that is unknown: time in which the host was busy is no delay of the network. `body` is a
 * control frame's body of header->length bytes. `marked`: it came with a congestion mark. */
enum harp_verdict harp_session_receive(struct harp_session *session, uint64_t now_ns,
                                       uint64_t waited_ns, const struct harp_header *header,
                                       const uint8_t *body, bool marked, struct harp_place *place);

/* Where the payload of this DATA would be placed, were it there: in a posted buffer, whole and for
 * the first time; else NULL. The tag holds. Nothing changes, and it may be asked again and again
 * while payload comes piece by piece. */
uint8_t *harp_session_where(const struct harp_session *session, const struct harp_header *header);

/* The payload of the last HARP_PLACE is in its place, or its CRC did not hold (then the frame never
 * was, and what it overwrote comes again). */
void harp_session_placed(struct harp_session *session, bool holds);

struct harp_frame {
    struct harp_header header;   /* version to size; crc and tag are not the session's */
    uint32_t lap;                /* bits 32 to 55 of its number, for the tag (seal.h) */
    uint8_t path;                /* that it leaves on; an ACK's header names the path it is about */
    bool again;                  /* a chunk that was sent before */
    const uint8_t *payload;      /* DATA: header.length bytes, NULL without payload */
    uint8_t body[HARP_BODY_MAX]; /* others but PROBE, whose body is header.length zeros */
};

/* Run the timers and hand out up to `room` frames. Without room the timers run all the same: a
 * network that takes nothing must not keep a dead peer from being noticed. */
size_t harp_session_send(struct harp_session *session, uint64_t now_ns, struct harp_frame *frames,
                         size_t room);

/* When harp_session_send must be called again at the latest; HARP_NEVER if it need not be. */
uint64_t harp_session_deadline_ns(struct harp_session *session);

/* Frames of another connection go to the card now: ACKs that are due soon can go along. Whether
 * there are any, which the next harp_session_send hands out. */
bool harp_session_ack_along(struct harp_session *session);

/* Post a buffer for the next incoming message. False before the peer is known, while
 * config.messages are posted and not polled, and after the end but for messages that CLOSED says
 * are left; if such a one is longer than its buffer, CLOSED comes again, with TOO_LONG. *eager
 * becomes the slot in which the message lies already, which the caller must copy to the buffer
 * before its next call, or -1. */
bool harp_session_post(struct harp_session *session, uint8_t *buffer, uint32_t capacity,
                       uint64_t context, int *eager);

/* Send a message of up to HARP_MESSAGE_MAX bytes; the buffer must not change until HARP_EVENT_SENT.
 * False before HARP_EVENT_CONNECTED, while config.messages are under way, and after the end. */
bool harp_session_message(struct harp_session *session, const uint8_t *buffer, uint32_t size,
                          uint64_t context);

/* The same of payload that lies in pieces: chunk i, harp_session_segment bytes but for the last, is
 * at chunks[i]. The array must not change until HARP_EVENT_SENT either. */
bool harp_session_message_frames(struct harp_session *session, const uint8_t *const *chunks,
                                 uint32_t size, uint64_t context);

/* Payload of a whole chunk as both ends agreed; 0 while the peer is not known. */
uint16_t harp_session_segment(const struct harp_session *session);

/* Streamed: the application has given back `frames` of those lent to it, that is of those for which
 * harp_session_placed has said that the CRC holds. */
void harp_session_returned(struct harp_session *session, uint32_t frames);

/* End the connection. HARP_REASON_DONE turns into HARP_REASON_UNDER_WAY if messages are. The peer
 * gets `text` (UTF-8, cut to HARP_CLOSE_TEXT bytes) for its log; NULL for none. */
void harp_session_close(struct harp_session *session, uint64_t now_ns, uint32_t reason,
                        const char *text);

enum harp_event_type {
    HARP_EVENT_NONE,
    HARP_EVENT_CONNECTED,
    HARP_EVENT_SENT,     /* the peer has all of the message */
    HARP_EVENT_RECEIVED, /* all of the message is in its buffer */
    HARP_EVENT_CLOSED, /* the last one but for `size` messages that are left (harp_session_post) */
};

struct harp_event {
    enum harp_event_type type;
    uint32_t size;    /* SENT, RECEIVED: of the message; CLOSED: how many messages came whole before
                         the peer was done and can still be received, if buffers are posted */
    uint32_t message; /* SENT, RECEIVED: its number, as in DATA's header */
    uint64_t context; /* SENT, RECEIVED: the application's; 0 if streamed */
    const uint8_t *buffer; /* SENT: where it lay; NULL: in frames */
    uint32_t reason;       /* CLOSED, and all below */
    bool by_peer;          /* the peer's CLOSE or VERSION said so */
    uint8_t text_bytes;
    uint8_t lowest, highest; /* HARP_REASON_VERSION by the peer: what it speaks */
    const char *text;        /* text_bytes bytes of the peer's CLOSE, not closed by 0; they stay as
                              * long as the session */
};

/* The next event; HARP_EVENT_NONE if there is none. Messages are reported in order, each way. */
void harp_session_poll(struct harp_session *session, struct harp_event *event);

/* One sentence about HARP_EVENT_CLOSED, for an error: why, by whom, and what the peer said of it.
 * Control characters of the peer's text become '?'. Writes at most `room` bytes, the closing 0
 * included. */
void harp_reason_explain(const struct harp_event *closed, char *out, size_t room);

/* Whether a packet that was given up comes after all is seen among a path's last 1,024 packets
 * (sent.h); what comes later than that stays lost. */
/* cdef: begin */
struct harp_session_counters {
    uint64_t data_sent;    /* packets with a chunk, in one frame or in fragments */
    uint64_t data_again;   /* of these, chunks that had been sent before */
    uint64_t placed;       /* payloads that counted */
    uint64_t lost;         /* packets given up and not found since: goes down when they are */
    uint64_t spurious;     /* packets given up that were not lost, but late, or their ACK was */
    uint64_t duplicates;   /* packets or chunks that were there already */
    uint64_t strangers;    /* frames of another connection or epoch, or that make no sense now */
    uint64_t bad_payloads; /* CRC did not hold */
    uint64_t paths_died;
    uint64_t paths_returned;
    uint64_t pmtu_shrunk; /* times that a path's frames became shorter (pmtu.h) */
    uint64_t pmtu_grown;
    uint64_t starved_ns; /* time in which messages waited for the peer's credit and nothing else */
};
/* cdef: end */

const struct harp_session_counters *harp_session_count(const struct harp_session *session);

/* Paths. These conditions keep data off a path although it lives:
 * - the listening end has heard nothing on it yet, so it does not know where it leads;
 * - frames of MIN_PLPMTU do not pass, though small ones do (mtu_fails; pmtu.h says how that is
 *   found out). When no path that lives has passed any for dead_ns, the connection ends
 *   (HARP_REASON_MTU);
 * - it arrives at the peer's host on another engine's queue (off_queue); unless no other path is
 *   left.
 * A path on which whole chunks do not pass in one frame (fragments > 1) carries what those have no
 * room for on which they do. */
/* cdef: begin */
struct harp_path_info {
    bool alive;
    bool usable;    /* carries data */
    bool heard;     /* a frame has come on it, or we are the connecting end */
    bool off_queue; /* as the peer says */
    bool mtu_fails;
    bool validating;      /* the peer's new address has not answered yet */
    uint8_t fragments;    /* into which a whole chunk is cut here */
    uint16_t frame_bytes; /* UDP payload of a frame with as much as it may have: PLPMTU */
    /* largest UDP payload known to have arrived since frames were last suspected to be too long */
    uint16_t confirmed_bytes;
    uint64_t smoothed_ns; /* round trip without the far host's part; 0 while unknown */
    uint64_t least_ns;
    uint64_t window_bytes;
    uint64_t bytes_in_flight;
    uint64_t sent; /* packets */
    uint64_t lost; /* of these, as the session's counters have it, */
    uint64_t spurious;
    uint64_t died;         /* times */
    uint64_t host_ns;      /* smoothed, what the far host takes before it answers */
    uint64_t due;          /* packets that the peer sent up to the last one that came, */
    uint64_t arrived;      /* and how many of them came */
    uint64_t bad_payloads; /* frames whose CRC did not hold */
};
/* cdef: end */

/* False if the path does not exist (yet). */
bool harp_session_path_info(const struct harp_session *session, uint8_t path,
                            struct harp_path_info *info);

/* UDP payload of the longest frames that this path carries now, as far as is known. */
uint16_t harp_session_path_frame_bytes(const struct harp_session *session, uint8_t path);

/* ICMP, or the kernel, says that this path takes UDP payloads of `payload_max` bytes. ICMP can be
 * forged, so the path is only asked whether it is so, at most once a timeout: by PROBEs of the size
 * in use, sooner than lost data would show it (RFC 8899, section 4.6.2), or of a larger one. */
void harp_session_path_mtu(struct harp_session *session, uint64_t now_ns, uint8_t path,
                           uint32_t payload_max);

/* Whether a frame whose tag holds has a larger number than all that have come on its path. If so,
 * the peer sent it, and it is no replay. */
bool harp_session_is_newest(const struct harp_session *session, const struct harp_header *header);

/* The peer's address on this path has changed, as behind a NAT that forgot it, and frames go to the
 * new one from now on. The path carries no data until a PROBE is acknowledged that went there (path
 * validation, RFC 9000, section 9.3): a host that sends a captured frame again must not draw a
 * flood. */
void harp_session_path_moved(struct harp_session *session, uint8_t path);

/* Our frames on this path take another way from now on, from or to another UDP port: what the peer
 * said of its queue no longer holds, and a PROBE finds out. */
void harp_session_path_rerouted(struct harp_session *session, uint8_t path);

/* The path's port takes no frame for about `time_ns`: data and ACKs go by others meanwhile. */
void harp_session_path_full(struct harp_session *session, uint64_t now_ns, uint8_t path,
                            uint64_t time_ns);

/* Report to the peer whether its frames on this path arrive on another queue than the engine's. */
void harp_session_path_off_queue(struct harp_session *session, uint8_t path, bool off);

/* ICMP says that this path's peer is unreachable. ICMP can be forged, so it ends nothing: the path
 * is probed at once, or FIRST repeated on the next path, at most once a timeout. Whether it was. */
bool harp_session_unreachable(struct harp_session *session, uint64_t now_ns, uint8_t path);

/* Knowledge that sessions with one far process share, in the caller's clock: when it
 * last showed that it lives, and when one of them last asked it for that. */
struct harp_liveness {
    uint64_t heard_ns, asked_ns;
};

/* Share this with others that lead to the same process, so that not each of them asks; NULL: with
 * none. It must stay until another call. Each session still asks for itself several times before
 * dead_ns, since a process may live and have forgotten it. */
void harp_session_share_liveness(struct harp_session *session, struct harp_liveness *liveness);

/* Share the buffer at the far end of this path with others that lead there, of this session and of
 * others; NULL: with the session's own. It must stay until another call. */
void harp_session_share_buffer(struct harp_session *session, uint8_t path,
                               struct harp_far_buffer *far);

/* No process has the peer's port. If that is certain, the session ends (HARP_REASON_REFUSED). If
 * ICMP says so, which only somebody on the way can, a firewall may just be loading its rules: the
 * session probes the peer 0.5 s later. It ends if that is refused, too, and neither it nor a
 * session that shares its liveness has heard anything meanwhile. It does not probe earlier, since
 * Linux sends a host six such answers after a pause and then one a second (icmp_ratelimit). */
void harp_session_refused(struct harp_session *session, uint64_t now_ns, uint8_t path,
                          bool certain);

/* The stream that carried this path broke, and frames on their way are lost: the path is dead until
 * it answers again. `closed`: the other end's host closed it. Then a session that cannot connect
 * anew itself, since it listens, ends (HARP_REASON_REFUSED) if all paths are broken and nobody
 * comes back within HARP_BROKEN_NS. */
#define HARP_BROKEN_NS UINT64_C(1000000000)
void harp_session_path_broken(struct harp_session *session, uint64_t now_ns, uint8_t path,
                              bool closed);

#endif
