#include "mover_state.h"

static void take_received(struct harp_mover *mover, struct open_piece *open, uint32_t bytes)
{
    const struct harp_piece *piece = open->piece;
    if (piece->inline_descriptor) {
        mover_check_descriptor(mover, open, slot_at(mover, open->slot), bytes);
    } else if (bytes != piece->bytes) {
        mover_fail_piece(mover, open, HARP_MOVE_SIZE, bytes);
    } else if (piece->kind == HARP_PIECE_REDUCE) {
        mover_keep_received(mover, open);
    } else {
        mover_close_piece(mover, open);
    }
}

static void take_completion(struct harp_mover *mover, uint32_t number,
                            const struct harp_completion *done)
{
    struct peer *peer = &mover->peers[number];
    switch (done->type) {
    case HARP_COMPLETION_SENT:
        if (done->context & COPY_CONTEXT) {
            copies_sent(&mover->copies, done->context);
            peer->copies--;
        } else {
            mover_close_piece(mover, &mover->open.at[done->context]);
        }
        break;
    case HARP_COMPLETION_RECEIVED:
        peer->left -= peer->left > 0;
        take_received(mover, &mover->open.at[done->context], done->size);
        break;
    case HARP_COMPLETION_CLOSED:
        peer->left = peer->ended ? 0 : done->size;
        peer->ended = true;
        if (mover->direct)
            direct_look(mover->direct); /* what it sent before counts */
        break;
    default:
        break;
    }
}

static bool has_all_of(const struct harp_mover *mover, uint32_t number)
{
    return !mover->peers[number].left &&
           !(direct_reaches(mover->direct, number) && direct_first(mover->direct, number));
}

/* Nobody minds the end of a peer of whom nothing is wanted any more. */
static bool wants_what_ended(const struct harp_mover *mover, uint32_t number)
{
    const struct peer *peer = &mover->peers[number];
    return peer->ended && peer->open && has_all_of(mover, number);
}

bool mover_poll_peers(struct harp_mover *mover)
{
    struct harp_completion done[16];
    bool moved = false;
    for (uint32_t i = 0; i < mover->peers_n; i++) {
        if (!mover->peers[i].connection)
            continue;
        size_t n = harp_poll(mover->peers[i].connection, done, sizeof done / sizeof *done);
        moved |= n > 0;
        for (size_t k = 0; k < n && mover->result == HARP_MOVE_DONE; k++)
            take_completion(mover, i, &done[k]);
        if (wants_what_ended(mover, i))
            mover_fail(mover, HARP_MOVE_GONE, i);
    }
    return moved;
}
