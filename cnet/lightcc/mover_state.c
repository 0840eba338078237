#include "mover_state.h"

void mover_open_piece(struct harp_mover *mover, const struct harp_piece *piece)
{
    open_pieces_add(&mover->open, piece);
    mover->peers[piece->peer].open++;
    mover->networked += !goes_direct(mover, piece);
    mover->unheard += piece->told && piece->kind != HARP_PIECE_SEND;
}

/* Nothing more is wanted of its peer, who may leave. */
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
    open_pieces_close(&mover->open, open);
}

void mover_keep_received(struct harp_mover *mover, struct open_piece *open)
{
    open->progress = PIECE_CAME;
    want_no_more(mover, open->piece);
}

void mover_withdraw_offers(struct harp_mover *mover)
{
    if (mover->word)
        atomic_store(mover->word, 0);
    atomic_thread_fence(memory_order_seq_cst); /* before whoever owns the memory writes to it */
}

void mover_fail(struct harp_mover *mover, enum harp_move result, uint32_t peer)
{
    if (mover->result == HARP_MOVE_DONE) {
        mover->result = result;
        mover->moved->peer = peer;
        mover_withdraw_offers(mover);
    }
}

void mover_fail_size(struct harp_mover *mover, const struct harp_piece *piece, uint32_t came)
{
    mover_fail(mover, HARP_MOVE_SIZE, piece->peer);
    mover->moved->came = came;
    mover->moved->due = piece->bytes;
}

bool mover_send_copy(struct harp_mover *mover, struct peer *peer, struct harp_connection *to,
                     uint32_t bytes)
{
    if (!copies_send(&mover->copies, to, bytes))
        return false;
    peer->copies++;
    return true;
}
