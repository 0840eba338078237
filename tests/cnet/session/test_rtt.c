/* Round trips: smoothed, least, and the timeout that follows. */
#include "session/rtt.h"

#include <assert.h>

static void test_rtt(void)
{
    struct harp_rtt rtt;
    harp_rtt_init(&rtt);
    assert(!harp_rtt_known(&rtt) && harp_rtt_timeout_ns(&rtt, 0, 5, 77) == 77);
    harp_rtt_sample(&rtt, 0, 1000, 200);
    assert(harp_rtt_smoothed_ns(&rtt) == 800 && harp_rtt_timeout_ns(&rtt, 10, 0, 0) == 3010);
    for (int i = 0; i < 200; i++)
        harp_rtt_sample(&rtt, 1, 1600, 0);
    assert(harp_rtt_smoothed_ns(&rtt) >= 1590 && harp_rtt_smoothed_ns(&rtt) <= 1600);
    assert(harp_rtt_least_ns(&rtt) == 800);
    harp_rtt_sample(&rtt, HARP_RTT_MEMORY_NS + 1, 1600, 0);
    harp_rtt_sample(&rtt, 2 * HARP_RTT_MEMORY_NS + 2, 1600, 0);
    assert(harp_rtt_least_ns(&rtt) == 1600);
}

int main(void)
{
    test_rtt();
    return 0;
}
