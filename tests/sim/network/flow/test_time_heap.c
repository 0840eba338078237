/* The heap of times, against a plain array in which the earliest is looked for. */
#include "time_heap.h"

#include <math.h>
#include <stdbool.h>

#include "check.h"
#include "draw.h"

enum { SLOTS = 300, STEPS = 60000 };

static struct time_entry entry[SLOTS];
static int32_t at[SLOTS];
static double key_s[SLOTS];
static bool in[SLOTS];
static struct time_heap heap = {.entry = entry, .at = at};

/* Few values, so that many are equal. */
static double draw_time(void)
{
    return draw_below(20) ? (double)draw_below(50) : INFINITY;
}

static int32_t find_earliest(void)
{
    int32_t first = -1;
    for (int32_t slot = 0; slot < SLOTS; slot++)
        if (in[slot] && (first < 0 || key_s[slot] < key_s[first]))
            first = slot;
    return first;
}

static void set_many(void)
{
    for (int32_t slot = 0; slot < SLOTS; slot++)
        if (in[slot])
            time_heap_set(&heap, slot, key_s[slot] = draw_time());
    time_heap_rebuild(&heap);
}

static void test_the_earliest_is_first_and_of_equal_times_the_lowest_slot(void)
{
    int64_t count = 0;
    for (int step = 0; step < STEPS; step++) {
        int32_t slot = (int32_t)draw_below(SLOTS);
        if (!in[slot]) {
            time_heap_push(&heap, slot, key_s[slot] = draw_time());
            in[slot] = true;
            count++;
        } else if (draw_below(2)) {
            time_heap_remove(&heap, slot);
            in[slot] = false;
            count--;
        } else {
            time_heap_change(&heap, slot, key_s[slot] = draw_time());
        }
        if (step % 5000 == 0)
            set_many();
        int32_t first = find_earliest();
        CHECK(heap.count == count, "%d are there", (int)heap.count);
        CHECK(first < 0 || heap.entry[0].slot == first, "%d is first, not %d", heap.entry[0].slot,
              first);
        CHECK(time_heap_first_s(&heap) == (first < 0 ? (double)INFINITY : key_s[first]), "time");
    }
}

static void test_all_are_taken_in_order(void)
{
    while (heap.count) {
        int32_t first = find_earliest();
        CHECK(heap.entry[0].slot == first, "%d is first, not %d", heap.entry[0].slot, first);
        time_heap_remove(&heap, first);
        in[first] = false;
    }
    CHECK(find_earliest() < 0 && isinf(time_heap_first_s(&heap)), "one is left");
}

int main(void)
{
    CHECK(isinf(time_heap_first_s(&heap)), "an empty heap has a first");
    test_the_earliest_is_first_and_of_equal_times_the_lowest_slot();
    test_all_are_taken_in_order();
    return 0;
}
