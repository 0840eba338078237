/* What the empty path takes, and whether others hold the queue. The base is the least delay seen;
 * where the operator knows base_ns, that. Where a drain (swift_drain.c) brings the delay down to
 * it, or most of the way, the queue was ours and of such as drain with us.
 *
 * Drains that miss the base mean one of two things:
 *
 * - The path became longer, or one wrong sample made it look shorter than it is. Then the window
 *   shrinks and nothing changes: over 150 ms, seven eighths of the drains end at the same delay,
 *   and that is the base from then on. The window doubles up to it, as at first.
 * - Somebody fills the queue who does not drain with us. Then the delay moves from drain to drain,
 *   or frames are lost as never by chance, and we compete (swift_compete.c): after 24 such
 *   drains in a row, of which those that took less than a quarter of the queue away count twice,
 *   over 250 ms. So many and so long, because flows of this kind need some periods until they drain
 *   at once, too, and up to 50 ms until a newcomer has its share.
 *
 * One drain that reaches the base disproves both, as one nearly empty queue in five round trips
 * does Copa's competitive mode (Arun and Balakrishnan, NSDI 2018, section 2.2). Flows of this kind
 * with longer round trips drain more seldom, so that most drains of ours are alone and change
 * little, but theirs empty the queue: where round trips of 10 to 200 us meet, once in 33 ms.
 *
 * A flow with few segments in flight seldom sees the others' drains, and its own makes no queue
 * shorter: where all flows are such, half a segment of each stays. So it is enough for it that all
 * but a quarter of the queue goes, however long that was, and its drains are no signs of others,
 * but for 64 in a row over half a second; and once it has lost segments to a full buffer, which
 * others keep at the same length, they teach no base either.
 *
 * Where hosts send each other data, drains empty the way there and ACKs still wait behind the other
 * host's flows, whose drains are theirs. That queue is left out of the delay in part only
 * (session_ack.c), so the whole of it is left out where drains are judged, on two conditions: that
 * flows like us make it, since it was short within 50 ms; and that the way there is used, since who
 * is held up by others' data on the way back hardly sends, and competes for it with its ACKs. (Four
 * flows each way through shapers of 400 Mb/s took one another for others, and used 0.13 to 0.95 of
 * the line; so they use 0.94.)
 *
 * A flow over two links in a row hardly ever sees both queues empty at once, and its drains end as
 * those beside BBR do. What tells its neighbours apart is their answer when it competes: flows of
 * this kind give way within round trips, so the queue is ours alone and a drain leaves less than a
 * twelfth of it (cf. Nimbus, which tells neighbours apart by their answer to pulses: Goyal et al.,
 * SIGCOMM 2022). Only where the queue is 16 T or less, as flows of this kind may explain, is this
 * looked for, in the first 15 drains. One such drain and we cease. The next time, signs of others
 * must last twice as long before we compete, 16 times as long at the most, until a drain reaches
 * the base.
 *
 * Apart from that, who competes ceases only after several drains in a row that end at the base,
 * each of them from a queue that it made shorter. CUBIC grows by half a segment each round trip
 * (RFC 9438, section 4.3), so the delay that drains end at beside it is never the same for long,
 * wherever the base is.
 *
 * A queue of more than 80 T is longer than any flow of this kind wants it (swift.c). Where it is
 * so for 32 rounds in a row, no drain is needed to tell, and the same two cases are told apart.
 *
 * The hosts of TCP's ends lose their cores now and then, for milliseconds. Then the queue runs
 * empty by itself, and any drain of that period seems to have reached the base. What tells such a
 * queue from ours is that it is longer than 80 T most of the time although it has been empty: all
 * flows of this kind have seen that, know the base, and do not fill the queue so far again. Four
 * times empty and then long again, and 32 rounds more of a long queue than of a short one, say that
 * somebody else does. A queue that was empty while we had nothing to send says nothing: who sends
 * in bursts through a shaper that has saved tokens meanwhile fills it again alone. */
#include "base/sequence.h"
#include "cc/swift.h"

static uint64_t queue_above(uint64_t delay_ns, uint64_t base_ns)
{
    return delay_ns - harp_min(delay_ns, base_ns);
}

uint64_t harp_swift_base_ns(struct harp_cc *cc, const struct harp_cc_ack *ack)
{
    struct harp_swift *swift = harp_swift_of(cc);
    uint64_t least_ns = swift->base.delay_ns ? harp_min(swift->base.delay_ns, ack->fabric_ns) : 0;
    swift->base.delay_ns = harp_max(least_ns, ack->least_ns);
    return cc->config.base_ns ? cc->config.base_ns : swift->base.delay_ns;
}

