/* The measuring loop of `harp perf`: one thread, one end of one connection, one run.
 *
 *     role     does                                               the other end's role
 *     SEND     `messages` of `size` bytes, `window` under way     RECEIVE
 *     RECEIVE  takes them: posts `window` buffers, or streamed    SEND
 *     PING     sends one, waits until it is back; takes samples   PONG
 *     PONG     sends each one back                                PING
 *
 * The first 8 bytes of a message are its number in the run, which the receiver checks. The calling
 * thread drives the engine too, so the engine needs HARP_PROGRESS_INLINE. `memory` holds `window`
 * messages each way (2 * window * size bytes); with `drafts` those to send lie in frames instead.
 *
 * Each call of harp_perf_run works for `most_ns`, so that the caller can handle signals in between,
 * and returns MORE until the run is over. How the two ends agree on a run is the caller's matter.
 */
#ifndef HARP_PERF_H
#define HARP_PERF_H

#include "engine/engine.h"

/* cdef: begin */
enum harp_perf_role { HARP_PERF_SEND, HARP_PERF_RECEIVE, HARP_PERF_PING, HARP_PERF_PONG };

enum harp_perf_state {
    HARP_PERF_MORE,
    HARP_PERF_DONE,
    HARP_PERF_CLOSED, /* the connection ended; harp_connection_why has the reason */
    HARP_PERF_BAD,    /* a message was not the one that was due */
};

struct harp_perf {
    /* The request. */
    uint32_t role;
    uint32_t size;
    uint32_t window; /* 1 to 256; with PING 2 or more, as completions may come late */
    bool streamed, drafts;
    uint64_t messages;
    uint8_t *memory;
    uint64_t *samples_ns; /* PING: each round trip */
    uint32_t *frames;     /* drafts: room for those of a message */
    uint32_t frames_room;

    /* The result; zero at the beginning. */
    uint64_t sent, sent_done, posted, received; /* messages */
    uint64_t begin_ns, end_ns;                  /* of the run, CLOCK_MONOTONIC */
    uint64_t cpu_ns;                            /* of this thread */
    uint64_t sent_ns;                           /* PING: when the last one left */
    uint32_t frames_n;                          /* drafts in hand */
    uint32_t failed;                            /* enum harp_perf_state, or 0 */
};

/* Go on with a run for `most_ns`. Returns an enum harp_perf_state. */
uint32_t harp_perf_run(struct harp_connection *connection, struct harp_engine *engine,
                       struct harp_perf *perf, uint64_t most_ns);
/* cdef: end */

#endif
