/* The open pieces of a mover, and the order among those that depend on each other.
 *
 * Pieces lie in the order of their numbers. One that reads or writes bytes waits until no earlier
 * open one writes them, and one that writes also until none reads them. An open piece has a bit for
 * each one that it waits for, so that closing one releases all others in a pass over a few words.
 */
#ifndef HARP_LIGHTCC_OPEN_PIECES_H
#define HARP_LIGHTCC_OPEN_PIECES_H

#include "mover.h"

#define OPEN_PIECES 256 /* a connection takes as many each way */
#define OPEN_PIECE_WORDS (OPEN_PIECES / 64)
#define NO_SLOT UINT32_MAX

enum piece_progress {
    PIECE_WAITS,
    PIECE_BEGUN,
    PIECE_CAME,
};

struct mover_run; /* the run of a piece (mover_state.h) */

struct open_piece {
    const struct harp_piece *piece; /* NULL: it is closed */
    struct mover_run *run;
    enum piece_progress progress;
    uint32_t slot; /* where it comes to be reduced, or NO_SLOT */
    uint32_t done; /* bytes that went straight through memory */
    uint64_t waits_for[OPEN_PIECE_WORDS];
};

struct open_pieces {
    struct open_piece at[OPEN_PIECES]; /* by number, counted round */
    uint64_t first, next;              /* numbers: the first open one, and the next to come */
    uint32_t n;                        /* open ones */
};

static inline struct open_piece *open_piece_at(struct open_pieces *pieces, uint64_t number)
{
    return &pieces->at[number % OPEN_PIECES];
}

static inline bool open_pieces_full(const struct open_pieces *pieces)
{
    return pieces->next - pieces->first == OPEN_PIECES;
}

void open_pieces_add(struct open_pieces *pieces, const struct harp_piece *piece,
                     struct mover_run *run);
void open_pieces_close(struct open_pieces *pieces, struct open_piece *open);

/* Whether earlier pieces still use its bytes. */
bool open_piece_waits(const struct open_piece *open);

#endif
