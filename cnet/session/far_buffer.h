/* The buffer at the far end of a path: what arrives waits in it until the process there takes it.
 *
 * A UDP socket drops what its buffer has no room for, and its sender takes that for congestion. So
 * the other end announces what its port holds (wire/body.h), and no more than that is in flight.
 *
 *     connection 1   path 0 --\
 *                    path 1 ---+--> one socket's buffer: they share it, and so do those
 *     connection 2   path 0 --/     of all connections of an engine that lead there
 *
 * A path may have an equal share of the buffer in flight, and all paths together all of it. When
 * another path begins to send while the buffer is taken, its first packet goes all the same
 * (path.h), and the others fall to their shares as they hear of what arrived. So no path waits for
 * another's news. Nobody here knows what other hosts send there.
 *
 * Owner: one engine, or a session of its own.
 */
#ifndef HARP_FAR_BUFFER_H
#define HARP_FAR_BUFFER_H

#include <stdbool.h>
#include <stdint.h>

struct harp_far_buffer {
    uint64_t holds_bytes;     /* 0: the other end does not say */
    uint64_t in_flight_bytes; /* of all paths that lead there */
    uint32_t users;           /* paths with anything in flight */
};

/* `bytes` of a path that had `packets_before` packets in flight are in flight, too; or are not any
 * more, and it has `packets_left`. */
static inline void harp_far_buffer_fill(struct harp_far_buffer *far, uint32_t packets_before,
                                        uint64_t bytes)
{
    far->in_flight_bytes += bytes;
    far->users += packets_before == 0;
}

static inline void harp_far_buffer_drain(struct harp_far_buffer *far, uint32_t packets_left,
                                         uint64_t bytes)
{
    far->in_flight_bytes -= bytes;
    far->users -= packets_left == 0;
}

/* Whether a path that has `own_bytes` in flight, and so is a user, may add `bytes`. */
static inline bool harp_far_buffer_has_room(const struct harp_far_buffer *far, uint64_t own_bytes,
                                            uint32_t bytes)
{
    return !far->holds_bytes || (own_bytes + bytes <= far->holds_bytes / far->users &&
                                 far->in_flight_bytes + bytes <= far->holds_bytes);
}

#endif
