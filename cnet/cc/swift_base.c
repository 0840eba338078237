/* Delay of the empty path, and whether foreign flows hold the queue.
 *
 * The base is the least delay seen. If a drain (swift_drain.c) brings the delay down to it, or most
 * of the way, the queue was made by HARP flows, which drain together. Drains that miss the base
 * mean one of two things:
 *
 * - The path became longer, or one wrong sample made it look shorter than it is. Then the window
 *   shrinks and nothing changes: over 150 ms, seven eighths of the drains end at the same delay.
 *   That delay becomes the base, and the window doubles up to it, as at first.
 * - A foreign flow, which does not drain, fills the queue. Then the delay moves from drain to
 *   drain, or more frames are lost than chance explains, and this flow competes (swift_compete.c):
 *   after a score of 24 over 250 ms. A missed drain scores 1, and 2 if it took less than a quarter
 *   of the queue away. The limits are this high because HARP flows need some periods until they
 *   drain at once, and up to 50 ms until a newcomer has its share.
 *
 * One drain that reaches the base disproves both, as one nearly empty queue in five round trips
 * does Copa's competitive mode (Arun and Balakrishnan, NSDI 2018, section 2.2). HARP flows with
 * longer round trips drain less often, so most drains of this flow are alone and change little, but
 * theirs empty the queue: where round trips of 10 to 200 us meet, once in 33 ms.
 *
 * Few segments. A flow with fewer than 4 segments in flight seldom sees the others' drains, and its
 * own shortens no queue: where all flows are like that, half a segment of each stays. For such a
 * flow it is enough that all but a quarter of the queue goes. Its own drains are no signs of
 * foreign flows, except for 64 in a row over half a second. Once it has lost segments to a full
 * buffer, which others keep at the same length, its drains teach no base either.
 *
 * Data both ways. Where hosts send each other data, a drain empties the forward queue, but ACKs
 * still wait behind the other host's flows. Delays leave out only part of that queue
 * (session_ack.c), so drains are judged without all of it, on two conditions: HARP flows make it,
 * since it was short within 50 ms; and the forward direction is used, since a flow that is held up
 * by others' data on the way back hardly sends, and competes for it with its ACKs. (Four flows each
 * way through shapers of 400 Mb/s took one another for foreign, and used 0.13 to 0.95 of the line;
 * with this rule they use 0.94.)
 *
 * Two links in a row. A flow over both hardly ever sees both queues empty at once, and its drains
 * end as those beside BBR do. The neighbours' answer separates them: HARP flows give way within
 * round trips when this flow competes, so the queue is its own and a drain leaves less than a
 * twelfth of it (cf. Nimbus, which uses the answer to pulses: Goyal et al., SIGCOMM 2022). This is
 * looked for in the first 15 drains, and only if the queue is at most 16 T, as HARP flows may
 * explain. One such drain ends competing, and signs of foreign flows must last twice as long the
 * next time, 16 times as long at the most, until a drain reaches the base.
 *
 * Otherwise competing ends only after several drains in a row that reach the base, each from a
 * queue that it shortened. CUBIC grows by half a segment each round trip (RFC 9438, section 4.3),
 * so beside it drains do not end at the same delay for long, wherever the base is.
 *
 * Standing queue. No HARP flow aims at more than 80 T (swift.c). If the queue is longer for 32
 * rounds in a row, the same two cases are separated without a drain.
 *
 * Refilled queue. TCP's hosts lose their cores now and then, for milliseconds. The queue runs empty
 * by itself, and a drain of that period seems to have reached the base. HARP flows that have seen
 * the queue empty know the base and do not fill it above 80 T again. So a foreign flow holds it if
 * it was empty and then long again four times, and long for 32 rounds more than it was short. A
 * queue that was empty while this flow had nothing to send does not count: a flow that sends in
 * bursts through a shaper with saved tokens refills it alone. */
#include "base/sequence.h"
#include "cc/swift.h"

static uint64_t queue_above(uint64_t delay_ns, uint64_t base_ns)
{
    return delay_ns - harp_min(delay_ns, base_ns);
}

uint64_t harp_swift_base_ns(struct harp_cc *cc, const struct harp_cc_ack *ack)
{
    struct harp_swift *swift = harp_swift_of(cc);
    struct swift_base *base = &swift->base;
    uint64_t least_ns = base->delay_ns ? harp_min(base->delay_ns, ack->fabric_ns) : 0;
    base->delay_ns = harp_max(least_ns, ack->least_ns);
    return base->delay_ns;
}

