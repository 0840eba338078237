/* The delay law, in the family of Swift (Kumar et al., "Swift: Delay is Simple and Effective for
 * Congestion Control in the Datacenter", SIGCOMM 2020): fabric and host delay apart, each with a
 * window of its own, and the smaller window counts; a higher target for slower flows; windows below
 * one segment, which the pacer turns into pauses of at most 4 ms. Once a round trip, with the mean
 * delay of that round's samples:
 *
 *   target = base + min(T sqrt(25 Gb/s / rate), 80 T) + min(6 jitter, 640 T)  rate = window / delay
 *   window += window (target - delay) / (2 delay), by a half of it at most, either way
 *
 * T is config.target_ns (25 us), base the delay of the empty path (swift_base.c), jitter the
 * smoothed difference between one sample and the next. A window is never below one segment a round
 * trip, or every 4 ms. Each round makes half of the distance to the target, whatever the round trip
 * is. The host's window obeys the same law with T = config.host_target_ns, base 0, no jitter.
 *
 * The square root spans the whole range of rates (Swift adds its scaled part only for windows below
 * 100 segments). Flows that see the same queue then settle at the same rate, so shares depend
 * neither on who came first nor on round trips, and n flows settle at a queue of
 *
 *   T sqrt(n 25 Gb/s / capacity)    1 at 1 Gb/s: 125 us; 16 there: 500 us; 16 at 100 Gb/s: 50 us
 *
 * and at most 80 T (2 ms) above their base.
 *
 * Jitter comes from hosts: turns of their loops, joined segments, schedulers. A smaller window
 * would not shorten it, so it is added to the target. Where a path is served in turns (a card's
 * thread that shares its core, in crowded virtual machines), the delay jumps by the milliseconds
 * between two turns, and a small window would leave most of a turn empty. Frames of other flows
 * make a queue jump as well. Where a small buffer keeps that queue short, 6 jitters would be most
 * of the target and part the flows, since they depend on no rate; there T / 2 of the jitter does
 * not count.
 *
 * Queue on the way back. The delay leaves it out (session/reverse.h), and the window is larger by
 * it: bytes in flight while ACKs wait there come on top, so a flow's rate does not depend on the
 * queue that its ACKs meet. That queue is smoothed from ACK to ACK. Otherwise a pause of the other
 * flow makes our ACKs early, the window shrinks as fast, we pause a round trip later, and then the
 * other flow does. (One flow each way used 0.83 of the line with a round trip of 800 us, and 0.99
 * smoothed. Half of each sample is too fast for that, an eighth too slow for 100 us.) With one
 * window for both queues each flow's queue would be what the other one leaves, and they swing
 * against each other: the line is used to 0.91 then, with this to 0.97 (cf. Zhang, Shenker, Clark,
 * "Observations on the Dynamics of a Congestion Control Algorithm: The Effects of Two-Way Traffic",
 * SIGCOMM 1991).
 *
 * Delays leave out at most 4 T of that queue (session_ack.c). If it is longer, only a fourth of the
 * distance to the target counts, as that distance would be without any of the queue:
 *
 *   target = delay + (target - delay without any queue of ACKs) / 4
 *
 * If all of the longer queue counted as ours, a flow with an empty forward queue would shrink to a
 * tenth of the line because its ACKs wait; two flows of a ring of hosts, whose data passes each
 * other's ACKs, did that to each other in turn (0.74 steps of training a second of 0.82). If all of
 * the distance counted, both would answer to the other one's last round, and swing. With a fourth
 * they settle, since both windows make the sum of both queues. A longer way back looks like such a
 * queue, but one that never moves: its whole length counts, so that drains and rounds soon find the
 * new base (swift_base.c).
 *
 * Marks (swift_marks.c) and a short buffer (swift_depth.c) reduce the target queue, jitter
 * included.
 *
 * At first the window doubles each round trip, until 4 samples in a row are above the target, or a
 * mark or a loss comes; after a timeout likewise, from one segment to half of the old window. A
 * timeout that was too early is undone, and so is the end of doubling (RFC 4015, section 3.2): on a
 * path that is longer than the first timeout every connection has one. */
#include "cc/swift.h"

#include "base/sequence.h"

