/* Kernel TCP of two hosts in virtual time, under the product's own tcp port: the linker turns the
 * port's calls of sockets and epoll into those of here (--wrap, dst_programs.py).
 *
 *   sendmsg -> flies, in order -> queue of the other socket -- recvmsg --> room at the sender
 *                 | late by a retransmission, or until a dark way heals, or never
 *
 * A connection may be reset from outside, go dark for a while, or for ever: then its sender hears
 * of it by TCP_USER_TIMEOUT. The kernel takes part of what it is given, says by an edge when there
 * is room again, and runs out of descriptors now and then. It loses, doubles and reorders nothing.
 */
#ifndef DST_ENGINE_TCP_KERNEL_H
#define DST_ENGINE_TCP_KERNEL_H

#include "common.h"

struct dst_kernel_faults {
    uint64_t heal_ns;            /* from then on nothing goes wrong any more */
    uint64_t delay_ns;           /* of a way, at least; twice that at most */
    uint32_t room_bytes;         /* sent and not received yet, of one connection */
    uint32_t late;               /* permille of sends that wait for a retransmission */
    uint32_t reset, dark;        /* permille of connections */
    uint32_t dead;               /* of the connections that go dark, this many stay so */
    uint32_t no_room, no_number; /* permille of sends and accepts that are refused for now */
};

/* From now on sockets are those of a new kernel. `wake_ns` of a side becomes the time at which
 * something happens to one of its sockets. */
void dst_kernel_begin(uint64_t random, const uint64_t *now_ns, uint64_t *const wake_ns[2],
                      const struct dst_kernel_faults *faults);
void dst_kernel_end(void);

/* When something happens next, HARP_NEVER if nothing does; do all that is due. */
uint64_t dst_kernel_next_ns(void);
void dst_kernel_step(void);

/* How many connections a side has open; bytes received so far. */
uint32_t dst_kernel_open(uint8_t side);
uint64_t dst_kernel_received(void);

#endif
