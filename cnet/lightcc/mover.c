#include "open_pieces.h"
#include "waiting.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define COPIES 64 /* of small messages that may be under way */
#define COPY_BYTES (HARP_SAID_BYTES + HARP_TOLD_BYTES)
#define COPY_CONTEXT (UINT64_C(1) << 32)

struct peer {
    struct harp_connection *connection;
    uint32_t open;   /* pieces of it */
    uint32_t copies; /* on their way to it */
    bool ended;
    uint32_t left; /* messages that came before its end and are to be posted for */
};

struct harp_mover {
    struct harp_engine **engines;
    uint32_t engines_n;
    struct peer *peers;
    uint32_t peers_n, rank;
    uint8_t *slots;
    uint32_t slot_bytes, slots_n, slots_free_n, *slots_free;
    uint8_t copies[COPIES][COPY_BYTES];
    uint32_t copies_free[COPIES], copies_free_n;
    _Atomic bool cancelled;
    struct waiting waiting;
    /* The run. */
    uint64_t end_ns;
    const struct harp_piece *next, *end;
    struct open_pieces open;
    uint32_t unheard; /* told pieces whose description has not come yet */
    const struct harp_piece_work *work;
    enum harp_move result;
    struct harp_moved *moved;
};

struct harp_mover *harp_mover_new(const struct harp_mover_config *config)
{
    struct harp_mover *mover = calloc(1, sizeof *mover);
    if (!mover)
        return NULL;
    mover->engines = calloc(config->engines_n + 1, sizeof(struct harp_engine *));
    mover->peers = calloc(config->peers + 1, sizeof *mover->peers);
    mover->slots = malloc((size_t)config->slots * config->slot_bytes + 1);
    mover->slots_free = calloc(config->slots + 1, sizeof *mover->slots_free);
    if (!mover->engines || !mover->peers || !mover->slots || !mover->slots_free) {
        harp_mover_free(mover);
        return NULL;
    }
    mover->engines_n = config->engines_n;
    for (uint32_t i = 0; i < config->engines_n; i++)
        mover->engines[i] = config->engines[i];
    mover->peers_n = config->peers;
    mover->rank = config->rank;
    for (uint32_t i = 0; i < config->peers; i++)
        mover->peers[i].connection = config->connections[i];
    mover->slot_bytes = config->slot_bytes;
    mover->slots_n = mover->slots_free_n = config->slots;
    for (uint32_t i = 0; i < config->slots; i++)
        mover->slots_free[i] = i;
    mover->copies_free_n = COPIES;
    for (uint32_t i = 0; i < COPIES; i++)
        mover->copies_free[i] = i;
    return mover;
}

void harp_mover_free(struct harp_mover *mover)
{
    if (!mover)
        return;
    free(mover->engines);
    free(mover->peers);
    free(mover->slots);
    free(mover->slots_free);
    free(mover);
}

void harp_mover_cancel(struct harp_mover *mover)
{
    atomic_store_explicit(&mover->cancelled, true, memory_order_relaxed);
}

static void open_piece(struct harp_mover *mover, const struct harp_piece *piece)
{
    open_pieces_add(&mover->open, piece);
    mover->peers[piece->peer].open++;
    mover->unheard += piece->told && piece->kind != HARP_PIECE_SEND;
}

static void close_piece(struct harp_mover *mover, struct open_piece *open)
{
    const struct harp_piece *piece = open->piece;
    if (open->slot != NO_SLOT)
        mover->slots_free[mover->slots_free_n++] = open->slot;
    if (open->progress != PIECE_CAME)
        mover->peers[piece->peer].open--;
    open_pieces_close(&mover->open, open);
}

/* What has come is worked on later, and nothing more is wanted of its peer, who may leave. */
static void keep_received(struct harp_mover *mover, struct open_piece *open)
{
    open->progress = PIECE_CAME;
    mover->peers[open->piece->peer].open--;
}

/* ---- Beginning what may begin ---- */

static void fail_move(struct harp_mover *mover, enum harp_move result, uint32_t peer)
{
    if (mover->result == HARP_MOVE_DONE) {
        mover->result = result;
        mover->moved->peer = peer;
    }
}

static bool begin_send(struct harp_mover *mover, struct open_piece *open, uint64_t context)
{
    const struct harp_piece *piece = open->piece;
    struct peer *peer = &mover->peers[piece->peer];
    uint32_t said_bytes = piece->told ? mover->work->said_bytes : 0;
    if (!piece->told && (piece->bytes > HARP_TOLD_BYTES || !mover->copies_free_n)) {
        if (!harp_send(peer->connection, piece->at, piece->bytes, context))
            return false;
        open->progress = PIECE_BEGUN;
        return true;
    }
    if (!mover->copies_free_n)
        return false;
    uint32_t number = mover->copies_free[mover->copies_free_n - 1];
    uint8_t *copy = mover->copies[number];
    if (said_bytes)
        memcpy(copy, mover->work->said, said_bytes);
    if (piece->bytes)
        memcpy(copy + said_bytes, piece->at, piece->bytes);
    if (!harp_send(peer->connection, copy, said_bytes + piece->bytes, COPY_CONTEXT | number))
        return false;
    mover->copies_free_n--;
    peer->copies++;
    close_piece(mover, open);
    return true;
}

