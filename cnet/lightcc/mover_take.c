#include "mover_state.h"

#include <string.h>

static void take_told(struct harp_mover *mover, struct open_piece *open, const uint8_t *came,
                      uint32_t bytes)
{
    const struct harp_piece *piece = open->piece;
    const struct harp_piece_work *work = mover->work;
    if (bytes != work->said_bytes + piece->bytes || memcmp(came, work->said, work->said_bytes)) {
        uint32_t heard_bytes = bytes < HARP_SAID_BYTES ? bytes : HARP_SAID_BYTES;
        mover_fail(mover, HARP_MOVE_DIFFERS, piece->peer);
        memcpy(mover->moved->heard, came, heard_bytes);
        mover->moved->heard_bytes = heard_bytes;
        return;
    }
    mover->unheard--;
    mover_keep_received(mover, open);
}

bool mover_take_direct(struct harp_mover *mover, struct open_piece *open)
{
    const struct direct_message *message = direct_first(mover->direct, open->piece->peer);
    if (message)
        take_told(mover, open, message->at, message->bytes);
    return message != NULL;
}

static void take_received(struct harp_mover *mover, struct open_piece *open, uint32_t bytes)
{
    const struct harp_piece *piece = open->piece;
    if (piece->told) {
        take_told(mover, open, slot_at(mover, open->slot), bytes);
    } else if (mover_takes_offer(mover, open, bytes)) {
        return;
    } else if (bytes != piece->bytes) {
        mover_fail_size(mover, piece, bytes);
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

/* All answers that are there: nobody minds the end of a peer that has all. */
static bool poll_answers(struct harp_mover *mover, uint32_t number)
{
    struct peer *peer = &mover->peers[number];
    struct harp_completion done[16];
    size_t n = 0, all = 0;
    do {
        n = harp_poll(peer->answers.connection, done, sizeof done / sizeof *done);
        for (size_t k = 0; k < n; k++) {
            if (done[k].type == HARP_COMPLETION_RECEIVED)
                mover_take_answer(mover, number);
            else if (done[k].type == HARP_COMPLETION_SENT)
                take_completion(mover, number, &done[k]);
            else if (done[k].type == HARP_COMPLETION_CLOSED)
                peer->answers.ended = true;
        }
        all += n;
    } while (n);
    return all > 0;
}

static bool has_all_of(const struct harp_mover *mover, uint32_t number)
{
    return !mover->peers[number].left && !(mover->direct && direct_first(mover->direct, number));
}

/* Nobody minds the end of a peer of whom nothing is wanted any more. */
static bool wants_what_ended(const struct harp_mover *mover, uint32_t number)
{
    const struct peer *peer = &mover->peers[number];
    const struct answers *answers = &peer->answers;
    return (peer->ended && peer->open && has_all_of(mover, number)) ||
           (answers->ended && (answers->due || answers->owed));
}

bool mover_poll_peers(struct harp_mover *mover)
{
    struct harp_completion done[16];
    bool moved = false;
    for (uint32_t i = 0; i < mover->peers_n; i++) {
        if (!mover->peers[i].connection)
            continue;
        if (mover->peers[i].answers.connection)
            moved |= poll_answers(mover, i);
        size_t n = harp_poll(mover->peers[i].connection, done, sizeof done / sizeof *done);
        moved |= n > 0;
        for (size_t k = 0; k < n && mover->result == HARP_MOVE_DONE; k++)
            take_completion(mover, i, &done[k]);
        if (wants_what_ended(mover, i))
            mover_fail(mover, HARP_MOVE_GONE, i);
    }
    return moved;
}
