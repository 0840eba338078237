/* A binary heap of deadlines: it gives the thing with the earliest one.
 *
 *     at_ns[i]   when thing i is due; HARP_TIMER_NEVER: not
 *     heap       numbers, ordered by key: a parent's is not later than its children's
 *     key_ns[i]  when the heap looks at i: not later than at_ns[i]
 *
 * Deadlines of connections move later with nearly every frame. So to make one later costs a store:
 * the heap keeps the old key, and moves the thing on when that key comes to the top. To make one
 * earlier than its key costs O(log n), and so does to take one out. Equal keys are ordered by
 * number, so the same calls give the same order everywhere.
 *
 * Owner: one thread. No function but harp_timers_open allocates.
 */
#ifndef HARP_TIMER_HEAP_H
#define HARP_TIMER_HEAP_H

#include <stdbool.h>
#include <stdint.h>

#define HARP_TIMER_NEVER UINT64_MAX

struct harp_timers {
    uint64_t *at_ns, *key_ns;
    uint32_t *heap, *place; /* place[i]: where in the heap i is; HARP_TIMER_OUT: nowhere */
    uint32_t n;
};

/* Timers of the numbers below `most`, none of them set; false without memory. */
bool harp_timers_open(struct harp_timers *timers, uint32_t most);
void harp_timers_close(struct harp_timers *timers);

/* Number i is due at this time, and at no other. */
void harp_timers_set(struct harp_timers *timers, uint32_t i, uint64_t at_ns);

/* When the first of them is due; HARP_TIMER_NEVER: none ever. */
uint64_t harp_timers_first_ns(struct harp_timers *timers);

/* Take out the next that is due at this time; it has no deadline any more. False if nothing is due.
 */
bool harp_timers_take(struct harp_timers *timers, uint64_t now_ns, uint32_t *i);

#endif
