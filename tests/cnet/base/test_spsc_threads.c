/* The ring between two threads: all items, in order, whole. Meant for ThreadSanitizer. */
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/spsc.h"
#include "virtual/random.h"

enum { CAPACITY = 64, BATCH_MAX = 100 };

struct item {
    uint64_t number;
    uint64_t twice;
    uint32_t inverse;
};

struct side {
    struct harp_spsc *ring;
    uint64_t items;
    uint64_t random;
};

static uint32_t random_batch(struct side *side)
{
    return 1 + (uint32_t)virtual_below(&side->random, BATCH_MAX);
}

static void *produce_numbers(void *context)
{
    struct side *side = context;
    struct item batch[BATCH_MAX];
    for (uint64_t next = 0; next < side->items;) {
        uint32_t count = random_batch(side);
        if (count > side->items - next)
            count = (uint32_t)(side->items - next);
        for (uint32_t i = 0; i < count; i++)
            batch[i] = (struct item){next + i, 2 * (next + i), (uint32_t)~(next + i)};
        uint32_t put = harp_spsc_put(side->ring, batch, count);
        assert(put <= count);
        next += put;
        if (put == 0)
            sched_yield();
    }
    return NULL;
}

static void *consume_numbers(void *context)
{
    struct side *side = context;
    struct item batch[BATCH_MAX];
    for (uint64_t next = 0; next < side->items;) {
        uint32_t count = random_batch(side);
        uint32_t taken = harp_spsc_take(side->ring, batch, count);
        assert(taken <= count);
        for (uint32_t i = 0; i < taken; i++, next++)
            assert(batch[i].number == next && batch[i].twice == 2 * next &&
                   batch[i].inverse == (uint32_t)~next);
        if (taken == 0)
            sched_yield();
    }
    return NULL;
}

int main(int argc, char **argv)
{
    assert(argc == 2);
    uint64_t items = strtoull(argv[1], NULL, 10);
    void *memory = aligned_alloc(2 * HARP_SPSC_LINE, 1u << 16);
    assert(memory && harp_spsc_bytes(CAPACITY, sizeof(struct item)) <= 1u << 16);
    struct harp_spsc *ring = harp_spsc_make(memory, CAPACITY, sizeof(struct item));
    struct side producer = {ring, items, 1}, consumer = {ring, items, 2};
    pthread_t threads[2];
    assert(pthread_create(&threads[0], NULL, produce_numbers, &producer) == 0);
    assert(pthread_create(&threads[1], NULL, consume_numbers, &consumer) == 0);
    pthread_join(threads[0], NULL);
    pthread_join(threads[1], NULL);
    struct item none;
    assert(harp_spsc_take(ring, &none, 1) == 0);
    free(memory);
    return 0;
}
