/* Connection ids to connections: a hash table with linear probing.
 *
 * Ids are random, so an id's low bits are its hash. The table has at least four times as many slots
 * as entries, so a look-up touches one cache line nearly always. Removal moves later entries of the
 * run back, so there are no graves.
 *
 * Owner: one engine. No function but harp_table_open allocates.
 */
#ifndef HARP_CONNECTION_TABLE_H
#define HARP_CONNECTION_TABLE_H

#include <stdbool.h>
#include <stdint.h>

struct harp_table_slot {
    uint64_t id; /* 0: free */
    void *value;
};

struct harp_table {
    struct harp_table_slot *slots;
    uint32_t mask;
    uint32_t used, most;
};

/* Slots of a table for `most` entries: a power of two. */
uint32_t harp_table_slots(uint32_t most);

/* Room for `most` entries. False without memory. */
bool harp_table_open(struct harp_table *table, uint32_t most);
void harp_table_close(struct harp_table *table);

/* `id` is not 0 and not there; false if the table is full. */
bool harp_table_add(struct harp_table *table, uint64_t id, void *value);
void harp_table_remove(struct harp_table *table, uint64_t id);

/* NULL if it is not there. */
static inline void *harp_table_find(const struct harp_table *table, uint64_t id)
{
    for (uint32_t i = (uint32_t)id & table->mask; table->slots[i].id; i = (i + 1) & table->mask)
        if (table->slots[i].id == id)
            return table->slots[i].value;
    return 0;
}

#endif
