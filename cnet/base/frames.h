/* An engine's frames: equal pieces of memory that hold packets, each with one owner.
 *
 * Every frame is in one state at any time, and the state says who owns it. Only the owner hands it
 * on, by harp_frames_move with the state that it expects. If the frame is in another (freed twice,
 * sent while the card still has it, written while it is sent), the program ends there, before
 * anybody's gradients are wrong. "Writes" says who may change bytes.
 *
 *     state    owner        writes  what it is                                next
 *     -------  -----------  ------  ----------------------------------------  ---------------------
 *     FREE     pool         nobody  on the free list                          FILL DRAFT
 *     FILL     port         card    given to receive into                     ARRIVED FREE
 *     ARRIVED  engine       nobody  holds what came, under check              LENT FILL FREE
 *     LENT     application  nobody  a streamed receive, read until given back FILL FREE
 *     DRAFT    its taker    taker   being written; or put together of what    READY FREE ARRIVED
 *                                   came in fragments
 *     READY    session      nobody  to be sent, or sent again                 SENDING LEAVING FREE
 *     SENDING  port         nobody  being sent, kept until acknowledged       KEPT LEAVING
 *     LEAVING  port         nobody  being sent, wanted by nobody any more     FREE
 *     KEPT     session      nobody  sent, not acknowledged                    READY FREE
 *
 *               +---------------------- FREE <----------------------+
 *               v                       |  ^                        |
 *             FILL -> ARRIVED -> LENT --|--+          +-> LEAVING --+
 *               ^_____|__^________|     v             |      ^      |
 *                        +----------- DRAFT -> READY -+-> SENDING   |
 *                                                ^           v      |
 *                                                +--------- KEPT ---+
 *
 * SENDING becomes KEPT at the port's completion, which only says that the card is done with the
 * bytes. A frame that is acknowledged before its completion becomes LEAVING, as does one that is
 * due to be sent again before it: the copy goes into a fresh frame. Control frames are LEAVING from
 * the start.
 *
 * Frames for control are reserved: a port that sends from the pool takes those that it writes
 * datagrams into (DRAFT) when it opens, and neither what has arrived nor what the application holds
 * can take them. So acknowledgements and CLOSE get out when all the rest is gone.
 *
 * Owner: one engine; nothing here is safe for several threads. Memory is the arena's, taken once.
 */
#ifndef HARP_FRAMES_H
#define HARP_FRAMES_H

#include <stdbool.h>

#include "base/arena.h"

enum harp_frame_state {
    HARP_FRAME_FREE,
    HARP_FRAME_FILL,
    HARP_FRAME_ARRIVED,
    HARP_FRAME_LENT,
    HARP_FRAME_DRAFT,
    HARP_FRAME_READY,
    HARP_FRAME_SENDING,
    HARP_FRAME_LEAVING,
    HARP_FRAME_KEPT,
};
#define HARP_FRAME_STATES 9

struct harp_frames {
    uint8_t *base;        /* frame i begins at base + i * frame_bytes; a page's boundary */
    uint32_t frame_bytes; /* a multiple of 64 */
    uint32_t count;
    uint32_t *free;                       /* stack: the frame freed last is warm in the cache */
    uint8_t *state;                       /* of each frame */
    uint32_t in_state[HARP_FRAME_STATES]; /* how many frames are; in_state[FREE] is the stack's */
};

/* Take memory for `count` frames from the arena, all FREE. Returns 0 or -ENOMEM. */
int harp_frames_open(struct harp_frames *frames, struct harp_arena *arena, uint32_t count,
                     uint32_t frame_bytes);

/* Bytes of arena that such a pool takes at most. */
size_t harp_frames_need(uint32_t count, uint32_t frame_bytes);

/* Take up to `count` free frames into state `to`, FILL or DRAFT, and write their numbers to `out`.
 * Returns how many there were. */
uint32_t harp_frames_take(struct harp_frames *frames, enum harp_frame_state to, uint32_t *out,
                          uint32_t count);

/* Hand a frame on. It is in state `from`, and the table above has `to` behind that. */
void harp_frames_move(struct harp_frames *frames, uint32_t frame, enum harp_frame_state from,
                      enum harp_frame_state to);

/* Whether the table has `to` behind `from`. */
bool harp_frame_may(enum harp_frame_state from, enum harp_frame_state to);

static inline uint8_t *harp_frame_at(const struct harp_frames *frames, uint32_t frame)
{
    return frames->base + (size_t)frame * frames->frame_bytes;
}

/* The frame that holds the byte at `offset` from base, as a port's descriptors name it. */
static inline uint32_t harp_frame_of(const struct harp_frames *frames, uint64_t offset)
{
    return (uint32_t)(offset / frames->frame_bytes);
}

#endif
