/* Record of the packets sent on one path and not settled yet.
 *
 * A ring of the path's packets by number. Every DATA and PROBE frame takes the next number and a
 * slot; a chunk that is sent again takes a new one. States of a slot:
 *
 *            add                 acknowledged
 *    (free) ---> IN FLIGHT ----------------------> ACKED ---+
 *                    |                               ^      | trim: the tail passes it
 *             found: ^ lost (by time, RTO, or with   |      v
 *           spurious | its path)                     |    (free)
 *                RTO v          acknowledged late:   |      ^
 *                  LOST ------- the loss was spurious+      |
 *                    |                                      |
 *                    +--- older than the caller cares for --+
 *
 *    tail                        next
 *     | IN FLIGHT, ACKED or LOST |           at most 1,024 apart: as far as an ACK's map reaches
 *
 * Two maps, a bit for each slot, say which packets are in flight and which are not ACKED. An ACK
 * and the detection of losses look at their words instead of at the slots, so that what they cost
 * depends on the packets whose state changes and hardly on how many are in flight.
 *
 * Bytes in flight are those of slots in flight. LOST slots stay for a while only so that a late
 * acknowledgement is seen: then the loss was spurious, and the congestion controller undoes its
 * reduction.
 *
 * They are counted in the buffer that they are on their way to, too (far_buffer.h).
 *
 * Owner: the session's path; the slots lie in the session's memory.
 */
#ifndef HARP_SENT_H
#define HARP_SENT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/bit_ring.h"
#include "session/far_buffer.h"
#include "wire/wire.h"

#define HARP_SENT_SLOTS HARP_SACK_BITS /* at most */

enum harp_sent_state { HARP_IN_FLIGHT, HARP_ACKED, HARP_LOST };

struct harp_sent {
    uint64_t time_ns; /* when it was handed out */
    uint64_t packet;
    uint32_t message; /* DATA: number of the message */
    uint32_t chunk;   /* DATA: which of its chunks */
    uint32_t bytes;   /* headers and payload */
    uint16_t longest; /* of its frames: bytes of the only one, or of fragments but the last */
    uint8_t state;
    bool probe; /* a PROBE, which carries no chunk */
};

struct harp_sent_ring {
    struct harp_sent *slots;
    uint32_t slots_n;
    uint64_t tail; /* first number that has a slot */
    uint64_t next; /* number of the next packet */
    uint32_t in_flight;
    uint64_t bytes_in_flight;
    struct harp_far_buffer *far; /* where the path leads; NULL: nowhere yet */
    struct harp_bit_ring in_flight_map;
    struct harp_bit_ring open_map; /* in flight or LOST */
};

/* A ring of `slots_n` slots, a power of two; the first packet will have number `first`. */
void harp_sent_init(struct harp_sent_ring *ring, struct harp_sent *slots, uint32_t slots_n,
                    uint64_t first);

/* Whether a slot is free. */
static inline bool harp_sent_has_free_slot(const struct harp_sent_ring *ring)
{
    return ring->next - ring->tail < ring->slots_n;
}

/* Whether a packet can be added. A LOST tail makes room, one in flight does not. */
bool harp_sent_has_room(struct harp_sent_ring *ring);

/* Give the next number and its slot to a packet of `bytes`, in frames of at most `longest`.
 * harp_sent_has_room must hold. The caller fills in what the packet carries. */
struct harp_sent *harp_sent_add(struct harp_sent_ring *ring, uint64_t now_ns, uint32_t bytes,
                                uint16_t longest);

/* The slot of `packet`, or NULL if it has none (any more, or yet). */
struct harp_sent *harp_sent_at(struct harp_sent_ring *ring, uint64_t packet);

/* The lowest packet in flight that is not before `from`, or `next` if there is none. */
uint64_t harp_sent_next_in_flight(const struct harp_sent_ring *ring, uint64_t from);

/* Settle a packet that is not ACKED yet. */
void harp_sent_acked(struct harp_sent_ring *ring, struct harp_sent *sent);

/* Give up a packet in flight. */
void harp_sent_lost(struct harp_sent_ring *ring, struct harp_sent *sent);

/* Wait for a LOST packet again. */
void harp_sent_found(struct harp_sent_ring *ring, struct harp_sent *sent);

/* Count bytes in flight in this buffer from now on. */
void harp_sent_lands_in(struct harp_sent_ring *ring, struct harp_far_buffer *far);

/* Free ACKED slots at the tail, and LOST ones that were sent before `before_ns`. */
void harp_sent_trim(struct harp_sent_ring *ring, uint64_t before_ns);

#endif
