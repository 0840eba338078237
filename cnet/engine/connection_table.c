#include "engine/connection_table.h"

#include <assert.h>
#include <stdlib.h>

uint32_t harp_table_slots(uint32_t most)
{
    uint32_t slots = 16;
    while (slots < 4 * most)
        slots *= 2;
    return slots;
}

bool harp_table_open(struct harp_table *table, uint32_t most)
{
    uint32_t slots = harp_table_slots(most);
    *table = (struct harp_table){
        .slots = calloc(slots, sizeof *table->slots), .mask = slots - 1, .most = most};
    return table->slots != NULL;
}

void harp_table_close(struct harp_table *table)
{
    free(table->slots);
    table->slots = NULL;
}

bool harp_table_add(struct harp_table *table, uint64_t id, void *value)
{
    assert(id && value && !harp_table_find(table, id));
    if (table->used == table->most)
        return false;
    uint32_t i = (uint32_t)id & table->mask;
    while (table->slots[i].id)
        i = (i + 1) & table->mask;
    table->slots[i] = (struct harp_table_slot){id, value};
    table->used++;
    return true;
}

void harp_table_remove(struct harp_table *table, uint64_t id)
{
    uint32_t hole = (uint32_t)id & table->mask;
    while (table->slots[hole].id != id) {
        assert(table->slots[hole].id);
        hole = (hole + 1) & table->mask;
    }
    for (uint32_t i = (hole + 1) & table->mask; table->slots[i].id; i = (i + 1) & table->mask) {
        /* An entry may move to the hole unless its own place lies behind the hole. */
        uint32_t home = (uint32_t)table->slots[i].id & table->mask;
        if (((i - home) & table->mask) >= ((i - hole) & table->mask)) {
            table->slots[hole] = table->slots[i];
            hole = i;
        }
    }
    table->slots[hole] = (struct harp_table_slot){0, NULL};
    table->used--;
}
