/* A queue of small numbers. Each is in it at most once, so it never overflows.
 *
 * Owner: one thread. Only harp_index_queue_open allocates.
 */
#ifndef HARP_INDEX_QUEUE_H
#define HARP_INDEX_QUEUE_H

#include <assert.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

struct harp_index_queue {
    uint32_t *ring; /* of a power of two */
    bool *is_in;
    uint32_t mask, head, count;
};

static inline void harp_index_queue_close(struct harp_index_queue *queue)
{
    free(queue->ring);
    free(queue->is_in);
    *queue = (struct harp_index_queue){0};
}

/* An empty queue of numbers below `most`; false without memory. */
static inline bool harp_index_queue_open(struct harp_index_queue *queue, uint32_t most)
{
    uint32_t places = 1;
    while (places < most)
        places *= 2;
    *queue = (struct harp_index_queue){.ring = malloc(places * sizeof *queue->ring),
                                       .is_in = calloc(most, sizeof *queue->is_in),
                                       .mask = places - 1};
    if (queue->ring && queue->is_in)
        return true;
    harp_index_queue_close(queue);
    return false;
}

/* Behind all others; where it is if it is in the queue already. */
static inline void harp_index_queue_put(struct harp_index_queue *queue, uint32_t number)
{
    if (queue->is_in[number])
        return;
    queue->is_in[number] = true;
    queue->ring[(queue->head + queue->count++) & queue->mask] = number;
}

/* Before all others; where it is if it is in the queue already. */
static inline void harp_index_queue_put_first(struct harp_index_queue *queue, uint32_t number)
{
    if (queue->is_in[number])
        return;
    queue->is_in[number] = true;
    queue->count++;
    queue->ring[--queue->head & queue->mask] = number;
}

/* The first; the queue is not empty. */
static inline uint32_t harp_index_queue_take(struct harp_index_queue *queue)
{
    assert(queue->count);
    uint32_t number = queue->ring[queue->head++ & queue->mask];
    queue->count--;
    queue->is_in[number] = false;
    return number;
}

/* The last; the queue is not empty. */
static inline uint32_t harp_index_queue_take_last(struct harp_index_queue *queue)
{
    assert(queue->count);
    uint32_t number = queue->ring[(queue->head + --queue->count) & queue->mask];
    queue->is_in[number] = false;
    return number;
}

#endif
