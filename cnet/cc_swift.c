#include "cc.h"

#include <assert.h>

#include "sequence.h"

/* One delay and the window that it steers. */
struct half {
    uint64_t window; /* bytes times 1024, so that slow growth is not rounded away */
    uint64_t reduced_ns;
};

struct swift {
    struct half fabric;
    struct half host;
    uint64_t round_ns; /* when the round of loss counting began */
    uint64_t acked;    /* bytes, in this round */
    uint64_t lost;
    uint64_t before; /* the fabric window before the last reduction for loss; 0 if none to undo */
    uint64_t rtt_ns;
    uint64_t starting; /* whether it still doubles; of the type of `state`, as all here */
};

_Static_assert(sizeof(struct swift) <= sizeof(((struct harp_cc *)0)->state), "state fits");

#define SCALE 1024
#define BACKOFF_NUM 4 /* beta = 0.8 */
#define BACKOFF_DEN 5
#define FEW_SEGMENTS 100 /* windows above this many segments get no scaled target */

static struct swift *swift_of(struct harp_cc *cc)
{
    return (struct swift *)cc->state;
}

static uint64_t square_root(uint64_t x)
{
    uint64_t root = 0;
    for (uint64_t bit = UINT64_C(1) << 31; bit; bit >>= 1)
        if ((root | bit) * (root | bit) <= x)
            root |= bit;
    return root;
}

/* The part of the target that small windows get on top: base / sqrt(segments), less what it is at
 * FEW_SEGMENTS. */
static uint64_t scaled_ns(const struct harp_cc *cc, uint64_t window)
{
    uint64_t segments_x1024 = harp_max(window / cc->config.segment_bytes, SCALE);
    uint64_t inverse_x65536 = square_root((UINT64_C(1) << 42) / segments_x1024);
    uint64_t least_x65536 = 65536 / 10;
    if (inverse_x65536 <= least_x65536)
        return 0;
    return cc->config.target_ns * (inverse_x65536 - least_x65536) / 65536;
}

static uint64_t bounded(const struct harp_cc *cc, uint64_t window)
{
    return harp_min(harp_max(window, cc->config.min_bytes * SCALE), cc->config.max_bytes * SCALE);
}

static void swift_init(struct harp_cc *cc)
{
    uint64_t window = bounded(cc, cc->config.initial_bytes * SCALE);
    *swift_of(cc) = (struct swift){
        .fabric.window = window, .host.window = cc->config.max_bytes * SCALE, .starting = true};
}

static void grow(const struct harp_cc *cc, struct half *half, uint64_t bytes, bool doubling)
{
    uint64_t more = doubling ? bytes * SCALE
                             : bytes * SCALE * cc->config.segment_bytes / (half->window / SCALE);
    half->window = bounded(cc, half->window + more);
}

static void shrink(const struct harp_cc *cc, struct half *half, uint64_t delay_ns,
                   uint64_t target_ns, uint64_t now_ns, uint64_t rtt_ns)
{
    if (now_ns - half->reduced_ns < rtt_ns)
        return;
    uint64_t excess_ns = delay_ns - target_ns;
    uint64_t cut = half->window / delay_ns * excess_ns / BACKOFF_DEN * BACKOFF_NUM;
    half->window = bounded(cc, half->window - harp_min(cut, half->window / 2));
    half->reduced_ns = now_ns;
}

/* At the end of a round trip, judge the share of bytes that was lost in it. */
static void judge_loss(struct harp_cc *cc, uint64_t now_ns)
{
    struct swift *swift = swift_of(cc);
    if (now_ns - swift->round_ns < swift->rtt_ns)
        return;
    uint64_t all = swift->lost + swift->acked;
    if (swift->lost * HARP_SWIFT_LOSS > all) {
        uint64_t cut = swift->fabric.window / all * swift->lost;
        swift->before = swift->fabric.window;
        swift->fabric.window =
            bounded(cc, swift->fabric.window - harp_min(cut, swift->fabric.window / 2));
        swift->starting = false;
    }
    swift->lost = 0;
    swift->acked = 0;
    swift->round_ns = now_ns;
}

static void swift_on_ack(struct harp_cc *cc, const struct harp_cc_ack *ack)
{
    struct swift *swift = swift_of(cc);
    swift->acked += ack->bytes;
    if (!ack->fabric_ns)
        return;
    swift->rtt_ns = ack->fabric_ns + ack->host_ns;
    uint64_t base_ns = cc->config.base_ns ? cc->config.base_ns : ack->least_ns;
    uint64_t target_ns = base_ns + cc->config.target_ns + scaled_ns(cc, swift->fabric.window);
    bool used = 2 * ack->flying * SCALE >= swift->fabric.window;
    if (ack->fabric_ns > target_ns) {
        swift->starting = false;
        shrink(cc, &swift->fabric, ack->fabric_ns, target_ns, ack->now_ns, swift->rtt_ns);
    } else if (used) {
        grow(cc, &swift->fabric, ack->bytes, swift->starting);
    }
    if (ack->host_ns > cc->config.host_target_ns)
        shrink(cc, &swift->host, ack->host_ns, cc->config.host_target_ns, ack->now_ns,
               swift->rtt_ns);
    else
        grow(cc, &swift->host, ack->bytes, false);
    judge_loss(cc, ack->now_ns);
}

static void swift_on_loss(struct harp_cc *cc, const struct harp_cc_loss *loss)
{
    swift_of(cc)->lost += loss->bytes;
}

/* Nothing has come back at all: start again from the least window, quickly up to half the old one.
 */
static void swift_on_timeout(struct harp_cc *cc, uint64_t now_ns)
{
    struct swift *swift = swift_of(cc);
    if (!swift->before)
        swift->before = swift->fabric.window;
    swift->fabric.window = bounded(cc, 0);
    swift->fabric.reduced_ns = now_ns;
    swift->starting = true;
    swift->lost = 0;
    swift->acked = 0;
    swift->round_ns = now_ns;
}

static void swift_on_spurious(struct harp_cc *cc)
{
    struct swift *swift = swift_of(cc);
    swift->fabric.window = harp_max(swift->fabric.window, swift->before);
    swift->before = 0;
}

static uint64_t swift_window(const struct harp_cc *cc)
{
    const struct swift *swift = (const struct swift *)cc->state;
    return harp_min(swift->fabric.window, swift->host.window) / SCALE;
}

const struct harp_cc_ops harp_cc_swift = {
    .name = "swift",
    .init = swift_init,
    .on_ack = swift_on_ack,
    .on_loss = swift_on_loss,
    .on_timeout = swift_on_timeout,
    .on_spurious = swift_on_spurious,
    .window_bytes = swift_window,
};
