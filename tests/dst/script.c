#include "script.h"

#include "base/chunks.h"
#include "session/outbox.h"

void dst_script_draw(uint64_t *random, struct dst_script *script, uint16_t segment, uint64_t now_ns,
                     bool stalls)
{
    static const uint32_t scale[] = {1, 4, 40, 600};
    script->n =
        1 + (uint32_t)virtual_below(random, virtual_chance(random, 200) ? DST_MESSAGES : 24);
    for (uint32_t m = 0; m < script->n; m++) {
        uint32_t most = segment * scale[virtual_below(random, script->n > 30 ? 2 : 3)];
        script->size[m] = (uint32_t)virtual_below(random, most + 1u);
    }
    if (virtual_chance(random, 100)) /* wider than the window of chunks */
        script->size[0] = segment * (HARP_CHUNK_WINDOW + (uint32_t)virtual_below(random, 800));
    script->ahead =
        1 + (uint32_t)virtual_below(random, virtual_chance(random, 500) ? 4 : HARP_MESSAGES);
    script->slack = dst_rate(random, 300, 5000);
    script->short_at = UINT32_MAX;
    script->pieces = virtual_chance(random, 300);
    if (virtual_chance(random, 300)) {
        script->stream_frames =
            1 + (uint32_t)virtual_below(random, virtual_chance(random, 300) ? 8 : 2000);
        script->hold_ns = 1 + (uint32_t)virtual_below(
                                  random, virtual_chance(random, 500) ? 10 * DST_US : 300 * DST_US);
    }
    if (stalls && virtual_chance(random, 200)) {
        script->stall_from_ns = now_ns + virtual_below(random, 20 * DST_MS);
        script->stall_to_ns = script->stall_from_ns + virtual_below(random, 200 * DST_MS);
    }
}