static uint64_t fabric_target_ns(const struct harp_cc *cc, const struct harp_swift *swift,
                                 uint64_t base_ns, uint64_t rtt_ns)
{
    uint64_t queue_ns =
        harp_swift_content_ns(cc->config.target_ns, swift->delay.fabric_window, rtt_ns);
    uint64_t jitter_ns = swift->delay.jitter_x16_ns * SWIFT_JITTER_FACTOR / 16;
    if (swift->depth.share_x65536 < 65536)
        jitter_ns -= harp_min(jitter_ns, SWIFT_JITTER_FACTOR * cc->config.target_ns / 2);
    queue_ns += harp_min(jitter_ns, SWIFT_JITTER_TARGETS_MAX * cc->config.target_ns);
    queue_ns = queue_ns * swift->depth.share_x65536 / 65536;
    return base_ns + harp_swift_priced_queue_ns(cc, queue_ns);
}

static void swift_init(struct harp_cc *cc)
{
    *harp_swift_of(cc) = (struct harp_swift){
        .delay = {.fabric_window = harp_swift_bounded(cc, cc->config.initial_bytes * SWIFT_SCALE),
                  .host_window = cc->config.max_bytes * SWIFT_SCALE,
                  .doubling_limit = UINT64_MAX},
        .loss = {.cuts_to_trial = SWIFT_TRIAL_CUTS_MIN,
                 .step_x1024 = SWIFT_STEP_MAX_X1024,
                 .window_limit = UINT64_MAX},
        .depth = {.share_x65536 = 65536},
        .drain = {.least_ns = HARP_NEVER,
                  .least_forward_ns = HARP_NEVER,
                  .patience_rounds = SWIFT_PATIENCE_ROUNDS_MIN},
        .compete = {.doubt_factor = 1}};
}

/* Move a window by half of the distance to where the delay would be on target. */
static uint64_t steer_window(const struct harp_cc *cc, uint64_t window, uint64_t delay_ns,
                             uint64_t target_ns, uint64_t rtt_ns, uint64_t most)
{
    if (delay_ns > target_ns) {
        uint64_t cut = harp_swift_part(window, delay_ns - target_ns, 2 * rtt_ns);
        return harp_swift_bounded(cc, window - harp_min(cut, window / 2));
    }
    uint64_t more = harp_swift_part(window, target_ns - delay_ns, 2 * rtt_ns) + SWIFT_SCALE;
    return harp_swift_bounded(cc, window + harp_min(more, most));
}

static void begin_round(struct harp_swift *swift, uint64_t now_ns)
{
    swift->round.end_ns = now_ns + harp_swift_round_ns(swift);
    swift->round.fabric_sum_ns = swift->round.forward_sum_ns = swift->round.host_sum_ns =
        swift->round.samples = 0;
    swift->round.acked_bytes = swift->round.marked_packets = swift->round.window_used = 0;
    swift->round.least_ns = HARP_NEVER;
}

/* Largest growth of the window in a round. */
static uint64_t limit_growth(const struct harp_swift *swift)
{
    uint64_t most = swift->loss.window_limit > swift->delay.fabric_window
                        ? swift->loss.window_limit - swift->delay.fabric_window
                        : 0;
    return harp_min(most, swift->delay.fabric_window / 2);
}

/* The target where ACKs wait, too, behind a queue that moves: a longer way back does not. */
static uint64_t both_ways_target_ns(const struct harp_cc *cc, uint64_t now_ns, uint64_t target_ns)
{
    const struct harp_swift *swift = (const struct harp_swift *)cc->state;
    uint64_t forward_ns = swift->round.mean_forward_ns;
    if (!harp_swift_acks_queue_moves(swift, now_ns) || forward_ns == swift->round.mean_ns)
        return target_ns;
    if (target_ns > forward_ns)
        return swift->round.mean_ns + (target_ns - forward_ns) / SWIFT_ACKS_PART;
    return swift->round.mean_ns - (forward_ns - target_ns) / SWIFT_ACKS_PART;
}

/* The fabric's window obeys the delay. */
static void steer_fabric(struct harp_cc *cc, uint64_t now_ns, uint64_t base_ns, uint64_t rtt_ns)
{
    struct harp_swift *swift = harp_swift_of(cc);
    uint64_t fabric_ns = swift->round.mean_ns;
    uint64_t target_ns = fabric_target_ns(cc, swift, base_ns, rtt_ns);
    target_ns = both_ways_target_ns(cc, now_ns, target_ns);
    harp_swift_fit_buffer(cc, now_ns, fabric_ns - harp_min(fabric_ns, base_ns));
    if (fabric_ns > target_ns) /* a queue limits, no policer */
        swift->loss.window_limit = UINT64_MAX;
    if (fabric_ns > target_ns || swift->round.window_used)
        swift->delay.fabric_window = steer_window(cc, swift->delay.fabric_window, fabric_ns,
                                                  target_ns, rtt_ns, limit_growth(swift));
    uint64_t most_ns = base_ns + SWIFT_QUEUE_TARGETS_MAX * cc->config.target_ns;
    harp_swift_learn_from_round(cc, now_ns, base_ns, harp_max(target_ns, most_ns));
}

