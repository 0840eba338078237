/* The controller's view of a queue that runs empty and is long again, and of timeouts that were too
 * early, from ACKs made by hand. */
#include "cc/swift.h"
#include "check.h"

#define BASE_NS UINT64_C(100000)
#define LONG_NS UINT64_C(5000000)
#define FAR_NS UINT64_C(40000000)
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

static void begin_flow(void)
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
}

/* Six times a queue of 5 ms for 60 ms, and an empty one for a round trip of it. */
static bool competes_after_refills(bool app_limited)
{
    begin_flow();
    send_acks(BASE_NS, 10 * BASE_NS, false);
    for (int i = 0; i < 6; i++) {
        send_acks(LONG_NS, 12 * LONG_NS, false);
        send_acks(BASE_NS, LONG_NS, app_limited);
    }
    send_acks(LONG_NS, 12 * LONG_NS, false);
    return harp_swift_of(&cc)->compete.active;
}

/* What a window is after five round trips of a long, empty path, and two timeouts before them. */
static uint64_t grown_window(bool times_out, bool spurious)
{
    begin_flow();
    for (int i = 0; times_out && i < 2; i++)
        cc.ops->on_timeout(&cc, now_ns);
    if (spurious)
        cc.ops->on_spurious(&cc);
    for (int i = 0; i < 5; i++) {
        uint32_t window = (uint32_t)cc.ops->window_bytes(&cc);
        struct harp_cc_ack ack = {.now_ns = now_ns += FAR_NS,
                                  .fabric_ns = FAR_NS,
                                  .forward_ns = FAR_NS,
                                  .least_ns = FAR_NS,
                                  .bytes = window,
                                  .bytes_in_flight = window};
        cc.ops->on_ack(&cc, &ack);
    }
    return cc.ops->window_bytes(&cc);
}

/* On a path that is longer than the first timeout (RFC 4015, section 3.2: all is restored). */
static void test_a_timeout_that_was_too_early_ends_no_doubling(void)
{
    uint64_t undisturbed = grown_window(false, false), early = grown_window(true, true);
    CHECK(undisturbed >= 16 * 15000, "%llu B after five doublings",
          (unsigned long long)undisturbed);
    CHECK(early >= undisturbed, "%llu B, and %llu without a timeout", (unsigned long long)early,
          (unsigned long long)undisturbed);
    CHECK(grown_window(true, false) < undisturbed, "a timeout that was right changed nothing");
}

int main(void)
{
    test_a_timeout_that_was_too_early_ends_no_doubling();
    CHECK(competes_after_refills(false), "somebody fills the queue again, and we do not compete");
    CHECK(!competes_after_refills(true), "our own bursts were taken for somebody who fills it");
}
