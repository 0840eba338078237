/* Event heap: the next event in virtual time, in nanoseconds.
 *
 *     struct virtual_events events;
 *     if (!virtual_events_open(&events, 1024)) ... no memory
 *     virtual_events_push(&events, now_ns + 500, packet);
 *     while (virtual_events_next_ns(&events) <= until_ns) {
 *         struct virtual_event event = virtual_events_take(&events);
 *         now_ns = event.at_ns;   ... do what event.what says
 *     }
 *     virtual_events_close(&events);
 *
 * Order: by time; events of the same time in the order in which they were pushed. That is a total
 * order, so the same calls give the same events on every machine.
 *
 * The owner gives an event its meaning: `what` is a number, such as an index into a table of
 * packets or a kind and an index packed into one word. An owner of pointers stores
 * (uintptr_t)pointer.
 *
 * An event cannot be moved or taken back. A deadline that moves often, such as a session's, belongs
 * into base/timer_heap.h, which makes one later by a store; or the owner keeps the deadline that
 * holds and ignores an event that comes at another time.
 *
 * Cost: push and take are O(log n) with four children a node (LaMarca and Ladner, "The influence of
 * caches on the performance of heaps", 1996), 24 bytes an event. Only push allocates, when the room
 * is full, and then doubles it; virtual_events_reserve makes room before.
 *
 * Owner: one thread.
 */
#ifndef HARP_VIRTUAL_EVENT_HEAP_H
#define HARP_VIRTUAL_EVENT_HEAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define VIRTUAL_NEVER UINT64_MAX /* later than any event; HARP_NEVER of a session */

struct virtual_event {
    uint64_t at_ns;
    uint64_t order; /* how many were pushed before it */
    uint64_t what;
};

struct virtual_events {
    struct virtual_event *heap; /* heap[0] is next; the children of i are 4 i + 1 to 4 i + 4 */
    size_t n, room;
    uint64_t pushed;
};

/* No events, and room for `room` of them; false without memory. */
bool virtual_events_open(struct virtual_events *events, size_t room);
void virtual_events_close(struct virtual_events *events);

/* Room for `more` events beside those that are there; false without memory. */
bool virtual_events_reserve(struct virtual_events *events, size_t more);

/* False without memory: nothing was pushed. */
bool virtual_events_push(struct virtual_events *events, uint64_t at_ns, uint64_t what);

/* Time of the next event; VIRTUAL_NEVER if there is none. */
static inline uint64_t virtual_events_next_ns(const struct virtual_events *events)
{
    return events->n ? events->heap[0].at_ns : VIRTUAL_NEVER;
}

/* Take the next event out. There must be one. */
struct virtual_event virtual_events_take(struct virtual_events *events);

#endif
