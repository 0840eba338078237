/* Progress of the open pieces: sends, receives and the completions of the network. */
#include "mover_state.h"

#include <string.h>

/* ---- Pieces of a rank of this host, straight through memory ---- */

/* Says whether the ring has all of it. */
static bool write_piece(struct harp_mover *mover, struct open_piece *open)
{
    const struct harp_piece *piece = open->piece;
    if (piece->inline_descriptor)
        return direct_write_described(mover->direct, piece->peer, open->run->work->said,
                                      said_bytes_of(open), piece->at, piece->bytes);
    return direct_write(mover->direct, piece->peer, piece->at, piece->bytes, &open->done);
}

/* Write what there is room for of a piece, and close it when all is written. Whether it moved. */
static bool send_direct(struct harp_mover *mover, struct open_piece *open)
{
    uint32_t peer = open->piece->peer, before = open->done;
    if (write_piece(mover, open)) {
        mover_close_piece(mover, open);
        return true;
    }
    if (mover->peers[peer].ended && !direct_lives(mover->direct, peer))
        mover_fail(mover, HARP_MOVE_GONE, peer);
    return open->done != before;
}

/* Whether a record is the next part of the piece; else all has failed. A description is looked at
 * before what it carries may be touched. */
static bool check_record(struct harp_mover *mover, struct open_piece *open,
                         const struct direct_record *record)
{
    const struct harp_piece *piece = open->piece;
    if (piece->inline_descriptor && open->progress == PIECE_WAITS)
        return mover_check_descriptor(mover, open, record->at, record->bytes);
    uint32_t left = piece->bytes - open->done;
    uint32_t due = left < DIRECT_RECORD_BYTES ? left : DIRECT_RECORD_BYTES;
    if (piece->inline_descriptor || (record->whole == piece->bytes && record->bytes == due))
        return true;
    mover_fail_piece(mover, open, HARP_MOVE_SIZE, record->whole);
    return false;
}

/* Put what came where it belongs, and let its peer write over it. */
static void put_record(struct harp_mover *mover, struct open_piece *open,
                       const struct direct_record *record)
{
    const struct harp_piece *piece = open->piece;
    uint32_t said_bytes = said_bytes_of(open), bytes = record->bytes - said_bytes;
    mover_put(mover, open, record->at + said_bytes, bytes);
    open->done += bytes;
    direct_drop(mover->direct, piece->peer);
}

/* Take what is there of a piece, and close it when all of it came. Whether it moved. */
static bool receive_direct(struct harp_mover *mover, struct open_piece *open)
{
    const struct harp_piece *piece = open->piece;
    const struct direct_record *record;
    bool moved = false;
    if (open->run->descriptors_due && !piece->inline_descriptor)
        return false;
    while ((record = direct_first(mover->direct, piece->peer))) {
        if (!check_record(mover, open, record))
            return true;
        if (open_piece_waits(open))
            return moved;
        put_record(mover, open, record);
        moved = true;
        if (open->done < piece->bytes)
            continue;
        mover_close_piece(mover, open);
        break;
    }
    return moved;
}

/* ---- Advance the open pieces ---- */

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

/* Pieces that a pass over the open ones has met and that hold back later ones: one that could not
 * be sent to a peer, or posted, and one without a slot. The last slot is for the first of these:
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
    bool moved = (sends ? send_direct : receive_direct)(mover, open);
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

/* ---- Completions of the network ---- */

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

/* Whether a peer has ended though pieces still need it; otherwise its end is no failure. */
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
