/* An engine: one thread's world of memory, ports, connections and time.
 *
 *      application threads                        engine, on one core
 *     +-------------------+   commands (SPSC)    +--------------------------------------------+
 *     | send, post,       | -------------------> | connection --- session --- path 0..n       |
 *     | return frames     |                      |                               |            |
 *     | poll              | <------------------- | frames (arena)            hop of a port ---|-->
 *     +-------------------+   completions (SPSC) +--------------------------------------------+
 *
 * A turn of the engine: bursts from the ports, tags checked in batches, payload checked and copied
 * to where the session says; commands of the applications; what the sessions want to send, written
 * into the ports' slots with CRC and tag; flush; completions. It takes no lock, allocates nothing
 * and makes no system call but its ports' own; only before it sleeps, and to wake somebody who
 * sleeps, it makes one itself.
 *
 * **The driver** is the thread that holds the driver token; taking it is one atomic exchange, and
 * nobody on the data path waits for it.
 * - HARP_PROGRESS_THREAD: a thread of the engine's own, pinned if `cpu` is set. It polls while
 *   there is something to do and `spin_ns` longer, offering its CPU to others after each look that
 *   found nothing, then waits in the kernel for its ports, for commands and for the next deadline.
 * - HARP_PROGRESS_INLINE: the application's threads, by harp_engine_drive. A helper thread takes
 *   over when nobody has driven for `quiet_ns`, acknowledges and keeps alive, and steps back when
 *   the application drives again.
 * - HARP_PROGRESS_MANUAL: nobody but harp_engine_drive; no thread is made. For simulations.
 *
 * **Threads.** Open, close, listen, connect, accept, harp_connection_close and harp_connection_info
 * are control plane: any thread, they wait for the token. The data plane (send, receive, poll, …)
 * of one connection belongs to one thread at a time; different connections are independent.
 *
 * **Memory.** A buffer that was handed over is the engine's until its completion, or until
 * harp_connection_close has returned: from then on no byte of it is read or written.
 *
 * **Fork.** A child has no engine: every call but close returns an error there, close only forgets,
 * and neither the card nor the parent notices.
 */
#ifndef HARP_ENGINE_H
#define HARP_ENGINE_H

#include "ports/port.h"
#include "session/session.h"

/* cdef: begin */
#define HARP_PORTS_MAX 16
#define HARP_HANDLE_ADDRESSES 4
#define HARP_SLEEP_ENGINES 4 /* for which a thread may sleep at once */

struct harp_engine;
struct harp_listening;
struct harp_connection;

enum harp_progress { HARP_PROGRESS_THREAD, HARP_PROGRESS_INLINE, HARP_PROGRESS_MANUAL };

/* Time and chance, for simulations; NULL functions: CLOCK_MONOTONIC and getrandom(2). */
struct harp_world {
    uint64_t (*now_ns)(void *context);
    void (*random)(void *context, void *bytes, size_t count);
    void *context;
};

struct harp_engine_port {
    int (*open)(struct harp_port **port, const struct harp_port_config *config, char *why);
    struct harp_port_config config; /* frames and arena are the engine's */
    const char *faults;             /* chaos around it, as port_chaos.h writes it; NULL: none */
};

struct harp_engine_config {
    const char *name; /* for logs and `harp top`; kept by the caller, as `dump` is, to the end */
    enum harp_progress progress;
    int cpu;         /* of the engine's thread or helper; -1: any of the node's */
    int node;        /* NUMA node of its memory and thread, or HARP_ARENA_LOCAL: the caller's */
    uint32_t frames; /* of the pool */
    uint32_t frame_bytes; /* 4096 for xdp */
    uint32_t connections; /* at most, half open and closing ones included */
    uint64_t spin_ns;     /* THREAD: how long to poll before waiting */
    uint64_t quiet_ns;    /* INLINE: after which the helper takes over */
    const char *dump;     /* file to which the flight recorder is added when a connection ends in
                             error; NULL: none. `harp top --events` reads it at any time. */
    struct harp_world world;
    uint32_t slower; /* its clock is slower than the host's by this factor, for a network that is
                        as much slower than the one that it stands for; 0 and 1: as fast. Times here
                        and in `ports` are the host's, those of connections its own. */
    struct harp_engine_port ports[HARP_PORTS_MAX];
    uint32_t ports_n;
};

