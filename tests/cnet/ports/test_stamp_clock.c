/* Ages of packets by the kernel's time stamps, while the calendar is set (ports/stamp_clock.h). */
#include <assert.h>

#include "ports/stamp_clock.h"

#define MS UINT64_C(1000000)
#define CALENDAR UINT64_C(1800000000000000000)

/* A packet comes at 10 ms, the calendar is set at 11 ms, and both are read at 12 ms. */
static uint32_t age_across(uint64_t step_ns)
{
    struct harp_stamp_clock clock = {0};
    harp_stamp_clock_read(&clock, 1 * MS, CALENDAR + 1 * MS);
    harp_stamp_clock_read(&clock, 12 * MS, CALENDAR + step_ns + 12 * MS);
    return harp_stamp_age_ns(&clock, CALENDAR + 10 * MS);
}

static void test_age_without_a_step(void)
{
    assert(age_across(0) == 2 * MS);
    assert(age_across(1000) <= 2 * MS && age_across(1000) >= 2 * MS - 1000); /* read apart */
}

static void test_no_age_across_a_step(void)
{
    const uint64_t steps_ns[] = {50000, 1 * MS, 3600000 * MS};
    for (int i = 0; i < 3; i++) {
        assert(age_across(steps_ns[i]) == 0);
        assert(age_across(-steps_ns[i]) <= 2 * MS); /* never older than it is */
    }
}

static void test_ages_after_a_step(void)
{
    struct harp_stamp_clock clock = {0};
    harp_stamp_clock_read(&clock, 1 * MS, CALENDAR + 1 * MS);
    harp_stamp_clock_read(&clock, 12 * MS, CALENDAR + 512 * MS);
    harp_stamp_clock_read(&clock, 20 * MS, CALENDAR + 520 * MS);
    assert(harp_stamp_age_ns(&clock, CALENDAR + 10 * MS) == 0); /* from before, read late */
    assert(harp_stamp_age_ns(&clock, CALENDAR + 517 * MS) == 3 * MS);
    assert(harp_stamp_age_ns(&clock, CALENDAR + 521 * MS) == 0); /* not yet */
}

int main(void)
{
    test_age_without_a_step();
    test_no_age_across_a_step();
    test_ages_after_a_step();
    return 0;
}
