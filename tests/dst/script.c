#include "script.h"

#include "base/chunks.h"
#include "session/outbox.h"

void dst_script_draw(uint64_t *random, struct dst_script *script, uint16_t segment, uint64_t now_ns,
                     bool stalls)
{
    static const uint32_t scale[] = {1, 4, 40, 600};
    script->n = 1 + (uint32_t)dst_below(random, dst_chance(random, 200) ? DST_MESSAGES : 24);
    for (uint32_t m = 0; m < script->n; m++) {
        uint32_t most = segment * scale[dst_below(random, script->n > 30 ? 2 : 3)];
        script->size[m] = (uint32_t)dst_below(random, most + 1u);
    }
    if (dst_chance(random, 100)) /* wider than the window of chunks */
        script->size[0] = segment * (HARP_CHUNK_WINDOW + (uint32_t)dst_below(random, 800));
    script->ahead = 1 + (uint32_t)dst_below(random, dst_chance(random, 500) ? 4 : HARP_MESSAGES);
    script->slack = dst_rate(random, 300, 5000);
    script->short_at = UINT32_MAX;
    script->pieces = dst_chance(random, 300);
    if (dst_chance(random, 300)) {
        script->stream_frames = 1 + (uint32_t)dst_below(random, dst_chance(random, 300) ? 8 : 2000);
        script->hold_ns =
            1 + (uint32_t)dst_below(random, dst_chance(random, 500) ? 10 * DST_US : 300 * DST_US);
    }
    if (stalls && dst_chance(random, 200)) {
        script->stall_from_ns = now_ns + dst_below(random, 20 * DST_MS);
        script->stall_to_ns = script->stall_from_ns + dst_below(random, 200 * DST_MS);
    }
}
