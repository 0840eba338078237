#include "virtual/event_heap.h"

#include <assert.h>
#include <stdlib.h>

#define CHILDREN 4

/* Without a branch: which of two events is earlier cannot be foretold. */
static bool is_earlier(const struct virtual_event *a, const struct virtual_event *b)
{
    return (a->at_ns < b->at_ns) | ((a->at_ns == b->at_ns) & (a->order < b->order));
}

bool virtual_events_open(struct virtual_events *events, size_t room)
{
    *events = (struct virtual_events){0};
    return virtual_events_reserve(events, room);
}

void virtual_events_close(struct virtual_events *events)
{
    free(events->heap);
    *events = (struct virtual_events){0};
}

bool virtual_events_reserve(struct virtual_events *events, size_t more)
{
    if (more <= events->room - events->n)
        return true;
    size_t room = events->n + more;
    if (room < 2 * events->room)
        room = 2 * events->room;
    if (room > SIZE_MAX / sizeof *events->heap)
        return false;
    struct virtual_event *heap = realloc(events->heap, room * sizeof *heap);
    if (!heap)
        return false;
    events->heap = heap;
    events->room = room;
    return true;
}

bool virtual_events_push(struct virtual_events *events, uint64_t at_ns, uint64_t what)
{
    if (!virtual_events_reserve(events, 1))
        return false;
    const struct virtual_event event = {at_ns, events->pushed++, what};
    struct virtual_event *heap = events->heap;
    size_t i = events->n++;
    for (size_t parent; i; i = parent) {
        parent = (i - 1) / CHILDREN;
        if (!is_earlier(&event, &heap[parent]))
            break;
        heap[i] = heap[parent];
    }
    heap[i] = event;
    return true;
}

/* The earliest of `n` children that begin at `child`. */
static size_t find_earliest(const struct virtual_event *heap, size_t child, size_t n)
{
    size_t earliest = child;
    for (size_t i = 1; i < n; i++)
        earliest = is_earlier(&heap[child + i], &heap[earliest]) ? child + i : earliest;
    return earliest;
}

static size_t find_earliest_child(const struct virtual_events *events, size_t child)
{
    if (child + CHILDREN > events->n)
        return find_earliest(events->heap, child, events->n - child);
    const struct virtual_event *heap = events->heap;
    size_t left = child + is_earlier(&heap[child + 1], &heap[child]);
    size_t right = child + 2 + is_earlier(&heap[child + 3], &heap[child + 2]);
    return is_earlier(&heap[right], &heap[left]) ? right : left;
}

struct virtual_event virtual_events_take(struct virtual_events *events)
{
    assert(events->n);
    struct virtual_event *heap = events->heap;
    const struct virtual_event first = heap[0], last = heap[--events->n];
    size_t i = 0;
    for (size_t child; (child = CHILDREN * i + 1) < events->n; i = child) {
        child = find_earliest_child(events, child);
        if (!is_earlier(&heap[child], &last))
            break;
        heap[i] = heap[child];
    }
    heap[i] = last;
    return first;
}
