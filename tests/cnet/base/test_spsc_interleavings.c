/* The ring of two under all interleavings of a producer and a consumer.
 *
 * Both sides are coroutines that run the production code and switch at every access to what both
 * see. A schedule is the list of whose step comes next; all schedules are tried, depth first, each
 * from the start. Accesses here happen in the order of the schedule: that a CPU keeps to the order
 * which the code asks for is what acquire and release say, and ThreadSanitizer checks that they are
 * enough (test_spsc_threads). */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <ucontext.h>

static void take_step(void);
#define HARP_SPSC_STEP() take_step()
#include "base/spsc.h"

enum { CAPACITY = 2, ITEMS = 4, SIDES = 2, CALLS = 4, STEPS_MAX = 64, STACK_BYTES = 1 << 16 };

static ucontext_t scheduler, sides[SIDES];
static uint8_t stacks[SIDES][STACK_BYTES];
static _Alignas(2 * HARP_SPSC_LINE) uint8_t memory[1024];
static struct harp_spsc *ring;
static int running;
static bool done[SIDES];
static uint8_t next_in, next_out;
static const uint32_t *batches;

static void take_step(void)
{
    if (running < SIDES)
        swapcontext(&sides[running], &scheduler);
}

/* Items are their numbers, from 1: a slot never written shows as 0. */
static void put_some(uint32_t count)
{
    uint8_t items[ITEMS];
    if (count > (uint32_t)(ITEMS - next_in))
        count = (uint32_t)(ITEMS - next_in);
    for (uint32_t i = 0; i < count; i++)
        items[i] = (uint8_t)(next_in + i + 1);
    next_in = (uint8_t)(next_in + harp_spsc_put(ring, items, count));
}

static void take_some(uint32_t count)
{
    uint8_t items[ITEMS] = {0};
    uint32_t taken = harp_spsc_take(ring, items, count);
    assert(taken <= count);
    for (uint32_t i = 0; i < taken; i++)
        if (items[i] != ++next_out) {
            printf("item %d came where %d was due\n", items[i], next_out);
            exit(1);
        }
}

static void produce_all(void)
{
    for (int call = 0; call < CALLS; call++)
        put_some(batches[call]);
    done[0] = true;
}

static void consume_all(void)
{
    for (int call = 0; call < CALLS; call++)
        take_some(batches[CALLS + call]);
    done[1] = true;
}

static void begin_side(int side, void (*code)(void))
{
    done[side] = false;
    getcontext(&sides[side]);
    sides[side].uc_stack.ss_sp = stacks[side];
    sides[side].uc_stack.ss_size = STACK_BYTES;
    sides[side].uc_link = &scheduler;
    makecontext(&sides[side], code, 0);
}

static void begin_schedule(void)
{
    memset(memory, 0, sizeof memory);
    ring = harp_spsc_make(memory, CAPACITY, 1);
    next_in = next_out = 0;
    begin_side(0, produce_all);
    begin_side(1, consume_all);
}

/* One after the other, what the schedule left over: nothing may be lost. */
static void finish_rest(void)
{
    running = SIDES;
    while (next_out < ITEMS) {
        uint8_t before = next_out;
        put_some(ITEMS);
        take_some(ITEMS);
        if (next_out == before) {
            printf("lost after item %d\n", before);
            exit(1);
        }
    }
    take_some(ITEMS);
    assert(next_out == ITEMS);
}

/* Runs the schedule in `choice` up to `fixed` steps and lets side 0 go first from there; returns
 * how many steps there were and which side each time could have gone instead. */
static int play_schedule(int *choice, int fixed, bool *both)
{
    int steps = 0;
    begin_schedule();
    while (!done[0] || !done[1]) {
        assert(steps < STEPS_MAX);
        both[steps] = !done[0] && !done[1];
        if (steps >= fixed)
            choice[steps] = done[0];
        running = choice[steps++];
        swapcontext(&scheduler, &sides[running]);
    }
    finish_rest();
    return steps;
}

static long all_schedules(void)
{
    int choice[STEPS_MAX], fixed = 0;
    bool both[STEPS_MAX];
    long schedules = 0;
    for (;;) {
        int steps = play_schedule(choice, fixed, both);
        schedules++;
        int last = steps - 1;
        while (last >= 0 && !(both[last] && choice[last] == 0))
            last--;
        if (last < 0)
            return schedules;
        choice[last] = 1;
        fixed = last + 1;
    }
}

int main(void)
{
    /* Sizes of the batches: the producer's calls, then the consumer's. */
    static const uint32_t cases[][2 * CALLS] = {
        {1, 1, 1, 1, 1, 1, 1, 1}, {1, 2, 2, 1, 1, 2, 1, 2}, {4, 4, 4, 4, 4, 4, 4, 4}};
    long schedules = 0;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        batches = cases[i];
        schedules += all_schedules();
    }
    printf("%ld\n", schedules);
    return 0;
}
