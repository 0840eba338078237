/* The wheel of events gives what a heap alone gives, and in its order. */
#include "check.h"
#include "event_wheel.h"
#include "virtual/random.h"

enum { STEPS = 200000, MANY = 5000 };

struct both {
    struct virtual_wheel wheel;
    struct virtual_events heap;
};

static void push_both(struct both *both, uint64_t at_ns, uint64_t what)
{
    CHECK(virtual_wheel_push(&both->wheel, at_ns, what), "no memory");
    CHECK(virtual_events_push(&both->heap, at_ns, what), "no memory");
}

static void take_both(struct both *both)
{
    uint64_t next_ns = virtual_events_next_ns(&both->heap);
    CHECK(virtual_wheel_next_ns(&both->wheel) == next_ns, "another time is next");
    if (next_ns == VIRTUAL_NEVER)
        return;
    uint64_t what = virtual_wheel_take(&both->wheel);
    CHECK(what == virtual_events_take(&both->heap).what, "another event is next");
    CHECK(both->wheel.now_ns == next_ns, "it is another time");
}

/* Pushes and takes by chance, at most so far ahead; more pushes than takes, then fewer. */
static void test_events_come_as_from_a_heap(uint64_t most_ns)
{
    static struct both both;
    CHECK(virtual_wheel_open(&both.wheel) && virtual_events_open(&both.heap, 0), "no memory");
    uint64_t random = most_ns;
    for (uint64_t step = 0; step < STEPS; step++) {
        uint32_t pushes = step / 5000 % 2 ? 300 : 700;
        if (virtual_chance(&random, pushes))
            push_both(&both, both.wheel.now_ns + virtual_below(&random, most_ns), step);
        else
            take_both(&both);
    }
    while (both.heap.n)
        take_both(&both);
    take_both(&both);
    virtual_wheel_close(&both.wheel);
    virtual_events_close(&both.heap);
}

/* An event that was pushed when its time was far, others when it was near, and at the wheel's end.
 */
static void test_events_of_one_time_keep_their_order(void)
{
    static struct both both;
    CHECK(virtual_wheel_open(&both.wheel) && virtual_events_open(&both.heap, 0), "no memory");
    const uint64_t at_ns = 3 * VIRTUAL_WHEEL_NS;
    for (uint64_t i = 0; i < MANY; i++) {
        push_both(&both, at_ns, 2 * i);
        push_both(&both, both.wheel.now_ns + VIRTUAL_WHEEL_NS - 1 + i % 2, 2 * i + 1);
        if (both.wheel.now_ns < at_ns - 10)
            take_both(&both);
    }
    while (both.heap.n)
        take_both(&both);
    virtual_wheel_close(&both.wheel);
    virtual_events_close(&both.heap);
}

int main(void)
{
    for (uint64_t most_ns = 1; most_ns < 100 * VIRTUAL_WHEEL_NS; most_ns *= 9)
        test_events_come_as_from_a_heap(most_ns);
    test_events_of_one_time_keep_their_order();
}
