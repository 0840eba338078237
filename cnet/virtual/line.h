/* Serializer: sends one frame after the other at a rate; later frames wait.
 *
 *     uint64_t wait_ps = virtual_line_wait_ps(&line, now_ns);
 *     if (too long for the queue) ... the frame is dropped
 *     uint64_t out_ns = virtual_line_send(&line, now_ns * 1000, virtual_line_cost_ps(bytes, mbps))
 * / 1000;
 *
 * Times inside are in ps, since a frame of 64 bytes takes 640 ps at 800 Gb/s; 64 bits of them last
 * for 213 days. How much may wait, and what is marked, is the owner's to say.
 */
#ifndef HARP_VIRTUAL_LINE_H
#define HARP_VIRTUAL_LINE_H

#include <stdint.h>

struct virtual_line {
    uint64_t free_ps; /* when it has sent all frames so far */
};

/* Time that `bytes` take at `mbps` Mb/s. */
static inline uint64_t virtual_line_cost_ps(uint64_t bytes, uint64_t mbps)
{
    return bytes * 8000000 / mbps;
}

/* How long a frame that comes now waits. */
static inline uint64_t virtual_line_wait_ps(const struct virtual_line *line, uint64_t now_ns)
{
    uint64_t now_ps = now_ns * 1000;
    return line->free_ps > now_ps ? line->free_ps - now_ps : 0;
}

/* Send a frame that takes `cost_ps`, not before `from_ps`. Returns when its last bit leaves, in ps.
 */
static inline uint64_t virtual_line_send(struct virtual_line *line, uint64_t from_ps,
                                         uint64_t cost_ps)
{
    uint64_t start_ps = line->free_ps > from_ps ? line->free_ps : from_ps;
    return line->free_ps = start_ps + cost_ps;
}

#endif
