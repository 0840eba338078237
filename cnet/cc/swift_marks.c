/* Congestion marks (ECN, RFC 3168). A switch marks frames that arrive while its queue is longer
 * than a threshold. Marks are a price in addition to the delay; they shorten the target queue
 * (swift.c):
 *
 *   m = 2^4a,  a = share of marked bytes, smoothed by 1/64 once a round trip
 *   target queue = max(q / m, q - T (m - 1)),  q the target queue without marks
 *
 * All flows at a port see the same share, so they aim at the same part of their queues, and the
 * square root keeps their rates equal, whatever their round trips and windows are. At a = 1 the
 * queue is a 16th, and 256 times as many flows settle at it.
 *
 * At most T of the queue counts as standing at the port that marks; the rest may stand elsewhere,
 * most of all at the flow's own host, where unmarked flows keep it up. If the whole target were
 * divided, unmarked flows would take nearly all of the host's rate, and ports that have just marked
 * would run empty. In terms of Kelly, Maulloo and Tan (J. Oper. Res. Soc. 49, 1998) prices along a
 * path add up; they do not multiply.
 *
 * DCTCP smooths by 1/16 (Alizadeh et al., SIGCOMM 2010; RFC 8257) and cuts a window by a / 2. Here
 * the relative change of the target is 4 ln 2 = 2.8 times a's change, and a round trip makes half
 * of it: three times DCTCP's step. So a quarter of DCTCP's gain is as far from oscillation, and a
 * burst of a few round trips does not cost rate for long after it. As in DCTCP a mark ends
 * doubling.
 *
 * The rest of DCTCP's law, window -= window a / 2, cannot go below two segments; with 64 flows, a
 * round trip holds less than that of each. Where growth is bounded by a part of so small a window,
 * flows keep the shares that they got by chance. And a flow with a longer round trip gets less.
 *
 * The threshold governs all marked flows. So where marks arrive, a queue that remains after a drain
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
