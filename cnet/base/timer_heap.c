#include "base/timer_heap.h"

#include <stdlib.h>
#include <string.h>

#define HARP_TIMER_OUT UINT32_MAX

bool harp_timers_open(struct harp_timers *timers, uint32_t most)
{
    *timers = (struct harp_timers){.at_ns = malloc(most * sizeof *timers->at_ns),
                                   .key_ns = malloc(most * sizeof *timers->key_ns),
                                   .heap = malloc(most * sizeof *timers->heap),
                                   .place = malloc(most * sizeof *timers->place)};
    if (!timers->at_ns || !timers->key_ns || !timers->heap || !timers->place) {
        harp_timers_close(timers);
        return false;
    }
    memset(timers->at_ns, 0xff, most * sizeof *timers->at_ns);
    memset(timers->place, 0xff, most * sizeof *timers->place);
    return true;
}

void harp_timers_close(struct harp_timers *timers)
{
    free(timers->at_ns);
    free(timers->key_ns);
    free(timers->heap);
    free(timers->place);
    *timers = (struct harp_timers){0};
}

static bool is_before(const struct harp_timers *timers, uint32_t a, uint32_t b)
{
    if (timers->key_ns[a] != timers->key_ns[b])
        return timers->key_ns[a] < timers->key_ns[b];
    return a < b;
}

static void put_in_place(struct harp_timers *timers, uint32_t place, uint32_t i)
{
    timers->heap[place] = i;
    timers->place[i] = place;
}

static void move_up(struct harp_timers *timers, uint32_t place, uint32_t i)
{
    while (place) {
        uint32_t parent = (place - 1) / 2;
        if (is_before(timers, timers->heap[parent], i))
            break;
        put_in_place(timers, place, timers->heap[parent]);
        place = parent;
    }
    put_in_place(timers, place, i);
}

static void move_down(struct harp_timers *timers, uint32_t place, uint32_t i)
{
    for (;;) {
        uint32_t child = 2 * place + 1;
        if (child >= timers->n)
            break;
        if (child + 1 < timers->n &&
            is_before(timers, timers->heap[child + 1], timers->heap[child]))
            child++;
        if (is_before(timers, i, timers->heap[child]))
            break;
        put_in_place(timers, place, timers->heap[child]);
        place = child;
    }
    put_in_place(timers, place, i);
}

static void remove_first(struct harp_timers *timers)
{
    timers->place[timers->heap[0]] = HARP_TIMER_OUT;
    uint32_t last = timers->heap[--timers->n];
    if (timers->n)
        move_down(timers, 0, last);
}

void harp_timers_set(struct harp_timers *timers, uint32_t i, uint64_t at_ns)
{
    timers->at_ns[i] = at_ns;
    bool in_heap = timers->place[i] != HARP_TIMER_OUT;
    if (at_ns == HARP_TIMER_NEVER || (in_heap && at_ns >= timers->key_ns[i]))
        return;
    timers->key_ns[i] = at_ns;
    move_up(timers, in_heap ? timers->place[i] : timers->n++, i);
}

/* The key at the top becomes the true deadline of what is there. */
static void settle_first(struct harp_timers *timers)
{
    while (timers->n) {
        uint32_t first = timers->heap[0];
        if (timers->at_ns[first] == timers->key_ns[first])
            return;
        if (timers->at_ns[first] == HARP_TIMER_NEVER) {
            remove_first(timers);
        } else {
            timers->key_ns[first] = timers->at_ns[first];
            move_down(timers, 0, first);
        }
    }
}

uint64_t harp_timers_first_ns(struct harp_timers *timers)
{
    settle_first(timers);
    return timers->n ? timers->key_ns[timers->heap[0]] : HARP_TIMER_NEVER;
}

bool harp_timers_take(struct harp_timers *timers, uint64_t now_ns, uint32_t *i)
{
    if (!timers->n || timers->key_ns[timers->heap[0]] > now_ns ||
        harp_timers_first_ns(timers) > now_ns)
        return false;
    *i = timers->heap[0];
    timers->at_ns[*i] = HARP_TIMER_NEVER;
    remove_first(timers);
    return true;
}
