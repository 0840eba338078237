/* Order of due connections: sets of calls, turns that are shared. */
#include "base/ready_set.h"
#include "check.h"
#include "draw.h"
#include "engine/schedule.h"

#include <pthread.h>

enum { MANY = 3000 };

static void test_a_ready_set_hands_out_each_member_once(void)
{
    static bool in[MANY];
    struct harp_ready_set set;
    CHECK(harp_ready_set_open(&set, 10 * MANY), "no memory");
    for (uint32_t round = 0; round < 200; round++) {
        uint32_t n = 0, i;
        for (uint32_t k = draw_below(100); k; k--) {
            i = draw_below(MANY);
            n += !in[i];
            in[i] = true;
            harp_ready_set_add(&set, 10 * i);
        }
        CHECK(harp_ready_set_any(&set) == (n > 0), "any");
        struct harp_ready_walk walk = {0};
        while (harp_ready_set_take(&set, &walk, &i)) {
            CHECK(i % 10 == 0 && in[i / 10], "%u is no member", i);
            in[i / 10] = false;
            n--;
        }
        CHECK(n == 0 && !harp_ready_set_any(&set), "%u were not handed out", n);
    }
    harp_ready_set_close(&set);
}

/* Producers count up, each its own counter; the consumer must see the last value of all. */
enum { PRODUCERS = 3, NUMBERS = 200, ADDS = 100000 };
static struct harp_ready_set shared;
static _Atomic uint32_t changed[PRODUCERS][NUMBERS];
static _Atomic uint32_t running = PRODUCERS;

static void *produce_numbers(void *argument)
{
    uint32_t p = (uint32_t)(uintptr_t)argument;
    for (uint32_t n = 0; n < ADDS; n++) {
        uint32_t i = n % NUMBERS;
        atomic_fetch_add_explicit(&changed[p][i], 1, memory_order_release);
        harp_ready_set_add(&shared, i * PRODUCERS + p);
    }
    atomic_fetch_sub(&running, 1);
    return NULL;
}

static void test_no_change_is_missed(void)
{
    static uint32_t seen[PRODUCERS][NUMBERS];
    pthread_t threads[PRODUCERS];
    CHECK(harp_ready_set_open(&shared, PRODUCERS * NUMBERS), "no memory");
    for (uintptr_t p = 0; p < PRODUCERS; p++)
        CHECK(pthread_create(&threads[p], NULL, produce_numbers, (void *)p) == 0, "thread");
    for (bool last = false, done = false; !done; done = last) {
        last = atomic_load(&running) == 0;
        struct harp_ready_walk walk = {0};
        for (uint32_t i; harp_ready_set_take(&shared, &walk, &i);)
            seen[i % PRODUCERS][i / PRODUCERS] =
                atomic_load_explicit(&changed[i % PRODUCERS][i / PRODUCERS], memory_order_acquire);
    }
    for (uint32_t p = 0; p < PRODUCERS; p++) {
        pthread_join(threads[p], NULL);
        for (uint32_t i = 0; i < NUMBERS; i++)
            CHECK(seen[p][i] == changed[p][i], "%u of %u changes were seen", seen[p][i],
                  changed[p][i]);
    }
    harp_ready_set_close(&shared);
}

static void serve_turns(struct harp_schedule *schedule, uint32_t wanted)
{
    uint32_t i = harp_schedule_next(schedule);
    CHECK(i == wanted, "%u is served, not %u", i, wanted);
}

/* Four connections, a port with room for one: each gets it in turn. */
static void test_a_connection_that_found_no_room_comes_first(void)
{
    struct harp_schedule schedule;
    CHECK(harp_schedule_open(&schedule, 4), "no memory");
    for (uint32_t i = 0; i < 4; i++)
        harp_schedule_wake(&schedule, i);
    uint64_t now_ns = 1000;
    for (uint32_t turn = 0; turn < 100; turn++) {
        CHECK(harp_schedule_begin(&schedule, now_ns) == 4, "not all are due");
        for (uint32_t i = 0; i < 4; i++) {
            serve_turns(&schedule, (turn + i) % 4);
            if (i == 0)
                harp_schedule_again(&schedule, turn % 4);
            else
                harp_schedule_blocked(&schedule, (turn + i) % 4);
        }
        harp_schedule_end(&schedule, now_ns);
        CHECK(harp_schedule_deadline_ns(&schedule) <= now_ns, "one has more to send");
    }
    harp_schedule_close(&schedule);
}

static void test_a_queue_that_is_blocked_waits(void)
{
    struct harp_schedule schedule;
    CHECK(harp_schedule_open(&schedule, 4), "no memory");
    CHECK(harp_schedule_deadline_ns(&schedule) == HARP_TIMER_NEVER, "nobody is due");
    harp_schedule_wake(&schedule, 2);
    harp_schedule_wait(&schedule, 3, 5000);
    CHECK(harp_schedule_begin(&schedule, 1000) == 1, "one is due");
    serve_turns(&schedule, 2);
    harp_schedule_blocked(&schedule, 2);
    harp_schedule_end(&schedule, 1000);
    CHECK(harp_schedule_deadline_ns(&schedule) == 5000, "the timer is first");
    CHECK(harp_schedule_begin(&schedule, 2000) == 0, "nobody has room yet");
    harp_schedule_end(&schedule, 2000);
    CHECK(harp_schedule_begin(&schedule, 5000) == 2, "a timer wakes, and all are tried");
    serve_turns(&schedule, 2);
    serve_turns(&schedule, 3);
    harp_schedule_blocked(&schedule, 2);
    harp_schedule_wait(&schedule, 3, HARP_TIMER_NEVER);
    harp_schedule_end(&schedule, 5000);
    CHECK(harp_schedule_deadline_ns(&schedule) == 5000 + HARP_RETRY_NS,
          "tried again after a while");
    CHECK(harp_schedule_begin(&schedule, 5000 + HARP_RETRY_NS) == 1, "now");
    serve_turns(&schedule, 2);
    harp_schedule_wait(&schedule, 2, HARP_TIMER_NEVER);
    harp_schedule_end(&schedule, 5000 + HARP_RETRY_NS);
    CHECK(harp_schedule_deadline_ns(&schedule) == HARP_TIMER_NEVER, "nobody is due");
    harp_schedule_close(&schedule);
}

/* Many that are blocked for ever keep nobody from being served, though turns are short. */
static void test_short_turns_reach_everybody(void)
{
    struct harp_schedule schedule;
    uint32_t served = 0;
    CHECK(harp_schedule_open(&schedule, 100), "no memory");
    for (uint32_t i = 0; i < 100; i++)
        harp_schedule_wake(&schedule, i);
    for (uint32_t turn = 0; turn < 20; turn++) {
        harp_schedule_begin(&schedule, 1000);
        for (uint32_t k = 0; k < 10; k++) {
            uint32_t i = harp_schedule_next(&schedule);
            served += i == 99;
            if (i == 99)
                harp_schedule_again(&schedule, i);
            else
                harp_schedule_blocked(&schedule, i);
        }
        harp_schedule_end(&schedule, 1000);
    }
    CHECK(served == 2, "the last was served %u times in two rounds", served);
    harp_schedule_close(&schedule);
}

int main(void)
{
    test_a_ready_set_hands_out_each_member_once();
    test_no_change_is_missed();
    test_a_connection_that_found_no_room_comes_first();
    test_a_queue_that_is_blocked_waits();
    test_short_turns_reach_everybody();
    return 0;
}
