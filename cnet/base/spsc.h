/* A ring between two threads: one puts items in, one takes them out. No locks, no system calls.
 *
 *         taken                     put
 *           v                        v
 *      .  . [ a  b  c  d  e  f  g ] .  .        items lie at position modulo capacity
 *           <---- put - taken ---->
 *
 * `put` and `taken` count items since the beginning, in 64 bits that do not wrap in practice. Each
 * is written by one side only. They lie on cache lines of their own, two apart because CPUs fetch
 * lines in pairs; beside its own counter each side keeps its last look at the other's, so that it
 * reads the other's line only when the ring seems full, or empty. Batches make that rarer still.
 *
 * Ownership: a slot from `taken` up to `put` belongs to the consumer, any other to the producer.
 * Memory order, which is what makes it so:
 * - The producer writes slots, then stores `put` with release. The consumer loads `put` with
 *   acquire, then reads slots. So a thread that sees the count sees the items. Were the store
 *   relaxed, the consumer could read a slot before it is written.
 * - The consumer reads slots, then stores `taken` with release. The producer loads `taken` with
 *   acquire, then writes slots. So a thread that sees the room overwrites only what has been read.
 *   Were it relaxed, the producer's write could overtake the consumer's read.
 * - A side loads its own counter relaxed: nobody else writes it.
 * - A stale look at the other's counter is harmless. The ring seems fuller, or emptier, than it is.
 *
 * There is no pointer in a ring, so it may lie in memory that two processes share, at different
 * addresses. It trusts both sides. Memory is the caller's: harp_spsc_bytes says how much.
 */
#ifndef HARP_SPSC_H
#define HARP_SPSC_H

#include <assert.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define HARP_SPSC_LINE 64

/* Stands before every access to what both sides see: slots and counters. A test that runs both
 * sides as coroutines switches between them here, and so tries all orders. */
#ifndef HARP_SPSC_STEP
#define HARP_SPSC_STEP() ((void)0)
#endif

struct harp_spsc {
    uint32_t capacity; /* items, a power of two */
    uint32_t item_bytes;
    _Alignas(2 * HARP_SPSC_LINE) _Atomic uint64_t put; /* the producer's line */
    uint64_t taken_seen;
    _Alignas(2 * HARP_SPSC_LINE) _Atomic uint64_t taken; /* the consumer's line */
    uint64_t put_seen;
    _Alignas(2 * HARP_SPSC_LINE) uint8_t slots[];
};

/* Bytes of a ring of `capacity` items, a power of two. */
static inline size_t harp_spsc_bytes(uint32_t capacity, uint32_t item_bytes)
{
    assert(capacity > 0 && (capacity & (capacity - 1)) == 0);
    assert(item_bytes > 0);
    return sizeof(struct harp_spsc) + (size_t)capacity * item_bytes;
}

/* Make an empty ring in memory of harp_spsc_bytes, aligned to two cache lines. Both sides may start
 * once they have heard of it in a way that synchronises (a thread's creation, a mutex, a socket).
 */
static inline struct harp_spsc *harp_spsc_make(void *memory, uint32_t capacity, uint32_t item_bytes)
{
    assert((uintptr_t)memory % (2 * HARP_SPSC_LINE) == 0);
    assert(harp_spsc_bytes(capacity, item_bytes) > 0);
    struct harp_spsc *ring = memory;
    ring->capacity = capacity;
    ring->item_bytes = item_bytes;
    ring->taken_seen = 0;
    ring->put_seen = 0;
    atomic_init(&ring->put, 0);
    atomic_init(&ring->taken, 0);
    return ring;
}

/* Copy between slots from `position` on and `count` items in a row: in two parts where the ring's
 * end lies between. */