/* Whether others gave way as soon as we competed: the queue is ours alone. */
static bool others_gave_way(const struct harp_swift *swift, uint64_t floor_ns, uint64_t base_ns)
{
    return swift->compete.active && swift->compete.doubted_drains &&
           floor_ns <= base_ns + queue_above(swift->round.mean_ns, base_ns) / SWIFT_GIVEN_WAY_PART;
}

/* Whether the queue was ours, or of such as drain with us: at this delay most of it was away. While
 * we compete the drain must have made it shorter and reached what was the base before: who finds a
 * new base has only learnt that the old one was none. */
static bool reaches_base(const struct harp_cc *cc, uint64_t floor_ns, uint64_t mean_ns,
                         uint64_t base_ns)
{
    const struct harp_swift *swift = (const struct harp_swift *)cc->state;
    uint64_t near_ns = cc->config.target_ns / 2;
    if (!swift->compete.active)
        near_ns = harp_max(near_ns, harp_min(queue_above(mean_ns, base_ns) / 4,
                                             SWIFT_NEAR_TARGETS_MAX * cc->config.target_ns));
    else if (base_ns + near_ns < swift->drain.base_ns || mean_ns <= floor_ns + cc->config.target_ns)
        return false;
    return floor_ns <= base_ns + near_ns;
}

bool harp_swift_acks_pass(const struct harp_swift *swift, uint64_t now_ns)
{
    return now_ns - swift->acks.passed_at_ns < SWIFT_ACKS_PASS_NS;
}

bool harp_swift_acks_queue_moves(const struct harp_swift *swift, uint64_t now_ns)
{
    return now_ns - swift->acks.moved_at_ns < SWIFT_ACKS_MOVE_NS;
}

/* Whether the way there was empty and ACKs alone waited, behind flows like us. */
static bool only_acks_wait(const struct harp_cc *cc, uint64_t now_ns, uint64_t base_ns)
{
    const struct harp_swift *swift = (const struct harp_swift *)cc->state;
    uint64_t floor_ns =
        harp_min(swift->drain.least_forward_ns, swift->drain.previous_least_forward_ns);
    return harp_swift_acks_pass(swift, now_ns) &&
           swift->round.mean_forward_ns > floor_ns + cc->config.target_ns &&
           reaches_base(cc, floor_ns, swift->round.mean_forward_ns, base_ns);
}

/* Nobody else holds the queue. What we took since we began to compete was not ours. */
static void cease_competing(struct harp_swift *swift, uint64_t now_ns)
{
    swift->compete.active = false;
    swift->delay.fabric_window = harp_min(swift->delay.fabric_window, swift->compete.entry_window);
    swift->compete.left_at_ns = now_ns;
}

static void note_reached(struct harp_swift *swift, uint64_t now_ns)
{
    swift->base.missed_drains = swift->base.held_score = 0;
    if (!swift->compete.active) {
        swift->compete.widest_window = swift->delay.fabric_window;
        swift->compete.doubt_factor = 1;
    } else if (++swift->compete.reached_drains >=
               SWIFT_REACHED_DRAINS_MIN * swift->compete.stay_factor) {
        cease_competing(swift, now_ns);
    }
}

/* We took flows of our own kind for others. */
static void note_mistake(struct harp_swift *swift, uint64_t now_ns)
{
    swift->base.missed_drains = swift->base.held_score = 0;
    swift->compete.doubt_factor = harp_min(2 * swift->compete.doubt_factor, SWIFT_DOUBT_FACTOR_MAX);
    cease_competing(swift, now_ns);
}

static void learn_base(struct harp_swift *swift, uint64_t floor_ns, uint64_t now_ns)
{
    swift->base.delay_ns = floor_ns;
    swift->base.missed_drains = swift->base.held_score = 0;
    if (swift->compete.active) {
        cease_competing(swift, now_ns);
    } else {
        swift->delay.doubling_limit = UINT64_MAX;
        swift->delay.samples_above = 0;
    }
    swift->compete.widest_window = swift->delay.fabric_window;
}

