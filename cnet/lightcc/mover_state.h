/* The mover (mover.h), as its own files share it. Files call those above them:
 *
 *   mover_state.c     a piece is over, a run fails; small messages
 *   mover_advance.c   what can be done for the open pieces now, and what the network did
 *   mover.c           runs
 */
#ifndef HARP_LIGHTCC_MOVER_STATE_H
#define HARP_LIGHTCC_MOVER_STATE_H

#include "copies.h"
#include "open_pieces.h"
#include "waiting.h"

#include <stdatomic.h>

_Static_assert(DIRECT_RECORD_BYTES >= COPY_BYTES, "a described piece fits a record");

struct peer {
    struct harp_connection *connection;
    uint32_t open;   /* pieces of it */
    uint32_t copies; /* on their way to it */
    bool ended;
    uint32_t left; /* messages that came before its end and are to be posted for */
};

struct mover_run {
    const struct harp_piece *next, *end; /* to be opened */
    const struct harp_piece_work *work;
    uint64_t end_ns;
    uint32_t open;            /* pieces of it */
    uint32_t descriptors_due; /* pieces whose description has not come yet */
    bool nontemporal;         /* past the caches */
};

struct harp_mover {
    struct harp_engine **engines;
    uint32_t engines_n;
    struct peer *peers;
    uint32_t peers_n, rank;
    uint8_t *slots;
    uint32_t slot_bytes, slots_n, slots_free_n, *slots_free;
    struct copies copies;
    struct harp_direct *direct;
    _Atomic bool cancelled;
    struct waiting waiting;
    _Atomic bool hurried;
    struct mover_run runs[HARP_MOVER_RUNS]; /* by number, counted round */
    uint32_t run_first, run_next;           /* numbers: the first under way, the next to come */
    struct open_pieces open;
    uint32_t networked; /* pieces for which the network is wanted */
    uint32_t looks;     /* since the network was driven */
    enum harp_move result;
    struct harp_moved *moved;
};

static inline struct mover_run *run_at(struct harp_mover *mover, uint32_t number)
{
    return &mover->runs[number % HARP_MOVER_RUNS];
}

static inline uint8_t *slot_at(const struct harp_mover *mover, uint32_t slot)
{
    return mover->slots + (size_t)slot * mover->slot_bytes;
}

/* Of the description before a piece. */
static inline uint32_t said_bytes_of(const struct open_piece *open)
{
    return open->piece->inline_descriptor ? open->run->work->said_bytes : 0;
}

/* Whether the piece goes straight through memory. */
static inline bool goes_direct(const struct harp_mover *mover, const struct harp_piece *piece)
{
    return direct_reaches(mover->direct, piece->peer);
}

/* ---- mover_state.c ---- */

/* Look after the next piece of a run. */
void mover_open_piece(struct harp_mover *mover, struct mover_run *run);

/* A piece is over. */
void mover_close_piece(struct harp_mover *mover, struct open_piece *open);

/* An arrival is worked on later, and nothing more is wanted of its peer, which may leave. */
void mover_keep_received(struct harp_mover *mover, struct open_piece *open);

/* End all runs, because of `peer`. */
void mover_fail(struct harp_mover *mover, enum harp_move result, uint32_t peer);

/* The same because of a piece: `came` bytes came in its place. */
void mover_fail_piece(struct harp_mover *mover, const struct open_piece *open,
                      enum harp_move result, uint32_t came);

/* Compare the description before what came of a piece; false: it differs, and all runs fail. */
bool mover_check_descriptor(struct harp_mover *mover, struct open_piece *open, const uint8_t *came,
                            uint32_t bytes);

/* Put bytes that came of a piece where they belong: behind those that are done. */
void mover_put(const struct harp_mover *mover, const struct open_piece *open, uint8_t *came,
               uint32_t bytes);

/* ---- mover_advance.c ---- */

/* Do for all open pieces what can be done now; says whether any moved. */
bool mover_advance(struct harp_mover *mover);

/* Take what the network did; says whether there was anything. */
bool mover_poll_peers(struct harp_mover *mover);

#endif