static void end_round(struct harp_cc *cc, uint64_t base_ns, uint64_t now_ns)
{
    struct harp_swift *swift = harp_swift_of(cc);
    uint64_t fabric_ns = swift->round.fabric_sum_ns / swift->round.samples;
    uint64_t host_ns = swift->round.host_sum_ns / swift->round.samples;
    uint64_t rtt_ns = fabric_ns + host_ns;
    swift->round.mean_ns = fabric_ns;
    swift->round.mean_forward_ns = swift->round.forward_sum_ns / swift->round.samples;
    swift->compete.widest_window =
        harp_max(swift->compete.widest_window, swift->delay.fabric_window);
    harp_swift_heed_marks(cc);
    if (swift->compete.active)
        harp_swift_compete_round(cc, now_ns, fabric_ns - harp_min(fabric_ns, base_ns));
    else
        steer_fabric(cc, now_ns, base_ns, rtt_ns);
    uint64_t target_ns =
        harp_swift_content_ns(cc->config.host_target_ns, swift->delay.host_window, rtt_ns);
    swift->delay.host_window = steer_window(cc, swift->delay.host_window, host_ns, target_ns,
                                            rtt_ns, swift->delay.host_window / 2);
    swift->round.lost_bytes = 0;
    begin_round(swift, now_ns);
}

static uint64_t absolute_difference(uint64_t a, uint64_t b)
{
    return a > b ? a - b : b - a;
}

/* Jitter without the part that this flow makes. Where data goes both ways, its own or other
 * connections' (in a ring of ranks no connection has both), ACKs come in bunches and so make
 * bursts. A jump that the queue on the way back makes as well does not count. Neither does a
 * burst's time on the line, a quarter of the round trip, beyond T: a longer queue makes longer
 * bursts, and six of these in the target would make the queue longer still. */
static uint64_t leave_out_own_bursts(const struct harp_cc *cc, const struct harp_cc_ack *ack,
                                     uint64_t off_ns)
{
    const struct harp_swift *swift = (const struct harp_swift *)cc->state;
    off_ns -=
        harp_min(off_ns, absolute_difference(ack->reverse_ns, swift->delay.latest_reverse_ns));
    uint64_t small_ns = harp_min(off_ns, cc->config.target_ns);
    return harp_max(small_ns, off_ns - harp_min(off_ns, swift->delay.rtt_ns / SWIFT_BURST_PART));
}

static void note_jitter(struct harp_cc *cc, const struct harp_cc_ack *ack)
{
    struct harp_swift *swift = harp_swift_of(cc);
    uint64_t off_ns = absolute_difference(ack->fabric_ns, swift->delay.latest_ns);
    if (ack->two_way || ack->reverse_ns)
        off_ns = leave_out_own_bursts(cc, ack, off_ns);
    if (swift->delay.latest_ns)
        swift->delay.jitter_x16_ns += off_ns - swift->delay.jitter_x16_ns / 16;
    swift->delay.latest_ns = ack->fabric_ns;
    swift->delay.latest_reverse_ns = ack->reverse_ns;
}

/* Double each round trip until some samples in a row are above the target. */
static void double_window(struct harp_cc *cc, const struct harp_cc_ack *ack, uint64_t base_ns)
{
    struct harp_swift *swift = harp_swift_of(cc);
    uint64_t target_ns = fabric_target_ns(cc, swift, base_ns, swift->delay.rtt_ns);
    swift->delay.samples_above = ack->fabric_ns > target_ns ? swift->delay.samples_above + 1 : 0;
    if (swift->delay.samples_above >= SWIFT_SAMPLES_ABOVE ||
        swift->delay.fabric_window >= swift->delay.doubling_limit)
        swift->delay.doubling_limit = 0;
    else if (2 * ack->bytes_in_flight * SWIFT_SCALE >= swift->delay.fabric_window &&
             !swift->delay.samples_above)
        swift->delay.fabric_window =
            harp_swift_bounded(cc, swift->delay.fabric_window + ack->bytes * SWIFT_SCALE);
}

