/* An AF_XDP socket: one queue of a network card, four rings shared with the kernel.
 *
 *                  fill: frames to receive into              tx: descriptors to send
 *      this     ---------------------------->      this    ------------------------->
 *      thread      rx: descriptors that came  kernel thread    completion: frames sent   kernel
 *               <----------------------------              <-------------------------
 *
 * Each ring has one producer and one consumer, and two counters that only grow: entries between
 * `consumer` and `producer` are the consumer's, the others the producer's. The producer writes
 * entries, then releases `producer`; the consumer acquires it, reads entries, then releases
 * `consumer`; the producer acquires that before it writes over them. `mine` is this side's counter
 * as it will be released next, `theirs` the other side's as it was acquired last.
 *
 * A descriptor names bytes by their offset from the pool's base, and a packet has one.
 *
 * Owner: one engine. Data path: harp_ring_*, harp_xdp_socket_send and _wake.
 */
#ifndef HARP_XDP_SOCKET_H
#define HARP_XDP_SOCKET_H

#include <assert.h>
#include <linux/if_xdp.h>

#include "base/frames.h"

#define HARP_XDP_HEADROOM                                                                          \
    42 /* before a packet, besides the kernel's 256 bytes: room for virtio's                       \
          header, and the payload behind an IPv4 datagram's 44 bytes of                            \
          header of HARP comes to stand at a cache line's boundary */
#define HARP_XDP_KERNEL_ROOM 256 /* XDP_PACKET_HEADROOM */

/* The largest MTU with which newer kernels bind zero copy where a packet has one frame: what a
 * frame has for a packet, in units of 128 bytes, takes the MTU, an Ethernet header, two VLAN tags
 * and a checksum. Measured on Linux 7.3 with virtio_net, in frames with and without headroom. */
static inline uint32_t harp_xdp_zero_copy_mtu(uint32_t frame_bytes)
{
    enum { UNIT = 128, ETHERNET = 14 + 2 * 4 + 4 };
    return (frame_bytes - HARP_XDP_KERNEL_ROOM - HARP_XDP_HEADROOM) / UNIT * UNIT - ETHERNET;
}

struct harp_ring {
    uint32_t *producer, *consumer, *flags;
    void *entries; /* struct xdp_desc in rx and tx, uint64_t offsets in fill and completion */
    uint32_t count;
    uint32_t mine, theirs;
    void *map;
    size_t map_bytes;
};

struct harp_xdp_socket {
    int fd;
    uint32_t interface, queue;
    bool busy_poll; /* the kernel does a driver's work in this thread */
    bool zero_copy;
    int not_zero_copy; /* why it is not: -errno, 0 if it was not tried */
    struct harp_ring fill, rx, tx, completion;
};

struct harp_xdp_socket_config {
    uint32_t interface, queues;
    int queue; /* -1: the first that is free */
    bool copy_only, zero_copy_only;
    uint32_t busy_poll_us;
    /* Entries, powers of two; completion has as many as tx. A ring holds at most half of
     * it, for the kernel hands frames back before it says that it has taken them out of the ring,
     * and rx takes all that fill holds. */
    uint32_t fill, rx, tx;
    const struct harp_frames *frames;
    const char *name; /* of the interface, for sentences */
    uint32_t mtu;     /* the same */
};

/* Make a socket over the pool's memory and bind it. Returns 0, or -errno and one sentence in `why`
 * (HARP_WHY_BYTES). */
int harp_xdp_socket_open(struct harp_xdp_socket *socket,
                         const struct harp_xdp_socket_config *config, char *why);

/* The kernel lets go of all frames before this returns. In a child of fork, which is not `mine`,
 * only its copy of the descriptor is closed. */
void harp_xdp_socket_close(struct harp_xdp_socket *socket, bool mine);

/* Let the kernel send what stands in tx. 0 when it has taken all, or needs no call to do so;
 * -EAGAIN when some is left; another -errno when nothing can leave now. `calls` counts. */
int harp_xdp_socket_send(struct harp_xdp_socket *socket, uint64_t *calls);

/* Nothing came: let the kernel look at the fill ring, if it wants a wake-up, or at the card. */
void harp_xdp_socket_wake(struct harp_xdp_socket *socket, uint64_t *calls);

/* Entries that this side, the consumer, may read. */
static inline uint32_t harp_ring_ready(struct harp_ring *ring)
{
    ring->theirs = __atomic_load_n(ring->producer, __ATOMIC_ACQUIRE);
    return ring->theirs - ring->mine;
}

/* Entries that this side, the producer, may write. */
static inline uint32_t harp_ring_room(struct harp_ring *ring, uint32_t wanted)
{
    uint32_t room = ring->count - (ring->mine - ring->theirs);
    if (room >= wanted)
        return room;
    ring->theirs = __atomic_load_n(ring->consumer, __ATOMIC_ACQUIRE);
    return ring->count - (ring->mine - ring->theirs);
}

/* The entry `ahead` of the next one. */
static inline struct xdp_desc *harp_ring_desc(const struct harp_ring *ring, uint32_t ahead)
{
    return (struct xdp_desc *)ring->entries + ((ring->mine + ahead) & (ring->count - 1));
}

static inline uint64_t *harp_ring_offset(const struct harp_ring *ring, uint32_t ahead)
{
    return (uint64_t *)ring->entries + ((ring->mine + ahead) & (ring->count - 1));
}

/* Hand `count` entries to the kernel: written ones, or read ones to be written again. */
static inline void harp_ring_produce(struct harp_ring *ring, uint32_t count)
{
    ring->mine += count;
    __atomic_store_n(ring->producer, ring->mine, __ATOMIC_RELEASE);
}

static inline void harp_ring_consume(struct harp_ring *ring, uint32_t count)
{
    ring->mine += count;
    __atomic_store_n(ring->consumer, ring->mine, __ATOMIC_RELEASE);
}

static inline bool harp_ring_wants_wake(const struct harp_ring *ring)
{
    return __atomic_load_n(ring->flags, __ATOMIC_RELAXED) & XDP_RING_NEED_WAKEUP;
}

#endif
