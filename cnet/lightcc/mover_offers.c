#include "mover_state.h"

#include <string.h>

#define READ_BYTES ((size_t)64 << 10) /* to be reduced before the next are read */

bool mover_offers(const struct harp_mover *mover, const struct harp_piece *piece)
{
    return mover->peers[piece->peer].reads && piece->bytes >= HARP_OFFER_LEAST;
}

bool mover_offer_piece(struct harp_mover *mover, struct open_piece *open, uint64_t context)
{
    const struct harp_piece *piece = open->piece;
    struct peer *peer = &mover->peers[piece->peer];
    uint8_t *copy = copies_next(&mover->copies, COPIES_KEPT);
    if (peer->answers.ended) /* it cannot have left: it is to have this piece */
        mover_fail(mover, HARP_MOVE_GONE, piece->peer);
    if (peer->answers.ended || !copy || !answers_make_room(&peer->answers))
        return false;
    struct piece_offer offer = {.word = peer->memory.word,
                                .at = (uintptr_t)piece->at,
                                .bytes = piece->bytes,
                                .number = (uint32_t)context};
    memcpy(copy, &offer, sizeof offer);
    if (!mover_send_copy(mover, peer, peer->connection, sizeof offer))
        return false;
    answers_expect(&peer->answers);
    open->progress = PIECE_BEGUN;
    return true;
}

void mover_take_answer(struct harp_mover *mover, uint32_t peer)
{
    struct open_piece *open =
        open_piece_at(&mover->open, answers_take(&mover->peers[peer].answers));
    if (open->piece && open->piece->kind == HARP_PIECE_SEND && open->piece->peer == peer &&
        open->progress == PIECE_BEGUN)
        mover_close_piece(mover, open);
}

bool mover_takes_offer(struct harp_mover *mover, struct open_piece *open, uint32_t bytes)
{
    const struct harp_piece *piece = open->piece;
    struct piece_offer offer;
    if (bytes != sizeof offer || !mover->peers[piece->peer].answers.connection)
        return false;
    memcpy(&offer, open->slot == NO_SLOT ? piece->at : slot_at(mover, open->slot), sizeof offer);
    if (offer.word != mover->shown)
        return false;
    if (offer.bytes != piece->bytes)
        mover_fail_size(mover, piece, offer.bytes);
    open->offer = offer;
    open->progress = PIECE_OFFERED;
    mover->peers[piece->peer].answers.owed++;
    return true;
}

/* Read a part of an offered piece; false if it cannot be had. */
static bool read_offered(struct harp_mover *mover, struct open_piece *open, uint8_t *to,
                         size_t offset, size_t bytes)
{
    uint32_t peer = open->piece->peer;
    switch (harp_peer_memory_read(&mover->peers[peer].memory, to, open->offer.at + offset, bytes)) {
    case HARP_PEER_READ:
        return true;
    case HARP_PEER_UNREADABLE:
        mover_fail(mover, HARP_MOVE_UNREADABLE, peer);
        mover->moved->due = open->piece->bytes;
        return false;
    default: /* the end of the peer, or the word of another, tells why */
        open->progress = PIECE_LOST;
        mover->peers[peer].answers.owed--;
        return false;
    }
}

static bool reduce_offered(struct harp_mover *mover, struct open_piece *open)
{
    const struct harp_piece *piece = open->piece;
    uint8_t *slot = slot_at(mover, open->slot);
    for (size_t done = 0; done < piece->bytes; done += READ_BYTES) {
        size_t bytes = piece->bytes - done < READ_BYTES ? piece->bytes - done : READ_BYTES;
        if (!read_offered(mover, open, slot, done, bytes))
            return false;
        mover->work->reduce(piece->at + done, slot, bytes);
    }
    return true;
}

/* A piece that must wait comes into its slot at once: whoever offered it may wait for the answer
 * before it answers what this piece waits for. */
static bool keep_offered(struct harp_mover *mover, struct open_piece *open)
{
    return read_offered(mover, open, slot_at(mover, open->slot), 0, open->piece->bytes);
}

static bool take_offered(struct harp_mover *mover, struct open_piece *open)
{
    const struct harp_piece *piece = open->piece;
    if (piece->kind != HARP_PIECE_REDUCE)
        return read_offered(mover, open, piece->at, 0, piece->bytes);
    open->is_kept = open_piece_waits(open);
    return (open->is_kept ? keep_offered : reduce_offered)(mover, open);
}

bool mover_read_piece(struct harp_mover *mover, struct open_piece *open)
{
    struct peer *peer = &mover->peers[open->piece->peer];
    if (open->progress == PIECE_OFFERED) {
        if (!take_offered(mover, open))
            return false;
        open->progress = PIECE_READ;
    }
    uint8_t *copy = copies_next(&mover->copies, 0);
    if (!copy)
        return false;
    memcpy(copy, &open->offer.number, sizeof open->offer.number);
    if (!mover_send_copy(mover, peer, peer->answers.connection, sizeof open->offer.number))
        return false;
    peer->answers.owed--;
    if (open->is_kept)
        mover_keep_received(mover, open);
    else
        mover_close_piece(mover, open);
    return true;
}
