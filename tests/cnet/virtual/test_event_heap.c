/* Virtual time: which event is next, and the numbers of chance. */
#include "check.h"
#include "virtual/event_heap.h"
#include "virtual/random.h"

enum { MANY = 300, STEPS = 20000 };

/* The first numbers of splitmix64 from seed 1234567, as published with its reference code. */
static void test_numbers_are_those_of_splitmix64(void)
{
    static const uint64_t known[] = {UINT64_C(6457827717110365317), UINT64_C(3203168211198807973),
                                     UINT64_C(9817491932198370423), UINT64_C(4593380528125082431),
                                     UINT64_C(16408922859458223821)};
    uint64_t random = 1234567;
    for (int i = 0; i < 5; i++)
        CHECK(virtual_draw(&random) == known[i], "number %d differs", i);
    for (int i = 0; i < 1000; i++)
        CHECK(virtual_below(&random, 7) < 7, "not below 7");
    CHECK(!virtual_chance(&random, 0) && virtual_chance(&random, 1000), "never, always");
}

/* Few times and many events, so that most events share their time with others. */
static void test_events_of_one_time_keep_their_order(void)
{
    struct virtual_events events;
    CHECK(virtual_events_open(&events, 0), "no memory");
    uint64_t random = 3;
    for (uint64_t i = 0; i < MANY; i++)
        CHECK(virtual_events_push(&events, virtual_below(&random, 5), i), "no memory");
    struct virtual_event last = {0};
    for (uint64_t i = 0; i < MANY; i++) {
        CHECK(virtual_events_next_ns(&events) < 5, "none is next");
        struct virtual_event event = virtual_events_take(&events);
        CHECK(!i || event.at_ns > last.at_ns ||
                  (event.at_ns == last.at_ns && event.what > last.what),
              "event %llu came out of order", (unsigned long long)event.what);
        last = event;
    }
    CHECK(virtual_events_next_ns(&events) == VIRTUAL_NEVER, "more came out than went in");
    virtual_events_close(&events);
}

/* Pushes and takes by chance, against an array that is searched. */
static void test_events_come_as_in_a_plain_list(void)
{
    static struct virtual_event list[MANY];
    size_t n = 0;
    struct virtual_events events;
    CHECK(virtual_events_open(&events, 4), "no memory");
    uint64_t random = 5, now_ns = 0;
    for (uint64_t step = 0; step < STEPS; step++) {
        bool grows = step / 500 % 2;
        if (n < MANY && virtual_chance(&random, grows ? 700 : 300)) {
            list[n++] = (struct virtual_event){now_ns + virtual_below(&random, 100), step, step};
            CHECK(virtual_events_push(&events, list[n - 1].at_ns, step), "no memory");
        } else if (n) {
            size_t next = 0;
            for (size_t i = 1; i < n; i++)
                if (list[i].at_ns < list[next].at_ns ||
                    (list[i].at_ns == list[next].at_ns && list[i].order < list[next].order))
                    next = i;
            struct virtual_event event = virtual_events_take(&events);
            CHECK(event.what == list[next].what && event.at_ns == list[next].at_ns,
                  "step %llu: another is next", (unsigned long long)step);
            now_ns = event.at_ns;
            list[next] = list[--n];
        }
        CHECK(events.n == n, "%zu are there, not %zu", events.n, n);
    }
    virtual_events_close(&events);
}

static void test_reserved_room_does_not_move(void)
{
    struct virtual_events events;
    CHECK(virtual_events_open(&events, 1), "no memory");
    CHECK(virtual_events_push(&events, 9, 9) && virtual_events_reserve(&events, 100), "no memory");
    const struct virtual_event *before = events.heap;
    for (uint64_t i = 0; i < 100; i++)
        virtual_events_push(&events, i, i);
    CHECK(events.heap == before, "the heap grew though room was reserved");
    CHECK(!virtual_events_reserve(&events, SIZE_MAX / 2), "so much memory");
    virtual_events_close(&events);
}

int main(void)
{
    test_numbers_are_those_of_splitmix64();
    test_events_of_one_time_keep_their_order();
    test_events_come_as_in_a_plain_list();
    test_reserved_room_does_not_move();
}
