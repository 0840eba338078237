/* A wait's time of looking: how it is learnt, within what looking is worth. */
#include "lightcc/waiting.h"

#include "base/clock.h"
#include "check.h"

static const uint64_t hour_ns = UINT64_C(3600000000000);

/* A wait that began at this time, and ends now. */
static void end_wait(struct waiting *waiting, uint64_t from_ns)
{
    waiting->from_ns = from_ns;
    waiting_end(waiting);
    CHECK(waiting->from_ns == 0 && !waiting->slept, "it waits on");
}

static void test_the_time_of_looking_doubles_with_short_waits_up_to_the_most(void)
{
    struct waiting waiting = {.most_ns = hour_ns};
    uint64_t before_ns = 0;
    for (int i = 0; i < 100; i++) {
        waiting_begin(&waiting);
        end_wait(&waiting, harp_clock_ns());
        CHECK(waiting.spin_ns == hour_ns || i == 0 || waiting.spin_ns == 2 * before_ns, "%llu ns",
              (unsigned long long)waiting.spin_ns);
        CHECK(waiting.spin_ns > 0 && waiting.spin_ns <= hour_ns, "beyond the most");
        before_ns = waiting.spin_ns;
    }
    CHECK(before_ns == hour_ns, "it never reaches the most");
}

static void test_it_halves_with_longer_waits_until_nothing_is_left(void)
{
    struct waiting waiting = {.most_ns = 1000, .spin_ns = 1000};
    for (uint64_t wanted_ns = 500; wanted_ns; wanted_ns /= 2) {
        end_wait(&waiting, harp_clock_ns() - hour_ns / 3600);
        CHECK(waiting.spin_ns == wanted_ns, "%llu ns", (unsigned long long)waiting.spin_ns);
    }
    waiting = (struct waiting){.most_ns = 700, .spin_ns = 4000};
    end_wait(&waiting, harp_clock_ns() - hour_ns / 3600);
    CHECK(waiting.spin_ns == 700, "it is worth less now");
}

static void test_nothing_is_learnt_where_nobody_waited(void)
{
    struct waiting waiting = {.most_ns = 1000, .spin_ns = 300};
    end_wait(&waiting, 0);
    CHECK(waiting.spin_ns == 300, "%llu ns", (unsigned long long)waiting.spin_ns);
}

static void test_a_look_after_the_end_is_none(void)
{
    struct waiting waiting = {.most_ns = hour_ns, .spin_ns = hour_ns};
    uint64_t now_ns = waiting_begin(&waiting);
    CHECK(waiting.moved_ns == now_ns, "when it began");
    CHECK(!waiting_look_or_sleep(&waiting, NULL, 0, NULL, now_ns - 1, hour_ns), "too late");
    CHECK(waiting_look_or_sleep(&waiting, NULL, 0, NULL, now_ns + hour_ns, hour_ns), "in time");
    CHECK(waiting.from_ns >= now_ns && !waiting.slept, "it looks, and does not sleep");
}

int main(void)
{
    test_the_time_of_looking_doubles_with_short_waits_up_to_the_most();
    test_it_halves_with_longer_waits_until_nothing_is_left();
    test_nothing_is_learnt_where_nobody_waited();
    test_a_look_after_the_end_is_none();
    return 0;
}
