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
 * The base is the least delay seen. Where a period and the drain at its end brought the delay down
 * to it, or most of the way, the queue was ours and of such as drain with us. Drains that miss the
 * base mean one of two things:
 *
 * - The path became longer, or one wrong sample made it look shorter than it is. Then the window
 *   shrinks and nothing changes: several drains, over 150 ms, end at the same delay, and that is
 *   the base from then on. The window doubles up to it, as at first.
 * - Somebody fills the queue who does not drain with us. Then the delay moves from drain to drain,
 *   or frames are lost as never by chance, and we compete (cc_swift_compete.c): after 6 drains that
 *   hardly shortened the queue, or 32 that left more than a quarter of it. So many, because flows
 *   of this kind need some periods until they drain at once, too.
 *
 * Where the operator knows base_ns, it is used instead of the least seen. */
#include "base/sequence.h"
#include "session/cc_swift.h"

#define PATIENCE_MOST 64 /* round trips between two drains, once nothing is learnt any more */
#define MISSED_LEAST 3   /* drains that must have missed the base before it is learnt again ... */
#define MISSED_NS UINT64_C(150000000)       /* ... and the time over which they did; while we ... */
#define MISSED_COMPETING_NS (4 * MISSED_NS) /* ... compete, since plateaus of CUBIC are flat */
#define FLOOR_SAME 32  /* delays are the same that differ by such a part of the queue below them */
#define MISSED_HELD 6  /* drains that hardly shortened the queue before we compete ... */
#define MISSED_MOST 32 /* ... and that left a quarter of it */
#define LOST_MOST 32   /* more than one in so many is not lost by chance */

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
    swift->period_low_ns = swift->low_ns;
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

/* A drain reached the base: one more of those after which we cease to compete. */
static void note_reached(struct harp_swift *swift, uint64_t now_ns)
{
    swift->missed = 0;
    if (swift->competes && ++swift->reached >= swift->stay) {
        swift->competes = false;
        swift->left_ns = now_ns;
    }
}

static void learn_base(struct harp_swift *swift, uint64_t now_ns)
{
    swift->base_ns = swift->floor_ns[0];
    if (!swift->competes) {
        swift->stop = UINT64_MAX;
        swift->above = 0;
    }
    note_reached(swift, now_ns);
}

static void note_missed(struct harp_swift *swift, uint64_t floor_ns, uint64_t now_ns)
{
    if (!swift->missed++) {
        swift->missed_at_ns = now_ns;
        swift->floor_ns[0] = swift->floor_ns[1] = floor_ns;
        swift->missed_came = swift->missed_lost = 0;
    }
    swift->reached = 0;
    swift->patience = HARP_SWIFT_PATIENCE_LEAST;
    swift->floor_ns[0] = harp_min(swift->floor_ns[0], floor_ns);
    swift->floor_ns[1] = harp_max(swift->floor_ns[1], floor_ns);
}

/* Whether what stands in the way comes and goes, as queues do and paths do not. */
static bool is_queue(const struct harp_cc *cc, uint64_t base_ns)
{
    const struct harp_swift *swift = (const struct harp_swift *)cc->state;
    uint64_t same_ns = cc->config.target_ns / 2;
    if (!swift->competes)
        same_ns = harp_max(same_ns, (swift->floor_ns[0] - base_ns) / FLOOR_SAME);
    return swift->floor_ns[1] - swift->floor_ns[0] > same_ns ||
           swift->missed_lost * LOST_MOST > swift->missed_came;
}

/* Whether others hold the queue: none of the drains took even a quarter of it away, or there were
 * very many. */
static bool is_held(const struct harp_swift *swift, uint64_t base_ns)
{
    uint64_t queue_ns = swift->mean_ns - harp_min(base_ns, swift->mean_ns);
    bool hardly = 4 * (swift->floor_ns[0] - base_ns) >= 3 * queue_ns;
    return swift->missed >= MISSED_MOST || (swift->missed >= MISSED_HELD && hardly);
}

/* A drain is over, echo and all: what the lowest delay since the one before teaches. */
static void learn_from_drain(struct harp_cc *cc, uint64_t now_ns, uint64_t base_ns)
{
    struct harp_swift *swift = harp_swift_of(cc);
    uint64_t floor_ns = harp_min(swift->low_ns, swift->period_low_ns);
    if (reached_base(cc, floor_ns, base_ns)) {
        note_reached(swift, now_ns);
        return;
    }
    note_missed(swift, floor_ns, now_ns);
    uint64_t missed_ns = swift->competes ? MISSED_COMPETING_NS : MISSED_NS;
    if (swift->missed < MISSED_LEAST)
        return;
    if (!is_queue(cc, base_ns)) {
        if (now_ns - swift->missed_at_ns >= missed_ns)
            learn_base(swift, now_ns);
    } else if (is_held(swift, base_ns)) {
        swift->missed = 0;
        if (!swift->competes)
            harp_swift_compete(cc, now_ns);
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
