#include "session/pacer.h"

#include <assert.h>

#include "base/sequence.h"

void harp_pacer_spend(struct harp_pacer *pacer, uint64_t now_ns, uint64_t bytes,
                      uint64_t window_bytes, uint64_t rtt_ns)
{
    assert(window_bytes > 0);
    uint64_t leash_ns = harp_max(pacer->cost_ns, rtt_ns / 8);
    uint64_t late_ns = now_ns > pacer->next_ns ? harp_min(now_ns - pacer->next_ns, leash_ns) : 0;
    pacer->cost_ns = bytes * rtt_ns / (window_bytes + window_bytes / 4);
    pacer->next_ns = now_ns - late_ns + pacer->cost_ns;
}
