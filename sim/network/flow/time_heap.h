/* An indexed heap of slots by time: the earliest first, and of equal times the lowest slot.
 *
 * Four children a node, since a node's children share a cache line. Keys stand in the heap and
 * places in an array of their own, so that moving an entry does not touch what a slot stands for.
 * The owner provides both arrays, with room for every slot.
 */
#ifndef SIM_TIME_HEAP_H
#define SIM_TIME_HEAP_H

#include <stdint.h>

struct time_entry {
    double key_s;
    int32_t slot;
};

struct time_heap {
    struct time_entry *entry;
    int64_t count;
    int32_t *at; /* the place of each slot that is in the heap */
};

void time_heap_push(struct time_heap *h, int32_t slot, double key_s);
void time_heap_remove(struct time_heap *h, int32_t slot);
void time_heap_change(struct time_heap *h, int32_t slot, double key_s);
/* Changes a key but leaves the order to a `time_heap_rebuild` that must follow. */
static inline void time_heap_set(struct time_heap *h, int32_t slot, double key_s)
{
    h->entry[h->at[slot]].key_s = key_s;
}
void time_heap_rebuild(struct time_heap *h);
/* The earliest key; infinite when the heap is empty. */
double time_heap_first_s(const struct time_heap *h);

#endif
