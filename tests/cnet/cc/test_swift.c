/* The controller's view of a queue that runs empty and is long again, from ACKs made by hand.
 */
#include "cc/swift.h"
#include "check.h"

#define BASE_NS UINT64_C(100000)
#define LONG_NS UINT64_C(5000000)
#define GAP_NS UINT64_C(100000)

static struct harp_cc cc;
static uint64_t now_ns;

/* ACKs of a flow that uses its window, each with this delay, for so long. */
static void send_acks(uint64_t fabric_ns, uint64_t for_ns, bool app_limited)
{
    for (uint64_t end_ns = now_ns + for_ns; now_ns < end_ns; now_ns += GAP_NS) {
        struct harp_cc_ack ack = {.now_ns = now_ns,
                                  .fabric_ns = fabric_ns,
                                  .forward_ns = fabric_ns,
                                  .least_ns = BASE_NS,
                                  .bytes = 1500,
                                  .bytes_in_flight = cc.ops->window_bytes(&cc),
                                  .app_limited = app_limited};
        cc.ops->on_ack(&cc, &ack);
    }
}

/* Six times a queue of 5 ms for 60 ms, and an empty one for a round trip of it. */
static bool competes_after_refills(bool app_limited)
{
    cc = (struct harp_cc){.ops = &harp_cc_swift,
                          .config = {.segment_bytes = 1500,
                                     .initial_bytes = 15000,
                                     .min_bytes = 1500,
                                     .max_bytes = 1 << 20,
                                     .target_ns = 25000,
                                     .host_target_ns = 25000}};
    cc.ops->init(&cc);
    now_ns = 1000000000;
    send_acks(BASE_NS, 10 * BASE_NS, false);
    for (int i = 0; i < 6; i++) {
        send_acks(LONG_NS, 12 * LONG_NS, false);
        send_acks(BASE_NS, LONG_NS, app_limited);
    }
    send_acks(LONG_NS, 12 * LONG_NS, false);
    return harp_swift_of(&cc)->compete.active;
}

int main(void)
{
    CHECK(competes_after_refills(false), "somebody fills the queue again, and we do not compete");
    CHECK(!competes_after_refills(true), "our own bursts were taken for somebody who fills it");
}
