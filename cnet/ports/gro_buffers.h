/* Super-packets as a UDP socket delivers them (GRO): datagrams of one sender and one size that the
 * kernel has joined (UDP_GRO), copied into one of a few buffers; arrivals point into it.
 *
 *     buffer  | A A A A a |     one super-packet: equal datagrams, the last may be shorter
 *
 * One system call brings up to `at_once` of them: `least` while the kernel joins datagrams, up to
 * `most` while it does not. They become arrivals little by little, as there
 * is room; the buffers are free again when all have.
 *
 * Owner: one port; data path.
 */
#ifndef HARP_GRO_BUFFERS_H
#define HARP_GRO_BUFFERS_H

#include "ports/port.h"
#include "ports/stamp_clock.h"

enum {
    HARP_GRO_AT_ONCE = 64,
    HARP_GRO_BUFFER_BYTES = (68 << 10) + 64, /* 64 KiB, and no power of two between two of them */
};

struct harp_gro_packet {
    const uint8_t *bytes;
    uint32_t length, segment; /* of all, and of each datagram in it */
    struct harp_address from;
    uint32_t waited_ns;
    bool marked;
};

struct harp_gro_buffers {
    uint8_t *buffers;     /* `most` of HARP_GRO_BUFFER_BYTES each */
    uint32_t least, most; /* super-packets of a system call; datagrams that nobody joined */
    uint32_t at_once;     /* of the next one */
    uint32_t n, next; /* super-packets that are there, and the first that is not all arrived yet */
    uint32_t at;      /* how far that one has */
    uint16_t local;   /* index of the local address that received them */
    struct harp_stamp_clock clock;
    struct harp_gro_packet of[HARP_GRO_AT_ONCE];
};

/* Have the socket join what comes, say when it came and what mark it bears. Whether it joins. */
bool harp_gro_ask_for(int fd, bool v4);

/* Read from a socket; all of the last read must have become arrivals. Whether it is empty now. */
bool harp_gro_read(struct harp_gro_buffers *gro, int fd, uint16_t local);

static inline bool harp_gro_any(const struct harp_gro_buffers *gro)
{
    return gro->next < gro->n;
}

/* Make arrivals of what was read; returns how many. Counts received datagrams. */
size_t harp_gro_arrive(struct harp_gro_buffers *gro, struct harp_port *port,
                       struct harp_arrival *arrivals, size_t room);

#endif
