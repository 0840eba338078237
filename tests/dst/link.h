/* A simulated network between two ends, in virtual time.
 *
 * Frames are structs, with a copy of their payload taken when they are sent, as a NIC would. Tag
 * and CRC are modelled by what they prove: whether the key fits, and whether header and payload are
 * as they were sent. Every path and direction has faults of its own, which end at `heal_ns`.
 *
 *   end --> rate, queue --> lost? burst? black? --> delay, jitter, spike --> doubled? flipped? -->
 * end
 *                                   |
 *                                   +--> memory of old frames --> replayed at any time
 */
#ifndef DST_LINK_H
#define DST_LINK_H

#include <stddef.h>

#include "random.h"
#include "session.h"

#define DST_PATHS 4
#define DST_MEMORY 64

struct dst_flight {
    uint64_t at_ns;
    uint64_t order;
    uint64_t key; /* what its tag was made with */
    uint8_t to;   /* 0 or 1 */
    bool tag_holds;
    bool payload_holds;
    struct harp_frame frame;
    uint8_t *payload; /* own copy, or NULL */
};

struct dst_faults {
    uint64_t delay_ns;
    uint64_t jitter_ns;
    uint64_t byte_ps;  /* time that a byte takes, in ps */
    uint64_t queue_ns; /* longest wait in the queue; then the tail is dropped */
    uint64_t black_from_ns, black_to_ns;
    uint64_t spike_from_ns, spike_to_ns, spike_ns;
    uint32_t loss, twice, late, flip_payload, flip_header, replay, stale; /* permille */
    uint32_t burst, burst_length;
};

struct dst_way {
    struct dst_faults faults;
    uint64_t free_ns; /* when the sender's line is free again */
    uint32_t burst_left;
};

struct dst_link {
    uint64_t random;
    uint64_t heal_ns;
    uint64_t order;
    /* Chunks that lost, late or spoilt frames spoke for: 16 for an ACK. */
    uint64_t disturbed;
    uint64_t trace; /* hash of all frames sent and when */
    bool payloads;
    struct dst_way ways[2][DST_PATHS]; /* towards end 0, towards end 1 */
    struct dst_flight *memory[2][DST_MEMORY];
    struct dst_flight **heap;
    size_t heap_n, heap_room;
};

/* A frame leaves for end `to` at `now_ns`. */
void dst_link_send(struct dst_link *link, uint64_t now_ns, uint8_t to, uint64_t key,
                   const struct harp_frame *frame);

/* When the next frame arrives; HARP_NEVER if none is on its way. */
uint64_t dst_link_next_ns(const struct dst_link *link);

/* That frame; the caller frees it with dst_flight_free. */
struct dst_flight *dst_link_take(struct dst_link *link);

void dst_flight_free(struct dst_flight *flight);
void dst_link_free(struct dst_link *link);

#endif
