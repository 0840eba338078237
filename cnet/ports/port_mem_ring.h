/* The memory that two mem ports share: a ring of datagrams for each direction.
 *
 *     memfd     | data of ring 0 | data of ring 1 | control of both |
 *     mapped    | ring 0 | ring 0 again | ring 1 | ring 1 again | control |
 *
 * Each ring's data is mapped twice in a row, so that a datagram that runs over the ring's end lies
 * in one piece nevertheless. Ring 0 goes from the port that connected to the one that accepted.
 *
 * A record begins at a multiple of 64 bytes:
 *
 *     0 .. 15  unused   16  length (4)   20  datagram: HARP_HEADER_BYTES, then payload at 64
 *
 * Positions are bytes since the beginning; they only grow. `produced` is written by the producer
 * once a flush, `consumed` by the consumer once a batch, each on cache lines of its own; either
 * side asks for the other's only when the last answer is used up.
 *
 *     consumed .............. taken ............ produced ........... written
 *     | held by the consumer  |  to be taken     |  not published yet |    room ...
 *
 * Memory order: records are written before `produced` (release) and read after it (acquire); they
 * are read before `consumed` (release) and overwritten after it (acquire). Sleep: the consumer sets
 * `sleeping` and then looks at `produced`; the producer sets `produced` and then looks at
 * `sleeping`. All four are sequentially consistent, so that at least one of them sees the other's.
 * An end that sleeps until it can write, too, looks at its own ring's `consumed` in the place of
 * `produced`, and whoever consumes there looks at `sleeping` of the ring that leads back.
 *
 * Nothing that the other side writes is trusted further than to be inside of the ring: positions
 * and lengths that cannot be end the connection. The engine checks the datagram's contents.
 */
#ifndef HARP_PORT_MEM_RING_H
#define HARP_PORT_MEM_RING_H

#include <assert.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ports/headers.h"

#define MEM_MAGIC UINT64_C(0x30474e4952504d48) /* "HMPRING0" */
#define MEM_VERSION 1

enum {
    MEM_RECORD = 64,                             /* alignment of records and of payload */
    MEM_LENGTH_AT = 16,                          /* in a record */
    MEM_DATAGRAM_AT = HARP_DATAGRAM_AT,          /* so that payload begins at 64 */
    MEM_PAYLOAD_MAX = HARP_HEADER_BYTES + 65408, /* 511 x 128: the largest segment of 16 bits */
    MEM_RING_LEAST = 1 << 18,
    MEM_RING_MOST = 1 << 30,
    MEM_CONTROL_BYTES = 4096,
};

_Static_assert(MEM_DATAGRAM_AT + HARP_HEADER_BYTES == MEM_RECORD, "payload is aligned");

/* Message of the connecting port over the socket, together with the memfd. */
struct mem_hello {
    uint64_t magic;
    uint32_t version, zero;
    uint64_t ring_bytes; /* of each direction, a power of two */
    uint8_t from[16];    /* name of the connecting port */
};

/* Of one ring. Two cache lines each, since CPUs fetch lines in pairs. */
struct mem_control {
    _Alignas(128) _Atomic uint64_t produced;
    _Alignas(128) _Atomic uint64_t consumed;
    _Alignas(128) _Atomic uint32_t sleeping; /* enum mem_sleeping, of the consumer */
};

/* Whether somebody waits for the socket, and for what. */
enum mem_sleeping { MEM_AWAKE, MEM_SLEEPS, MEM_SLEEPS_FOR_ROOM };

_Static_assert(2 * sizeof(struct mem_control) <= MEM_CONTROL_BYTES, "room for both rings");

/* Each side's own view; nobody else sees it. */
struct mem_out {
    struct mem_control *control;
    uint8_t *data;
    uint64_t bytes; /* of the ring */
    uint64_t written, published, consumed_seen;
};

struct mem_in {
    struct mem_control *control;
    uint8_t *data;
    uint64_t bytes;
    uint64_t taken, released, produced_seen;
};

static inline uint64_t mem_stride(uint32_t length)
{
    return ((uint64_t)MEM_DATAGRAM_AT + length + MEM_RECORD - 1) / MEM_RECORD * MEM_RECORD;
}

/* Bytes that may be written now, as far as is known. */
static inline uint64_t mem_room_seen(const struct mem_out *out)
{
    return out->bytes - (out->written - out->consumed_seen);
}

/* Ask how far the consumer is. False if what it says cannot be. */
static inline bool mem_out_refresh(struct mem_out *out)
{
    uint64_t consumed = atomic_load_explicit(&out->control->consumed, memory_order_seq_cst);
    /* It lies between what it said before and what is published. */
    if (consumed - out->consumed_seen > out->published - out->consumed_seen ||
        consumed % MEM_RECORD != 0)
        return false;
    out->consumed_seen = consumed;
    return true;
}

