/* Inside an engine; for the files of cnet/engine only.
 *
 * In this order: a file calls functions of those below it, and of none above
 * (tests/system/test_c_layers.py).
 *
 *   engine.c            memory, open, close
 *   engine_wait.c       the application's threads wait
 *   engine_drive.c      threads, sleeping and waking; all engines of the process
 *   engine_turn.c       one turn: notices of ports, commands, due connections, upkeep
 *   engine_stats.c      what others may see: counters, rows, the recorder's dump
 *   engine_receive.c    arrivals: which connection, tag, payload to its place
 *   engine_hello.c      arrivals of the handshake, for which there may be no connection yet
 *   engine_paths.c      paths move: to follow the peer, a plan, or the queues that engines own
 *   engine_send.c       what sessions send, into slots and frames of ports
 *   engine_connect.c    connect, close, abort
 *   engine_events.c     commands of the application to a session, its events to the application
 *   engine_listen.c     listen, accept
 *   engine_admission.c  checks of a connection's settings; connections join an engine and leave it
 *   engine_hops.c       which port and address each path of a connecting end takes
 *   rails.c             which port is paired with which address
 *   engine_peers.c      which connections lead to the same process
 *   connection.c        a connection's memory, the application's side
 *   engine_core.c       time, random numbers, the token, and the doorbell of its sleeping owner
 */
#ifndef HARP_ENGINE_STATE_H
#define HARP_ENGINE_STATE_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/bit_ring.h"
#include "base/index_queue.h"
#include "base/ready_set.h"
#include "base/recorder.h"
#include "base/spsc.h"
#include "engine/connection_table.h"
#include "engine/engine.h"
#include "engine/schedule.h"
#include "engine/stats.h"
#include "session/listener.h"
#include "session/reassembly.h"
#include "wire/keys.h"

#define HARP_TEND_NS UINT64_C(1000000)
#define HARP_LINGER_NS UINT64_C(1000000000) /* how long a closed connection answers CLOSE */
#define HARP_DRAFT_AT                                                                              \
    128                     /* payload of a frame that is sent in place: before it lie all headers \
                             */
#define HARP_FRAME_ROOM 384 /* of a frame, not payload: what a card's driver wants, and headers */
#define HARP_NO_HOP (-1)
#define HARP_RECENT 16                                         /* a power of two */
#define HARP_PAYLOAD_LEAST (HARP_HEADER_BYTES + HARP_BODY_MAX) /* any control frame fits */

enum harp_command_type {
    HARP_COMMAND_SEND,
    HARP_COMMAND_SEND_SHORT,
    HARP_COMMAND_SEND_FRAMES,
    HARP_COMMAND_RECEIVE,
    HARP_COMMAND_RECEIVE_UNREAD
};

struct harp_command {
    uint32_t type;
    uint32_t size;
    void *buffer; /* SEND_FRAMES: the first of its pieces in `pieces` */
    uint64_t context;
};

struct harp_hop {
    uint8_t port;
    bool strays;  /* its frames reach a queue that is not the port's */
    bool planned; /* its UDP port is a plan's, and stays */
    bool found;   /* frames of the peer reach the port's queue, and it does not complain of ours */
    uint16_t local;
    uint16_t tried; /* locals, in search of one that leads frames to the right queues */
    int hop;        /* HARP_NO_HOP until the path has been heard of */
    struct harp_address remote;
    struct harp_connection *connection;
    struct harp_peer *peer;        /* to which it leads; NULL: to none yet */
    struct harp_hop *next, **link; /* the others that lead there */
};

/* A process at the other end, as one of our ports reaches it: engine_peers.c. */
struct harp_peer {
    struct harp_liveness liveness;
    struct harp_far_buffer buffer; /* of its port there */
    struct harp_hop *hops;
    struct harp_peer *next;
    uint8_t port;
    struct harp_address remote;
};

struct harp_connection {
    struct harp_engine *engine;
    struct harp_connection_config config;
    struct harp_session_config own; /* what the session was made of */
    uint64_t id;

    /* The application's side, which alone writes it. */
    _Alignas(128) struct {
        uint32_t sends_open, receives_open; /* handed over, completion not yet polled */
        bool connected, closed;             /* as the application knows */
        uint32_t left_over; /* closed, and this many messages can still be received */
        uint32_t pieces_at;
        uint32_t shorts_taken;
        int fd;
    } app;