static inline void harp_spsc_copy_in(struct harp_spsc *ring, uint64_t position,
                                     const uint8_t *items, uint32_t count)
{
    uint32_t at = (uint32_t)(position & (ring->capacity - 1));
    uint32_t first = count < ring->capacity - at ? count : ring->capacity - at;
    size_t first_bytes = (size_t)first * ring->item_bytes;
    HARP_SPSC_STEP();
    memcpy(ring->slots + (size_t)at * ring->item_bytes, items, first_bytes);
    if (first == count)
        return;
    HARP_SPSC_STEP();
    memcpy(ring->slots, items + first_bytes, (size_t)(count - first) * ring->item_bytes);
}

static inline void harp_spsc_copy_out(const struct harp_spsc *ring, uint64_t position,
                                      uint8_t *items, uint32_t count)
{
    uint32_t at = (uint32_t)(position & (ring->capacity - 1));
    uint32_t first = count < ring->capacity - at ? count : ring->capacity - at;
    size_t first_bytes = (size_t)first * ring->item_bytes;
    HARP_SPSC_STEP();
    memcpy(items, ring->slots + (size_t)at * ring->item_bytes, first_bytes);
    if (first == count)
        return;
    HARP_SPSC_STEP();
    memcpy(items + first_bytes, ring->slots, (size_t)(count - first) * ring->item_bytes);
}

/* Producer: put the first of `count` items in, as many as there is room for; returns how many. All
 * of them become visible at once. */
static inline uint32_t harp_spsc_put(struct harp_spsc *ring, const void *items, uint32_t count)
{
    uint64_t put = atomic_load_explicit(&ring->put, memory_order_relaxed);
    uint64_t room = ring->capacity - (put - ring->taken_seen);
    if (room < count) {
        HARP_SPSC_STEP();
        /* Acquire: the consumer has read what it says it has taken before we write there. */
        ring->taken_seen = atomic_load_explicit(&ring->taken, memory_order_acquire);
        room = ring->capacity - (put - ring->taken_seen);
        assert(room <= ring->capacity);
    }
    uint32_t now = room < count ? (uint32_t)room : count;
    if (now == 0)
        return 0;
    harp_spsc_copy_in(ring, put, items, now);
    HARP_SPSC_STEP();
    /* Release: a thread that sees the new count sees the items. */
    atomic_store_explicit(&ring->put, put + now, memory_order_release);
    return now;
}

/* Consumer: take up to `count` items out, in order; returns how many. */
static inline uint32_t harp_spsc_take(struct harp_spsc *ring, void *items, uint32_t count)
{
    uint64_t taken = atomic_load_explicit(&ring->taken, memory_order_relaxed);
    uint64_t ready = ring->put_seen - taken;
    if (ready < count) {
        HARP_SPSC_STEP();
        /* Acquire: the producer wrote the items before it counted them. */
        ring->put_seen = atomic_load_explicit(&ring->put, memory_order_acquire);
        ready = ring->put_seen - taken;
        assert(ready <= ring->capacity);
    }
    uint32_t now = ready < count ? (uint32_t)ready : count;
    if (now == 0)
        return 0;
    harp_spsc_copy_out(ring, taken, items, now);
    HARP_SPSC_STEP();
    /* Release: we have read the slots before the producer sees that it may write there. */
    atomic_store_explicit(&ring->taken, taken + now, memory_order_release);
    return now;
}

/* Producer: how many items may be put now. */
static inline uint32_t harp_spsc_room(struct harp_spsc *ring)
{
    uint64_t put = atomic_load_explicit(&ring->put, memory_order_relaxed);
    HARP_SPSC_STEP();
    /* Acquire: as in harp_spsc_put. */
    ring->taken_seen = atomic_load_explicit(&ring->taken, memory_order_acquire);
    return ring->capacity - (uint32_t)(put - ring->taken_seen);
}

/* Consumer: how many items may be taken now. Sequentially consistent, so that a thread that is
 * about to wait may look here after it has said so. */
static inline uint32_t harp_spsc_ready(struct harp_spsc *ring)
{
    uint64_t taken = atomic_load_explicit(&ring->taken, memory_order_relaxed);
    HARP_SPSC_STEP();
    ring->put_seen = atomic_load(&ring->put);
    return (uint32_t)(ring->put_seen - taken);
}

#endif