void harp_engine_defaults(struct harp_engine_config *config);

/* Returns 0, or -errno and one sentence in `why` (HARP_WHY_BYTES). */
int harp_engine_open(struct harp_engine **engine, const struct harp_engine_config *config,
                     char *why);

/* Ends all connections without ceremony; close them first where the other end should know. */
void harp_engine_close(struct harp_engine *engine);

/* Drive it if nobody else does: one turn. Returns whether anything moved. */
bool harp_engine_drive(struct harp_engine *engine);
/* The same, but only what is to be sent is looked at: a send leaves sooner than by a turn. */
bool harp_engine_push(struct harp_engine *engine);

/* Sleep until one of these engines must be driven again, the descriptor `beside` is readable (-1:
 * there is none), or for `most_ns`; says whether it slept at all. For the thread that drives them:
 * it is woken itself, by their ports, and no helper takes over meanwhile. Up to HARP_SLEEP_ENGINES.
 */
bool harp_engines_sleep(struct harp_engine *const *engines, uint32_t n, int beside,
                        uint64_t most_ns);

/* When it must be driven again though nothing happens; UINT64_MAX: never. For MANUAL. */
uint64_t harp_engine_deadline_ns(struct harp_engine *engine);

/* Whether it has a port whose addresses are of this family (enum harp_family). */
bool harp_engine_has_family(const struct harp_engine *engine, uint8_t family);

/* Its memory and ports, a line each, for logs. */
const char *harp_engine_line(const struct harp_engine *engine, uint32_t index);

/* Where its counters lie (stats.h), for other processes. */
const char *harp_engine_stats_path(const struct harp_engine *engine);

/* ---- Connections: control plane ---- */

/* The connecting end's credentials, passed on by any channel of the job: 16 bytes of it are the
 * secret. It fits NCCL's handle of 128 bytes, and one address is enough: the handshake tells the
 * others of the engine. */
struct harp_handle {
    uint64_t listener;
    uint8_t secret[16];
    struct harp_address addresses[HARP_HANDLE_ADDRESSES]; /* family 0: none */
};

/* The CRC of payloads that a connection sends by tcp ports; by others it is always there. TCP's own
 * sum has 16 bits and goes from card to card; the CRC goes from memory to memory, so that it finds
 * what a path's switches, a card or a host's bus changed. */
enum harp_crc {
    HARP_CRC_AUTO, /* where there are several paths, or the kernel has to make TCP's sum anyway */
    HARP_CRC_ON,
    HARP_CRC_OFF,
};

/* A flow of a plan: frames from the UDP port of `source` to `target` take the links that the plan
 * gives them, on switches that hash ports. */
struct harp_planned_flow {
    struct harp_address source, target;
};

#define HARP_SHORT_BYTES 4096 /* the longest message that harp_send_short takes */
#define HARP_SHORTS 64        /* messages that it holds copies of at the same time */

