#define _GNU_SOURCE
#include "open_pieces.h"

#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define COPIES 64 /* of small messages that may be under way */
#define COPY_BYTES 4096
#define COPY_CONTEXT (UINT64_C(1) << 32)
#define SPIN_NS                                                                                    \
    UINT64_C(200000) /* how long to look before sleeping; the helper of an engine takes            \
                        as long to take over */
#define SLEEP_NS UINT64_C(1000000)

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
    uint32_t peers_n;
    uint8_t *slots;
    uint32_t slot_bytes, slots_n, slots_free_n, *slots_free;
    uint8_t copies[COPIES][COPY_BYTES];
    uint32_t copies_free[COPIES], copies_free_n;
    uint8_t said[HARP_EXPECT_BYTES];
    _Atomic bool cancelled;
    /* The run. */
    struct open_pieces open;
    bool expects; /* an EXPECT is open */
    const struct harp_piece_work *work;
    enum harp_move result;
    struct harp_moved *moved;
};

static uint64_t monotonic_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

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
    mover->expects |= piece->kind == HARP_PIECE_EXPECT;
}

static void close_piece(struct harp_mover *mover, struct open_piece *open)
{
    const struct harp_piece *piece = open->piece;
    if (open->slot != NO_SLOT)
        mover->slots_free[mover->slots_free_n++] = open->slot;
    mover->peers[piece->peer].open--;
    mover->expects &= piece->kind != HARP_PIECE_EXPECT;
    open_pieces_close(&mover->open, open);
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
    if (piece->bytes > COPY_BYTES || !mover->copies_free_n) {
        if (!harp_send(peer->connection, piece->at, piece->bytes, context))
            return false;
        open->progress = PIECE_BEGUN;
        return true;
    }
    uint32_t copy = mover->copies_free[mover->copies_free_n - 1];
    memcpy(mover->copies[copy], piece->at, piece->bytes);
    if (!harp_send(peer->connection, mover->copies[copy], piece->bytes, COPY_CONTEXT | copy))
        return false;
    mover->copies_free_n--;
    peer->copies++;
    close_piece(mover, open);
    return true;
}

static bool post_piece(struct harp_mover *mover, struct open_piece *open, uint64_t context)
{
    const struct harp_piece *piece = open->piece;
    uint8_t *at = piece->at;
    uint32_t bytes = piece->bytes;
    if (piece->kind == HARP_PIECE_EXPECT) {
        at = mover->said;
        bytes = HARP_EXPECT_BYTES;
    } else if (piece->kind == HARP_PIECE_REDUCE) {
        if (!mover->slots_free_n)
            return false;
        at = mover->slots + (size_t)mover->slots_free[mover->slots_free_n - 1] * mover->slot_bytes;
    }
    if (!harp_receive(mover->peers[piece->peer].connection, at, bytes, context))
        return false;
    if (piece->kind == HARP_PIECE_REDUCE)
        open->slot = mover->slots_free[--mover->slots_free_n];
    open->progress = PIECE_BEGUN;
    return true;
}

static bool may_post(const struct harp_mover *mover, const struct open_piece *open)
{
    switch (open->piece->kind) {
    case HARP_PIECE_EXPECT:
        return true;
    case HARP_PIECE_REDUCE:
        return !mover->expects;
    default:
        return !mover->expects && !open_piece_waits(open);
    }
}

static void reduce_piece(struct harp_mover *mover, struct open_piece *open)
{
    const struct harp_piece *piece = open->piece;
    mover->work->reduce(piece->at, mover->slots + (size_t)open->slot * mover->slot_bytes,
                        piece->bytes);
    close_piece(mover, open);
}

/* What a pass over the open pieces has seen that holds back later ones: a piece that could not be
 * sent to a peer, or posted, and a REDUCE without a slot. */
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
        reduce_piece(mover, open);
        return true;
    }
    if (open->progress != PIECE_WAITS)
        return false;
    bool sends = piece->kind == HARP_PIECE_SEND;
    uint64_t *bits = sends ? held->sends : held->posts;
    if (test_and_hold(bits, piece->peer))
        return false;
    bool begun = false;
    if (sends)
        begun = !open_piece_waits(open) && begin_send(mover, open, number % OPEN_PIECES);
    else if (may_post(mover, open) && !(piece->kind == HARP_PIECE_REDUCE && held->slots))
        begun = post_piece(mover, open, number % OPEN_PIECES);
    if (begun)
        release_peer(bits, piece->peer);
    else
        held->slots |= piece->kind == HARP_PIECE_REDUCE;
    return begun;
}

