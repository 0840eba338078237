/* The part of the target queue that fits into the buffer. Many senders may aim at a longer queue
 * than the buffer holds; then it would stay full, and lose, for ever. So each flow aims at a share
 * of that queue, its depth. A round with a loss makes the depth a twelfth less, at most once in 8
 * T; without losses its fourth power grows by 1 in 86,016 times the delay of the queue. (A queue
 * below T counts as T.) That is additive increase and multiplicative decrease (Chiu and Jain,
 * Computer Networks and ISDN Systems 17, 1989): all grow at the same pace, since all see the same
 * queue, and a flow with more than its share loses more often.
 *
 * Increase falls with the third power of the depth (Bansal and Balakrishnan, "Binomial Congestion
 * Control Algorithms", INFOCOM 2001). So the flow that the storm of losses at the start hit most is
 * back among the others in tens of milliseconds, and near the whole depth the buffer is probed
 * seldom. Cuts are limited in time, not in rounds alone, since a flow with a shorter round trip has
 * more rounds in a storm. The queue that a flow sees does not predict its loss: a flow that came
 * late to a full buffer takes most of the queue for the path. The constants are the compromise that
 * the table in docs/inside/packet.md showed: larger steps part the flows by chance, faster growth
 * loses more.
 *
 * The least depth leaves an aimed queue of 2 T / 5 for a flow of 25 Gb/s, and more for slower ones,
 * in the fourth root of the rate: that still fills a path on which 1 % is lost at random.
 *
 * Loss by chance would leave everybody at the least depth, which is too little where hosts make the
 * delay jump: it halved their rate. But chance keeps losing at the least depth, and as much as at
 * any other. So the share of 64 losses in a row at the least depth, up to 1 in 16, is taken for
 * chance, and no loss counts until the share of 64 is twice as large or half of that; then it is
 * measured anew. Meanwhile the depth grows four times as fast, so that a flow that finds out late
 * is not long at a disadvantage. (64 losses at random become fewer than 32 or more than 128 less
 * than once in 10^5.) A buffer that is too short seldom loses 64 frames of a flow at the least
 * depth, and where it does, at three frames a flow, depth is no remedy. */
#include "base/sequence.h"
#include "cc/swift.h"

static uint64_t least_depth_x65536(const struct harp_cc *cc, uint64_t content_ns)
{
    uint64_t part_x65536 = cc->config.target_ns * 65536 / harp_max(content_ns, 1);
    return harp_swift_square_root(part_x65536) * 256 * 2 / 5;
}

/* Grow for the time without loss. A remainder of less than a step counts the next time. */
static void deepen_queue(struct harp_swift *swift, uint64_t now_ns, uint64_t queue_ns)
{
    uint64_t whole_ns = 4 * SWIFT_DEPTH_QUEUES * (queue_ns + 1);
    if (swift->depth.chance_x65536)
        whole_ns /= SWIFT_DEPTH_CHANCE_FACTOR;
    uint64_t passed_ns = harp_min(now_ns - swift->depth.grown_ns, UINT64_C(1) << 31);
    uint64_t depth = swift->depth.share_x65536;
    uint64_t cube_x65536 = depth * depth / 65536 * depth / 65536 + 1;
    uint64_t steps = (passed_ns << 32) / whole_ns;
    uint64_t left_ns = (steps % cube_x65536) * whole_ns >> 32;
    swift->depth.share_x65536 = (uint32_t)harp_min(depth + steps / cube_x65536, 65536);
    swift->depth.grown_ns = now_ns - left_ns;
}

/* At the end of a round: measure the share lost by chance at the least depth. */
static void count_losses(struct harp_cc *cc, uint64_t least_x65536)
{
    struct harp_swift *swift = harp_swift_of(cc);
    uint64_t enough = (uint64_t)SWIFT_COUNTED_SEGMENTS * cc->config.segment_bytes;
    swift->depth.counted_lost_bytes += swift->round.lost_bytes;
    swift->depth.counted_bytes += swift->round.lost_bytes + swift->round.acked_bytes;
    swift->depth.was_deeper |=
        swift->depth.share_x65536 > least_x65536 + least_x65536 / 2; /* it moves */
    uint64_t expected = swift->depth.counted_bytes * swift->depth.chance_x65536 / 65536;
    bool rarer = expected >= 2 * enough;
    if (swift->depth.counted_lost_bytes < enough && !rarer)
        return;
    uint64_t share_x65536 = swift->depth.counted_lost_bytes * 65536 / swift->depth.counted_bytes;
    if (!swift->depth.was_deeper && share_x65536 * SWIFT_DEPTH_CHANCE_PART <= 65536)
        swift->depth.chance_x65536 = (uint32_t)share_x65536;
    else if (rarer || share_x65536 > 2 * swift->depth.chance_x65536)
        swift->depth.chance_x65536 = 0;
    swift->depth.counted_bytes = swift->depth.counted_lost_bytes = swift->depth.was_deeper = 0;
}

void harp_swift_fit_buffer(struct harp_cc *cc, uint64_t now_ns, uint64_t queue_ns)
{
    struct harp_swift *swift = harp_swift_of(cc);
    uint64_t target_ns = cc->config.target_ns;
    uint64_t content_ns =
        harp_swift_content_ns(target_ns, swift->delay.fabric_window, swift->delay.rtt_ns);
    uint64_t least_x65536 = least_depth_x65536(cc, content_ns);
    count_losses(cc, least_x65536);
    if (swift->round.lost_bytes)
        swift->delay.doubling_limit = 0;
    if (swift->round.lost_bytes && !swift->depth.chance_x65536 &&
        now_ns >= swift->depth.cut_ns + SWIFT_DEPTH_CUT_TARGETS * target_ns) {
        swift->depth.share_before_x65536 = swift->depth.share_x65536;
        swift->depth.share_x65536 -= swift->depth.share_x65536 / SWIFT_DEPTH_CUT_PART;
        swift->depth.cut_ns = swift->depth.grown_ns = now_ns;
    } else if (swift->depth.share_x65536 < 65536) {
        uint64_t most_ns = SWIFT_QUEUE_TARGETS_MAX * target_ns;
        deepen_queue(swift, now_ns, harp_max(harp_min(queue_ns, most_ns), target_ns));
    }
    swift->depth.share_x65536 = harp_max(swift->depth.share_x65536, least_x65536);
    swift->depth.share_x65536 = harp_min(swift->depth.share_x65536, 65536);
}
