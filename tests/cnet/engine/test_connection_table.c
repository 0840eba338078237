/* The table of connections, against a list. */
#include "engine/connection_table.h"

#include "check.h"
#include "draw.h"

enum { MOST = 100, STEPS = 100000 };

static uint64_t ids[MOST];
static char values[MOST];

/* Some ids have the same low bits, which are their hash, or those at the table's end. */
static uint64_t draw_id(void)
{
    uint64_t low = draw_below(2) ? draw_below(8) : 506 + draw_below(8);
    return (uint64_t)(1 + draw_below(1000)) << 32 | low;
}

static uint32_t place_of(uint64_t id)
{
    uint32_t i = 0;
    while (i < MOST && ids[i] != id)
        i++;
    return i;
}

static void test_each_id_leads_to_its_value_until_it_is_removed(void)
{
    struct harp_table table;
    uint32_t used = 0;
    CHECK(harp_table_open(&table, MOST), "no memory");
    for (uint32_t step = 0; step < STEPS; step++) {
        uint64_t id = draw_below(2) ? draw_id() : ids[draw_below(MOST)];
        if (!id)
            continue;
        uint32_t place = place_of(id);
        void *found = harp_table_find(&table, id);
        CHECK(found == (place < MOST ? &values[place] : NULL), "%llx", (unsigned long long)id);
        if (place < MOST && draw_below(3) == 0) {
            harp_table_remove(&table, id);
            ids[place] = 0;
            used--;
        } else if (place == MOST) {
            uint32_t free = place_of(0);
            bool room = free < MOST;
            CHECK(harp_table_add(&table, id, room ? &values[free] : values) == room, "room");
            if (room)
                ids[free] = id;
            used += room;
        }
        CHECK(table.used == used, "%u are there", used);
    }
    for (uint32_t i = 0; i < MOST; i++)
        CHECK(!ids[i] || harp_table_find(&table, ids[i]) == &values[i], "number %u is lost", i);
    harp_table_close(&table);
}

static void test_slots_are_a_power_of_two_and_four_for_each_entry(void)
{
    for (uint32_t most = 0; most < 3000; most++) {
        uint32_t slots = harp_table_slots(most);
        CHECK((slots & (slots - 1)) == 0 && slots >= 16 && slots >= 4 * most, "%u for %u", slots,
              most);
    }
}

int main(void)
{
    test_each_id_leads_to_its_value_until_it_is_removed();
    test_slots_are_a_power_of_two_and_four_for_each_entry();
    return 0;
}
