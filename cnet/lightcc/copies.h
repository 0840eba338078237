/* Copies of small messages: they leave from a copy, so the sender need not wait for the other end.
 */
#ifndef HARP_LIGHTCC_COPIES_H
#define HARP_LIGHTCC_COPIES_H

#include "mover.h"

#define COPIES 64 /* that may be under way */
#define COPY_BYTES (HARP_SAID_BYTES + HARP_INLINE_DESCRIPTOR_BYTES)
#define COPY_CONTEXT (UINT64_C(1) << 32) /* of SENT: a copy's */

struct copies {
    uint8_t at[COPIES][COPY_BYTES];
    uint32_t free[COPIES], free_n;
};

void copies_start(struct copies *copies);

/* Where the next message is to be written; NULL if none is free. */
uint8_t *copies_next(struct copies *copies);

/* Send what was written there; false if it must be tried again. */
bool copies_send(struct copies *copies, struct harp_connection *to, uint32_t bytes);

/* The other end has it. */
void copies_sent(struct copies *copies, uint64_t context);

#endif
