#define _GNU_SOURCE
#include "mover_state.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"

#define LOOKS 16 /* at memory, before the network is driven once */

/* A run that writes this many bytes would evict them from the caches itself, so it writes past the
 * caches. Where two cores share 32 MiB of cache, that saves a quarter of the time of all-reduces of
 * 16 MiB on two ranks, and costs those of 8 MiB a fifth more. */
#define NONTEMPORAL_LEAST_BYTES (6 << 20)

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
    mover->direct = config->direct;
    for (uint32_t i = 0; i < config->peers; i++)
        mover->peers[i].connection = config->connections[i];
    mover->slot_bytes = config->slot_bytes;
    mover->slots_n = mover->slots_free_n = config->slots;
    for (uint32_t i = 0; i < config->slots; i++)
        mover->slots_free[i] = i;
    copies_start(&mover->copies);
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

/* Do what is done when nothing is open. */
static void work_alone(const struct mover_run *run, const struct harp_piece *piece)
{
    const struct harp_piece_work *work = run->work;
    if (piece->kind == HARP_PIECE_SELECT)
        (work->is_sampled ? harp_topk_sample : harp_topk_select)(
            (float *)(void *)piece->from, work->error, piece->from_bytes / sizeof(float), piece->at,
            piece->bytes / work->pair_bytes, work->pair_bytes);
    else if (piece->kind == HARP_PIECE_ADD)
        harp_topk_add((float *)(void *)piece->at, piece->bytes / sizeof(float), piece->from,
                      piece->from_bytes / work->pair_bytes, work->pair_bytes);
}

/* Open a run's pieces while there is room. */
static bool open_run(struct harp_mover *mover, struct mover_run *run)
{
    bool moved = false;
    while (run->next < run->end && !open_pieces_full(&mover->open)) {
        if (run->next->kind < HARP_PIECE_FENCE)
            mover_open_piece(mover, run);
        else if (mover->open.n)
            break;
        else
            work_alone(run, run->next++);
        moved = true;
    }
    return moved;
}

/* Open pieces of all runs in their order, so that the next one begins where the last one leaves
 * ranks or lines idle. */
static bool read_ahead(struct harp_mover *mover)
{
    bool moved = false;
    for (uint32_t number = mover->run_first; number != mover->run_next; number++) {
        struct mover_run *run = run_at(mover, number);
        moved |= open_run(mover, run);
        if (run->next < run->end)
            break;
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
    mover->waiting.most_ns = mover->networked ? WAITING_NETWORK_MOST_NS : WAITING_MOST_NS;
    return waiting_look_or_sleep(&mover->waiting, mover->engines, mover->engines_n, mover->direct,
                                 end_ns, most_ns);
}

/* See what has come. Where nothing is wanted of the network it is looked at now and then, and
 * after it may have woken this thread: for the ends of peers. */
static bool look_around(struct harp_mover *mover)
{
    bool came = mover->direct && direct_look(mover->direct);
    if (!mover->networked && !mover->waiting.slept && ++mover->looks < LOOKS)
        return came;
    mover->looks = 0;
    bool drove = drive_engines(mover);
    return mover_poll_peers(mover) | drove | came;
}

static bool places_much(const struct harp_piece *pieces, uint32_t pieces_n)
{
    size_t bytes = 0;
    for (uint32_t i = 0; i < pieces_n; i++)
        bytes += pieces[i].kind == HARP_PIECE_PLACE ? pieces[i].bytes : 0;
    return bytes >= NONTEMPORAL_LEAST_BYTES;
}

static bool is_over(const struct mover_run *run)
{
    return run->next == run->end && !run->open;
}

/* Look once at everything, and wait for `most_ns` if nothing has moved; says whether there is more
 * to do of the first run. */
static bool move_once(struct harp_mover *mover, uint64_t most_ns)
{
    const struct mover_run *run = run_at(mover, mover->run_first);
    bool any = read_ahead(mover);
    bool sent = mover_advance(mover); /* copies must have left before the run is over */
    any |= look_around(mover) | sent;
    if (atomic_load_explicit(&mover->cancelled, memory_order_relaxed))
        mover_fail(mover, HARP_MOVE_CANCELLED, 0);
    if (any)
        waiting_end(&mover->waiting);
    if (mover->result != HARP_MOVE_DONE || (is_over(run) && !sent))
        return false;
    if (!any && !wait_a_while(mover, run->end_ns, most_ns))
        mover_fail(mover, HARP_MOVE_LATE, 0);
    return mover->result == HARP_MOVE_DONE;
}

bool harp_mover_add(struct harp_mover *mover, const struct harp_piece *pieces, uint32_t pieces_n,
                    const struct harp_piece_work *work, uint64_t timeout_ns)
{
    if (mover->run_next - mover->run_first == HARP_MOVER_RUNS)
        return false;
    *run_at(mover, mover->run_next++) = (struct mover_run){
        .next = pieces,
        .end = pieces + pieces_n,
        .work = work,
        .end_ns = waiting_begin(&mover->waiting) + timeout_ns,
        .nontemporal = places_much(pieces, pieces_n),
    };
    return true;
}

enum harp_move harp_mover_run(struct harp_mover *mover, uint64_t for_ns, struct harp_moved *moved)
{
    uint64_t until_ns = harp_clock_ns() + for_ns;
    if (mover->result != HARP_MOVE_DONE)
        return mover->result;
    mover->moved = moved;
    while (move_once(mover, for_ns))
        if (atomic_exchange_explicit(&mover->hurried, false, memory_order_relaxed) ||
            harp_clock_ns() > until_ns)
            return HARP_MOVE_MORE;
    mover->run_first += mover->result == HARP_MOVE_DONE;
    return mover->result;
}

void harp_mover_hurry(struct harp_mover *mover)
{
    atomic_store_explicit(&mover->hurried, true, memory_order_relaxed);
}

static bool copies_under_way(const struct harp_mover *mover)
{
    bool any = false;
    for (uint32_t i = 0; i < mover->peers_n; i++)
        any |= mover->peers[i].copies && !mover->peers[i].ended;
    return any;
}

static bool flush_copies(struct harp_mover *mover, uint64_t timeout_ns)
{
    uint64_t end_ns = waiting_begin(&mover->waiting) + timeout_ns;
    while (copies_under_way(mover) && mover->result == HARP_MOVE_DONE) {
        bool drove = drive_engines(mover);
        if (!mover_poll_peers(mover) && !drove && !wait_a_while(mover, end_ns, timeout_ns))
            return false;
    }
    return mover->result == HARP_MOVE_DONE;
}

bool harp_mover_flush(struct harp_mover *mover, uint64_t timeout_ns)
{
    struct harp_moved moved;
    mover->moved = &moved;
    bool flushed = flush_copies(mover, timeout_ns);
    mover->moved = NULL;
    return flushed;
}