/* Whether HARP flows gave way as soon as this one competed: the queue is its own. */
static bool others_gave_way(const struct harp_swift *swift, uint64_t floor_ns, uint64_t base_ns)
{
    return swift->compete.active && swift->compete.doubted_drains &&
           floor_ns <= base_ns + queue_above(swift->round.mean_ns, base_ns) / SWIFT_GIVEN_WAY_PART;
}

/* Whether HARP flows made the queue: at this delay most of it was away. While this flow competes,
 * the drain must have shortened the queue and reached the base as it was before: a new, lower base
 * only shows that the old one was wrong. */
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

/* Whether the forward queue was empty and only ACKs waited, behind HARP flows. */
static bool only_acks_wait(const struct harp_cc *cc, uint64_t now_ns, uint64_t base_ns)
{
    const struct harp_swift *swift = (const struct harp_swift *)cc->state;
    uint64_t floor_ns =
        harp_min(swift->drain.least_forward_ns, swift->drain.previous_least_forward_ns);
    return harp_swift_acks_pass(swift, now_ns) &&
           swift->round.mean_forward_ns > floor_ns + cc->config.target_ns &&
           reaches_base(cc, floor_ns, swift->round.mean_forward_ns, base_ns);
}

/* No foreign flow holds the queue. The rate that it won while it competed was not its own. */
static void cease_competing(struct harp_swift *swift, uint64_t now_ns)
{
    swift->compete.active = false;
    swift->delay.fabric_window = harp_min(swift->delay.fabric_window, swift->compete.entry_window);
    swift->compete.left_at_ns = now_ns;
}

static void note_reached(struct harp_swift *swift, uint64_t now_ns)
{
    struct swift_compete *compete = &swift->compete;
    swift->base.missed_drains = swift->base.held_score = 0;
    if (!compete->active) {
        compete->widest_window = swift->delay.fabric_window;
        compete->doubt_factor = 1;
    } else if (++compete->reached_drains >= SWIFT_REACHED_DRAINS_MIN * compete->stay_factor) {
        cease_competing(swift, now_ns);
    }
}

/* HARP flows were taken for foreign ones. */
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
    swift->drain.least_ns = HARP_NEVER; /* earlier delays do not show how others answer */
}

/* Count the drains that ended at the lowest delay of all since the base was first missed. */
static void note_floor(struct harp_cc *cc, uint64_t floor_ns, uint64_t now_ns, uint64_t base_ns)
{
    struct harp_swift *swift = harp_swift_of(cc);
    struct swift_base *base = &swift->base;
    uint64_t off_ns =
        harp_max(cc->config.target_ns / 2, queue_above(floor_ns, base_ns) / SWIFT_SAME_FLOOR_PART);
    if (!base->missed_drains || floor_ns + off_ns < base->floor_ns) {
        base->floor_ns = floor_ns;
        base->same_floor_drains = 0;
        base->same_floor_since_ns = now_ns;
    }
    base->same_floor_drains += floor_ns <= base->floor_ns + off_ns;
    base->floor_ns = harp_min(base->floor_ns, floor_ns);
}

static void begin_missing(struct harp_swift *swift, uint64_t now_ns)
{
    swift->base.missed_since_ns = now_ns;
    swift->base.acked_bytes = swift->base.lost_bytes = 0;
}

/* Such a flow seldom sees the others' drains, and its own shortens no queue. */
static bool has_few_segments(const struct harp_cc *cc)
{
    const struct harp_swift *swift = (const struct harp_swift *)cc->state;
    return swift->delay.fabric_window <
           (uint64_t)SWIFT_FEW_SEGMENTS * cc->config.segment_bytes * SWIFT_SCALE;
}

/* Whether most of the queue was away, however long it was: no foreign flow holds it, but this
 * flow's share of it is not known either. */
static bool sees_drain_of_few(const struct harp_cc *cc, uint64_t floor_ns, uint64_t base_ns)
{
    const struct harp_swift *swift = (const struct harp_swift *)cc->state;
    return !swift->compete.active && has_few_segments(cc) &&
           floor_ns <= base_ns + queue_above(swift->round.mean_ns, base_ns) / 4;
}

