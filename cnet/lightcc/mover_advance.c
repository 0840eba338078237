#include "mover_state.h"

#include <string.h>

static bool begin_send(struct harp_mover *mover, struct open_piece *open, uint64_t context)
{
    const struct harp_piece *piece = open->piece;
    struct peer *peer = &mover->peers[piece->peer];
    uint32_t said_bytes = said_bytes_of(open);
    uint8_t *copy = copies_next(&mover->copies);
    if (!piece->inline_descriptor && (piece->bytes > HARP_INLINE_DESCRIPTOR_BYTES || !copy)) {
        if (!harp_send(peer->connection, piece->at, piece->bytes, context))
            return false;
        open->progress = PIECE_BEGUN;
        return true;
    }
    if (!copy)
        return false;
    if (said_bytes)
        memcpy(copy, open->run->work->said, said_bytes);
    if (piece->bytes)
        memcpy(copy + said_bytes, piece->at, piece->bytes);
    if (!copies_send(&mover->copies, peer->connection, said_bytes + piece->bytes))
        return false;
    peer->copies++;
    mover_close_piece(mover, open);
    return true;
}

/* Whether what comes waits in a slot until it is looked at. */
static bool comes_by_slot(const struct harp_piece *piece)
{
    return piece->inline_descriptor || piece->kind == HARP_PIECE_REDUCE;
}

static bool post_piece(struct harp_mover *mover, struct open_piece *open, uint64_t context)
{
    const struct harp_piece *piece = open->piece;
    uint8_t *at = piece->at;
    uint32_t bytes = piece->bytes;
    if (comes_by_slot(piece)) {
        if (!mover->slots_free_n)
            return false;
        at = slot_at(mover, mover->slots_free[mover->slots_free_n - 1]);
        bytes =
            piece->inline_descriptor ? mover->slot_bytes : bytes; /* another call's may be longer */
    }
    if (!harp_receive(mover->peers[piece->peer].connection, at, bytes, context))
        return false;
    if (comes_by_slot(piece))
        open->slot = mover->slots_free[--mover->slots_free_n];
    open->progress = PIECE_BEGUN;
    return true;
}

static bool may_post(const struct open_piece *open)
{
    if (open->piece->inline_descriptor)
        return true;
    return !open->run->descriptors_due &&
           (open->piece->kind == HARP_PIECE_REDUCE || !open_piece_waits(open));
}

/* Put what came where it belongs. */
static void finish_piece(struct harp_mover *mover, struct open_piece *open)
{
    mover_put(mover, open, slot_at(mover, open->slot) + said_bytes_of(open), open->piece->bytes);
    mover_close_piece(mover, open);
}

/* What a pass over the open pieces has seen that holds back later ones: a piece that could not be
 * sent to a peer, or posted, and one without a slot. The last slot is for the first of these:
 * pieces that overtook it and had all slots could be for what a peer sends when it is done. */
struct held_back {
    uint64_t *sends, *posts; /* bits by peer */
    bool slots;
};

static bool test_and_hold(uint64_t *bits, uint32_t peer)
{
    bool held = bits[peer / 64] >> peer % 64 & 1;
    bits[peer / 64] |= UINT64_C(1) << peer % 64;
    return held;
}

static void release_peer(uint64_t *bits, uint32_t peer)
{
    bits[peer / 64] &= ~(UINT64_C(1) << peer % 64);
}

/* Do what can be done for a piece of a rank of this host: messages of a pair come in order. */
static bool advance_direct(struct harp_mover *mover, struct open_piece *open,
                           struct held_back *held)
{
    const struct harp_piece *piece = open->piece;
    bool sends = piece->kind == HARP_PIECE_SEND;
    uint64_t *bits = sends ? held->sends : held->posts;
    if (test_and_hold(bits, piece->peer) || (sends && open_piece_waits(open)))
        return false;
    bool moved = (sends ? mover_send_direct : mover_receive_direct)(mover, open);
    if (!open->piece)
        release_peer(bits, piece->peer);
    return moved;
}

/* Do what can be done for a piece now; says whether it moved. */
static bool advance_piece(struct harp_mover *mover, struct open_piece *open, uint64_t number,
                          struct held_back *held)
{
    const struct harp_piece *piece = open->piece;
    if (goes_direct(mover, piece))
        return advance_direct(mover, open, held);
    if (open->progress == PIECE_CAME && !open_piece_waits(open)) {
        finish_piece(mover, open);
        return true;
    }
    if (open->progress != PIECE_WAITS)
        return false;
    bool sends = piece->kind == HARP_PIECE_SEND;
    bool by_slot = !sends && comes_by_slot(piece), begun = false;
    uint64_t *bits = sends ? held->sends : held->posts;
    if (!test_and_hold(bits, piece->peer)) {
        if (sends)
            begun = !open_piece_waits(open) && begin_send(mover, open, number % OPEN_PIECES);
        else if (may_post(open) && !(by_slot && mover->slots_free_n <= held->slots))
            begun = post_piece(mover, open, number % OPEN_PIECES);
        if (begun)
            release_peer(bits, piece->peer);
    }
    held->slots |= by_slot && !begun;
    return begun;
}

bool mover_advance(struct harp_mover *mover)
{
    uint64_t sends[UINT16_MAX / 64 + 1], posts[UINT16_MAX / 64 + 1];
    size_t words = (mover->peers_n + 63) / 64;
    memset(sends, 0, words * sizeof *sends);
    memset(posts, 0, words * sizeof *posts);
    struct held_back held = {.sends = sends, .posts = posts};
    bool moved = false;
    for (uint64_t number = mover->open.first; number < mover->open.next; number++) {
        struct open_piece *open = open_piece_at(&mover->open, number);
        if (open->piece)
            moved |= advance_piece(mover, open, number, &held);
    }
    return moved;
}
