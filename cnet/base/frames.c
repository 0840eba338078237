#include "base/frames.h"

#include <assert.h>
#include <errno.h>

enum { PAGE_BYTES = 4096, LINE_BYTES = 64 };

_Static_assert(HARP_FRAME_STATES == HARP_FRAME_KEPT + 1, "one row a state");

#define BIT(state) (1u << HARP_FRAME_##state)

/* The table of frames.h: what may come after each state. */
static const uint16_t next[HARP_FRAME_STATES] = {
    [HARP_FRAME_FREE] = BIT(FILL) | BIT(DRAFT),
    [HARP_FRAME_FILL] = BIT(ARRIVED) | BIT(FREE),
    [HARP_FRAME_ARRIVED] = BIT(LENT) | BIT(FILL) | BIT(FREE),
    [HARP_FRAME_LENT] = BIT(FILL) | BIT(FREE),
    [HARP_FRAME_DRAFT] = BIT(ARRIVED) | BIT(READY) | BIT(FREE),
    [HARP_FRAME_READY] = BIT(SENDING) | BIT(LEAVING) | BIT(FREE),
    [HARP_FRAME_SENDING] = BIT(KEPT) | BIT(LEAVING),
    [HARP_FRAME_LEAVING] = BIT(FREE),
    [HARP_FRAME_KEPT] = BIT(READY) | BIT(FREE),
};

bool harp_frame_may(enum harp_frame_state from, enum harp_frame_state to)
{
    assert(from < HARP_FRAME_STATES && to < HARP_FRAME_STATES);
    return next[from] >> to & 1;
}

size_t harp_frames_need(uint32_t count, uint32_t frame_bytes)
{
    size_t tables = (size_t)count * (sizeof(uint32_t) + sizeof(uint8_t));
    return (size_t)count * frame_bytes + tables + PAGE_BYTES + 2 * LINE_BYTES;
}

int harp_frames_open(struct harp_frames *frames, struct harp_arena *arena, uint32_t count,
                     uint32_t frame_bytes)
{
    assert(count > 0);
    assert(frame_bytes > 0 && frame_bytes % LINE_BYTES == 0);
    *frames = (struct harp_frames){.frame_bytes = frame_bytes, .count = count};
    frames->base = harp_arena_take(arena, (size_t)count * frame_bytes, PAGE_BYTES);
    frames->free = harp_arena_take(arena, count * sizeof *frames->free, LINE_BYTES);
    frames->state = harp_arena_take(arena, count, LINE_BYTES);
    if (!frames->base || !frames->free || !frames->state)
        return -ENOMEM;
    /* The arena's bytes are zero, so that all states are HARP_FRAME_FREE. Lowest numbers go first.
     */
    for (uint32_t i = 0; i < count; i++)
        frames->free[i] = count - 1 - i;
    frames->in_state[HARP_FRAME_FREE] = count;
    return 0;
}

uint32_t harp_frames_take(struct harp_frames *frames, enum harp_frame_state to, uint32_t *out,
                          uint32_t count)
{
    assert(harp_frame_may(HARP_FRAME_FREE, to));
    uint32_t free = frames->in_state[HARP_FRAME_FREE];
    uint32_t taken = count < free ? count : free;
    for (uint32_t i = 0; i < taken; i++) {
        uint32_t frame = frames->free[free - 1 - i];
        assert(frames->state[frame] == HARP_FRAME_FREE);
        frames->state[frame] = (uint8_t)to;
        out[i] = frame;
    }
    frames->in_state[HARP_FRAME_FREE] = free - taken;
    frames->in_state[to] += taken;
    return taken;
}

void harp_frames_move(struct harp_frames *frames, uint32_t frame, enum harp_frame_state from,
                      enum harp_frame_state to)
{
    assert(frame < frames->count);
    assert(frames->state[frame] == from);
    assert(from != HARP_FRAME_FREE && harp_frame_may(from, to));
    frames->state[frame] = (uint8_t)to;
    frames->in_state[from]--;
    if (to == HARP_FRAME_FREE)
        frames->free[frames->in_state[HARP_FRAME_FREE]] = frame;
    frames->in_state[to]++;
}