static void begin_competing(struct harp_cc *cc, uint64_t now_ns)
{
    struct harp_swift *swift = harp_swift_of(cc);
    swift->base.missed_drains = swift->base.held_score = 0;
    if (swift->compete.active)
        return;
    harp_swift_compete(cc, now_ns);
    uint64_t queue_ns = queue_above(swift->round.mean_ns, swift->drain.base_ns);
    swift->compete.doubted_drains =
        queue_ns <= SWIFT_TWO_LINKS_TARGETS_MAX * cc->config.target_ns ? SWIFT_DOUBTED_DRAINS : 0;
    swift->drain.least_ns = HARP_NEVER; /* what was before says nothing about how others answer */
}

/* How often drains ended at the lowest delay that any of them reached since the base was missed. */
static void note_floor(struct harp_cc *cc, uint64_t floor_ns, uint64_t now_ns, uint64_t base_ns)
{
    struct harp_swift *swift = harp_swift_of(cc);
    uint64_t off_ns =
        harp_max(cc->config.target_ns / 2, queue_above(floor_ns, base_ns) / SWIFT_SAME_FLOOR_PART);
    if (!swift->base.missed_drains || floor_ns + off_ns < swift->base.floor_ns) {
        swift->base.floor_ns = floor_ns;
        swift->base.same_floor_drains = 0;
        swift->base.same_floor_since_ns = now_ns;
    }
    swift->base.same_floor_drains += floor_ns <= swift->base.floor_ns + off_ns;
    swift->base.floor_ns = harp_min(swift->base.floor_ns, floor_ns);
}

static void begin_missing(struct harp_swift *swift, uint64_t now_ns)
{
    swift->base.missed_since_ns = now_ns;
    swift->base.acked_bytes = swift->base.lost_bytes = 0;
}

/* A flow that has few segments in flight seldom learns when the others drain, and its own drain is
 * hardly one. */
static bool has_few_segments(const struct harp_cc *cc)
{
    const struct harp_swift *swift = (const struct harp_swift *)cc->state;
    return swift->delay.fabric_window <
           (uint64_t)SWIFT_FEW_SEGMENTS * cc->config.segment_bytes * SWIFT_SCALE;
}

/* Whether most of the queue was away, of which only flows like us leave a part, however long it is:
 * nobody else holds it, but what our share was is not known either. */
static bool sees_drain_of_few(const struct harp_cc *cc, uint64_t floor_ns, uint64_t base_ns)
{
    const struct harp_swift *swift = (const struct harp_swift *)cc->state;
    return !swift->compete.active && has_few_segments(cc) &&
           floor_ns <= base_ns + queue_above(swift->round.mean_ns, base_ns) / 4;
}

static void note_missed(struct harp_cc *cc, uint64_t floor_ns, uint64_t now_ns, uint64_t base_ns)
{
    struct harp_swift *swift = harp_swift_of(cc);
    if (!swift->base.missed_drains++)
        begin_missing(swift, now_ns);
    swift->compete.reached_drains = 0;
    swift->drain.patience_rounds = SWIFT_PATIENCE_ROUNDS_MIN;
    if (has_few_segments(cc)) {
        swift->base.held_score -= harp_min(swift->base.held_score, 1);
        return;
    }
    if (!swift->base.held_score)
        swift->base.held_since_ns = now_ns;
    bool hardly =
        4 * queue_above(floor_ns, base_ns) >= 3 * queue_above(swift->round.mean_ns, base_ns);
    swift->base.held_score += hardly ? SWIFT_HARDLY_DRAINED_SCORE : 1;
}

/* Whether the drains that missed the base say that others hold the queue. */
static bool others_hold_queue(const struct harp_swift *swift, uint64_t now_ns)
{
    uint64_t held_ns = SWIFT_HELD_NS * swift->compete.doubt_factor,
             missed_ns = SWIFT_MISSED_NS * swift->compete.doubt_factor;
    return (swift->base.held_score >= SWIFT_HELD_SCORE_MAX &&
            now_ns - swift->base.held_since_ns >= held_ns) ||
           (swift->base.missed_drains >= SWIFT_MISSED_DRAINS_MAX &&
            now_ns - swift->base.missed_since_ns >= missed_ns);
}

/* Whether they say that the path became longer. Who has few segments and has lost some to a full
 * buffer may only have missed the others' drains. */
static bool path_became_longer(const struct harp_cc *cc, uint64_t now_ns, uint64_t floor_ns)
{
    const struct harp_swift *swift = (const struct harp_swift *)cc->state;
    uint64_t since_ns = now_ns - swift->base.same_floor_since_ns;
    if (swift->compete.active)
        return swift->round.mean_ns > floor_ns + SWIFT_DRAINED_TARGETS_MIN * cc->config.target_ns &&
               since_ns >= SWIFT_LONGER_PATH_COMPETING_NS;
    return since_ns >= SWIFT_LONGER_PATH_NS &&
           !(has_few_segments(cc) && swift->depth.share_x65536 < 65536);
}

