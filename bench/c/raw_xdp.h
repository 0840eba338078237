/* AF_XDP by the kernel's own interface alone: no library, one socket, one queue of one NIC.
 *
 * The ceilings that the xdp port is measured against are made with this, so there is as little
 * between the program and the rings as there can be.
 *
 * The UMEM is one piece of memory, cut into frames of RAW_FRAME_BYTES. Four rings hold frames'
 * addresses (offsets into the UMEM); each has one producer and one consumer:
 *
 *             program produces        kernel produces
 *     send    tx ----------------->   completion ------> the program may use the frame again
 *     receive fill --------------->   rx --------------> the program reads, then refills
 *
 * Memory order: a producer writes entries, then publishes its index with a release store; a
 * consumer loads that index with acquire, reads entries, then gives them back with a release
 * store, which the producer loads with acquire before it writes over them.
 *
 * Errors: every function that can fail prints one sentence and exits with 1.
 */
#pragma once

#include <linux/if_xdp.h>
#include <stdbool.h>
#include <stdint.h>

enum {
    RAW_FRAME_BYTES = 4096,
    RAW_HEADROOM_BYTES = 64, /* virtio_net puts its own header there; less fails with EINVAL */
    RAW_RING_SLOTS = 2048,   /* of each ring; the UMEM has as many frames for each direction */
};

struct raw_ring {
    uint32_t *producer, *consumer; /* shared with the kernel; one of them is ours */
    uint32_t *flags;               /* XDP_RING_NEED_WAKEUP is set by the kernel */
    void *entries;                 /* struct xdp_desc (rx, tx) or uint64_t (fill, completion) */
    uint32_t mask;
    uint32_t own;  /* our index, ahead of the published one within a batch */
    uint32_t seen; /* the kernel's index when last read */
};

struct raw_xdp {
    int fd, map_fd, program_fd, link_fd; /* the last three are -1 without a program */
    unsigned interface;
    uint8_t *umem;
    uint64_t umem_bytes;
    struct raw_ring rx, tx, fill, completion;
};

struct raw_xdp_options {
    const char *interface;
    uint32_t queue;
    bool zero_copy;    /* asserted: without the driver's help the bind fails */
    uint16_t udp_port; /* frames to this UDP port over IPv4 come here, all others pass to the
                          kernel; 0: no program, the socket only sends */
};

/* Memory, rings, bind and program. Frames [0, RAW_RING_SLOTS) are in the fill ring if there is a
 * program; frames [RAW_RING_SLOTS, 2 * RAW_RING_SLOTS) are the caller's, to send. */
void raw_xdp_open(struct raw_xdp *xdp, const struct raw_xdp_options *options);
void raw_xdp_close(struct raw_xdp *xdp);

/* XDP_OPTIONS says whether the kernel took zero copy. */
bool raw_xdp_zero_copy(const struct raw_xdp *xdp);

/* The address of a frame in the UMEM, by its number. */
static inline uint64_t raw_frame(uint32_t number)
{
    return (uint64_t)number * RAW_FRAME_BYTES;
}

/* Slots that we may write as a producer; asks the kernel's index only when `wanted` are not yet
 * known to be free. */
static inline uint32_t raw_free(struct raw_ring *ring, uint32_t wanted)
{
    uint32_t slots = ring->mask + 1;
    if (slots - (ring->own - ring->seen) < wanted)
        ring->seen = __atomic_load_n(ring->consumer, __ATOMIC_ACQUIRE);
    return slots - (ring->own - ring->seen);
}

/* Entries that we may read as a consumer. */
static inline uint32_t raw_filled(struct raw_ring *ring)
{
    if (ring->seen == ring->own)
        ring->seen = __atomic_load_n(ring->producer, __ATOMIC_ACQUIRE);
    return ring->seen - ring->own;
}

/* Give the kernel the entries written so far. */
static inline void raw_publish(struct raw_ring *ring)
{
    __atomic_store_n(ring->producer, ring->own, __ATOMIC_RELEASE);
}

/* Let the kernel write over the entries read so far. */
static inline void raw_release(struct raw_ring *ring)
{
    __atomic_store_n(ring->consumer, ring->own, __ATOMIC_RELEASE);
}

static inline struct xdp_desc *raw_desc(const struct raw_ring *ring, uint32_t index)
{
    return (struct xdp_desc *)ring->entries + (index & ring->mask);
}

static inline uint64_t *raw_addr(const struct raw_ring *ring, uint32_t index)
{
    return (uint64_t *)ring->entries + (index & ring->mask);
}

/* System calls that make the kernel look at the tx ring and at the fill ring. In copy mode the
 * kernel sends only within raw_kick_send. */
void raw_kick_send(const struct raw_xdp *xdp);
void raw_kick_receive(const struct raw_xdp *xdp);
bool raw_needs_wakeup(const struct raw_ring *ring);
