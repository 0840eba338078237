/* Drains: all flows empty the queue together now and then. Without them a flow that only ever saw a
 * full queue takes the queue for part of the path and gets more than its share. BBR drains for the
 * same reason (Cardwell et al., ACM Queue 14(5), 2016).
 *
 * One period after the lowest delay of the last period was seen, the window shrinks for about a
 * round trip to half of what the empty path holds, and then returns. The other flows see a lone
 * drain and restart their periods with it, so after a few periods all drain at once.
 *
 * A period is at least 8 round trips, twice as many each time that nothing new was learned, 64 at
 * the most, and 8 again when the least delay fell by a sixteenth. It is rounded up to a power of
 * two in ns, so that flows with different round trips meet. swift_base.c judges the drains. */
#include "base/sequence.h"
#include "cc/swift.h"

static uint64_t drain_period_ns(uint64_t rtt_ns, uint64_t rounds)
{
    uint64_t period = UINT64_C(1) << 17; /* 131 us */
    while (period < rounds * rtt_ns)
        period *= 2;
    return period;
}

static void begin_drain(struct harp_cc *cc, uint64_t now_ns, uint64_t base_ns)
{
    struct harp_swift *swift = harp_swift_of(cc);
    uint64_t half = (uint64_t)cc->config.segment_bytes * SWIFT_SCALE / 2;
    uint64_t empty = harp_swift_part(swift->delay.fabric_window, base_ns, 2 * swift->delay.rtt_ns);
    swift->drain.window = harp_max(empty, swift->delay.fabric_window / 8);
    swift->drain.window = harp_max(swift->drain.window, harp_min(swift->delay.fabric_window, half));
    swift->drain.end_ns = now_ns + harp_swift_round_ns(swift) + base_ns;
    swift->drain.previous_least_ns = swift->drain.least_ns;
    swift->drain.previous_least_forward_ns = swift->drain.least_forward_ns;
    swift->drain.least_ns = swift->drain.least_forward_ns = HARP_NEVER;
    swift->drain.least_at_ns = now_ns;
    swift->drain.base_ns = base_ns;
    swift->drain.patience_rounds =
        harp_min(2 * swift->drain.patience_rounds, SWIFT_PATIENCE_ROUNDS_MAX);
}

/* Remember when ACKs last met a queue that delays leave out, and when a longer one last moved. */
static void note_acks_queue(struct harp_swift *swift, const struct harp_cc_ack *ack)
{
    uint64_t left_in_ns = ack->fabric_ns - ack->forward_ns;
    swift->acks.longest_ns = harp_max(
        left_in_ns, swift->acks.longest_ns - swift->acks.longest_ns / SWIFT_ACKS_LONGEST_FADES);
    if (left_in_ns <= swift->acks.longest_ns - swift->acks.longest_ns / SWIFT_ACKS_MOVE_PART)
        swift->acks.moved_at_ns = ack->now_ns;
    if (!left_in_ns)
        swift->acks.passed_at_ns = ack->now_ns;
}

bool harp_swift_drain(struct harp_cc *cc, const struct harp_cc_ack *ack, uint64_t base_ns)
{
    struct harp_swift *swift = harp_swift_of(cc);
    bool near = ack->fabric_ns <= base_ns + cc->config.target_ns / 2;
    if (ack->fabric_ns < swift->drain.least_ns ||
        (near && ack->fabric_ns == swift->drain.least_ns)) {
        swift->drain.least_ns = ack->fabric_ns;
        swift->drain.least_at_ns = ack->now_ns;
    }
    swift->drain.least_forward_ns = harp_min(swift->drain.least_forward_ns, ack->forward_ns);
    note_acks_queue(swift, ack);
    if (ack->now_ns < swift->drain.end_ns)
        return true;
    if (base_ns < swift->drain.base_ns - swift->drain.base_ns / 16) {
        swift->drain.base_ns = base_ns;
        swift->drain.patience_rounds = SWIFT_PATIENCE_ROUNDS_MIN;
    }
    if (swift->drain.window) { /* its echo: what was sent during the drain comes back */
        swift->drain.window = 0;
        swift->drain.end_ns = ack->now_ns + harp_swift_round_ns(swift);
        return true;
    }
    if (swift->drain.end_ns) {
        swift->drain.end_ns = 0;
        harp_swift_learn_from_drain(cc, ack->now_ns, base_ns);
    }
    if (swift->delay.doubling_limit || !swift->round.window_used ||
        ack->now_ns - swift->drain.least_at_ns <
            drain_period_ns(harp_swift_round_ns(swift), swift->drain.patience_rounds))
        return false;
    begin_drain(cc, ack->now_ns, base_ns);
    return true;
}
