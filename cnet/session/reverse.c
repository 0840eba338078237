#include "session/reverse.h"

#include "base/sequence.h"

uint64_t harp_reverse_queue_ns(struct harp_reverse *reverse, uint32_t took_ns, uint64_t queues_ns)
{
    uint64_t queue_ns = 0;
    if (reverse->known && harp_before(reverse->base_ns, took_ns))
        queue_ns = harp_min(took_ns - reverse->base_ns, queues_ns);
    reverse->known = true;
    reverse->base_ns = took_ns - (uint32_t)queue_ns;
    return queue_ns;
}
