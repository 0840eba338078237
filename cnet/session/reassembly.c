#include "session/reassembly.h"

#define WAYS 8 /* places that an entry may have, so that few chunks compete for one */

/* Chunks of a message in a row have places in a row. */
static uint32_t place_of(uint32_t message, uint32_t chunk, uint32_t way)
{
    return (message * 37 + chunk + way) % HARP_REASSEMBLIES;
}

static bool is_busy(const struct harp_reassembly *table, uint32_t place)
{
    return table->busy >> place & 1;
}

int harp_reassembly_find(const struct harp_reassembly *table, uint32_t message, uint32_t chunk)
{
    for (uint32_t way = 0; table->busy && way < WAYS; way++) {
        uint32_t place = place_of(message, chunk, way);
        const struct harp_reassembly_entry *entry = &table->entries[place];
        if (is_busy(table, place) && entry->message == message && entry->chunk == chunk)
            return (int)place;
    }
    return -1;
}

static uint32_t find_room(const struct harp_reassembly *table, uint32_t message, uint32_t chunk)
{
    for (uint32_t way = 0; way < WAYS; way++)
        if (!is_busy(table, place_of(message, chunk, way)))
            return place_of(message, chunk, way);
    return place_of(message, chunk, 0);
}

int harp_reassembly_begin(struct harp_reassembly *table, const struct harp_header *header,
                          uint32_t chunk, uint8_t fragments)
{
    uint32_t message = header->message;
    int found = harp_reassembly_find(table, message, chunk);
    uint32_t place = found < 0 ? find_room(table, message, chunk) : (uint32_t)found;
    struct harp_reassembly_entry *entry = &table->entries[place];
    if (found >= 0 && entry->fragments == fragments)
        return found;
    *entry = (struct harp_reassembly_entry){
        .message = message, .size = header->size, .chunk = chunk, .fragments = fragments};
    table->busy |= UINT64_C(1) << place;
    return (int)place;
}

void harp_reassembly_forget(struct harp_reassembly *table, uint32_t message)
{
    for (uint64_t set = table->busy; set; set &= set - 1) {
        int place = __builtin_ctzll(set);
        if (table->entries[place].message == message)
            harp_reassembly_end(table, place);
    }
}
