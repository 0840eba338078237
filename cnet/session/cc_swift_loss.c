/* Loss is judged over 4 round trips and 128 segments. Up to 1 in 32 it changes nothing: clouds drop
 * at random. Above, the window loses the share that was lost and a sixteenth, and grows from there
 * to the next judgement by a 64th (more for slower flows), then by 5/4 of that each time that less
 * than 1 in 64 was lost, until a queue is seen again. That settles a policed flow, which has no
 * queue to steer by, at its policer's rate with 1 to 3 % lost. (Swift halves on every loss.)
 *
 * Many senders may be content with a longer queue than the buffer holds; then it would stay full,
 * and lose, for ever. So each aims at a share of that queue, its depth: a round with a loss while
 * at least half of the aimed queue stands there makes it an eighth less, and each 8192 segments
 * make it an eighth of the whole more. Growth in segments and not in rounds makes the depth the
 * same for flows of all rates: both what adds and what takes away are in proportion to the rate.
 * Not below a quarter, which random loss of 1 % brings about and which still fills a path. */
#include "base/sequence.h"
#include "session/cc_swift.h"

#define TOLERATED 32    /* one in so many may be lost without a reduction */
#define JUDGED_ROUNDS 4 /* round trips over which loss is judged, at least ... */
#define JUDGED_SEGMENTS 128
#define STEP_LEAST (HARP_SWIFT_SCALE / 64)
#define DEPTH_LEAST (65536 / 4)

static void raise_roof(const struct harp_cc *cc, struct harp_swift *swift)
{
    uint64_t target_ns = cc->config.target_ns;
    uint64_t own_ns = harp_swift_content_ns(target_ns, swift->fabric, swift->rtt_ns);
    own_ns = harp_min(own_ns, 16 * target_ns) * swift->step_x1024;
    swift->roof =
        swift->fabric + harp_swift_part(swift->fabric, own_ns, 4 * HARP_SWIFT_SCALE * target_ns);
}

void harp_swift_judge_loss(struct harp_cc *cc, uint64_t now_ns)
{
    struct harp_swift *swift = harp_swift_of(cc);
    if (!swift->judge_ns)
        swift->judge_ns = now_ns + JUDGED_ROUNDS * swift->rtt_ns;
    uint64_t all = swift->lost + swift->came;
    uint64_t enough = (uint64_t)JUDGED_SEGMENTS * cc->config.segment_bytes;
    bool heavy = swift->lost * TOLERATED > harp_max(all, enough);
    bool quiet = !swift->lost && now_ns >= swift->judge_ns + 3 * JUDGED_ROUNDS * swift->rtt_ns;
    if (now_ns < swift->judge_ns || (all < enough && !heavy && !quiet))
        return;
    if (heavy && !swift->competes) {
        uint64_t cut = harp_swift_part(swift->fabric, swift->lost, all) + swift->fabric / 16;
        swift->before = swift->fabric;
        swift->fabric = harp_swift_bounded(cc, swift->fabric - harp_min(cut, swift->fabric / 2));
        swift->stop = 0;
        swift->step_x1024 = STEP_LEAST;
        raise_roof(cc, swift);
    } else if (!heavy && swift->lost * TOLERATED * 2 <= all && swift->roof != UINT64_MAX) {
        swift->step_x1024 = harp_min(swift->step_x1024 * 5 / 4, HARP_SWIFT_STEP_MOST);
        raise_roof(cc, swift);
    }
    if (!heavy)
        swift->before = 0; /* a loss that proves none now was not what reduced */
    swift->lost = swift->came = 0;
    swift->judge_ns = now_ns + JUDGED_ROUNDS * swift->rtt_ns;
}

void harp_swift_fit_buffer(struct harp_cc *cc, uint64_t queue_ns)
{
    struct harp_swift *swift = harp_swift_of(cc);
    uint64_t aimed_ns = harp_swift_content_ns(cc->config.target_ns, swift->fabric, swift->rtt_ns) *
                        swift->depth_x65536 / 65536;
    if (swift->round_lost && 2 * queue_ns > aimed_ns)
        swift->depth_x65536 -= swift->depth_x65536 / 8;
    else
        swift->depth_x65536 += swift->acked / cc->config.segment_bytes;
    swift->depth_x65536 = harp_min(harp_max(swift->depth_x65536, DEPTH_LEAST), 65536);
}
