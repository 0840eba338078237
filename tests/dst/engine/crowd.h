/* Many connections between two engines, each with a few messages both ways, that come and go at
 * different times. A member's first message says its number, so the listening end knows whom it has
 * accepted; all bytes of all messages are known from number, end and message.
 */
#ifndef DST_ENGINE_CROWD_H
#define DST_ENGINE_CROWD_H

#include "side.h"

#define DST_CROWD_MOST (DST_CONNECTIONS / 2)

struct dst_crowd;

/* `count` members on two sides that are open, begun within `begin_ns`. */
struct dst_crowd *dst_crowd_new(struct dst_side *sides, uint64_t *random, uint32_t count,
                                uint64_t begin_ns);
void dst_crowd_free(struct dst_crowd *crowd);

/* Run the applications of one side. Returns whether they did anything. */
bool dst_crowd_work(struct dst_crowd *crowd, struct dst_side *side, uint64_t *wake_ns);

/* Whether all members have what they are to get: all messages, or the end if one let go. */
bool dst_crowd_through(const struct dst_crowd *crowd);

/* Whether all connections of this side have ended or were let go of. */
bool dst_crowd_ended(const struct dst_crowd *crowd, uint8_t side);

/* Its process is gone: nothing of what it had is used any more. */
void dst_crowd_killed(struct dst_crowd *crowd, uint8_t side);

/* All applications let go. */
void dst_crowd_close(struct dst_crowd *crowd);

#endif