struct harp_connection_config {
    uint16_t paths;
    uint8_t family; /* enum harp_family: connect by ports of this family alone. 0: connect by the
                       first family that leads there: mem, then udp and xdp, then tcp */
    const struct harp_planned_flow *flows; /* NULL: none; kept by the caller to the engine's end, or
                                              until harp_engine_follow_plan has others */
    uint32_t flows_n;
    uint32_t flows_first;   /* the first path over a NIC takes this one of the flows that go from
                               there to the same target, counted round; the next path the next */
    uint64_t dead_ns;       /* a silent peer is gone after it; 1 s to 30 days */
    uint32_t stream_frames; /* 0: receives are posted; else streamed: the frames lent at most */
    uint32_t draft_frames;  /* frames for zero-copy sends that the application may hold, 0: none */
    uint8_t traffic_class; /* of the IP packets of both ends (DSCP, RFC 2474), as the connecting end
                              says; the low two bits, ECN's, are the ports' */
    uint32_t read_early_most; /* bytes of the longest message that somebody reads in its buffer
                                 before RECEIVED (NCCL's LL flags), 0: nobody does; these are copied
                                 only after their CRC held, line by line */
    /* Messages of up to this size may be sent by harp_send_short; both ends say the same, at most
     * HARP_SHORT_BYTES; 0: none. No sender waits for their ACKs, so where an ACK costs a call of
     * the kernel (tcp) the receiving end lets one serve several messages. */
    uint32_t short_bytes;
    enum harp_crc crc;
    const struct harp_cc_ops *cc;
    struct harp_cc_config window; /* zeros: the session's defaults */
};

void harp_connection_defaults(struct harp_connection_config *config);

int harp_listen(struct harp_engine *engine, const struct harp_connection_config *config,
                struct harp_listening **listening, struct harp_handle *handle, char *why);

/* The next connection that was made to it, or NULL if there is none yet. The other end may have
 * closed it already. It stays open when the listening ends. */
struct harp_connection *harp_accept(struct harp_listening *listening);

/* A file descriptor that becomes readable when a connection waits to be accepted; reading 8 bytes
 * clears it. -1 if there are no descriptors left. */
int harp_listening_fd(struct harp_listening *listening);
void harp_unlisten(struct harp_listening *listening);

/* Begin to connect; HARP_COMPLETION_CONNECTED or CLOSED follows. On success `why` is empty, or says
 * of the first path whose planned UDP port cannot be had why: such paths leave by other ports. */
int harp_connect(struct harp_engine *engine, const struct harp_handle *handle,
                 const struct harp_connection_config *config, struct harp_connection **connection,
                 char *why);

/* Another revision of a plan: connections that were made with the flows `before` go by these, as
 * many in the same order, from now on. Paths move to their UDP ports while data is under way, and
 * `before` is the caller's again. Returns how many moved. `why` is empty, or says of the first
 * planned UDP port that cannot be had why: such paths stay where they are. */
uint32_t harp_engine_follow_plan(struct harp_engine *engine, const struct harp_planned_flow *before,
                                 const struct harp_planned_flow *flows, uint32_t flows_n,
                                 char *why);

/* End it, telling the other end, and let go of all of the application's memory. `connection` is
 * gone; the engine still answers for it for a while. With sends under way the other end learns
 * that some are missing. */
void harp_connection_close(struct harp_connection *connection);

/* The same in the middle of its work: the other end always learns that it was cut off, even if only
 * buffers were posted, and gets `text` for its log (cut to 120 bytes). */
void harp_connection_abort(struct harp_connection *connection, const char *text);

/* ---- Waiting ---- */

/* Wait until there is a completion to poll, or a connection to accept, and say so; false after
 * `most_ns`, and earlier if a signal came. Polls first, driving the engine unless it has a thread,
 * then sleeps in the kernel; with HARP_PROGRESS_MANUAL it drives on, with short naps. Of one
 * connection by one thread at a time. */
bool harp_connection_wait(struct harp_connection *connection, uint64_t most_ns);
bool harp_listening_wait(struct harp_listening *listening, uint64_t most_ns);

/* Wait, likewise, until the other ends of all connections that were closed here have heard of it;
 * false if some have not. All engines of this process with HARP_PROGRESS_INLINE are driven
 * meanwhile. */
bool harp_engine_drain(struct harp_engine *engine, uint64_t most_ns);

