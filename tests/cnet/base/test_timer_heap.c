/* Timers in a heap: the earliest comes first. */
#include "base/timer_heap.h"

#include "check.h"
#include "draw.h"

enum { MANY = 3000, STEPS = 200000 };

/* The heap against a plain array in which the earliest is looked for. */
static void test_timers_are_taken_in_order(void)
{
    static uint64_t at_ns[MANY];
    struct harp_timers timers;
    CHECK(harp_timers_open(&timers, MANY), "no memory");
    for (uint32_t i = 0; i < MANY; i++)
        at_ns[i] = HARP_TIMER_NEVER;
    uint64_t now_ns = 1000;
    for (uint32_t step = 0; step < STEPS; step++) {
        uint32_t i = draw_below(step % 2 ? 20 : MANY);
        at_ns[i] = draw_below(10) ? now_ns + draw_below(5000) : HARP_TIMER_NEVER;
        harp_timers_set(&timers, i, at_ns[i]);
        if (step % 64)
            continue;
        uint64_t first_ns = HARP_TIMER_NEVER;
        for (i = 0; i < MANY; i++)
            first_ns = at_ns[i] < first_ns ? at_ns[i] : first_ns;
        CHECK(harp_timers_first_ns(&timers) == first_ns, "another is the first");
        now_ns += draw_below(40);
        uint64_t last_ns = 0;
        uint32_t last = 0;
        while (harp_timers_take(&timers, now_ns, &i)) {
            CHECK(at_ns[i] <= now_ns, "taken too early");
            CHECK(at_ns[i] > last_ns || (at_ns[i] == last_ns && i > last), "taken out of order");
            last_ns = at_ns[i];
            last = i;
            at_ns[i] = HARP_TIMER_NEVER;
        }
        for (i = 0; i < MANY; i++)
            CHECK(at_ns[i] > now_ns, "%u was due and is still there", i);
    }
    harp_timers_close(&timers);
}

int main(void)
{
    test_timers_are_taken_in_order();
    return 0;
}
