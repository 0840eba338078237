/* A run of engines over tcp ports: the product's own, on a kernel in virtual time (tcp_kernel.h).
 *
 *   PLAIN    no faults
 *   FAULTS   flows that are reset, dark for a while, late, or dark for ever beside others that are
 *            not; a kernel without room or descriptors now and then; stalled applications, clocks
 *            that jump: all messages come through in bounded time
 *   RESTART  the listening end is killed in the middle: the connection ends in bounded time
 *   LET_GO   an application lets go in the middle: the other end hears of it, and can receive
 *            what was sent before
 *
 * At the end both kernels have no connection, and everything is given back.
 */
#ifndef DST_ENGINE_TCP_WORLD_H
#define DST_ENGINE_TCP_WORLD_H

#include <stdint.h>

/* Run `seed`; dst_fail is called for whatever breaks. Returns how many bytes were received. */
uint64_t dst_run_tcp(uint64_t seed);

#endif
