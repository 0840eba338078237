/* Inside of the mover (mover.h). Files call those above them:
 *
 *   mover_state.c     a piece is over, a run fails; small messages
 *   mover_offers.c    pieces that peers of this host read where they lie
 *   mover_advance.c   doing for the open pieces what can be done now
 *   mover_take.c      what the network did
 *   mover.c           runs
 */
#ifndef HARP_LIGHTCC_MOVER_STATE_H
#define HARP_LIGHTCC_MOVER_STATE_H

#include "answers.h"
#include "copies.h"
#include "open_pieces.h"
#include "waiting.h"

#include <stdatomic.h>

_Static_assert(DIRECT_BYTES == COPY_BYTES, "what is told fits either way");

struct peer {
    struct harp_connection *connection;
    uint32_t open;   /* pieces of it */
    uint32_t copies; /* on their way to it */
    struct answers answers;
    struct harp_peer_memory memory;
    bool reads; /* this process' memory */
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
    _Atomic uint64_t *word;
    uint64_t shown; /* what the word was */
    _Atomic bool cancelled;
    struct waiting waiting;
    /* The run. */
    uint64_t end_ns;
    const struct harp_piece *next, *end;
    struct open_pieces open;
    uint32_t unheard;   /* told pieces whose description has not come yet */
    uint32_t networked; /* pieces for which the network is wanted */
    uint32_t looks;     /* since the network was driven */
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
    return piece->told && direct_reaches(mover->direct, piece->peer);
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

/* From now on nobody takes what was offered. */
void mover_withdraw_offers(struct harp_mover *mover);

/* Send what was written to the next copy; false if it must be tried again. */
bool mover_send_copy(struct harp_mover *mover, struct peer *peer, struct harp_connection *to,
                     uint32_t bytes);

/* ---- mover_offers.c ---- */

/* Whether a piece that is to be sent is offered. */
bool mover_offers(const struct harp_mover *mover, const struct harp_piece *piece);

/* Send where the piece lies; the answer ends it. False if it must be tried again. */
bool mover_offer_piece(struct harp_mover *mover, struct open_piece *open, uint64_t context);

/* A peer has read what was offered to it. */
void mover_take_answer(struct harp_mover *mover, uint32_t peer);

/* Whether an offer came in the place of the piece, and note it. */
bool mover_takes_offer(struct harp_mover *mover, struct open_piece *open, uint32_t bytes);

/* Put an offered piece where it belongs, and answer; says whether it is over. */
bool mover_read_piece(struct harp_mover *mover, struct open_piece *open);

/* ---- mover_advance.c ---- */

/* Do for all open pieces what can be done now; says whether any moved. */
bool mover_advance(struct harp_mover *mover);

/* ---- mover_take.c ---- */

/* Take what the network did; says whether there was anything. */
bool mover_poll_peers(struct harp_mover *mover);

/* Take what a told piece's peer has sent straight through memory; false if it is not there. */
bool mover_take_direct(struct harp_mover *mover, struct open_piece *open);

#endif
