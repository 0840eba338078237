/* The least delay is no help to a flow that only ever saw a full queue: it takes the queue for part
 * of the path and gets more than its share. So all flows empty the queue together now and then, as
 * BBR does to learn its round trip (Cardwell et al., ACM Queue 14(5), 2016): one period after the
 * lowest delay of the last period was seen, the window shrinks for about a round trip to half of
 * what the empty path would hold, and then is what it was. Who drains alone is seen by the others,
 * whose periods start anew with his; so after a few periods all drain at once. A period is at least
 * 8 round trips, twice as many each time that nothing new was learnt, 64 in the end, and again 8
 * when the least delay fell by a sixteenth; rounded up to a power of two in ns, so that different
 * round trips meet.
 *
 * What a drain teaches is the matter of swift_base.c. */
#include "base/sequence.h"
#include "cc/swift.h"

#define PATIENCE_MOST 64     /* round trips between two drains, once nothing is learnt any more */
#define ACKS_MOVE_PART 4     /* by such a part a queue of ACKs is shorter when it moves ... */
#define ACKS_MOST_FADES 1024 /* ... than it was within about so many samples */

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
    uint64_t half = (uint64_t)cc->config.segment_bytes * HARP_SWIFT_SCALE / 2;
    uint64_t empty = harp_swift_part(swift->fabric, base_ns, 2 * swift->rtt_ns);
    swift->drained = harp_max(empty, swift->fabric / 8);
    swift->drained = harp_max(swift->drained, harp_min(swift->fabric, half));
    swift->drain_ns = now_ns + harp_swift_round_ns(swift) + base_ns;
    swift->period_low_ns = swift->low_ns;
    swift->period_low_way_ns = swift->low_way_ns;
    swift->low_ns = swift->low_way_ns = HARP_NEVER;
    swift->low_at_ns = now_ns;
    swift->drain_base_ns = base_ns;
    swift->patience = harp_min(2 * swift->patience, PATIENCE_MOST);
}

/* Remember when ACKs last met a queue that delays leave out, and when a longer one last moved. */
static void note_acks_queue(struct harp_swift *swift, const struct harp_cc_ack *ack)
{
    uint64_t left_in_ns = ack->fabric_ns - ack->way_ns;
    swift->acks_most_ns =
        harp_max(left_in_ns, swift->acks_most_ns - swift->acks_most_ns / ACKS_MOST_FADES);
    if (left_in_ns <= swift->acks_most_ns - swift->acks_most_ns / ACKS_MOVE_PART)
        swift->acks_moved_ns = ack->now_ns;
    if (!left_in_ns)
        swift->acks_passed_ns = ack->now_ns;
}

bool harp_swift_drain(struct harp_cc *cc, const struct harp_cc_ack *ack, uint64_t base_ns)
{
    struct harp_swift *swift = harp_swift_of(cc);
    bool near = ack->fabric_ns <= base_ns + cc->config.target_ns / 2;
    if (ack->fabric_ns < swift->low_ns || (near && ack->fabric_ns == swift->low_ns)) {
        swift->low_ns = ack->fabric_ns;
        swift->low_at_ns = ack->now_ns;
    }
    swift->low_way_ns = harp_min(swift->low_way_ns, ack->way_ns);
    note_acks_queue(swift, ack);
    if (ack->now_ns < swift->drain_ns)
        return true;
    if (base_ns < swift->drain_base_ns - swift->drain_base_ns / 16) {
        swift->drain_base_ns = base_ns;
        swift->patience = HARP_SWIFT_PATIENCE_LEAST;
    }
    if (swift->drained) { /* its echo: what was sent during the drain comes back */
        swift->drained = 0;
        swift->drain_ns = ack->now_ns + harp_swift_round_ns(swift);
        return true;
    }
    if (swift->drain_ns) {
        swift->drain_ns = 0;
        harp_swift_learn_from_drain(cc, ack->now_ns, base_ns);
    }
    if (swift->stop || !swift->used ||
        ack->now_ns - swift->low_at_ns <
            drain_period_ns(harp_swift_round_ns(swift), swift->patience))
        return false;
    begin_drain(cc, ack->now_ns, base_ns);
    return true;
}
