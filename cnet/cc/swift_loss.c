/* Loss that no buffer explains: chance, or a policer. It is judged over 4 round trips and 128
 * segments. Up to 1 in 32 it changes nothing: clouds drop at random. Above, the window loses the
 * share that was lost and a sixteenth. Until the next judgement it grows by at most a 64th (more
 * for slower flows), then by 9/8 of that each time that less than 1 in 64 was lost, until a queue
 * is seen again. That settles a policed flow, which has no queue to steer by, at its policer's rate
 * with 1 to 3 % lost; 5/4 lost up to 5 %, since a bucket of many round trips runs empty long before
 * it shows. (Swift halves on every loss.)
 *
 * Trials. A path may lose more than that by chance, and smaller windows change nothing there. To
 * tell it from a policer, each fourth reduction without a queue is followed by half of the window
 * for 512 segments, or for 128 if none of them is lost (cf. the experiments of PCC: Dong et al.,
 * NSDI 2015). The share lost all the same was not lost because of the window, and 5/4 of it (the
 * mean of this trial and those before) does not count from then on. Half of one flow's window in
 * sixteen is 3 %, so several flows behind one policer see their loss go away, too. (The reduction
 * itself is too small a trial for that: four such flows took each other's loss for chance, and lost
 * 5 %.) After a trial that lost less than 1 in 128 the next one waits for twice as many reductions,
 * 64 at the most: behind a policer of 1 Gb/s trials cost 6 % of the rate without that, and 0.5 %
 * with it.
 *
 * Losses below 1 in 32 are those of buffers that are too short: swift_depth.c. */
#include "base/sequence.h"
#include "cc/swift.h"

static void raise_window_limit(const struct harp_cc *cc, struct harp_swift *swift)
{
    uint64_t target_ns = cc->config.target_ns;
    uint64_t own_ns =
        harp_swift_content_ns(target_ns, swift->delay.fabric_window, swift->delay.rtt_ns);
    own_ns = harp_min(own_ns, 16 * target_ns) * swift->loss.step_x1024;
    swift->loss.window_limit =
        swift->delay.fabric_window +
        harp_swift_part(swift->delay.fabric_window, own_ns, 4 * SWIFT_SCALE * target_ns);
}

static void begin_judgement(struct harp_swift *swift, uint64_t now_ns)
{
    swift->loss.lost_bytes = swift->loss.acked_bytes = 0;
    swift->loss.judge_ns = now_ns + SWIFT_JUDGED_ROUNDS * swift->delay.rtt_ns;
}

/* Losses of what was sent before this reduction do not count (swift.c). */
static void reduce_window(struct harp_cc *cc, uint64_t now_ns, uint64_t excess, uint64_t all)
{
    struct harp_swift *swift = harp_swift_of(cc);
    uint64_t cut =
        harp_swift_part(swift->delay.fabric_window, excess, all) + swift->delay.fabric_window / 16;
    harp_swift_remember(swift, false);
    swift->delay.fabric_window = harp_swift_bounded(
        cc, swift->delay.fabric_window - harp_min(cut, swift->delay.fabric_window / 2));
    swift->loss.reduced_ns = now_ns;
    swift->delay.doubling_limit = 0;
    swift->loss.step_x1024 = SWIFT_STEP_MIN_X1024;
    if (swift->loss.window_limit == UINT64_MAX)
        swift->loss.cuts = 0;
    raise_window_limit(cc, swift);
    if (++swift->loss.cuts >= swift->loss.cuts_to_trial)
        swift->loss.trial_window = harp_swift_bounded(cc, swift->delay.fabric_window / 2);
}

/* End a trial, half of the window for a while, in which this share was lost. */
static void end_trial(struct harp_swift *swift, uint64_t share_x65536)
{
    swift->loss.trial_window = swift->loss.cuts = 0;
    uint64_t chance_x65536 = (swift->loss.chance_x65536 + share_x65536) / 2;
    swift->loss.chance_x65536 = (uint32_t)harp_min(chance_x65536, SWIFT_CHANCE_MAX_X65536);
    if (share_x65536 * SWIFT_TOLERATED_LOSS_PART * 4 > 65536) {
        swift->loss.window_limit = UINT64_MAX;
        swift->loss.cuts_to_trial = SWIFT_TRIAL_CUTS_MIN;
    } else {
        swift->loss.cuts_to_trial = harp_min(2 * swift->loss.cuts_to_trial, SWIFT_TRIAL_CUTS_MAX);
    }
}

void harp_swift_judge_loss(struct harp_cc *cc, uint64_t now_ns)
{
    struct harp_swift *swift = harp_swift_of(cc);
    if (!swift->loss.judge_ns)
        swift->loss.judge_ns = now_ns + SWIFT_JUDGED_ROUNDS * swift->delay.rtt_ns;
    uint64_t all = swift->loss.lost_bytes + swift->loss.acked_bytes;
    uint64_t enough = (uint64_t)SWIFT_JUDGED_SEGMENTS * cc->config.segment_bytes;
    if (swift->loss.trial_window && swift->loss.lost_bytes)
        enough *= SWIFT_TRIAL_LOSSY_FACTOR;
    uint64_t by_chance = all * swift->loss.chance_x65536 / 65536 * 5 / 4;
    uint64_t excess = swift->loss.lost_bytes - harp_min(swift->loss.lost_bytes, by_chance);
    bool heavy =
        !swift->loss.trial_window && excess * SWIFT_TOLERATED_LOSS_PART > harp_max(all, enough);
    bool quiet = !swift->loss.trial_window && !swift->loss.lost_bytes &&
                 now_ns >= swift->loss.judge_ns + 3 * SWIFT_JUDGED_ROUNDS * swift->delay.rtt_ns;
    if (now_ns < swift->loss.judge_ns || (all < enough && !heavy && !quiet))
        return;
    if (swift->loss.trial_window) {
        end_trial(swift, swift->loss.lost_bytes * 65536 / harp_max(all, 1));
    } else if (heavy && !swift->compete.active) {
        reduce_window(cc, now_ns, excess, all);
    } else if (!heavy && excess * SWIFT_TOLERATED_LOSS_PART * 2 <= all &&
               swift->loss.window_limit != UINT64_MAX) {
        swift->loss.step_x1024 = harp_min(swift->loss.step_x1024 * 9 / 8, SWIFT_STEP_MAX_X1024);
        raise_window_limit(cc, swift);
    }
    if (!heavy)
        swift->loss.window_before =
            0; /* a loss that proves spurious from now on did not reduce the window */
    begin_judgement(swift, now_ns);
}
