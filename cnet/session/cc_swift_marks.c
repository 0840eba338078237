/* Congestion marks (ECN, RFC 3168). A switch marks what comes while more than a threshold waits.
 * The queue that a flow aims at (cc_swift.c) becomes shorter until that fits:
 *
 *   aimed queue = 2^-6a of what it would be without marks,  a = share of marked bytes, smoothed
 *
 * by 1/16 once a round trip, as in DCTCP (Alizadeh et al., SIGCOMM 2010; RFC 8257). All flows at a
 * port see the same share, so it works as the port's price: they aim at the same part of their
 * queues, and the square root keeps their rates equal, whatever their round trips and windows are.
 * At a = 1 the queue is a 64th, with which 4,096 times as many flows are content.
 *
 * A round with marks lets no window grow, and while marks arrive it grows by a segment a round at
 * most, as DCTCP's does, lest those who have just emptied the queue fill it again.
 *
 * The rest of DCTCP's law, window -= window a / 2, cannot go below two segments, which is more than
 * a round trip holds of each of 64 flows; where growth is bounded by a part of so small a window,
 * shares stay what they are by chance. And it gives a flow the less, the longer its round trip is.
 *
 * The threshold governs all who are marked. So where marks arrive, a queue that drains do not empty
 * (cc_swift_base.c) is no sign of others who fill the buffer. */
#include "base/sequence.h"
#include "session/cc_swift.h"

#define HALVINGS 6          /* of the aimed queue, where all is marked */
#define ARRIVE (65536 / 64) /* marks arrive: this share and more, smoothed */

void harp_swift_heed_marks(struct harp_cc *cc)
{
    struct harp_swift *swift = harp_swift_of(cc);
    uint64_t marked_bytes = harp_min(swift->marked * cc->config.segment_bytes, swift->acked);
    uint64_t share_x65536 = swift->acked ? marked_bytes * 65536 / swift->acked : 0;
    swift->alpha_x65536 += share_x65536 / 16;
    swift->alpha_x65536 -= swift->alpha_x65536 / 16;
    if (swift->marked)
        swift->stop = 0;
}

bool harp_swift_marks_arrive(const struct harp_swift *swift)
{
    return swift->alpha_x65536 > ARRIVE;
}

uint64_t harp_swift_below_marks_ns(const struct harp_swift *swift, uint64_t queue_ns)
{
    uint64_t halvings_x65536 = HALVINGS * swift->alpha_x65536;
    queue_ns >>= halvings_x65536 / 65536;
    return queue_ns - queue_ns * (halvings_x65536 % 65536) / 131072;
}
