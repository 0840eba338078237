/* The law beside flows that fill the buffer. A loss-based flow holds a queue where the delay law
 * wants a short one, and the delay law would leave all bandwidth to it. swift_base.c finds such a
 * neighbour (cf. Copa's test for a nearly empty queue: Arun and Balakrishnan, "Copa: Practical
 * Delay-Based Congestion Control for the Internet", NSDI 2018). From then on the fabric's window is
 * CUBIC's (RFC 9438) and its share as fair as that of one more CUBIC flow, until drains empty the
 * queue again:
 *
 *   window = W_max + C (t - K)^3, at least W_est (Reno's)
 *   on a loss: W_max = window, window -= 3/10 of it
 *
 * once a round trip, with t the time since the last loss. A loss counts only while the queue is at
 * least half of the longest of late, since random loss beside a short queue proves nothing, or if
 * more than one in 16 is lost; and never for what was sent before the window was last cut.
 *
 * It begins with the widest window since a drain last reached the base, since the delay law has
 * given this flow's share away. The window grows by a quarter each round trip at first, until that
 * makes the delay an eighth longer (HyStart, RFC 9406, waits for as much) or the window reaches
 * W_max of the last time. (It does not double as in slow start: where competing is a mistake, a
 * drain shows it first.)
 *
 * It ends when four drains in a row bring the delay down to the base; then the window is again what
 * it was at entry. A flow that has to compete again within a second (BBR gives way and returns)
 * needs twice as many such drains the next time, 64 times as many at the most. */
#include "base/sequence.h"
#include "cc/swift.h"

static uint64_t take_cube_root(uint64_t x)
{
    uint64_t root = 0;
    for (uint64_t bit = UINT64_C(1) << 20; bit; bit >>= 1)
        if ((root | bit) * (root | bit) * (root | bit) <= x)
            root |= bit;
    return root;
}

/* K = cbrt((W_max - window) / 0.4) seconds: when the window will be W_max again. */
static void begin_epoch(struct harp_cc *cc, uint64_t now_ns)
{
    struct harp_swift *swift = harp_swift_of(cc);
    uint64_t segment = (uint64_t)cc->config.segment_bytes * SWIFT_SCALE;
    uint64_t below =
        swift->compete.w_max - harp_min(swift->delay.fabric_window, swift->compete.w_max);
    swift->compete.epoch_ns = now_ns;
    swift->compete.w_est = swift->delay.fabric_window;
    swift->compete.k_ms =
        take_cube_root(harp_min(below * 1000 / segment, UINT64_C(1) << 32) * 2500000);
}

void harp_swift_compete(struct harp_cc *cc, uint64_t now_ns)
{
    struct harp_swift *swift = harp_swift_of(cc);
    swift->compete.active = true;
    swift->compete.reached_drains = 0;
    swift->compete.entry_delay_ns = swift->round.mean_ns;
    swift->compete.entry_window = swift->delay.fabric_window;
    bool again =
        swift->compete.left_at_ns && now_ns - swift->compete.left_at_ns < SWIFT_COMPETE_AGAIN_NS;
    swift->compete.stay_factor =
        again ? harp_min(2 * swift->compete.stay_factor, SWIFT_STAY_FACTOR_MAX) : 1;
    swift->compete.longest_queue_ns = 0;
    swift->compete.threshold = swift->compete.w_max ? swift->compete.w_max : UINT64_MAX;
    swift->loss.window_limit = UINT64_MAX;
    swift->delay.fabric_window =
        harp_swift_bounded(cc, harp_max(swift->delay.fabric_window, swift->compete.widest_window));
    begin_epoch(cc, now_ns);
}

static void back_off(struct harp_cc *cc, uint64_t now_ns)
{
    struct harp_swift *swift = harp_swift_of(cc);
    bool less = swift->delay.fabric_window <
                swift->compete.w_max; /* fast convergence: others need the room */
    swift->compete.w_max = less ? swift->delay.fabric_window / 20 * 17 : swift->delay.fabric_window;
    harp_swift_remember(swift, false);
    swift->delay.fabric_window =
        harp_swift_bounded(cc, swift->delay.fabric_window - swift->delay.fabric_window * 3 / 10);
    swift->compete.threshold = swift->delay.fabric_window;
    swift->depth.cut_ns = now_ns;
    begin_epoch(cc, now_ns);
}

/* Whether the losses of this round show a full buffer. */
static bool is_congestion(const struct harp_swift *swift, uint64_t queue_ns)
{
    bool heavy = swift->round.lost_bytes * SWIFT_HEAVY_LOSS_PART > swift->round.acked_bytes;
    return swift->round.lost_bytes && (heavy || 2 * queue_ns >= swift->compete.longest_queue_ns);
}

/* W_max + 0.4 (t - K)^3 segments, t one round trip from now. */
static uint64_t cubic_window(const struct harp_cc *cc, const struct harp_swift *swift,
                             uint64_t now_ns)
{
    uint64_t segment = (uint64_t)cc->config.segment_bytes * SWIFT_SCALE;
    uint64_t t_ms = (now_ns + swift->delay.rtt_ns - swift->compete.epoch_ns) / 1000000;
    uint64_t off_ms =
        t_ms > swift->compete.k_ms ? t_ms - swift->compete.k_ms : swift->compete.k_ms - t_ms;
    off_ms = harp_min(off_ms, 1 << 16);
    uint64_t off = off_ms * off_ms * off_ms / 1000 * segment / 2500000;
    if (t_ms > swift->compete.k_ms)
        return swift->compete.w_max + off;
    return swift->compete.w_max - harp_min(off, swift->compete.w_max);
}

void harp_swift_compete_round(struct harp_cc *cc, uint64_t now_ns, uint64_t queue_ns)
{
    struct harp_swift *swift = harp_swift_of(cc);
    swift->compete.longest_queue_ns =
        harp_max(swift->compete.longest_queue_ns - swift->compete.longest_queue_ns / 64, queue_ns);
    if (is_congestion(swift, queue_ns)) {
        back_off(cc, now_ns);
        return;
    }
    if (!swift->round.window_used)
        return;
    uint64_t window = swift->delay.fabric_window;
    if (window < swift->compete.threshold) {
        if (swift->round.mean_ns >
            swift->compete.entry_delay_ns + swift->compete.entry_delay_ns / 8)
            swift->compete.threshold = window;
        window = harp_min(window + window / 4, swift->compete.threshold);
        if (window == swift->compete.threshold)
            begin_epoch(cc, now_ns);
    } else {
        uint64_t segment = (uint64_t)cc->config.segment_bytes * SWIFT_SCALE;
        uint64_t acked = harp_min(swift->round.acked_bytes * SWIFT_SCALE, window);
        swift->compete.w_est +=
            harp_swift_part(segment * 9 / 17, acked, window); /* 3 (1 - b) / (1 + b) */
        window = harp_max(cubic_window(cc, swift, now_ns), swift->compete.w_est);
        window = harp_min(window, swift->delay.fabric_window + swift->delay.fabric_window / 2);
    }
    swift->delay.fabric_window =
        harp_swift_bounded(cc, harp_max(window, swift->delay.fabric_window));
}
