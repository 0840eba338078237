/* The pool of packets and rows of them, against a plain list. */
#include <string.h>

#include "check.h"
#include "draw.h"
#include "world.h"

enum { MOST = 200, STEPS = 50000 };

static struct packet_world world;

static void test_packets_are_their_takers_until_they_are_given_back(void)
{
    static bool taken[MOST];
    uint32_t held[MOST], held_n = 0;
    for (int step = 0; step < STEPS; step++) {
        if (held_n < MOST && draw_below(2)) {
            uint32_t number = take_packet(&world);
            CHECK(number < MOST && !taken[number], "packet %u twice", number);
            taken[number] = true;
            world.pool.packets[number].body = draw_below(3) ? NO_PACKET : take_body(&world);
            held[held_n++] = number;
        } else if (held_n) {
            uint32_t at = draw_below(held_n), number = held[at];
            give_packet_back(&world, number);
            taken[number] = false;
            held[at] = held[--held_n];
        }
        for (uint32_t i = 0; step % 100 == 0 && i < held_n; i++)
            for (uint32_t j = 0; j < i; j++)
                CHECK(world.pool.packets[held[i]].body == NO_PACKET ||
                          world.pool.packets[held[i]].body != world.pool.packets[held[j]].body,
                      "two packets have one body");
    }
    while (held_n)
        give_packet_back(&world, held[--held_n]);
}

static void test_a_row_gives_packets_in_the_order_in_which_they_came(void)
{
    struct row row = {NO_PACKET, NO_PACKET};
    uint32_t list[MOST], first = 0, n = 0;
    for (int step = 0; step < STEPS; step++) {
        if (n < MOST && draw_below(2)) {
            uint32_t number = take_packet(&world);
            list[(first + n++) % MOST] = number;
            append_packet(&world, &row, number);
        } else if (n) {
            uint32_t number = remove_first_packet(&world, &row);
            CHECK(number == list[first], "%u is not the first", number);
            first = (first + 1) % MOST;
            n--;
            world.pool.packets[number].body = NO_PACKET;
            give_packet_back(&world, number);
        }
        CHECK((row.first == NO_PACKET) == (n == 0), "%u are there", n);
    }
}

/* However many are due, the wheel has one event: of the first of them. */
static void test_a_row_of_due_packets_has_an_event_for_its_first(void)
{
    const uint64_t what = (uint64_t)LINK_DELIVERS << KIND_SHIFT | 7;
    struct row row = {NO_PACKET, NO_PACKET};
    for (uint32_t i = 0; i < MOST; i++) {
        uint32_t number = take_packet(&world);
        world.pool.packets[number].body = NO_PACKET;
        world.pool.packets[number].at_ns = 100 * i;
        append_due_packet(&world, &row, number, LINK_DELIVERS, 7);
    }
    for (uint32_t i = 0; i < MOST; i++) {
        CHECK(virtual_wheel_next_ns(&world.events) == 100 * i, "packet %u is not due next", i);
        CHECK(virtual_wheel_take(&world.events) == what, "another's event");
        CHECK(virtual_wheel_next_ns(&world.events) == VIRTUAL_NEVER, "packet %u has two", i);
        uint32_t number = remove_due_packet(&world, &row, LINK_DELIVERS, 7);
        CHECK(world.pool.packets[number].at_ns == 100 * i, "packet %u", i);
        give_packet_back(&world, number);
    }
    CHECK(virtual_wheel_next_ns(&world.events) == VIRTUAL_NEVER, "an event without a packet");
}

int main(void)
{
    world.pool.idle_packet = NO_PACKET;
    CHECK(virtual_wheel_open(&world.events), "no memory");
    test_packets_are_their_takers_until_they_are_given_back();
    test_a_row_gives_packets_in_the_order_in_which_they_came();
    test_a_row_of_due_packets_has_an_event_for_its_first();
    virtual_wheel_close(&world.events);
    free(world.pool.packets);
    free(world.pool.bodies);
    free(world.pool.idle_bodies);
    return 0;
}
