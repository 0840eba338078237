/* The manual is time_heap.h. */
#include "time_heap.h"

#include <math.h>

enum { CHILDREN = 4 };

static int is_before(struct time_entry a, struct time_entry b)
{
    return a.key_s < b.key_s || (a.key_s == b.key_s && a.slot < b.slot);
}

static void place_entry(struct time_heap *h, int64_t at, struct time_entry entry)
{
    h->entry[at] = entry;
    h->at[entry.slot] = (int32_t)at;
}

static void sift_up(struct time_heap *h, int64_t at)
{
    struct time_entry moving = h->entry[at];
    for (int64_t parent; at > 0 && is_before(moving, h->entry[parent = (at - 1) / CHILDREN]);
         at = parent)
        place_entry(h, at, h->entry[parent]);
    place_entry(h, at, moving);
}

static void sift_down(struct time_heap *h, int64_t at)
{
    struct time_entry moving = h->entry[at];
    for (;;) {
        int64_t first = at * CHILDREN + 1, best = first;
        int64_t end = first + CHILDREN < h->count ? first + CHILDREN : h->count;
        if (first >= h->count)
            break;
        for (int64_t child = first + 1; child < end; child++)
            if (is_before(h->entry[child], h->entry[best]))
                best = child;
        if (!is_before(h->entry[best], moving))
            break;
        place_entry(h, at, h->entry[best]);
        at = best;
    }
    place_entry(h, at, moving);
}

void time_heap_push(struct time_heap *h, int32_t slot, double key_s)
{
    h->entry[h->count] = (struct time_entry){key_s, slot};
    sift_up(h, h->count++);
}

void time_heap_remove(struct time_heap *h, int32_t slot)
{
    int64_t at = h->at[slot];
    struct time_entry last = h->entry[--h->count];
    if (at == h->count)
        return;
    place_entry(h, at, last);
    sift_up(h, at);
    sift_down(h, h->at[last.slot]);
}

void time_heap_change(struct time_heap *h, int32_t slot, double key_s)
{
    time_heap_set(h, slot, key_s);
    sift_up(h, h->at[slot]);
    sift_down(h, h->at[slot]);
}

void time_heap_rebuild(struct time_heap *h)
{
    for (int64_t at = h->count / CHILDREN + 1; at-- > 0;)
        if (at < h->count)
            sift_down(h, at);
}

double time_heap_first_s(const struct time_heap *h)
{
    return h->count ? h->entry[0].key_s : INFINITY;
}
