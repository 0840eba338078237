/* Event wheel: the next event in virtual time, for many events that are near: a list for each of
 * the next nanoseconds, and a heap (virtual/event_heap.h) of later events.
 *
 *     struct virtual_wheel wheel;
 *     if (!virtual_wheel_open(&wheel)) ... no memory
 *     virtual_wheel_push(&wheel, now_ns + 500, packet);
 *     while (virtual_wheel_next_ns(&wheel) <= until_ns) {
 *         uint64_t what = virtual_wheel_take(&wheel);
 *         now_ns = wheel.now_ns;   ... do what it says
 *     }
 *     virtual_wheel_close(&wheel);
 *
 * Order: that of event_heap.h, by time and then as they were pushed. A list keeps the order of its
 * own events. Among events of one time those of the heap come first, since they were pushed when
 * that time was still far.
 *
 * Cost: push and take are O(1) for events within VIRTUAL_WHEEL_NS of the last one taken, 16 bytes
 * each, however many there are (Varghese and Lauck, "Hashed and hierarchical timing wheels", 1987;
 * Brown, "Calendar queues", 1988); others cost what the heap costs. Where few events are far apart
 * the heap alone is as fast and takes no 64 KiB.
 *
 * Owner: one thread.
 */
#ifndef SIM_EVENT_WHEEL_H
#define SIM_EVENT_WHEEL_H

#include "virtual/event_heap.h"

#define VIRTUAL_WHEEL_NS 8192 /* a frame of 4 KiB at 10 Gb/s takes 3.3 us; a hop about 1 us */

struct virtual_soon {
    uint64_t what;
    uint32_t next; /* of the same nanosecond, or of those that are free */
};

struct virtual_wheel {
    struct virtual_events later;
    struct virtual_soon *soon; /* number 0 is none */
    uint32_t room, free;
    uint64_t now_ns;  /* of the last event taken */
    uint64_t soon_ns; /* of the first on the wheel; VIRTUAL_NEVER if there is none */
    struct {
        uint32_t first, last;
    } lists[VIRTUAL_WHEEL_NS];
    uint64_t filled[VIRTUAL_WHEEL_NS / 64]; /* a bit for each list that is not empty */
};

/* No events; false without memory. */
bool virtual_wheel_open(struct virtual_wheel *wheel);
void virtual_wheel_close(struct virtual_wheel *wheel);

/* An event that is not before now_ns. False without memory: nothing was pushed. */
bool virtual_wheel_push(struct virtual_wheel *wheel, uint64_t at_ns, uint64_t what);

/* Time of the next event; VIRTUAL_NEVER if there is none. */
static inline uint64_t virtual_wheel_next_ns(const struct virtual_wheel *wheel)
{
    uint64_t later_ns = virtual_events_next_ns(&wheel->later);
    return wheel->soon_ns < later_ns ? wheel->soon_ns : later_ns;
}

/* Take the next event out and give its `what`; its time is now_ns then. There must be one. */
uint64_t virtual_wheel_take(struct virtual_wheel *wheel);

#endif