/* Whether what comes waits in a slot until it is looked at. */
static bool comes_by_slot(const struct harp_piece *piece)
{
    return piece->told || piece->kind == HARP_PIECE_REDUCE;
}

static uint8_t *slot_at(const struct harp_mover *mover, uint32_t slot)
{
    return mover->slots + (size_t)slot * mover->slot_bytes;
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
        bytes = piece->told ? mover->slot_bytes : bytes; /* another call's may be longer */
    }
    if (!harp_receive(mover->peers[piece->peer].connection, at, bytes, context))
        return false;
    if (comes_by_slot(piece))
        open->slot = mover->slots_free[--mover->slots_free_n];
    open->progress = PIECE_BEGUN;
    return true;
}

static bool may_post(const struct harp_mover *mover, const struct open_piece *open)
{
    if (open->piece->told)
        return true;
    return !mover->unheard && (open->piece->kind == HARP_PIECE_REDUCE || !open_piece_waits(open));
}

/* Two ranks that reduce what they have exchanged must take the same one as the first operand: the
 * greater of -0 and +0, or the sum of two kinds of NaN, depends on it. */
static void reduce_exchanged(struct harp_mover *mover, const struct harp_piece *piece,
                             uint8_t *came)
{
    if (piece->peer > mover->rank) {
        mover->work->reduce(piece->at, came, piece->bytes);
        return;
    }
    mover->work->reduce(came, piece->at, piece->bytes);
    memcpy(piece->at, came, piece->bytes);
}

/* Put what came by a slot where it belongs. */
static void finish_piece(struct harp_mover *mover, struct open_piece *open)
{
    const struct harp_piece *piece = open->piece;
    uint8_t *came = slot_at(mover, open->slot) + (piece->told ? mover->work->said_bytes : 0);
    if (piece->bytes && piece->kind == HARP_PIECE_PLACE)
        memcpy(piece->at, came, piece->bytes);
    else if (piece->bytes && piece->told)
        reduce_exchanged(mover, piece, came);
    else if (piece->bytes)
        mover->work->reduce(piece->at, came, piece->bytes);
    close_piece(mover, open);
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

/* Do what can be done for a piece now; says whether it moved. */
static bool advance_piece(struct harp_mover *mover, struct open_piece *open, uint64_t number,
                          struct held_back *held)
{
    const struct harp_piece *piece = open->piece;
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
        else if (may_post(mover, open) && !(by_slot && mover->slots_free_n <= held->slots))
            begun = post_piece(mover, open, number % OPEN_PIECES);
        if (begun)
            release_peer(bits, piece->peer);
    }
    held->slots |= by_slot && !begun;
    return begun;
}

/* Do what is done when nothing is open. */
static void work_alone(struct harp_mover *mover, const struct harp_piece *piece)
{
    const struct harp_piece_work *work = mover->work;
    if (piece->kind == HARP_PIECE_SELECT)
        (work->is_sampled ? harp_topk_sample : harp_topk_select)(
            (float *)(void *)piece->from, work->error, piece->from_bytes / sizeof(float), piece->at,
            piece->bytes / work->pair_bytes, work->pair_bytes);
    else if (piece->kind == HARP_PIECE_ADD)
        harp_topk_add((float *)(void *)piece->at, piece->bytes / sizeof(float), piece->from,
                      piece->from_bytes / work->pair_bytes, work->pair_bytes);
}

/* Open pieces while there is room. */
static bool read_ahead(struct harp_mover *mover, const struct harp_piece **piece,
                       const struct harp_piece *end)
{
    bool moved = false;
    while (*piece < end && !open_pieces_full(&mover->open)) {
        if ((*piece)->kind < HARP_PIECE_SETTLE)
            open_piece(mover, *piece);
        else if (mover->open.n)
            break;
        else
            work_alone(mover, *piece);
        moved = true;
        (*piece)++;
    }
    return moved;
}

/* ---- What the network did ---- */

static void take_told(struct harp_mover *mover, struct open_piece *open, uint32_t bytes)
{
    const struct harp_piece *piece = open->piece;
    const struct harp_piece_work *work = mover->work;
    const uint8_t *came = slot_at(mover, open->slot);
    if (bytes != work->said_bytes + piece->bytes || memcmp(came, work->said, work->said_bytes)) {
        uint32_t heard_bytes = bytes < HARP_SAID_BYTES ? bytes : HARP_SAID_BYTES;
        fail_move(mover, HARP_MOVE_DIFFERS, piece->peer);
        memcpy(mover->moved->heard, came, heard_bytes);
        mover->moved->heard_bytes = heard_bytes;
        return;
    }
    mover->unheard--;
    keep_received(mover, open);
}

