/* A mover: one rank's part of a collective, moved over HARP connections by the thread that asks.
 *
 * A collective is a list of pieces in an order in which all of it can be done: harp.collectives
 * makes it of a plan. The mover reads ahead and begins every piece as soon as it may:
 *
 *     SEND     waits for what writes its bytes, and for earlier ones to `peer`; is sent
 *     PLACE    waits for what reads or writes its bytes, and for earlier ones of `peer`; is posted
 *     REDUCE   is posted into a slot as soon as one is free; then waits for what reads or writes
 *              its bytes; is reduced into them
 *     FENCE    waits for all before it, those of runs before it as well
 *     SELECT   waits likewise; the largest elements of `from` become pairs
 *     ADD      waits likewise; the pairs of `from` are added up
 *
 * A piece with an `inline_descriptor` is sent behind the call's description, by a copy and through
 * a slot. An arriving piece must begin with the same description, and no piece without one is
 * received before all descriptions have been compared.
 *
 * So a message of the network goes straight to where it belongs, and one that is to be reduced
 * passes a slot that stays in the cache. Small messages leave from a copy, so that nobody waits for
 * their acknowledgement.
 *
 * Pieces to and from a rank of this host go straight through memory, in order (direct.h), without a
 * slot: what comes is reduced, or placed, from where its peer has written it. A send is over when
 * it is written there, so no two ranks that send each other a piece first wait for each other. Its
 * connection reports only that a peer is gone.
 *
 * Some runs may be under way at once. The pieces of one are opened when all of those before it are,
 * and runs are over in their order. Ranks need not have the same ones under way: what a rank sends
 * of a later run waits for its peer.
 *
 * Connections must be posted, and of engines with HARP_PROGRESS_INLINE, which the mover drives
 * while it runs. After a run that failed buffers may still be posted and sends be under way: close
 * the connections before their memory is given back.
 */
#ifndef HARP_LIGHTCC_MOVER_H
#define HARP_LIGHTCC_MOVER_H

#include "direct.h"
#include "engine/engine.h"
#include "reduce.h"
#include "topk.h"

/* cdef: begin */
#define HARP_SAID_BYTES 1024              /* the longest description of a call */
#define HARP_INLINE_DESCRIPTOR_BYTES 4096 /* the most of a piece that carries one */
#define HARP_MOVER_RUNS 4                 /* that may be under way at once */

enum harp_piece_kind {
    HARP_PIECE_SEND,
    HARP_PIECE_PLACE,
    HARP_PIECE_REDUCE,
    HARP_PIECE_FENCE,
    HARP_PIECE_SELECT,
    HARP_PIECE_ADD,
};

struct harp_piece {
    uint8_t *at;
    uint8_t *from;  /* SELECT, ADD */
    uint32_t bytes; /* at `at`; of REDUCE at most a slot's */
    uint32_t from_bytes;
    uint16_t kind;
    uint16_t peer;              /* index of the connection */
    uint32_t inline_descriptor; /* SEND, PLACE, REDUCE: 1 or 0 */
};

/* Needs of the pieces of a run. */
struct harp_piece_work {
    const uint8_t *said; /* the call's description, of a whole number of cache lines */
    uint32_t said_bytes;
    harp_reduce *reduce; /* REDUCE */
    float *error;        /* SELECT; NULL: none is kept */
    uint32_t pair_bytes; /* SELECT, ADD */
    bool is_sampled;     /* SELECT: by harp_topk_sample */
};

enum harp_move {
    HARP_MOVE_DONE,
    HARP_MOVE_MORE, /* is left to do */
    HARP_MOVE_LATE,
    HARP_MOVE_CANCELLED,
    HARP_MOVE_GONE,    /* `peer`: its connection has ended */
    HARP_MOVE_DIFFERS, /* `peer` described its call by `heard`, not as `said` */
    HARP_MOVE_SIZE,    /* `peer` sent `came` bytes where `due` were to come */
};

struct harp_moved {
    uint32_t run; /* which one has failed: 0 is the first that is not over */
    uint32_t peer, came, due;
    uint8_t heard[HARP_SAID_BYTES];
    uint32_t heard_bytes;
};

struct harp_mover_config {
    struct harp_engine *const *engines;
    uint32_t engines_n;
    struct harp_connection *const *connections; /* one a peer; NULL: none */
    struct harp_direct *direct;                 /* to ranks of this host; NULL: none */
    uint32_t peers, rank;                       /* `rank` is the own index among the peers */
    uint32_t slot_bytes,
        slots; /* for what is to be reduced; a slot holds a piece and its description */
};

struct harp_mover;

/* NULL without memory. The arrays of the config are copied. */
struct harp_mover *harp_mover_new(const struct harp_mover_config *config);
void harp_mover_free(struct harp_mover *mover);

/* Add a run, whose pieces and the rest must stay until it is over; false if HARP_MOVER_RUNS are
 * under way. Its pieces are opened when all of the runs before it are, so their memory must be
 * apart from what anybody else works on when one of these is over. It is late `timeout_ns` from
 * now. */
bool harp_mover_add(struct harp_mover *mover, const struct harp_piece *pieces, uint32_t pieces_n,
                    const struct harp_piece_work *work, uint64_t timeout_ns);

/* Move pieces until the first run is over, which it then is no more, or HARP_MOVE_MORE after
 * `for_ns` or harp_mover_hurry: a caller with signals to look after, or runs to add, calls it
 * again. Else all runs have failed, and later ones do; `moved` has the details. */
enum harp_move harp_mover_run(struct harp_mover *mover, uint64_t for_ns, struct harp_moved *moved);

/* Have harp_mover_run come back, at the latest when it next looks for something. Any thread. */
void harp_mover_hurry(struct harp_mover *mover);

/* Wait until others have all that left from copies; false if they have not. */
bool harp_mover_flush(struct harp_mover *mover, uint64_t timeout_ns);

/* End all runs that are under way, and later ones. Any thread. */
void harp_mover_cancel(struct harp_mover *mover);
/* cdef: end */

#endif