/* Why it ended: one sentence. */
void harp_connection_why(struct harp_connection *connection, char *why);

struct harp_connection_info {
    uint64_t id;
    struct harp_address peer; /* of its first path */
    uint16_t segment, paths;
    uint32_t port; /* of its first path */
    struct harp_session_counters counters;
};

void harp_connection_info(struct harp_connection *connection, struct harp_connection_info *info);
bool harp_connection_path(struct harp_connection *connection, uint16_t path,
                          struct harp_path_info *info, struct harp_address *local,
                          struct harp_address *remote);

/* ---- Data plane, one thread per connection at a time ---- */

/* Send a message: SENT follows when the other end has all of it. False if it must be tried again
 * later (256 are under way, or it is not connected yet), or never (it is closed). */
bool harp_send(struct harp_connection *connection, const void *buffer, uint32_t size,
               uint64_t context);

/* Send a message of up to the config's short_bytes as a socket does: it is copied, and no SENT
 * follows. A close waits until the other end has those that were taken, an abort does not. False as
 * above, and while HARP_SHORTS of them are under way. */
bool harp_send_short(struct harp_connection *connection, const void *buffer, uint32_t size);

/* Post a buffer for the next message: RECEIVED follows. False as above. */
bool harp_receive(struct harp_connection *connection, void *buffer, uint32_t capacity,
                  uint64_t context);

/* The same of a buffer that nobody reads before RECEIVED, whatever read_early_most says: bytes may
 * lie in it meanwhile whose CRC did not hold. */
bool harp_receive_unread(struct harp_connection *connection, void *buffer, uint32_t capacity,
                         uint64_t context);

/* Take up to `count` frames to write payload into, for harp_send_frames. Returns how many there
 * were. Each has harp_segment bytes at harp_frame_bytes. */
uint32_t harp_drafts(struct harp_connection *connection, uint32_t *frames, uint32_t count);

/* Send a message that lies in frames, each but the last full. They are the engine's again: after
 * SENT it uses them anew. False as above: then they are still the caller's. */
bool harp_send_frames(struct harp_connection *connection, const uint32_t *frames, uint32_t size,
                      uint64_t context);

/* Payload of a draft. */
uint8_t *harp_draft_bytes(const struct harp_connection *connection, uint32_t frame);

/* Agreed payload of a full frame; 0 before it is connected. */
uint32_t harp_segment(const struct harp_connection *connection);

/* Give back frames that HARP_COMPLETION_CHUNK lent. */
void harp_return(struct harp_connection *connection, const uint32_t *frames, uint32_t count);

enum harp_completion_type {
    HARP_COMPLETION_CONNECTED = 1,
    HARP_COMPLETION_SENT,     /* context, size */
    HARP_COMPLETION_RECEIVED, /* context, size, message; streamed: all of its chunks came before */
    HARP_COMPLETION_CHUNK,    /* streamed: message, offset, size of the chunk, bytes, frame */
    HARP_COMPLETION_CLOSED,   /* harp_connection_why has the reason. The last one, but that `size`
                                 small messages, which came before the other end was done, are still
                                 to be received: RECEIVED follows for each buffer posted for them,
                                 or CLOSED again if one is too short */
};

struct harp_completion {
    uint32_t type;
    uint32_t size;
    uint64_t context;
    uint32_t message; /* counted from 0 on, each way */
    uint32_t offset;
    const uint8_t *bytes;
    uint32_t frame;
    uint32_t reason; /* CLOSED: enum harp_reason */
};

/* Up to `room` completions, in order. */
size_t harp_poll(struct harp_connection *connection, struct harp_completion *completions,
                 size_t room);

/* A file descriptor that becomes readable when there is a completion after harp_arm said true;
 * harp_arm says false if there is one already. Reading 8 bytes clears it. */
int harp_connection_fd(struct harp_connection *connection);
bool harp_arm(struct harp_connection *connection);
/* cdef: end */

#endif
