/* Beside flows that fill the buffer. A loss-based flow holds the queue where the delay law wants to
 * have it short, and the law would leave all bandwidth to it. Drains show such a neighbour: where
 * several in a row do not bring the delay down and it moves meanwhile, somebody holds the queue who
 * does not drain with us (cf. Copa's test for a nearly empty queue: Arun and Balakrishnan, "Copa:
 * Practical Delay-Based Congestion Control for the Internet", NSDI 2018). From then on the fabric's
 * window is CUBIC's (RFC 9438) and its share as fair as that of one more CUBIC flow, until a drain
 * empties the queue again.
 *
 *   window = most + C (t - K)^3, at least Reno's; with a loss: most = window, window -= 3/10 of it
 *
 * once a round trip, t being the time since the last loss. A loss counts only while at least half
 * of the longest queue of late stands there: what is lost at random beside a short queue says
 * nothing, but for one in 16 and more; and not for what was sent before the window was last cut.
 *
 * We begin with the widest window since a drain last reached the base, since the delay law has
 * given away what was ours. It grows by a quarter each round trip at first, until that makes the
 * delay an eighth longer (HyStart, RFC 9406, waits for as much) or the window is what it was when
 * we last competed. (Not twofold as in slow start: where we compete by mistake, a drain shows it
 * first.)
 *
 * We cease when four drains in a row bring the delay down to the base: nobody else holds the queue
 * any more, and the window is again what it was when we began. Who takes it again within a second
 * (BBR gives way and comes back) must let us reach the base twice as often before we believe it the
 * next time, 64 times as often at the most. */
#include "base/sequence.h"
#include "cc/swift.h"

#define SOON_NS UINT64_C(1000000000) /* who has to compete again within this ... */
#define STAY_MOST 64                 /* ... waits for up to four times so many drains */

#define HEAVY 16 /* more than one in so many lost is congestion, whatever the queue */

static uint64_t take_cube_root(uint64_t x)
{
    uint64_t root = 0;
    for (uint64_t bit = UINT64_C(1) << 20; bit; bit >>= 1)
        if ((root | bit) * (root | bit) * (root | bit) <= x)
            root |= bit;
    return root;
}

/* K: when the window will be what it was before the loss: cbrt((most - window) / 0.4) seconds. */
static void begin_epoch(struct harp_cc *cc, uint64_t now_ns)
{
    struct harp_swift *swift = harp_swift_of(cc);
    uint64_t segment = (uint64_t)cc->config.segment_bytes * HARP_SWIFT_SCALE;
    uint64_t below = swift->most - harp_min(swift->fabric, swift->most);
    swift->epoch_ns = now_ns;
    swift->reno = swift->fabric;
    swift->flat_ms = take_cube_root(harp_min(below * 1000 / segment, UINT64_C(1) << 32) * 2500000);
}

void harp_swift_compete(struct harp_cc *cc, uint64_t now_ns)
{
    struct harp_swift *swift = harp_swift_of(cc);
    swift->competes = true;
    swift->reached = 0;
    swift->entry_ns = swift->mean_ns;
    swift->entry = swift->fabric;
    bool again = swift->left_ns && now_ns - swift->left_ns < SOON_NS;
    swift->stay = again ? harp_min(2 * swift->stay, STAY_MOST) : 1;
    swift->longest_ns = 0;
    swift->threshold = swift->most ? swift->most : UINT64_MAX;
    swift->roof = UINT64_MAX;
    swift->fabric = harp_swift_bounded(cc, harp_max(swift->fabric, swift->widest));
    begin_epoch(cc, now_ns);
}

static void back_off(struct harp_cc *cc, uint64_t now_ns)
{
    struct harp_swift *swift = harp_swift_of(cc);
    bool less = swift->fabric < swift->most; /* fast convergence: others need the room */
    swift->most = less ? swift->fabric / 20 * 17 : swift->fabric;
    swift->before = swift->fabric;
    swift->fabric = harp_swift_bounded(cc, swift->fabric - swift->fabric * 3 / 10);
    swift->threshold = swift->fabric;
    swift->cut_ns = now_ns;
    begin_epoch(cc, now_ns);
}

/* Whether what was lost in this round says that the buffer is full. */
static bool is_congestion(const struct harp_swift *swift, uint64_t queue_ns)
{
    bool heavy = swift->round_lost * HEAVY > swift->acked;
    return swift->round_lost && (heavy || 2 * queue_ns >= swift->longest_ns);
}

/* most + 0.4 (t - K)^3 segments, t one round trip from now. */
static uint64_t cubic_window(const struct harp_cc *cc, const struct harp_swift *swift,
                             uint64_t now_ns)
{
    uint64_t segment = (uint64_t)cc->config.segment_bytes * HARP_SWIFT_SCALE;
    uint64_t t_ms = (now_ns + swift->rtt_ns - swift->epoch_ns) / 1000000;
    uint64_t off_ms = t_ms > swift->flat_ms ? t_ms - swift->flat_ms : swift->flat_ms - t_ms;
    off_ms = harp_min(off_ms, 1 << 16);
    uint64_t off = off_ms * off_ms * off_ms / 1000 * segment / 2500000;
    if (t_ms > swift->flat_ms)
        return swift->most + off;
    return swift->most - harp_min(off, swift->most);
}

void harp_swift_compete_round(struct harp_cc *cc, uint64_t now_ns, uint64_t queue_ns)
{
    struct harp_swift *swift = harp_swift_of(cc);
    swift->longest_ns = harp_max(swift->longest_ns - swift->longest_ns / 64, queue_ns);
    if (is_congestion(swift, queue_ns)) {
        back_off(cc, now_ns);
        return;
    }
    if (!swift->used)
        return;
    uint64_t window = swift->fabric;
    if (window < swift->threshold) {
        if (swift->mean_ns > swift->entry_ns + swift->entry_ns / 8)
            swift->threshold = window;
        window = harp_min(window + window / 4, swift->threshold);
        if (window == swift->threshold)
            begin_epoch(cc, now_ns);
    } else {
        uint64_t segment = (uint64_t)cc->config.segment_bytes * HARP_SWIFT_SCALE;
        uint64_t acked = harp_min(swift->acked * HARP_SWIFT_SCALE, window);
        swift->reno += harp_swift_part(segment * 9 / 17, acked, window); /* 3 (1 - b) / (1 + b) */
        window = harp_max(cubic_window(cc, swift, now_ns), swift->reno);
        window = harp_min(window, swift->fabric + swift->fabric / 2);
    }
    swift->fabric = harp_swift_bounded(cc, harp_max(window, swift->fabric));
}
