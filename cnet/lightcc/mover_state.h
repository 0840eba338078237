/* Inside of the mover (mover.h). Files call those above them:
 *
 *   mover_state.c     a piece is over, a run fails; small messages
 *   mover_direct.c    pieces that go straight through memory to a rank of this host, or come so
 *   mover_advance.c   doing for the open pieces what can be done now
 *   mover_take.c      what the network did
 *   mover.c           runs
 */
#ifndef HARP_LIGHTCC_MOVER_STATE_H
#define HARP_LIGHTCC_MOVER_STATE_H

#include "copies.h"
#include "open_pieces.h"
#include "waiting.h"

#include <stdatomic.h>

_Static_assert(DIRECT_RECORD_BYTES >= COPY_BYTES, "what is told fits either way");

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
    struct copies copies;
    struct harp_direct *direct;
    _Atomic bool cancelled;
    struct waiting waiting;
    /* The run. */
    uint64_t end_ns;
    const struct harp_piece *next, *end;
    struct open_pieces open;
    uint32_t unheard;   /* told pieces whose description has not come yet */
    uint32_t networked; /* pieces for which the network is wanted */
    uint32_t looks;     /* since the network was driven */
    bool places_far;    /* past the caches */
    const struct harp_piece_work *work;
    enum harp_move result;
    struct harp_moved *moved;
};

static inline uint8_t *slot_at(const struct harp_mover *mover, uint32_t slot)
{
    return mover->slots + (size_t)slot * mover->slot_bytes;
}

/* Whether the piece goes straight through memory. */
static inline bool goes_direct(const struct harp_mover *mover, const struct harp_piece *piece)
{
    return direct_reaches(mover->direct, piece->peer);
}

/* ---- mover_state.c ---- */

/* Look after a piece from now on. */
void mover_open_piece(struct harp_mover *mover, const struct harp_piece *piece);

/* A piece is over. */
void mover_close_piece(struct harp_mover *mover, struct open_piece *open);

/* What has come is worked on later, and nothing more is wanted of its peer, who may leave. */
void mover_keep_received(struct harp_mover *mover, struct open_piece *open);

/* End the run, because of `peer`. */
void mover_fail(struct harp_mover *mover, enum harp_move result, uint32_t peer);

/* The same because `came` bytes came in the place of the piece. */
void mover_fail_size(struct harp_mover *mover, const struct harp_piece *piece, uint32_t came);

/* Compare the description in what came of a told piece; false: it differs, and the run has failed.
 */
bool mover_take_told(struct harp_mover *mover, struct open_piece *open, const uint8_t *came,
                     uint32_t bytes);

/* Put bytes that came of a piece where they belong: behind its first `done` ones. */
void mover_put(const struct harp_mover *mover, const struct harp_piece *piece, uint32_t done,
               uint8_t *came, uint32_t bytes);

/* ---- mover_direct.c ---- */

/* Write what there is room for of a piece; says whether it moved. It is closed when all is written.
 */
bool mover_send_direct(struct harp_mover *mover, struct open_piece *open);

/* Take what is there of a piece; says whether it moved. It is closed when all of it came. */
bool mover_receive_direct(struct harp_mover *mover, struct open_piece *open);

/* ---- mover_advance.c ---- */

/* Do for all open pieces what can be done now; says whether any moved. */
bool mover_advance(struct harp_mover *mover);

/* ---- mover_take.c ---- */

/* Take what the network did; says whether there was anything. */
bool mover_poll_peers(struct harp_mover *mover);

#endif