    /* Both sides use this. It is written when the connection is made, but for the last three, so
     * that neither side's writes take it out of the other one's cache. */
    _Alignas(128) struct {
        struct harp_spsc *commands, *completions;
        struct harp_spsc *returns, *drafts; /* frames; NULL if there are none */
        const uint8_t **pieces; /* where chunks of messages in frames lie: ring of 2 draft_frames */
        uint8_t *shorts; /* copies of short messages, a ring of HARP_SHORTS; NULL: there are none */
        uint32_t segment;             /* the engine writes it, before CONNECTED */
        _Atomic uint32_t shorts_done; /* the engine counts those that the other end has */
        _Atomic uint32_t armed;       /* the application waits for `fd`; both write it */
    } shared;

    /* The engine's side, from here on; its driver alone writes it. */
    _Alignas(128) struct harp_session *session;
    uint32_t index;   /* in the engine's table */
    bool omits_crc;   /* of long payloads that it sends */
    uint8_t off_rail; /* 1 + the number of a path that joins addresses of two rails, and that
                         harp_engine_widen_hops kept for the time being; 0: no path */
    bool notify;      /* completions came, and `fd` has not signalled them yet */
    bool recent;      /* it is in the engine's `recent` */
    /* How far its life has come. */
    struct {
        bool ready;   /* CONNECTED was reported */
        bool ended;   /* CLOSED was */
        bool orphan;  /* the application has let go of it */
        bool lingers; /* an orphan that closes only when the other end has its short messages, as
                         SO_LINGER has a socket do */
        uint64_t since_ns;
        uint64_t linger_ns; /* ended: until when it answers CLOSE */
    } state;
    /* The keys of its frames, which the handshake makes. */
    struct {
        struct harp_key in, out;
        bool made; /* in and out are */
        struct harp_key secret, hello, accept;
    } keys;
    /* How it came about: with the listener's help, at either end. */
    struct {
        struct harp_listening *listening; /* that made it, until the application has it */
        bool listening_end;
        uint64_t listener; /* id of that listener, at either end */
        uint64_t attempt;  /* at the listening end: key of the FIRST that made it */
    } handshake;
    /* Arrivals since CONNECTED. */
    struct {
        uint64_t messages, bytes;
        uint32_t first;              /* number of the first message */
        uint32_t posted;             /* buffers */
        struct harp_bit_ring unread; /* of these, which nobody reads before RECEIVED */
        uint32_t lent;               /* frames that the application has */
        uint8_t *eager;
        uint32_t eager_bytes[HARP_EAGER];
        uint32_t assembling[HARP_REASSEMBLIES]; /* frames, DRAFT, for streamed chunks in fragments;
                                                   or HARP_NO_FRAME */
    } received;
    /* Departures. */
    struct {
        uint64_t messages, bytes;
        uint32_t first;        /* number of the first message */
        uint32_t drafts_due;   /* frames that the application is owed */
        uint32_t oldest, next; /* of `slots` */
        struct {
            uint32_t first, count; /* of `pieces`; count 0: one buffer */
            bool is_short;
        } slots[HARP_MESSAGES];
    } sent;
    /* Its session shares this peer's liveness; NULL: it has its own. */
    const struct harp_peer *liveness_of;
    char peer[HARP_STATS_NAME_BYTES]; /* the remote address of path 0, for statistics */
    /* Counts that the recorder has written. */
    struct {
        uint64_t paths_dead, paths_off_queue, paths_narrow, lost;
    } recorded;
    /* Why it ended. */
    struct {
        uint32_t reason;
        char why[HARP_WHY_BYTES];
    } end;
    struct harp_hop hops[]; /* of each path; one more: whence FIRST came on a path that we lack */
};

struct harp_listening {
    struct harp_engine *engine;
    struct harp_listening *next;
    struct harp_listener listener;
    struct harp_key secret, hello;
    struct harp_connection_config config;
    uint32_t half_open;
    int fd; /* -1: nobody has asked for it */
    uint32_t waiting_n;
    struct harp_connection *waiting[HARP_MESSAGES]; /* made, not yet accepted; oldest first */
};

/* Frames of one connection whose tags are made or checked together. Here and not on a stack, where
 * clearing it would cost more than a small message does. */
struct harp_tagged {
    uint8_t *headers[HARP_BATCH];
    uint32_t laps[HARP_BATCH];
    size_t n;
};

