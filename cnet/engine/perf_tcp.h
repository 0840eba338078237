/* The measuring loop of `harp perf --tcp`: what perf.h does, over a socket of kernel TCP.
 *
 * One thread, one end of one connected, blocking socket, one run of SEND, RECEIVE, PING or PONG.
 * Messages walk through `window` buffers of `size` bytes, as those of perf.h do; the first 8 bytes
 * are the message's number, and it is checked. The socket's SO_RCVTIMEO and SO_SNDTIMEO bound each
 * call: when one has passed, harp_perf_tcp_run returns MORE and is called again, so that a signal
 * is seen in between.
 */
#ifndef HARP_PERF_TCP_H
#define HARP_PERF_TCP_H

#include "engine/perf.h"

/* cdef: begin */
struct harp_perf_tcp {
    /* The request. */
    uint32_t role; /* enum harp_perf_role */
    uint32_t size; /* 1 and more */
    uint32_t window;
    uint64_t messages;
    uint8_t *memory;      /* window * size bytes */
    uint64_t *samples_ns; /* PING: each round trip */

    /* The result; zero at the beginning. */
    uint64_t done;             /* messages; of PING and PONG round trips */
    uint32_t moved;            /* bytes of the message that is on its way */
    bool answering;            /* PING and PONG: the message is on its way back */
    uint64_t begin_ns, end_ns; /* of the run, CLOCK_MONOTONIC */
    uint64_t sent_ns;          /* PING: when the message left */
    uint64_t cpu_ns;           /* of this thread */
    int error;                 /* errno of what ended the connection; 0 if the peer closed it */
};

/* Go on with a run for about `most_ns`. Returns an enum harp_perf_state. */
uint32_t harp_perf_tcp_run(int fd, struct harp_perf_tcp *perf, uint64_t most_ns);
/* cdef: end */

#endif
