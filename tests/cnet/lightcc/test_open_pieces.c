/* The open pieces of a mover, against all pairs of pieces compared byte by byte. */
#include "lightcc/open_pieces.h"

#include "check.h"
#include "draw.h"

enum { PIECES = 3000, BYTES = 400 };

static uint8_t memory[BYTES];
static struct harp_piece all[PIECES];
static bool closed[PIECES];
static struct open_pieces open;

static bool piece_writes(const struct harp_piece *piece)
{
    return piece->kind == HARP_PIECE_PLACE || piece->kind == HARP_PIECE_REDUCE;
}

static bool share_a_byte(const struct harp_piece *one, const struct harp_piece *other)
{
    for (uint32_t i = 0; i < one->bytes; i++)
        if (one->at + i >= other->at && one->at + i < other->at + other->bytes)
            return true;
    return false;
}

static bool must_wait(uint64_t number)
{
    for (uint64_t before = 0; before < number; before++)
        if (!closed[before] && (piece_writes(&all[before]) || piece_writes(&all[number])) &&
            share_a_byte(&all[before], &all[number]))
            return true;
    return false;
}

static void add_piece(uint64_t number)
{
    const uint16_t kinds[] = {HARP_PIECE_SEND, HARP_PIECE_PLACE, HARP_PIECE_REDUCE};
    uint32_t bytes = 1 + draw_below(20);
    all[number] = (struct harp_piece){
        .at = memory + draw_below(BYTES - 20), .bytes = bytes, .kind = kinds[draw_below(3)]};
    open_pieces_add(&open, &all[number], NULL);
}

static void test_a_piece_waits_for_earlier_ones_of_its_bytes_and_no_others(void)
{
    uint64_t added = 0, left = 0;
    while (added < PIECES || left) {
        if (added < PIECES && !open_pieces_full(&open) && draw_below(2)) {
            add_piece(added++);
            left++;
        } else if (left) {
            uint64_t number = open.first + draw_below((uint32_t)(added - open.first));
            struct open_piece *piece = open_piece_at(&open, number);
            if (closed[number]) {
                CHECK(!piece->piece, "%llu is open again", (unsigned long long)number);
                continue;
            }
            bool waits = open_piece_waits(piece);
            CHECK(piece->piece == &all[number] && waits == must_wait(number), "%llu waits: %d",
                  (unsigned long long)number, waits);
            if (waits)
                continue;
            open_pieces_close(&open, piece);
            closed[number] = true;
            left--;
        }
        CHECK(open.n == left && open.next == added, "%u are open", open.n);
        CHECK(open.first == added || !closed[open.first], "the first one is closed");
    }
}

int main(void)
{
    test_a_piece_waits_for_earlier_ones_of_its_bytes_and_no_others();
    return 0;
}