struct harp_engine {
    struct harp_engine_config config;
    uint32_t generation; /* of the process: a child of fork has another */
    struct harp_engine *next_open;
    struct harp_arena arena;
    struct harp_frames frames;
    struct harp_port *ports[HARP_PORTS_MAX];
    uint32_t ports_n;
    struct harp_stats_file stats;
    struct harp_recorder *recorder;
    uint64_t bad_recorded; /* bad frames that the recorder has */
    struct harp_listening *listenings;
    uint32_t *owner;       /* of each frame: index of the connection that last had it */
    uint32_t frames_spare; /* of those that ports left: not promised to a connection */
    uint16_t epoch;

    /* The right to drive, and sleep. The table in engine_drive.c says which thread writes what. */
    _Alignas(128) struct {
        _Atomic uint32_t token;
        _Atomic uint32_t wanted;   /* control plane that waits for the token */
        _Atomic uint32_t sleeping; /* somebody waits in the kernel */
        _Atomic uint32_t stop;
        _Atomic uint64_t driven_ns; /* INLINE: when the application last drove */
        int doorbell;               /* eventfd */
        pthread_t thread;
        bool threaded;
    } drive;

    /* The driver's, from here on: only the holder of the token writes it. */
    _Alignas(128) uint64_t now_ns;
    uint64_t tend_ns; /* when to look at what is not urgent */
    bool failed;      /* a connection ended in error: the flight recorder is to be dumped */
    uint64_t active_ns;
    bool moved;
    /* How a frame that arrives finds its connection or peer. */
    struct {
        struct harp_table ids;      /* connection id to connection */
        struct harp_table attempts; /* the FIRST that made it to connection */
        struct harp_key hash_key;   /* of attempts and of addresses */
        struct harp_peer **peers;   /* by port and remote address: heads of lists */
        uint32_t peers_mask;
    } lookup;
    /* All connections, as they join the engine and leave it. */
    struct {
        struct harp_connection **at; /* by index; NULL: free */
        uint32_t n;                  /* indices ever used */
        uint32_t *free, free_n;      /* below n; a stack */
        uint32_t closing_n;          /* orphans that have not ended */
    } connections;
    /* Connections that have work to do. */
    struct {
        struct harp_schedule schedule;       /* the next turns drive them */
        struct harp_ready_set calls;         /* they have something new in a ring */
        struct harp_index_queue draftless;   /* they are owed drafts */
        struct harp_index_queue unpublished; /* driven since their row was written */
    } due;
    /* Connections driven since data last left, the last of them. */
    struct {
        uint32_t indices[HARP_RECENT];
        uint32_t n;
    } recent;
    /* The frames of one turn, in and out. */
    struct {
        struct harp_arrival arrivals[2 * HARP_BATCH];
        struct harp_header headers[2 * HARP_BATCH];
        struct harp_frame out[HARP_BATCH];
        struct harp_tagged tagged;
        bool joinable[HARP_PORTS_MAX]; /* further frames may follow in the port's last datagram */
    } batch;
};

/* engine_core.c */
bool harp_token_try(struct harp_engine *engine);
void harp_token_take(struct harp_engine *engine); /* control plane: waits */
void harp_token_drop(struct harp_engine *engine);
void harp_engine_ring(struct harp_engine *engine); /* wake the thread that sleeps */

/* After a put: sequentially consistent, as is the sleeper's look at the rings after it has said
 * that it sleeps. One of both sees the other. */
static inline void harp_engine_ring_if_asleep(struct harp_engine *engine)
{
    if (atomic_load(&engine->drive.sleeping))
        harp_engine_ring(engine);
}

/* engine_drive.c: an engine joins those of this process, and leaves them; drive all that the
 * application's threads drive. */
void harp_engine_enlist(struct harp_engine *engine);
void harp_engine_delist(struct harp_engine *engine);
void harp_engines_drive_inline(void);

/* engine_drive.c */
int harp_engine_start(struct harp_engine *engine, char *why);
void harp_engine_halt(struct harp_engine *engine);

/* engine_turn.c: true if anything moved. The second looks for nothing that has come. */
bool harp_engine_turn(struct harp_engine *engine);
bool harp_engine_push_turn(struct harp_engine *engine);

/* Drive a connection in the next turn. */
static inline void harp_engine_wake(struct harp_engine *engine,
                                    const struct harp_connection *connection)
{
    harp_schedule_wake(&engine->due.schedule, connection->index);
}

/* engine_stats.c: counters of ports, and up to `most` rows of connections that were driven, to
 * where others read them. */
void harp_engine_publish(struct harp_engine *engine, uint32_t most);
void harp_engine_dump(struct harp_engine *engine);