/* Memory for a datagram; the caller has seen that there is room. */
static inline uint8_t *mem_write(struct mem_out *out, uint32_t length)
{
    uint8_t *record = out->data + (out->written & (out->bytes - 1));
    assert(mem_stride(length) <= mem_room_seen(out));
    *(uint32_t *)(void *)(record + MEM_LENGTH_AT) = length;
    out->written += mem_stride(length);
    return record + MEM_DATAGRAM_AT;
}

/* Publish all that was written. True if the consumer must be woken. */
static inline bool mem_publish(struct mem_out *out)
{
    out->published = out->written;
    atomic_store_explicit(&out->control->produced, out->written, memory_order_seq_cst);
    return atomic_load_explicit(&out->control->sleeping, memory_order_seq_cst) != MEM_AWAKE &&
           atomic_exchange_explicit(&out->control->sleeping, MEM_AWAKE, memory_order_relaxed) !=
               MEM_AWAKE;
}

enum mem_got { MEM_NOTHING, MEM_DATAGRAM, MEM_CORRUPT };

/* Ask how far the producer is. False if what it says cannot be. */
static inline bool mem_in_refresh(struct mem_in *in)
{
    uint64_t produced = atomic_load_explicit(&in->control->produced, memory_order_acquire);
    if (produced - in->released > in->bytes || produced - in->taken > in->bytes ||
        produced % MEM_RECORD != 0)
        return false;
    in->produced_seen = produced;
    return true;
}

/* The next datagram. */
static inline enum mem_got mem_take(struct mem_in *in, uint8_t **datagram, uint32_t *length)
{
    if (in->taken == in->produced_seen && !mem_in_refresh(in))
        return MEM_CORRUPT;
    if (in->taken == in->produced_seen)
        return MEM_NOTHING;
    uint8_t *record = in->data + (in->taken & (in->bytes - 1));
    /* Read once: what is checked is what is used. */
    *length = __atomic_load_n((uint32_t *)(void *)(record + MEM_LENGTH_AT), __ATOMIC_RELAXED);
    if (*length > MEM_PAYLOAD_MAX || mem_stride(*length) > in->produced_seen - in->taken)
        return MEM_CORRUPT;
    in->taken += mem_stride(*length);
    *datagram = record + MEM_DATAGRAM_AT;
    return MEM_DATAGRAM;
}

/* All that was taken may be overwritten. */
static inline void mem_release(struct mem_in *in)
{
    if (in->released == in->taken)
        return;
    in->released = in->taken;
    atomic_store_explicit(&in->control->consumed, in->taken, memory_order_release);
}

/* The same where the other side may wait for room in this ring. True if it must be woken. */
static inline bool mem_release_to_sleeper(struct mem_in *in, struct mem_out *back)
{
    in->released = in->taken;
    atomic_store_explicit(&in->control->consumed, in->taken, memory_order_seq_cst);
    return atomic_load_explicit(&back->control->sleeping, memory_order_seq_cst) ==
               MEM_SLEEPS_FOR_ROOM &&
           atomic_exchange_explicit(&back->control->sleeping, MEM_AWAKE, memory_order_relaxed) ==
               MEM_SLEEPS_FOR_ROOM;
}

/* Before sleeping: false if something is there. */
static inline bool mem_sleep(struct mem_in *in)
{
    atomic_store_explicit(&in->control->sleeping, MEM_SLEEPS, memory_order_seq_cst);
    return in->taken == atomic_load_explicit(&in->control->produced, memory_order_seq_cst);
}

/* Before sleeping, with what has been seen left for later: false if something else is there. */
static inline bool mem_sleep_on(struct mem_in *in)
{
    atomic_store_explicit(&in->control->sleeping, MEM_SLEEPS, memory_order_seq_cst);
    return in->produced_seen == atomic_load_explicit(&in->control->produced, memory_order_seq_cst);
}

/* The same, until `bytes` can be written to the other ring, too. */
static inline bool mem_sleep_for_room(struct mem_in *in, struct mem_out *out, uint64_t bytes)
{
    atomic_store_explicit(&in->control->sleeping, MEM_SLEEPS_FOR_ROOM, memory_order_seq_cst);
    return in->produced_seen ==
               atomic_load_explicit(&in->control->produced, memory_order_seq_cst) &&
           mem_out_refresh(out) && mem_room_seen(out) < bytes;
}

static inline void mem_wake(struct mem_in *in)
{
    atomic_store_explicit(&in->control->sleeping, MEM_AWAKE, memory_order_relaxed);
}

#endif
