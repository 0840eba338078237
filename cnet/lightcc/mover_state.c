#include "mover_state.h"

#include <string.h>

#include "base/copy_nontemporal.h"

void mover_open_piece(struct harp_mover *mover, struct mover_run *run)
{
    const struct harp_piece *piece = run->next++;
    open_pieces_add(&mover->open, piece, run);
    mover->peers[piece->peer].open++;
    mover->networked += !goes_direct(mover, piece);
    run->open++;
    run->descriptors_due += piece->inline_descriptor && piece->kind != HARP_PIECE_SEND;
}

/* Nothing more is wanted of its peer, which may leave. */
static void want_no_more(struct harp_mover *mover, const struct harp_piece *piece)
{
    mover->peers[piece->peer].open--;
    mover->networked -= !goes_direct(mover, piece);
}

void mover_close_piece(struct harp_mover *mover, struct open_piece *open)
{
    const struct harp_piece *piece = open->piece;
    if (open->slot != NO_SLOT)
        mover->slots_free[mover->slots_free_n++] = open->slot;
    if (open->progress != PIECE_CAME)
        want_no_more(mover, piece);
    open->run->open--;
    open_pieces_close(&mover->open, open);
}

void mover_keep_received(struct harp_mover *mover, struct open_piece *open)
{
    open->progress = PIECE_CAME;
    want_no_more(mover, open->piece);
}

void mover_fail(struct harp_mover *mover, enum harp_move result, uint32_t peer)
{
    if (mover->result == HARP_MOVE_DONE) {
        mover->result = result;
        mover->moved->peer = peer;
        mover->moved->run = 0;
    }
}

void mover_fail_piece(struct harp_mover *mover, const struct open_piece *open,
                      enum harp_move result, uint32_t came)
{
    if (mover->result != HARP_MOVE_DONE)
        return;
    mover_fail(mover, result, open->piece->peer);
    while (run_at(mover, mover->run_first + mover->moved->run) != open->run)
        mover->moved->run++;
    mover->moved->came = came;
    mover->moved->due = open->piece->bytes;
}

bool mover_check_descriptor(struct harp_mover *mover, struct open_piece *open, const uint8_t *came,
                            uint32_t bytes)
{
    const struct harp_piece *piece = open->piece;
    const struct harp_piece_work *work = open->run->work;
    if (bytes == work->said_bytes + piece->bytes && !memcmp(came, work->said, work->said_bytes)) {
        open->run->descriptors_due--;
        mover_keep_received(mover, open);
        return true;
    }
    if (mover->result != HARP_MOVE_DONE)
        return false;
    uint32_t heard_bytes = bytes < HARP_SAID_BYTES ? bytes : HARP_SAID_BYTES;
    mover_fail_piece(mover, open, HARP_MOVE_DIFFERS, bytes);
    memcpy(mover->moved->heard, came, heard_bytes);
    mover->moved->heard_bytes = heard_bytes;
    return false;
}

/* Two ranks that reduce what they have exchanged must take the same one as the first operand: the
 * greater of -0 and +0, or the sum of two kinds of NaN, depends on it. */
static void reduce_exchanged(const struct harp_mover *mover, const struct open_piece *open,
                             uint8_t *came)
{
    const struct harp_piece *piece = open->piece;
    harp_reduce *reduce = open->run->work->reduce;
    if (piece->peer > mover->rank) {
        reduce(piece->at, came, piece->bytes);
        return;
    }
    reduce(came, piece->at, piece->bytes);
    memcpy(piece->at, came, piece->bytes);
}

static void copy_temporal(uint8_t *to, const uint8_t *from, size_t bytes)
{
    memcpy(to, from, bytes);
}

void mover_put(const struct harp_mover *mover, const struct open_piece *open, uint8_t *came,
               uint32_t bytes)
{
    const struct harp_piece *piece = open->piece;
    if (bytes && piece->kind == HARP_PIECE_PLACE)
        (open->run->nontemporal ? harp_copy_nontemporal : copy_temporal)(piece->at + open->done,
                                                                         came, bytes);
    else if (bytes && piece->inline_descriptor)
        reduce_exchanged(mover, open, came);
    else if (bytes)
        open->run->work->reduce(piece->at + open->done, came, bytes);
}
