#include "open_pieces.h"

static bool piece_writes(const struct harp_piece *piece)
{
    return piece->kind == HARP_PIECE_PLACE || piece->kind == HARP_PIECE_REDUCE;
}

static bool piece_blocks(const struct harp_piece *piece, const struct harp_piece *later)
{
    return (piece_writes(piece) || piece_writes(later)) &&
           (uintptr_t)piece->at < (uintptr_t)later->at + later->bytes &&
           (uintptr_t)later->at < (uintptr_t)piece->at + piece->bytes;
}

void open_pieces_add(struct open_pieces *pieces, const struct harp_piece *piece,
                     struct mover_run *run)
{
    struct open_piece *open = open_piece_at(pieces, pieces->next);
    *open = (struct open_piece){.piece = piece, .run = run, .slot = NO_SLOT};
    for (uint64_t number = pieces->first; number < pieces->next; number++) {
        const struct open_piece *before = open_piece_at(pieces, number);
        if (before->piece && piece_blocks(before->piece, piece))
            open->waits_for[number % OPEN_PIECES / 64] |= UINT64_C(1) << number % 64;
    }
    pieces->next++;
    pieces->n++;
}

void open_pieces_close(struct open_pieces *pieces, struct open_piece *open)
{
    uint32_t index = (uint32_t)(open - pieces->at);
    open->piece = NULL;
    pieces->n--;
    for (uint64_t number = pieces->first; number < pieces->next; number++)
        open_piece_at(pieces, number)->waits_for[index / 64] &= ~(UINT64_C(1) << index % 64);
    while (pieces->first < pieces->next && !open_piece_at(pieces, pieces->first)->piece)
        pieces->first++;
}

bool open_piece_waits(const struct open_piece *open)
{
    uint64_t any = 0;
    for (uint32_t i = 0; i < OPEN_PIECE_WORDS; i++)
        any |= open->waits_for[i];
    return any != 0;
}
