/* Congestion marks (ECN, RFC 3168). A switch marks frames that come while more than a threshold
 * waits. Marks are a price paid beside the delay, and shorten the target queue (swift.c):
 *
 *   m = 2^4a,  a = share of marked bytes, smoothed by 1/64 once a round trip
 *   target queue = max(q / m, q - T (m - 1)),  q the target queue without marks
 *
 * All flows at a port see the same share, so they aim at the same part of their queues, and the
 * square root keeps their rates equal, whatever their round trips and windows are. At a = 1 the
 * queue is a 16th, and 256 times as many flows settle at it.
 *
 * At most T of the queue is taken for that of the port that marks: the rest may stand elsewhere,
 * most of all at the flow's own host, where unmarked flows keep it. If the whole target were
 * divided, these would take nearly all of the host's rate, and ports that have just marked would
 * run empty. In terms of Kelly, Maulloo and Tan (J. Oper. Res. Soc. 49, 1998) prices along a path
 * add up; they do not multiply.
 *
 * DCTCP smooths by 1/16 (Alizadeh et al., SIGCOMM 2010; RFC 8257) and cuts a window by a / 2. Here
 * a moves the target by its 4 ln 2 = 2.8-fold, and a round makes half of that: three times as much,
 * so a quarter of the gain is as far from swinging, and a burst of a few round trips is not paid
 * for long after it. As in DCTCP a mark ends doubling.
 *
 * The rest of DCTCP's law, window -= window a / 2, cannot go below two segments, which is more than
 * a round trip holds of each of 64 flows; where growth is bounded by a part of so small a window,
 * shares stay as chance made them. And a flow with a longer round trip gets less.
 *
 * The threshold governs all marked flows. So where marks arrive, a queue that drains do not empty
 * (swift_base.c) is no sign of foreign flows. */
#include "base/sequence.h"
#include "cc/swift.h"

void harp_swift_heed_marks(struct harp_cc *cc)
{
    struct harp_swift *swift = harp_swift_of(cc);
    uint64_t marked_bytes =
        harp_min(swift->round.marked_packets * cc->config.segment_bytes, swift->round.acked_bytes);
    uint64_t share_x65536 =
        swift->round.acked_bytes ? marked_bytes * 65536 / swift->round.acked_bytes : 0;
    swift->marks.alpha_x65536 += share_x65536 / SWIFT_MARK_ROUNDS;
    swift->marks.alpha_x65536 -= swift->marks.alpha_x65536 / SWIFT_MARK_ROUNDS;
    if (swift->round.marked_packets)
        swift->delay.doubling_limit = 0;
}

bool harp_swift_marks_arrive(const struct harp_swift *swift)
{
    return swift->marks.alpha_x65536 > SWIFT_MARKS_ARRIVE_X65536;
}

/* 2^4a, linear between powers of two. */
static uint64_t price_of_marks_x65536(const struct harp_swift *swift)
{
    uint64_t doublings_x65536 = (uint64_t)SWIFT_MARK_DOUBLINGS * swift->marks.alpha_x65536;
    return (65536 + doublings_x65536 % 65536) << (doublings_x65536 / 65536);
}

uint64_t harp_swift_priced_queue_ns(const struct harp_cc *cc, uint64_t queue_ns)
{
    uint64_t price_x65536 = price_of_marks_x65536((const struct harp_swift *)cc->state);
    uint64_t paid_ns = cc->config.target_ns * (price_x65536 - 65536) / 65536;
    return harp_max(queue_ns * 65536 / price_x65536, queue_ns - harp_min(queue_ns, paid_ns));
}
