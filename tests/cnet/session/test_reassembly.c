/* Chunks with fragments missing: found by message and chunk, and forgotten. */
#include "session/reassembly.h"

#include <assert.h>

#include "draw.h"

static int begin_chunk(struct harp_reassembly *table, uint32_t message, uint32_t chunk,
                       uint8_t fragments)
{
    struct harp_header header = {.message = message, .size = message + 5};
    return harp_reassembly_begin(table, &header, chunk, fragments);
}

/* At random, against a list of what each place was last given to. */
static void test_an_entry_is_its_chunks_until_another_takes_its_place(void)
{
    static struct harp_reassembly table;
    struct {
        uint32_t message, chunk;
        bool busy;
    } owner[HARP_REASSEMBLIES] = {0};
    for (int turn = 0; turn < 20000; turn++) {
        uint32_t message = UINT32_MAX - 2 + draw_below(6), chunk = draw_below(30), busy = 0;
        int found = harp_reassembly_find(&table, message, chunk), wanted = -1;
        for (int i = 0; i < HARP_REASSEMBLIES; i++) {
            busy += owner[i].busy;
            if (owner[i].busy && owner[i].message == message && owner[i].chunk == chunk)
                wanted = i;
        }
        assert(found == wanted && harp_reassembly_count(&table) == busy);
        if (draw_below(100) == 0) {
            harp_reassembly_forget(&table, message);
            for (int i = 0; i < HARP_REASSEMBLIES; i++)
                owner[i].busy &= owner[i].message != message;
        } else if (found >= 0 && draw_below(2)) {
            harp_reassembly_end(&table, found);
            owner[found].busy = false;
        } else {
            int at = begin_chunk(&table, message, chunk, 4);
            assert(at >= 0 && at < HARP_REASSEMBLIES && (found < 0 || at == found));
            assert(table.entries[at].size == message + 5);
            owner[at].message = message, owner[at].chunk = chunk, owner[at].busy = true;
        }
    }
}

static void test_a_few_chunks_in_a_row_have_places_of_their_own(void)
{
    struct harp_reassembly table = {0};
    for (uint32_t chunk = 0; chunk < HARP_REASSEMBLIES; chunk++)
        begin_chunk(&table, 9, chunk, 2);
    assert(harp_reassembly_count(&table) == HARP_REASSEMBLIES);
    begin_chunk(&table, 10, 0, 2); /* the oldest that are in its place are sent again */
    assert(harp_reassembly_count(&table) == HARP_REASSEMBLIES);
    assert(harp_reassembly_find(&table, 10, 0) >= 0);
}

static void test_fragments_of_another_size_begin_anew(void)
{
    struct harp_reassembly table = {0};
    int at = begin_chunk(&table, 3, 1, 4);
    table.entries[at].come = 5;
    table.entries[at].marked = true;
    assert(begin_chunk(&table, 3, 1, 4) == at && table.entries[at].come == 5);
    assert(begin_chunk(&table, 3, 1, 7) == at);
    assert(!table.entries[at].come && !table.entries[at].marked);
    assert(table.entries[at].fragments == 7 && harp_reassembly_count(&table) == 1);
}

int main(void)
{
    test_an_entry_is_its_chunks_until_another_takes_its_place();
    test_a_few_chunks_in_a_row_have_places_of_their_own();
    test_fragments_of_another_size_begin_anew();
    return 0;
}