/* engine_receive.c; the second is for ports (struct harp_placing). */
void harp_engine_take(struct harp_engine *engine, uint8_t port);
uint8_t *harp_engine_place(void *engine, const uint8_t *header);

/* engine_hello.c: a frame of type FIRST, COOKIE, ACCEPT or VERSION, whole. */
void harp_engine_take_hello(struct harp_engine *engine, uint8_t port,
                            const struct harp_arrival *arrival, const struct harp_header *header,
                            const uint8_t *frame);

/* engine_send.c: what became of what the session wants to send; *frames: how many left. */
enum harp_sending {
    HARP_SENDING_DONE,
    HARP_SENDING_SHARE,  /* its share of this turn is used up */
    HARP_SENDING_BLOCKED /* a port had no room */
};
enum harp_sending harp_engine_send(struct harp_engine *engine, struct harp_connection *connection,
                                   uint32_t *frames);
void harp_engine_write_control(struct harp_engine *engine, uint8_t port, int hop,
                               const struct harp_key *key, const struct harp_frame *frame);

/* connection.c: NULL without memory. `config` is of the session to be. */
struct harp_connection *harp_connection_new(struct harp_engine *engine,
                                            const struct harp_connection_config *config,
                                            const struct harp_session_config *session);
void harp_connection_free(struct harp_connection *connection);

/* engine_events.c: completions of a connection to its application, its commands to the session. */
void harp_connection_complete(struct harp_connection *connection,
                              const struct harp_completion *completion);
void harp_connection_command(struct harp_connection *connection);
void harp_connection_events(struct harp_connection *connection);
/* Whether short messages are under way, and no others. */
bool harp_connection_has_shorts_alone(const struct harp_connection *connection);

/* Give its application the frames to write into that it is owed, as far as the pool has some. */
void harp_connection_refill_drafts(struct harp_connection *connection);

/* engine_paths.c: the path's way out, learned from the first frame that came on it. */
void harp_connection_heard(struct harp_connection *connection, uint8_t path, uint8_t port,
                           uint16_t local, const struct harp_address *from);

/* Answer FIRST where it came from. Its path may have a number that we do not have. */
void harp_connection_heard_first(struct harp_connection *connection, uint8_t path, uint8_t port,
                                 uint16_t local, const struct harp_address *from);

/* A frame whose tag holds came from or to an address that is not its path's: whether the path leads
 * there from now on. */
enum harp_move { HARP_MOVE_NONE, HARP_MOVE_PORT, HARP_MOVE_HOST };
enum harp_move harp_connection_moves(struct harp_connection *connection, uint8_t port,
                                     const struct harp_arrival *arrival,
                                     const struct harp_header *header);

/* engine_hops.c: path p takes rail p (rails.h), counted round, each time from another UDP port of
 * its NIC, which a plan may choose. Returns 0, or -errno and one sentence in `why` if no rail can
 * be had; with 0 `why` is as harp_connect says. */
int harp_engine_make_hops(struct harp_engine *engine, const struct harp_handle *handle,
                          const struct harp_connection_config *config, struct harp_hop *hops,
                          char *why);
/* The local of path number `turn` of those from this port to this address: the plan's, else the
 * next of those that there are. `note` gets the first reason why one of the plan's cannot be had.
 * Returns whether it is the plan's. */
bool harp_engine_choose_local(const struct harp_connection_config *config, struct harp_port *port,
                              const struct harp_address *to, uint32_t turn, uint16_t *local,
                              char *note);
/* The engine's own addresses in the order in which a handle takes them: of each kind of ports the
 * first, then of each kind the second, so that each kind has a place. Returns how many. */
uint32_t harp_engine_list_own(const struct harp_engine *engine,
                              const struct harp_address *own[HARP_PORTS_MAX]);
/* Spread the paths over all addresses that the peer has advertised. Path `kept` stays: the peer's
 * ACCEPT came on it. Where it joins addresses of two rails, it stays only until another is heard.
 */
void harp_engine_widen_hops(struct harp_connection *connection, uint8_t kept);
/* Frames that leave by this hop bear this traffic class from now on. */
void harp_engine_mark_hop(const struct harp_engine *engine, const struct harp_hop *hop,
                          uint8_t traffic_class);
void harp_engine_drop_hops(const struct harp_engine *engine, const struct harp_hop *hops,
                           uint32_t count);
/* The application gets these bytes back; NULL: all that the connection sends from. */
void harp_engine_let_go(const struct harp_connection *connection, const uint8_t *bytes,
                        size_t size);