static void swift_on_ack(struct harp_cc *cc, const struct harp_cc_ack *ack)
{
    struct harp_swift *swift = harp_swift_of(cc);
    swift->loss.acked_bytes += ack->bytes;
    swift->base.acked_bytes += ack->bytes;
    swift->round.acked_bytes += ack->bytes;
    swift->round.marked_packets += ack->marked;
    swift->standing.app_limited |= ack->app_limited;
    swift->round.window_used |=
        2 * ack->bytes_in_flight * SWIFT_SCALE >= swift->delay.fabric_window;
    if (!ack->fabric_ns)
        return;
    uint64_t base_ns = harp_swift_base_ns(cc, ack);
    swift->delay.rtt_ns = ack->fabric_ns + ack->host_ns;
    swift->delay.reverse_ns +=
        ack->reverse_ns / SWIFT_REVERSE_PART - swift->delay.reverse_ns / SWIFT_REVERSE_PART;
    harp_swift_judge_loss(cc, ack->now_ns);
    if (harp_swift_drain(cc, ack, base_ns)) {
        begin_round(swift, ack->now_ns);
        return;
    }
    note_jitter(cc, ack);
    if (swift->delay.doubling_limit)
        double_window(cc, ack, base_ns);
    if (!swift->round.end_ns)
        begin_round(swift, ack->now_ns);
    swift->round.fabric_sum_ns += ack->fabric_ns;
    swift->round.forward_sum_ns += ack->forward_ns;
    swift->round.least_ns = harp_min(swift->round.least_ns, ack->fabric_ns);
    swift->round.host_sum_ns += ack->host_ns;
    swift->round.samples++;
    if (ack->now_ns >= swift->round.end_ns)
        end_round(cc, base_ns, ack->now_ns);
}

static void swift_on_loss(struct harp_cc *cc, const struct harp_cc_loss *loss)
{
    struct harp_swift *swift = harp_swift_of(cc);
    if (loss->sent_ns >= swift->loss.reduced_ns)
        swift->loss.lost_bytes += loss->bytes;
    swift->base.lost_bytes += loss->bytes;
    if (!swift->compete.active || loss->sent_ns >= swift->depth.cut_ns)
        swift->round.lost_bytes += loss->bytes;
}

/* Nothing has come back at all: start again from one segment, quickly up to half the old window. */
static void swift_on_timeout(struct harp_cc *cc, uint64_t now_ns)
{
    struct harp_swift *swift = harp_swift_of(cc);
    if (!swift->loss.window_before)
        harp_swift_remember(swift, swift->delay.doubling_limit == UINT64_MAX);
    uint64_t one = (uint64_t)cc->config.segment_bytes * SWIFT_SCALE;
    swift->delay.doubling_limit =
        swift->delay.fabric_window / 2 > one ? swift->delay.fabric_window / 2 : 0;
    swift->delay.fabric_window = harp_swift_bounded(cc, harp_min(swift->delay.fabric_window, one));
    swift->loss.lost_bytes = swift->loss.acked_bytes = swift->loss.trial_window = 0;
    swift->loss.judge_ns = 0;
    begin_round(swift, now_ns);
}

static void swift_on_spurious(struct harp_cc *cc)
{
    struct harp_swift *swift = harp_swift_of(cc);
    swift->delay.fabric_window = harp_max(swift->delay.fabric_window, swift->loss.window_before);
    if (swift->loss.window_before && swift->loss.doubled_before)
        swift->delay.doubling_limit = UINT64_MAX;
    swift->loss.window_before = 0;
    swift->depth.share_x65536 =
        harp_max(swift->depth.share_x65536, swift->depth.share_before_x65536);
    swift->depth.share_before_x65536 = 0;
}

static uint64_t swift_window(const struct harp_cc *cc)
{
    const struct harp_swift *swift = (const struct harp_swift *)cc->state;
    uint64_t window = harp_min(swift->delay.fabric_window, swift->delay.host_window);
    if (swift->drain.window)
        window = harp_min(window, swift->drain.window);
    if (swift->loss.trial_window)
        window = harp_min(window, swift->loss.trial_window);
    if (swift->delay.rtt_ns && !swift->compete.active)
        window += harp_swift_part(window, swift->delay.reverse_ns, swift->delay.rtt_ns);
    return harp_max(harp_min(window / SWIFT_SCALE, cc->config.max_bytes), 1);
}

const struct harp_cc_ops harp_cc_swift = {
    .name = "swift",
    .init = swift_init,
    .on_ack = swift_on_ack,
    .on_loss = swift_on_loss,
    .on_timeout = swift_on_timeout,
    .on_spurious = swift_on_spurious,
    .window_bytes = swift_window,
    .follows_path = true,
};