static void take_received(struct harp_mover *mover, struct open_piece *open, uint32_t bytes)
{
    const struct harp_piece *piece = open->piece;
    if (piece->told) {
        take_told(mover, open, bytes);
    } else if (bytes != piece->bytes) {
        fail_move(mover, HARP_MOVE_SIZE, piece->peer);
        mover->moved->came = bytes;
        mover->moved->due = piece->bytes;
    } else if (piece->kind == HARP_PIECE_REDUCE) {
        keep_received(mover, open);
    } else {
        close_piece(mover, open);
    }
}

static void take_completion(struct harp_mover *mover, uint32_t number,
                            const struct harp_completion *done)
{
    struct peer *peer = &mover->peers[number];
    switch (done->type) {
    case HARP_COMPLETION_SENT:
        if (done->context & COPY_CONTEXT) {
            mover->copies_free[mover->copies_free_n++] = (uint32_t)done->context;
            peer->copies--;
        } else {
            close_piece(mover, &mover->open.at[done->context]);
        }
        break;
    case HARP_COMPLETION_RECEIVED:
        peer->left -= peer->left > 0;
        take_received(mover, &mover->open.at[done->context], done->size);
        break;
    case HARP_COMPLETION_CLOSED:
        peer->left = peer->ended ? 0 : done->size;
        peer->ended = true;
        break;
    default:
        break;
    }
}

static bool poll_peers(struct harp_mover *mover)
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
        /* Nobody minds the end of a peer of whom nothing is wanted any more. */
        if (mover->peers[i].ended && !mover->peers[i].left && mover->peers[i].open)
            fail_move(mover, HARP_MOVE_GONE, i);
    }
    return moved;
}

static bool advance_pieces(struct harp_mover *mover)
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

/* ---- Running ---- */

static bool drive_engines(struct harp_mover *mover)
{
    bool moved = false;
    for (uint32_t i = 0; i < mover->engines_n; i++)
        moved |= harp_engine_drive(mover->engines[i]);
    return moved;
}

/* Wait for `most_ns`, after a look that found nothing; says whether there is time left. */
static bool wait_a_while(struct harp_mover *mover, uint64_t end_ns, uint64_t most_ns)
{
    return waiting_look_or_sleep(&mover->waiting, mover->engines, mover->engines_n, end_ns,
                                 most_ns);
}

void harp_mover_begin(struct harp_mover *mover, const struct harp_piece *pieces, uint32_t pieces_n,
                      const struct harp_piece_work *work, uint64_t timeout_ns,
                      struct harp_moved *moved)
{
    if (mover->result != HARP_MOVE_DONE) /* what was begun then is not over */
        return;
    mover->next = pieces;
    mover->end = pieces + pieces_n;
    mover->open.first = mover->open.next = 0;
    mover->unheard = 0;
    mover->work = work;
    mover->moved = moved;
    mover->end_ns = waiting_begin(&mover->waiting) + timeout_ns;
}

/* Look once at everything, and wait for `most_ns` if nothing has moved; says whether there is more
 * to do. */
static bool move_once(struct harp_mover *mover, uint64_t most_ns)
{
    bool any = read_ahead(mover, &mover->next, mover->end);
    bool sent = advance_pieces(mover); /* copies must have left before the run is over */
    bool drove = drive_engines(mover);
    any |= poll_peers(mover) | sent | drove;
    if (atomic_load_explicit(&mover->cancelled, memory_order_relaxed))
        fail_move(mover, HARP_MOVE_CANCELLED, 0);
    if (any)
        waiting_end(&mover->waiting);
    if (mover->result != HARP_MOVE_DONE || (mover->next == mover->end && !mover->open.n && !sent))
        return false;
    if (!any && !wait_a_while(mover, mover->end_ns, most_ns))
        fail_move(mover, HARP_MOVE_LATE, 0);
    return mover->result == HARP_MOVE_DONE;
}

enum harp_move harp_mover_run(struct harp_mover *mover, uint64_t for_ns)
{
    uint64_t until_ns = waiting_now_ns() + for_ns;
    if (mover->result != HARP_MOVE_DONE)
        return mover->result;
    while (move_once(mover, for_ns))
        if (waiting_now_ns() > until_ns)
            return HARP_MOVE_MORE;
    return mover->result;
}

static bool copies_under_way(const struct harp_mover *mover)
{
    bool any = false;
    for (uint32_t i = 0; i < mover->peers_n; i++)
        any |= mover->peers[i].copies && !mover->peers[i].ended;
    return any;
}

bool harp_mover_flush(struct harp_mover *mover, uint64_t timeout_ns)
{
    uint64_t end_ns = waiting_begin(&mover->waiting) + timeout_ns;
    struct harp_moved moved;
    mover->moved = &moved;
    while (copies_under_way(mover) && mover->result == HARP_MOVE_DONE) {
        bool drove = drive_engines(mover);
        if (!poll_peers(mover) && !drove && !wait_a_while(mover, end_ns, timeout_ns))
            return false;
    }
    return mover->result == HARP_MOVE_DONE;
}