/* Largest datagram that all of these hops take. */
uint32_t harp_engine_hops_payload_max(const struct harp_engine *engine, const struct harp_hop *hops,
                                      uint32_t count);
/* Largest datagram that a port and all others of its kind take, for paths that may come later. */
uint32_t harp_engine_payload_max_beside(const struct harp_engine *engine, uint8_t port);

/* engine_paths.c: the path leaves by another local from now on; false: it cannot. */
bool harp_engine_path_leaves_by(struct harp_connection *connection, uint8_t path, uint16_t local);

/* A DATA or PROBE came by this way; `newest`: none of a larger number came before.
 * And: the peer says of frames of ours that they reach a wrong queue. */
void harp_engine_way_of_frame(struct harp_connection *connection, uint8_t path, uint8_t port,
                              const struct harp_arrival *arrival, bool newest);
void harp_engine_way_of_ours(struct harp_connection *connection, uint8_t path);

/* engine_admission.c: 0, or -errno and one sentence in `why`. */
int harp_engine_check_config(const struct harp_engine *engine,
                             const struct harp_connection_config *config, char *why);
/* With the token: the engine's thread takes and gives back frames. */
int harp_engine_check_frames(const struct harp_engine *engine,
                             const struct harp_connection_config *config, char *why);
void harp_engine_session_config(struct harp_engine *engine,
                                const struct harp_connection_config *from, uint32_t payload_max,
                                const struct harp_port *port, struct harp_session_config *config);
bool harp_engine_omits_crc(const struct harp_connection_config *config,
                           const struct harp_port *port);

/* engine_admission.c */
int harp_engine_adopt(struct harp_engine *engine, struct harp_connection *connection);
void harp_engine_forget(struct harp_engine *engine, struct harp_connection *connection);
/* All frames that a connection had are the pool's again; those that the card still reads when it is
 * done. */
void harp_engine_reclaim_frames(struct harp_engine *engine,
                                const struct harp_connection *connection);

/* engine_listen.c: a connection was made to it. */
void harp_engine_welcome(struct harp_listening *listening, struct harp_connection *connection);

/* Nobody will ask for it any more: it is forgotten once it has ended. */
static inline void harp_connection_orphan(struct harp_connection *connection)
{
    connection->handshake.listening = NULL;
    connection->engine->connections.closing_n +=
        !connection->state.orphan && !connection->state.ended;
    connection->state.orphan = true;
    harp_engine_wake(connection->engine, connection);
}

/* engine_peers.c: a path of the connection leads somewhere now, or does not any more; NULL if no
 * path leads there. */
bool harp_engine_peers_open(struct harp_engine *engine);
void harp_engine_peers_close(struct harp_engine *engine);
void harp_engine_path_leads(struct harp_connection *connection, uint32_t path);
void harp_engine_path_ends(struct harp_connection *connection, uint32_t path);
struct harp_peer *harp_engine_find_peer(const struct harp_engine *engine, uint8_t port,
                                        const struct harp_address *remote);

/* engine_turn.c: take in what a port has learned. */
void harp_engine_take_notice(struct harp_engine *engine, uint8_t port,
                             const struct harp_notice *notice);

/* The frame behind a piece. */
static inline uint32_t harp_connection_piece(const struct harp_connection *connection,
                                             uint32_t piece)
{
    const struct harp_frames *frames = &connection->engine->frames;
    return harp_frame_of(frames, (uint64_t)(connection->shared.pieces[piece] - frames->base));
}

/* The own address that a path leaves from; its hop is made. */
static inline struct harp_address harp_engine_hop_local(const struct harp_engine *engine,
                                                        const struct harp_hop *hop)
{
    const struct harp_port *port = engine->ports[hop->port];
    return port->ops->hop_local ? *port->ops->hop_local(port, hop->hop) : port->locals[hop->local];
}

/* engine_core.c. Random bytes are for the control plane. */
void harp_engine_random(struct harp_engine *engine, void *bytes, size_t count);
uint64_t harp_engine_clock(const struct harp_engine *engine);

/* A time of the host's clock as one of the engine's, and the other way round. */
uint64_t harp_engine_from_host_ns(const struct harp_engine *engine, uint64_t ns);
uint64_t harp_engine_to_host_ns(const struct harp_engine *engine, uint64_t ns);

/* Of this process: another one in every child of fork. */
extern uint32_t harp_generation;

#endif