/* Do what is done when nothing is open. */
static void work_alone(struct harp_mover *mover, const struct harp_piece *piece)
{
    const struct harp_piece_work *work = mover->work;
    if (piece->kind == HARP_PIECE_SELECT)
        harp_topk_select((float *)(void *)piece->from, work->error,
                         piece->from_bytes / sizeof(float), piece->at,
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

static void take_expected(struct harp_mover *mover, struct open_piece *open, uint32_t bytes)
{
    const struct harp_piece *piece = open->piece;
    if (bytes != piece->bytes || memcmp(mover->said, piece->at, bytes) != 0) {
        fail_move(mover, HARP_MOVE_DIFFERS, piece->peer);
        memcpy(mover->moved->heard, mover->said, bytes);
        mover->moved->heard_bytes = bytes;
        return;
    }
    close_piece(mover, open);
}

static void take_received(struct harp_mover *mover, struct open_piece *open, uint32_t bytes)
{
    const struct harp_piece *piece = open->piece;
    if (piece->kind == HARP_PIECE_EXPECT) {
        take_expected(mover, open, bytes);
    } else if (bytes != piece->bytes) {
        fail_move(mover, HARP_MOVE_SIZE, piece->peer);
        mover->moved->came = bytes;
        mover->moved->due = piece->bytes;
    } else if (piece->kind == HARP_PIECE_REDUCE) {
        open->progress = PIECE_CAME;
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

/* Sleep until the first open piece's peer may have moved, or for a while. */
static void sleep_a_while(struct harp_mover *mover)
{
    for (uint64_t number = mover->open.first; number < mover->open.next; number++) {
        const struct harp_piece *piece = open_piece_at(&mover->open, number)->piece;
        if (piece) {
            harp_connection_wait(mover->peers[piece->peer].connection, SLEEP_NS);
            return;
        }
    }
    sched_yield();
}

struct patience {
    uint64_t start_ns, moved_ns, timeout_ns;
};

static struct patience begin_patience(uint64_t timeout_ns)
{
    uint64_t now_ns = monotonic_ns();
    return (struct patience){.start_ns = now_ns, .moved_ns = now_ns, .timeout_ns = timeout_ns};
}

/* After a look that found nothing; says whether there is time left. */
static bool wait_a_while(struct harp_mover *mover, const struct patience *patience)
{
    uint64_t now_ns = monotonic_ns();
    if (now_ns - patience->start_ns > patience->timeout_ns)
        return false;
    if (now_ns - patience->moved_ns > SPIN_NS)
        sleep_a_while(mover);
    else
        sched_yield();
    return true;
}

enum harp_move harp_mover_run(struct harp_mover *mover, const struct harp_piece *pieces,
                              uint32_t pieces_n, const struct harp_piece_work *work,
                              uint64_t timeout_ns, struct harp_moved *moved)
{
    const struct harp_piece *end = pieces + pieces_n;
    struct patience patience = begin_patience(timeout_ns);
    if (mover->result != HARP_MOVE_DONE) /* what was begun then is not over */
        return mover->result;
    mover->open.first = mover->open.next = 0;
    mover->work = work;
    mover->moved = moved;
    bool sent = false;
    while (mover->result == HARP_MOVE_DONE && (pieces < end || mover->open.n || sent)) {
        bool any = read_ahead(mover, &pieces, end);
        sent = advance_pieces(mover); /* copies must have left before the run is over */
        bool drove = drive_engines(mover);
        any |= poll_peers(mover) | sent | drove;
        if (atomic_load_explicit(&mover->cancelled, memory_order_relaxed))
            fail_move(mover, HARP_MOVE_CANCELLED, 0);
        else if (any)
            patience.moved_ns = monotonic_ns();
        else if (!wait_a_while(mover, &patience))
            fail_move(mover, HARP_MOVE_LATE, 0);
    }
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
    struct patience patience = begin_patience(timeout_ns);
    struct harp_moved moved;
    mover->moved = &moved;
    while (copies_under_way(mover) && mover->result == HARP_MOVE_DONE) {
        bool drove = drive_engines(mover);
        if (!poll_peers(mover) && !drove && !wait_a_while(mover, &patience))
            return false;
    }
    return mover->result == HARP_MOVE_DONE;
}
