/* Loss is judged over 4 round trips and 128 segments. Up to 1 in 32 it changes nothing: clouds drop
 * at random. Above, the window loses the share that was lost and a sixteenth, and grows from there
 * to the next judgement by a 64th (more for slower flows), then by 9/8 of that each time that less
 * than 1 in 64 was lost, until a queue is seen again. That settles a policed flow, which has no
 * queue to steer by, at its policer's rate with 1 to 3 % lost; 5/4 lost up to 5 %, since a bucket
 * of many round trips tells late that it runs empty. (Swift halves on every loss.)
 *
 * A path may lose more than that by chance, and smaller windows change nothing there. To tell such
 * a path from a policer takes a trial: each fourth reduction without a queue is followed by half of
 * the window for 512 segments, or 128 of which none is lost (cf. the experiments of PCC: Dong et
 * al., NSDI 2015). What is lost all the same was not lost for the window's sake, and 5/4 of that
 * share (the mean of this trial and those before) does not count from then on. Half of one flow's
 * window in sixteen is 3 %, so several flows behind one policer see their loss go away, too. (The
 * reduction itself is too small a trial for that: four such flows took each other's loss for
 * chance, and lost 5 %.) After a trial in which less than 1 in 128 was lost the next one waits for
 * twice as many reductions, 64 at the most: behind a policer of 1 Gb/s trials cost 6 % of the rate
 * without that, and 0.5 % with it.
 *
 * Losses below 1 in 32 are those of buffers that are too short: swift_depth.c. */
#include "base/sequence.h"
#include "cc/swift.h"

#define TOLERATED 32    /* one in so many may be lost without a reduction */
#define JUDGED_ROUNDS 4 /* round trips over which loss is judged, at least ... */
#define JUDGED_SEGMENTS 128
#define STEP_LEAST (HARP_SWIFT_SCALE / 64)
#define TRIAL_LOSSY 4      /* judgements that a trial lasts in which something was lost */
#define TRIAL_CUTS_MOST 64 /* reductions from one trial to the next */
#define CHANCE_MOST_X65536 (65536 / 8) /* a path that loses more by chance is of no use */

static void raise_roof(const struct harp_cc *cc, struct harp_swift *swift)
{
    uint64_t target_ns = cc->config.target_ns;
    uint64_t own_ns = harp_swift_content_ns(target_ns, swift->fabric, swift->rtt_ns);
    own_ns = harp_min(own_ns, 16 * target_ns) * swift->step_x1024;
    swift->roof =
        swift->fabric + harp_swift_part(swift->fabric, own_ns, 4 * HARP_SWIFT_SCALE * target_ns);
}

static void begin_judgement(struct harp_swift *swift, uint64_t now_ns)
{
    swift->lost = swift->came = 0;
    swift->judge_ns = now_ns + JUDGED_ROUNDS * swift->rtt_ns;
}

/* Losses of what was sent with the window as it was before say nothing about this one. */
static void reduce_window(struct harp_cc *cc, uint64_t now_ns, uint64_t excess, uint64_t all)
{
    struct harp_swift *swift = harp_swift_of(cc);
    uint64_t cut = harp_swift_part(swift->fabric, excess, all) + swift->fabric / 16;
    swift->before = swift->fabric;
    swift->fabric = harp_swift_bounded(cc, swift->fabric - harp_min(cut, swift->fabric / 2));
    swift->reduced_ns = now_ns;
    swift->stop = 0;
    swift->step_x1024 = STEP_LEAST;
    if (swift->roof == UINT64_MAX)
        swift->cuts = 0;
    raise_roof(cc, swift);
    if (++swift->cuts >= swift->cuts_to_trial)
        swift->trial = harp_swift_bounded(cc, swift->fabric / 2);
}

/* Half of the window was used for a while, and this share was lost. */
static void end_trial(struct harp_swift *swift, uint64_t share_x65536)
{
    swift->trial = swift->cuts = 0;
    uint64_t chance_x65536 = (swift->chance_x65536 + share_x65536) / 2;
    swift->chance_x65536 = (uint32_t)harp_min(chance_x65536, CHANCE_MOST_X65536);
    if (share_x65536 * TOLERATED * 4 > 65536) {
        swift->roof = UINT64_MAX;
        swift->cuts_to_trial = HARP_SWIFT_TRIAL_CUTS_LEAST;
    } else {
        swift->cuts_to_trial = harp_min(2 * swift->cuts_to_trial, TRIAL_CUTS_MOST);
    }
}

void harp_swift_judge_loss(struct harp_cc *cc, uint64_t now_ns)
{
    struct harp_swift *swift = harp_swift_of(cc);
    if (!swift->judge_ns)
        swift->judge_ns = now_ns + JUDGED_ROUNDS * swift->rtt_ns;
    uint64_t all = swift->lost + swift->came;
    uint64_t enough = (uint64_t)JUDGED_SEGMENTS * cc->config.segment_bytes;
    if (swift->trial && swift->lost)
        enough *= TRIAL_LOSSY;
    uint64_t by_chance = all * swift->chance_x65536 / 65536 * 5 / 4;
    uint64_t excess = swift->lost - harp_min(swift->lost, by_chance);
    bool heavy = !swift->trial && excess * TOLERATED > harp_max(all, enough);
    bool quiet = !swift->trial && !swift->lost &&
                 now_ns >= swift->judge_ns + 3 * JUDGED_ROUNDS * swift->rtt_ns;
    if (now_ns < swift->judge_ns || (all < enough && !heavy && !quiet))
        return;
    if (swift->trial) {
        end_trial(swift, swift->lost * 65536 / harp_max(all, 1));
    } else if (heavy && !swift->competes) {
        reduce_window(cc, now_ns, excess, all);
    } else if (!heavy && excess * TOLERATED * 2 <= all && swift->roof != UINT64_MAX) {
        swift->step_x1024 = harp_min(swift->step_x1024 * 9 / 8, HARP_SWIFT_STEP_MOST);
        raise_roof(cc, swift);
    }
    if (!heavy)
        swift->before = 0; /* a loss that proves none now was not what reduced */
    begin_judgement(swift, now_ns);
}
