/* Bounds of a window, and the target queue of a flow of its rate (swift.c). */
#include "base/sequence.h"
#include "cc/swift.h"

uint64_t harp_swift_square_root(uint64_t x)
{
    uint64_t root = 0;
    for (uint64_t bit = UINT64_C(1) << 31; bit; bit >>= 1)
        if ((root | bit) * (root | bit) <= x)
            root |= bit;
    return root;
}

/* T sqrt(25 Gb/s / rate), at most 80 T. */
uint64_t harp_swift_content_ns(uint64_t target_ns, uint64_t window, uint64_t rtt_ns)
{
    uint64_t share_x65536 = harp_min(rtt_ns, UINT64_C(1) << 36) * (3200 * 256) / window * 256;
    uint64_t most_ns = SWIFT_QUEUE_TARGETS_MAX * target_ns;
    return harp_min(target_ns * harp_swift_square_root(share_x65536) / 256, most_ns);
}

/* At least one segment every SWIFT_PAUSE_MAX_NS: a delay that stays although this flow hardly sends
 * is not of its making. */
uint64_t harp_swift_bounded(const struct harp_cc *cc, uint64_t window)
{
    const struct harp_swift *swift = (const struct harp_swift *)cc->state;
    uint64_t segment = (uint64_t)cc->config.segment_bytes * SWIFT_SCALE;
    uint64_t least = harp_swift_part(segment, swift->delay.rtt_ns, SWIFT_PAUSE_MAX_NS);
    least = harp_max(least, cc->config.min_bytes * SWIFT_SCALE);
    return harp_min(harp_max(window, least), cc->config.max_bytes * SWIFT_SCALE);
}
