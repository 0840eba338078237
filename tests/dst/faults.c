#include "faults.h"

#include "virtual/random.h"
#include "wire/wire.h"

static bool is_within(const struct dst_span *span, uint64_t now_ns)
{
    return now_ns >= span->from_ns && now_ns < span->to_ns;
}

static bool draw_loss(struct dst_faulty_link *link, uint64_t *random, uint64_t now_ns, bool faulty)
{
    const struct dst_faults *faults = &link->faults;
    if (is_within(&faults->black, now_ns))
        return true;
    if (!faulty)
        return false;
    if (link->burst_left) {
        link->burst_left--;
        return true;
    }
    if (virtual_chance(random, faults->burst))
        link->burst_left = 1 + (uint32_t)virtual_below(random, faults->burst_length);
    return virtual_chance(random, faults->loss);
}

#define LONGER_ROUNDS 8 /* times its growth, while which a longer path is news */

/* Jitter, spikes and lateness of a frame whose last bit leaves at fate->at_ns. */
static void delay_frame(const struct dst_faults *faults, uint64_t *random, uint64_t now_ns,
                        bool faulty, struct dst_fate *fate)
{
    fate->at_ns += faults->delay_ns + virtual_below(random, faults->jitter_ns + 1);
    bool spike = is_within(&faults->spike, now_ns);
    bool longer = faults->longer_ns && now_ns >= faults->longer_at_ns;
    bool fresh = longer && now_ns - faults->longer_at_ns < LONGER_ROUNDS * faults->longer_ns;
    bool late = faulty && virtual_chance(random, faults->late);
    if (spike)
        fate->at_ns += faults->spike_ns;
    if (longer)
        fate->at_ns += faults->longer_ns;
    if (late)
        fate->at_ns += virtual_below(random, 4 * faults->delay_ns);
    fate->late = spike || late || fresh || faults->jitter_ns;
}

struct dst_fate dst_faults_pass(struct dst_faulty_link *link, uint64_t *random, uint64_t now_ns,
                                bool faulty, size_t bytes_n)
{
    const struct dst_faults *faults = &link->faults;
    struct dst_fate fate = {.at_ns = VIRTUAL_NEVER,
                            .lost = draw_loss(link, random, now_ns, faulty)};
    fate.dropped = virtual_line_wait_ps(&link->line, now_ns) > faults->queue_ns * 1000;
    if (fate.dropped)
        return fate;
    uint64_t cost_ns = bytes_n * faults->byte_ps / 1000;
    fate.at_ns = virtual_line_send(&link->line, now_ns * 1000, cost_ns * 1000) / 1000;
    delay_frame(faults, random, now_ns, faulty, &fate);
    bool narrow = is_within(&faults->narrow, now_ns) && bytes_n > faults->narrow_bytes;
    fate.dropped = narrow || (faults->most_bytes && bytes_n > faults->most_bytes);
    return fate;
}

uint64_t dst_faults_twin_ns(const struct dst_faulty_link *link, uint64_t *random, uint64_t at_ns)
{
    if (!virtual_chance(random, link->faults.twice))
        return VIRTUAL_NEVER;
    return at_ns + virtual_below(random, 2 * link->faults.delay_ns);
}

void dst_flip_bit(uint64_t *random, uint8_t *bytes, size_t bytes_n)
{
    bool header = bytes_n <= HARP_HEADER_BYTES || virtual_chance(random, 500);
    size_t at = header ? virtual_below(random, HARP_HEADER_BYTES)
                       : HARP_HEADER_BYTES + virtual_below(random, bytes_n - HARP_HEADER_BYTES);
    bytes[at] ^= (uint8_t)(1u << virtual_below(random, 8));
}

size_t dst_faults_spoil(const struct dst_faulty_link *link, uint64_t *random, uint8_t *bytes,
                        size_t bytes_n, bool *spoilt)
{
    bool flip = virtual_chance(random, link->faults.flip);
    bool cut = virtual_chance(random, link->faults.cut);
    *spoilt = flip || cut;
    if (flip)
        dst_flip_bit(random, bytes, bytes_n);
    return cut ? virtual_below(random, bytes_n) : bytes_n;
}
