/* The answers to a mover's offers (mover.h) of one peer, over a connection of their own.
 *
 * An answer is the number by which the peer's piece was offered. The offered pieces are read in
 * whatever order they can be, so answers come in that order. A buffer for the answer is posted
 * before an offer leaves: an answer never waits.
 */
#ifndef HARP_LIGHTCC_ANSWERS_H
#define HARP_LIGHTCC_ANSWERS_H

#include "engine/engine.h"

#define ANSWERS 256 /* that may be due; a connection takes as many buffers */

struct answers {
    struct harp_connection *connection; /* NULL: there are no offers */
    uint32_t numbers[ANSWERS];          /* where they come, counted round */
    uint32_t posted, came;              /* since ever */
    uint32_t due;                       /* of the peer, for what was offered to it */
    uint32_t owed;                      /* to the peer, for what it has offered */
    bool ended;
};

/* Make room for the answer to one more offer; false if there is none now. */
bool answers_make_room(struct answers *answers);

/* An offer has left. */
void answers_expect(struct answers *answers);

/* The next answer has come; gives the number. */
uint32_t answers_take(struct answers *answers);

#endif