static void note_missed(struct harp_cc *cc, uint64_t floor_ns, uint64_t now_ns, uint64_t base_ns)
{
    struct harp_swift *swift = harp_swift_of(cc);
    struct swift_base *base = &swift->base;
    if (!base->missed_drains++)
        begin_missing(swift, now_ns);
    swift->compete.reached_drains = 0;
    swift->drain.patience_rounds = SWIFT_PATIENCE_ROUNDS_MIN;
    if (has_few_segments(cc)) {
        base->held_score -= harp_min(base->held_score, 1);
        return;
    }
    if (!base->held_score)
        base->held_since_ns = now_ns;
    bool hardly =
        4 * queue_above(floor_ns, base_ns) >= 3 * queue_above(swift->round.mean_ns, base_ns);
    base->held_score += hardly ? SWIFT_HARDLY_DRAINED_SCORE : 1;
}

/* Whether the drains that missed the base say that others hold the queue. */
static bool others_hold_queue(const struct harp_swift *swift, uint64_t now_ns)
{
    const struct swift_base *base = &swift->base;
    uint64_t held_ns = SWIFT_HELD_NS * swift->compete.doubt_factor,
             missed_ns = SWIFT_MISSED_NS * swift->compete.doubt_factor;
    return (base->held_score >= SWIFT_HELD_SCORE_MAX && now_ns - base->held_since_ns >= held_ns) ||
           (base->missed_drains >= SWIFT_MISSED_DRAINS_MAX &&
            now_ns - base->missed_since_ns >= missed_ns);
}

/* Whether they say that the path became longer. A flow with few segments that has lost some to a
 * full buffer may only have missed the others' drains. */
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
    struct swift_base *base = &swift->base;
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
        base->missed_drains = base->held_score = 0;
        return;
    }
    note_floor(cc, floor_ns, now_ns, base_ns);
    note_missed(cc, floor_ns, now_ns, base_ns);
    if (base->missed_drains < SWIFT_MISSED_DRAINS_MIN)
        return;
    bool lossy = base->lost_bytes * SWIFT_CHANCE_LOSS_PART > base->acked_bytes;
    if (lossy || 8 * base->same_floor_drains < 7 * base->missed_drains) {
        if (others_hold_queue(swift, now_ns))
            begin_competing(cc, now_ns);
    } else if (path_became_longer(cc, now_ns, floor_ns)) {
        learn_base(swift, base->floor_ns, now_ns);
    }
}

/* At the end of a round: whether the queue is long most of the time although it runs empty. */
static bool is_refilled(struct harp_cc *cc, uint64_t base_ns)
{
    struct harp_swift *swift = harp_swift_of(cc);
    struct swift_standing *standing = &swift->standing;
    uint64_t low_ns = swift->round.least_ns, took_ns = swift->round.mean_ns;
    if (low_ns > base_ns + SWIFT_QUEUE_TARGETS_MAX * cc->config.target_ns) {
        standing->long_ns += took_ns;
        standing->refills += standing->was_empty && !standing->app_limited;
        standing->was_empty = standing->app_limited = false;
        return standing->refills >= SWIFT_REFILLS &&
               standing->long_ns >= SWIFT_STANDING_ROUNDS * took_ns;
    }
    standing->long_ns -= harp_min(standing->long_ns, took_ns);
    if (!standing->long_ns)
        standing->refills = 0;
    else if (low_ns <= base_ns + cc->config.target_ns / 2)
        standing->was_empty = true;
    return false;
}

void harp_swift_learn_from_round(struct harp_cc *cc, uint64_t now_ns, uint64_t base_ns,
                                 uint64_t most_ns)
{
    struct harp_swift *swift = harp_swift_of(cc);
    struct swift_standing *standing = &swift->standing;
    uint64_t low_ns = swift->round.least_ns;
    if (is_refilled(cc, base_ns)) {
        standing->long_ns = standing->refills = 0;
        begin_competing(cc, now_ns);
        return;
    }
    if (swift->round.mean_ns <= most_ns) {
        standing->rounds = 0;
        return;
    }
    if (!standing->rounds++) {
        standing->since_ns = now_ns;
        standing->least_ns = standing->most_ns = low_ns;
    }
    standing->least_ns = harp_min(standing->least_ns, low_ns);
    standing->most_ns = harp_max(standing->most_ns, low_ns);
    if (standing->rounds < SWIFT_STANDING_ROUNDS)
        return;
    uint64_t same_ns = cc->config.target_ns / 2;
    same_ns = harp_max(same_ns, queue_above(standing->least_ns, base_ns) / SWIFT_SAME_FLOOR_PART);
    bool held = standing->most_ns - standing->least_ns > same_ns;
    if (!held && now_ns - standing->since_ns < SWIFT_LONGER_PATH_NS)
        return;
    standing->rounds = 0;
    if (held)
        begin_competing(cc, now_ns);
    else
        learn_base(swift, standing->least_ns, now_ns);
}
