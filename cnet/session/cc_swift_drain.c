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
 * The base is the least delay seen. A path may get longer, and one wrong sample may make it look
 * shorter than it is; then each delay looks like a queue that no smaller window shortens, and the
 * window shrinks to nothing. Drains tell: where several in a row, over a quarter of a second, end
 * at one and the same delay well above the base, no queue is there that would come and go, and that
 * delay is the base from then on. Where the operator knows base_ns, it is used instead. */
#include "base/sequence.h"
#include "session/cc_swift.h"

#define PATIENCE_MOST 64 /* round trips between two drains, once nothing is learnt any more */
#define MISSED_LEAST 3   /* drains that must have missed the base before it is learnt again ... */
#define MISSED_NS UINT64_C(250000000) /* ... and the time over which they did */
#define FLOOR_SAME 32 /* delays are the same that differ by such a part of what lies below them */

static uint64_t period_ns(uint64_t rtt_ns, uint64_t rounds)
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
    swift->drain_ns = now_ns + swift->rtt_ns + base_ns;
    swift->low_ns = HARP_NEVER;
    swift->low_at_ns = now_ns;
    swift->drain_base_ns = base_ns;
    swift->patience = harp_min(2 * swift->patience, PATIENCE_MOST);
}

uint64_t harp_swift_base_ns(struct harp_cc *cc, const struct harp_cc_ack *ack)
{
    struct harp_swift *swift = harp_swift_of(cc);
    uint64_t least_ns = swift->base_ns ? harp_min(swift->base_ns, ack->fabric_ns) : 0;
    swift->base_ns = harp_max(least_ns, ack->least_ns);
    return cc->config.base_ns ? cc->config.base_ns : swift->base_ns;
}

/* Whether the lowest delay of a drain shows that the queue was ours, or of such as drain with us:
 * most of it went away. */
static bool reached_base(const struct harp_cc *cc, uint64_t floor_ns, uint64_t base_ns)
{
    const struct harp_swift *swift = (const struct harp_swift *)cc->state;
    uint64_t queue_ns = swift->mean_ns > base_ns ? swift->mean_ns - base_ns : 0;
    return floor_ns <= base_ns + harp_max(queue_ns / 4, cc->config.target_ns / 2);
}

/* A drain is over, echo and all: what its lowest delay teaches. */
static void learn_from_drain(struct harp_cc *cc, uint64_t now_ns, uint64_t base_ns)
{
    struct harp_swift *swift = harp_swift_of(cc);
    uint64_t floor_ns = swift->low_ns;
    if (reached_base(cc, floor_ns, base_ns)) {
        swift->missed = 0;
        return;
    }
    if (!swift->missed++) {
        swift->missed_at_ns = now_ns;
        swift->floor_ns[0] = swift->floor_ns[1] = floor_ns;
    }
    swift->patience = HARP_SWIFT_PATIENCE_LEAST;
    swift->floor_ns[0] = harp_min(swift->floor_ns[0], floor_ns);
    swift->floor_ns[1] = harp_max(swift->floor_ns[1], floor_ns);
    uint64_t same_ns =
        harp_max(cc->config.target_ns / 2, (swift->floor_ns[0] - base_ns) / FLOOR_SAME);
    if (swift->floor_ns[1] - swift->floor_ns[0] > same_ns) {
        swift->missed = 0;
    } else if (swift->missed >= MISSED_LEAST && now_ns - swift->missed_at_ns >= MISSED_NS) {
        swift->base_ns = swift->floor_ns[0];
        swift->missed = 0;
    }
}

bool harp_swift_drain(struct harp_cc *cc, const struct harp_cc_ack *ack, uint64_t base_ns)
{
    struct harp_swift *swift = harp_swift_of(cc);
    bool near = ack->fabric_ns <= base_ns + cc->config.target_ns / 2;
    if (ack->fabric_ns < swift->low_ns || (near && ack->fabric_ns == swift->low_ns)) {
        swift->low_ns = ack->fabric_ns;
        swift->low_at_ns = ack->now_ns;
    }
    if (ack->now_ns < swift->drain_ns)
        return true;
    if (base_ns < swift->drain_base_ns - swift->drain_base_ns / 16) {
        swift->drain_base_ns = base_ns;
        swift->patience = HARP_SWIFT_PATIENCE_LEAST;
    }
    if (swift->drained) { /* its echo: what was sent during the drain comes back */
        swift->drained = 0;
        swift->drain_ns = ack->now_ns + swift->rtt_ns;
        return true;
    }
    if (swift->drain_ns) {
        swift->drain_ns = 0;
        learn_from_drain(cc, ack->now_ns, base_ns);
    }
    if (swift->stop || !swift->used ||
        ack->now_ns - swift->low_at_ns < period_ns(swift->rtt_ns, swift->patience))
        return false;
    begin_drain(cc, ack->now_ns, base_ns);
    return true;
}