void harp_swift_learn_from_drain(struct harp_cc *cc, uint64_t now_ns, uint64_t base_ns)
{
    struct harp_swift *swift = harp_swift_of(cc);
    uint64_t floor_ns = harp_min(swift->drain.least_ns, swift->drain.previous_least_ns);
    if (harp_swift_marks_arrive(swift) && !swift->compete.active)
        return;
    if (others_gave_way(swift, floor_ns, base_ns)) {
        note_mistake(swift, now_ns);
        return;
    }
    swift->compete.doubted_drains -= harp_min(swift->compete.doubted_drains, 1);
    if (reaches_base(cc, floor_ns, swift->round.mean_ns, base_ns) ||
        only_acks_wait(cc, now_ns, base_ns)) {
        note_reached(swift, now_ns);
        return;
    }
    if (sees_drain_of_few(cc, floor_ns, base_ns)) {
        swift->base.missed_drains = swift->base.held_score = 0;
        return;
    }
    note_floor(cc, floor_ns, now_ns, base_ns);
    note_missed(cc, floor_ns, now_ns, base_ns);
    if (swift->base.missed_drains < SWIFT_MISSED_DRAINS_MIN)
        return;
    bool lossy = swift->base.lost_bytes * SWIFT_CHANCE_LOSS_PART > swift->base.acked_bytes;
    if (lossy || 8 * swift->base.same_floor_drains < 7 * swift->base.missed_drains) {
        if (others_hold_queue(swift, now_ns))
            begin_competing(cc, now_ns);
    } else if (path_became_longer(cc, now_ns, floor_ns)) {
        learn_base(swift, swift->base.floor_ns, now_ns);
    }
}

/* A round is over. Whether the queue is long most of the time although it runs empty in between. */
static bool is_refilled(struct harp_cc *cc, uint64_t base_ns)
{
    struct harp_swift *swift = harp_swift_of(cc);
    uint64_t low_ns = swift->round.least_ns, took_ns = swift->round.mean_ns;
    if (low_ns > base_ns + SWIFT_QUEUE_TARGETS_MAX * cc->config.target_ns) {
        swift->standing.long_ns += took_ns;
        swift->standing.refills += swift->standing.was_empty && !swift->standing.app_limited;
        swift->standing.was_empty = swift->standing.app_limited = false;
        return swift->standing.refills >= SWIFT_REFILLS &&
               swift->standing.long_ns >= SWIFT_STANDING_ROUNDS * took_ns;
    }
    swift->standing.long_ns -= harp_min(swift->standing.long_ns, took_ns);
    if (!swift->standing.long_ns)
        swift->standing.refills = 0;
    else if (low_ns <= base_ns + cc->config.target_ns / 2)
        swift->standing.was_empty = true;
    return false;
}

void harp_swift_learn_from_round(struct harp_cc *cc, uint64_t now_ns, uint64_t base_ns,
                                 uint64_t most_ns)
{
    struct harp_swift *swift = harp_swift_of(cc);
    uint64_t low_ns = swift->round.least_ns;
    if (is_refilled(cc, base_ns)) {
        swift->standing.long_ns = swift->standing.refills = 0;
        begin_competing(cc, now_ns);
        return;
    }
    if (swift->round.mean_ns <= most_ns) {
        swift->standing.rounds = 0;
        return;
    }
    if (!swift->standing.rounds++) {
        swift->standing.since_ns = now_ns;
        swift->standing.least_ns = swift->standing.most_ns = low_ns;
    }
    swift->standing.least_ns = harp_min(swift->standing.least_ns, low_ns);
    swift->standing.most_ns = harp_max(swift->standing.most_ns, low_ns);
    if (swift->standing.rounds < SWIFT_STANDING_ROUNDS)
        return;
    uint64_t same_ns = cc->config.target_ns / 2;
    same_ns =
        harp_max(same_ns, queue_above(swift->standing.least_ns, base_ns) / SWIFT_SAME_FLOOR_PART);
    bool held = swift->standing.most_ns - swift->standing.least_ns > same_ns;
    if (!held && now_ns - swift->standing.since_ns < SWIFT_LONGER_PATH_NS)
        return;
    swift->standing.rounds = 0;
    if (held)
        begin_competing(cc, now_ns);
    else
        learn_base(swift, swift->standing.least_ns, now_ns);
}
