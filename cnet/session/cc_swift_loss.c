/* Loss is judged over 4 round trips and 128 segments. Up to 1 in 32 it changes nothing: clouds drop
 * at random. Above, the window loses the share that was lost and a sixteenth, and grows from there
 * to the next judgement by a 64th (more for slower flows), then by 9/8 of that each time that less
 * than 1 in 64 was lost, until a queue is seen again. That settles a policed flow, which has no
 * queue to steer by, at its policer's rate with 1 to 3 % lost; 5/4 lost up to 5 %, since a bucket
 * of many round trips tells late that it runs empty. (Swift halves on every loss.)
 *
 * Many senders may be content with a longer queue than the buffer holds; then it would stay full,
 * and lose, for ever. So each aims at a share of that queue, its depth: a round with a loss while
 * at least half of the aimed queue stands there makes it a twelfth less, and in 12,288 times the
 * delay of the queue it grows by the whole. (A queue below T counts as T.) That is additive
 * increase and multiplicative decrease (Chiu and Jain, Computer Networks and ISDN Systems 17,
 * 1989): all grow at the same pace, since all see the same queue, and who has more than its share
 * loses more often. Both constants are a compromise that our table of cases showed
 * (docs/packet.md): larger steps part the flows by chance, faster growth loses more.
 *
 * The least depth leaves an aimed queue of T / 3 for a flow of 25 Gb/s, and more for slower ones,
 * in the fourth root of the rate: that still fills a path on which 1 % is lost at random. */
#include "base/sequence.h"
#include "session/cc_swift.h"

#define TOLERATED 32    /* one in so many may be lost without a reduction */
#define JUDGED_ROUNDS 4 /* round trips over which loss is judged, at least ... */
#define JUDGED_SEGMENTS 128
#define STEP_LEAST (HARP_SWIFT_SCALE / 64)
#define DEPTH_CUT 12       /* a loss takes this part of the depth away */
#define DEPTH_QUEUES 12288 /* delays of the queue in which it grows from nothing to the whole */
#define QUEUE_LEAST 3      /* the least aimed queue is this part of T, for a flow of 25 Gb/s */

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
        swift->step_x1024 = harp_min(swift->step_x1024 * 9 / 8, HARP_SWIFT_STEP_MOST);
        raise_roof(cc, swift);
    }
    if (!heavy)
        swift->before = 0; /* a loss that proves none now was not what reduced */
    swift->lost = swift->came = 0;
    swift->judge_ns = now_ns + JUDGED_ROUNDS * swift->rtt_ns;
}

static uint64_t least_depth_x65536(const struct harp_cc *cc, uint64_t content_ns)
{
    uint64_t part_x65536 = cc->config.target_ns * 65536 / harp_max(content_ns, 1);
    return harp_swift_square_root(part_x65536) * 256 / QUEUE_LEAST;
}

void harp_swift_fit_buffer(struct harp_cc *cc, uint64_t now_ns, uint64_t queue_ns)
{
    struct harp_swift *swift = harp_swift_of(cc);
    uint64_t passed_ns = now_ns - swift->fitted_ns;
    swift->fitted_ns = now_ns;
    if (swift->depth_x65536 == 65536 && !swift->round_lost)
        return;
    uint64_t content_ns = harp_swift_content_ns(cc->config.target_ns, swift->fabric, swift->rtt_ns);
    uint64_t whole_ns = (harp_max(queue_ns, cc->config.target_ns) + 1) * DEPTH_QUEUES;
    if (swift->round_lost && 2 * queue_ns > content_ns * swift->depth_x65536 / 65536) {
        swift->depth_before_x65536 = swift->depth_x65536;
        swift->depth_x65536 -= swift->depth_x65536 / DEPTH_CUT;
    } else {
        swift->depth_x65536 += harp_min(passed_ns, whole_ns) * 65536 / whole_ns;
    }
    swift->depth_x65536 = harp_max(swift->depth_x65536, least_depth_x65536(cc, content_ns));
    swift->depth_x65536 = harp_min(swift->depth_x65536, 65536);
}
