/* One end in the simulation: a production session and the driver around it.
 *
 * The driver does beside the session what an engine does: it seals and opens frames under the keys
 * of docs/inside/wire.md, places payload, listens, and drives the session when that wants it. It
 * can also be made to cheat: its session is honest, but what leaves it is changed before it is
 * sealed.
 */
#ifndef DST_END_H
#define DST_END_H

#include "app.h"
#include "end_keys.h"
#include "link.h"
#include "session/listener.h"
#include "session/reassembly.h"

#define DST_FRAMES 8
#define DST_STRANGERS 4
#define DST_LISTENER 77

extern const struct harp_key dst_secret;

/* How an end spoils its own frames before it seals them; permille. */
struct dst_malice {
    uint32_t optimistic; /* ACKs of packets that were never sent */
    uint32_t tamper;     /* any field of any frame */
    uint32_t stale;      /* frames as if from an earlier life are sent beside */
    bool old;            /* FIRST says a version that nobody speaks */
    /* or this one change of the `count`-th frame of this type */
    const struct dst_field *field;
    size_t change;
    uint8_t type;
    uint32_t count;
    bool changed;
};

/* A half-open session that a FIRST from a spoofed address made. */
struct dst_stranger {
    struct harp_session *session;
    uint64_t heard_bytes, answered_bytes;
    uint64_t wake_ns;
};

struct dst_end {
    struct dst_link *link;
    struct dst_end *peer;
    uint8_t side; /* 0 connects, 1 listens */
    struct harp_session_config config;
    struct harp_session *session; /* NULL before FIRST has come, or while it is down */
    struct harp_listener listener;
    struct dst_app app;
    struct dst_malice malice;
    struct dst_keys keys;
    uint8_t assembling[HARP_REASSEMBLIES][DST_FRAME_MAX]; /* streamed chunks in fragments */
    bool one_pass;                                        /* copies and checks payload at once */
    uint32_t heard_paths; /* a bit each, by where frames came from */
    /* Its clock against true time, and by how much that runs faster. */
    struct {
        int64_t off_ns;
        int32_t fast_ppm;
    } clock;
    uint64_t full_from_ns, full_to_ns;     /* its ring takes no frames */
    uint64_t memory_from_ns, memory_to_ns; /* there is none for a new session */
    uint64_t random;
    uint64_t wake_ns;    /* when the session wants to be driven, in true time */
    uint32_t idle_turns; /* times in a row that it was driven without time going on */
    uint64_t driven_ns;
    uint64_t heard_bytes, answered_bytes; /* before the connection was made */
    struct dst_stranger strangers[DST_STRANGERS];
    uint64_t cookies; /* sent to strangers */
};

/* Begin this end's part; the connecting end gets its session at once. */
void dst_end_start(struct dst_end *end, uint64_t now_ns);

/* A frame arrives. */
void dst_end_receive(struct dst_end *end, uint64_t now_ns, const struct dst_flight *flight);

/* Let application and session do what they have to. */
void dst_end_drive(struct dst_end *end, uint64_t now_ns);

/* The application ends the connection. */
void dst_end_close(struct dst_end *end, uint64_t now_ns);

/* Drop the session and all that belongs to it. */
void dst_end_stop(struct dst_end *end);

/* Report to the session a fact of a path that an engine may learn or want, true or not. */
void dst_end_prod(struct dst_end *end, uint64_t now_ns);

/* Both ends are as if `packets` more, a multiple of 1,024, had gone each way on every path.
 * False if they are not connected yet. */
bool dst_end_skip(struct dst_end *ends, uint64_t now_ns, uint64_t packets);

/* Packets in flight, at most. */
uint64_t dst_end_in_flight(const struct dst_end *end);

/* Hash of all that frames could change. */
uint64_t dst_end_state(const struct dst_end *end);

/* Half-open sessions of strangers. */
uint32_t dst_end_strangers(const struct dst_end *end);

#endif
