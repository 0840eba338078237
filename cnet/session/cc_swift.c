#include "session/cc.h"

#include <assert.h>

#include "base/sequence.h"

struct swift {
    /* windows, in bytes times 1024, so that slow growth is not rounded away */
    uint64_t fabric;
    uint64_t host;
    uint64_t before; /* the fabric window before the last reduction for loss; 0 if none to undo */
    uint64_t stop;   /* bytes times 1024 at which doubling ends; 0 once it has ended */
    /* this round */
    uint64_t round_ns; /* when it ends */
    uint64_t fabric_sum_ns, host_sum_ns, samples;
    uint64_t acked, marked; /* bytes, packets */
    uint64_t used;          /* whether the window was what limited */
    uint64_t above;         /* samples in a row above the target */
    /* across rounds */
    uint64_t rtt_ns; /* of the latest sample, both parts */
    uint64_t latest_ns;
    uint64_t jitter_x16_ns;
    uint64_t alpha_x65536; /* share of marked packets, smoothed */
    /* loss */
    uint64_t judge_ns; /* no judgement before this; 0: to be set by the next ACK */
    uint64_t came, lost;
    uint64_t step_x1024; /* by how much the window may grow until the next judgement ... */
    uint64_t roof;       /* ... which is up to here */
    /* drain */
    uint64_t low_ns, low_at_ns; /* least delay of the last period, and when */
    uint64_t drain_ns;          /* draining, or its echo is passing, until then */
    uint64_t patience;          /* round trips from one drain to the next, at least */
    uint64_t base_ns;           /* what the last drain started from */
    uint64_t drained;           /* window during the drain; 0 if none is */
};

_Static_assert(sizeof(struct swift) <= sizeof(((struct harp_cc *)0)->state), "state fits");

#define SCALE 1024
#define STEP_MOST (SCALE / 4)
#define STEP_LEAST (SCALE / 64)
#define MARKED (65536 / 64) /* marks arrive: this share and more, smoothed */
#define PATIENCE_LEAST 8
#define JUDGED_SEGMENTS 128
#define PAUSE_MOST_NS UINT64_C(4000000)

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

/* Queueing delay at which a flow of this rate is content: target * sqrt(25 Gb/s / rate). */
static uint64_t content_ns(uint64_t target_ns, uint64_t window, uint64_t rtt_ns)
{
    uint64_t share_x65536 = harp_min(rtt_ns, UINT64_C(1) << 36) * (3200 * 256) / window * 256;
    uint64_t most_ns = HARP_SWIFT_MOST * target_ns;
    return harp_min(target_ns * square_root(share_x65536) / 256, most_ns);
}

static uint64_t fabric_target_ns(const struct harp_cc *cc, const struct swift *swift,
                                 uint64_t base_ns, uint64_t rtt_ns)
{
    uint64_t queue_ns = content_ns(cc->config.target_ns, swift->fabric, rtt_ns);
    uint64_t jitter_ns = swift->jitter_x16_ns * HARP_SWIFT_JITTER / 16;
    return base_ns + queue_ns + harp_min(jitter_ns, HARP_SWIFT_JITTERY * cc->config.target_ns);
}

/* window * of / whole. The quotient comes first, in 2^-16, so that nothing overflows and a window
 * of a few bytes still has parts. */
static uint64_t part(uint64_t window, uint64_t of, uint64_t whole)
{
    return window * (of * 65536 / whole) / 65536;
}

/* Never below one segment every PAUSE_MOST_NS: a delay that stays although we hardly send is not of
 * our making. */
static uint64_t bounded(const struct harp_cc *cc, uint64_t window)
{
    const struct swift *swift = (const struct swift *)cc->state;
    uint64_t segment = (uint64_t)cc->config.segment_bytes * SCALE;
    uint64_t least = part(segment, swift->rtt_ns, PAUSE_MOST_NS);
    least = harp_max(least, cc->config.min_bytes * SCALE);
    return harp_min(harp_max(window, least), cc->config.max_bytes * SCALE);
}

static void swift_init(struct harp_cc *cc)
{
    *swift_of(cc) = (struct swift){.fabric = bounded(cc, cc->config.initial_bytes * SCALE),
                                   .host = cc->config.max_bytes * SCALE,
                                   .stop = UINT64_MAX,
                                   .low_ns = HARP_NEVER,
                                   .patience = PATIENCE_LEAST,
                                   .alpha_x65536 = 65536,
                                   .step_x1024 = STEP_MOST,
                                   .roof = UINT64_MAX};
}

/* Move a window half of the way to where the delay would be on target. */
static uint64_t steered(const struct harp_cc *cc, uint64_t window, uint64_t delay_ns,
                        uint64_t target_ns, uint64_t rtt_ns, uint64_t most)
{
    if (delay_ns > target_ns) {
        uint64_t cut = part(window, delay_ns - target_ns, 2 * rtt_ns);
        return bounded(cc, window - harp_min(cut, window / 2));
    }
    uint64_t more = part(window, target_ns - delay_ns, 2 * rtt_ns) + SCALE;
    return bounded(cc, window + harp_min(more, most));
}

/* DCTCP: the share of marked packets, smoothed; half of it is cut after a round with marks. */
static void heed_marks(struct harp_cc *cc)
{
    struct swift *swift = swift_of(cc);
    uint64_t marked = harp_min(swift->marked * cc->config.segment_bytes, swift->acked);
    uint64_t share_x65536 = swift->acked ? marked * 65536 / swift->acked : 0;
    if (!marked && swift->alpha_x65536 == 65536)
        return;
    swift->alpha_x65536 += share_x65536 / 16;
    swift->alpha_x65536 -= swift->alpha_x65536 / 16;
    if (!marked)
        return;
    swift->stop = 0;
    swift->fabric = bounded(cc, swift->fabric - swift->fabric * swift->alpha_x65536 / 131072);
}

static void begin_round(struct swift *swift, uint64_t now_ns)
{
    swift->round_ns = now_ns + swift->rtt_ns;
    swift->fabric_sum_ns = swift->host_sum_ns = swift->samples = 0;
    swift->acked = swift->marked = swift->used = 0;
}

/* Most that the window may grow by in a round. */
static uint64_t step(const struct harp_cc *cc, const struct swift *swift)
{
    uint64_t most = swift->roof > swift->fabric ? swift->roof - swift->fabric : 0;
    if (swift->alpha_x65536 > MARKED && swift->alpha_x65536 < 65536)
        most = harp_min(most, (uint64_t)cc->config.segment_bytes * SCALE);
    return harp_min(most, swift->fabric / 2);
}

static void end_round(struct harp_cc *cc, uint64_t base_ns, uint64_t now_ns)
{
    struct swift *swift = swift_of(cc);
    uint64_t fabric_ns = swift->fabric_sum_ns / swift->samples;
    uint64_t host_ns = swift->host_sum_ns / swift->samples;
    uint64_t rtt_ns = fabric_ns + host_ns;
    uint64_t target_ns = fabric_target_ns(cc, swift, base_ns, rtt_ns);
    bool grows = swift->used && !swift->marked;
    heed_marks(cc);
    if (fabric_ns > target_ns) /* a queue limits, not a policer */
        swift->roof = UINT64_MAX;
    if (fabric_ns > target_ns || grows)
        swift->fabric = steered(cc, swift->fabric, fabric_ns, target_ns, rtt_ns, step(cc, swift));
    target_ns = content_ns(cc->config.host_target_ns, swift->host, rtt_ns);
    swift->host = steered(cc, swift->host, host_ns, target_ns, rtt_ns, swift->host / 2);
    begin_round(swift, now_ns);
}

static void raise_roof(const struct harp_cc *cc, struct swift *swift)
{
    uint64_t target_ns = cc->config.target_ns;
    uint64_t own_ns = content_ns(target_ns, swift->fabric, swift->rtt_ns);
    own_ns = harp_min(own_ns, 16 * target_ns) * swift->step_x1024;
    swift->roof = swift->fabric + part(swift->fabric, own_ns, 4 * SCALE * target_ns);
}

/* Judge the share that was lost, as soon as it is heavy or enough has come to say that it is not.
 */
static void judge_loss(struct harp_cc *cc, uint64_t now_ns)
{
    struct swift *swift = swift_of(cc);
    if (!swift->judge_ns)
        swift->judge_ns = now_ns + HARP_SWIFT_JUDGED * swift->rtt_ns;
    uint64_t all = swift->lost + swift->came;
    uint64_t enough = (uint64_t)JUDGED_SEGMENTS * cc->config.segment_bytes;
    bool heavy = swift->lost * HARP_SWIFT_LOSS > harp_max(all, enough);
    bool quiet = !swift->lost && now_ns >= swift->judge_ns + 3 * HARP_SWIFT_JUDGED * swift->rtt_ns;
    if (now_ns < swift->judge_ns || (all < enough && !heavy && !quiet))
        return;
    if (heavy) {
        uint64_t cut = part(swift->fabric, swift->lost, all) + swift->fabric / 16;
        swift->before = swift->fabric;
        swift->fabric = bounded(cc, swift->fabric - harp_min(cut, swift->fabric / 2));
        swift->stop = 0;
        swift->step_x1024 = STEP_LEAST;
        raise_roof(cc, swift);
    } else if (swift->lost * HARP_SWIFT_LOSS * 2 <= all && swift->roof != UINT64_MAX) {
        swift->step_x1024 = harp_min(swift->step_x1024 * 5 / 4, STEP_MOST);
        raise_roof(cc, swift);
    }
    if (!heavy)
        swift->before = 0; /* a loss that proves none now was not what reduced */
    swift->lost = swift->came = 0;
    swift->judge_ns = now_ns + HARP_SWIFT_JUDGED * swift->rtt_ns;
}

static uint64_t period_ns(uint64_t rtt_ns, uint64_t rounds)
{
    uint64_t period = UINT64_C(1) << 17; /* 131 us */
    while (period < rounds * rtt_ns)
        period *= 2;
    return period;
}

/* Remember the least delay of the last period; one period after it, drain. Returns whether this
 * sample is to be left out, since a drain of our own is under way or its echo passes. */
static bool drain(struct harp_cc *cc, const struct harp_cc_ack *ack, uint64_t base_ns)
{
    struct swift *swift = swift_of(cc);
    if (ack->fabric_ns <= swift->low_ns) {
        swift->low_ns = ack->fabric_ns;
        swift->low_at_ns = ack->now_ns;
    }
    if (ack->now_ns < swift->drain_ns)
        return true;
    if (base_ns < swift->base_ns - swift->base_ns / 16) {
        swift->base_ns = base_ns;
        swift->patience = PATIENCE_LEAST;
    }
    if (swift->drained) { /* its echo: what was sent during the drain comes back */
        swift->drained = 0;
        swift->drain_ns = ack->now_ns + swift->rtt_ns;
        return true;
    }
    if (swift->stop || !swift->used ||
        ack->now_ns - swift->low_at_ns < period_ns(swift->rtt_ns, swift->patience))
        return false;
    uint64_t half = (uint64_t)cc->config.segment_bytes * SCALE / 2;
    swift->drained = harp_max(part(swift->fabric, base_ns, 2 * swift->rtt_ns), swift->fabric / 8);
    swift->drained = harp_max(swift->drained, harp_min(swift->fabric, half));
    swift->drain_ns = ack->now_ns + swift->rtt_ns + base_ns;
    swift->low_ns = HARP_NEVER;
    swift->low_at_ns = ack->now_ns;
    swift->base_ns = base_ns;
    swift->patience = harp_min(2 * swift->patience, HARP_SWIFT_PERIOD);
    return true;
}

static void note_jitter(struct swift *swift, uint64_t fabric_ns)
{
    uint64_t off_ns =
        fabric_ns > swift->latest_ns ? fabric_ns - swift->latest_ns : swift->latest_ns - fabric_ns;
    if (swift->latest_ns)
        swift->jitter_x16_ns += off_ns - swift->jitter_x16_ns / 16;
    swift->latest_ns = fabric_ns;
}

/* Double each round trip until some samples in a row are above the target. */
static void start(struct harp_cc *cc, const struct harp_cc_ack *ack, uint64_t base_ns)
{
    struct swift *swift = swift_of(cc);
    uint64_t target_ns = fabric_target_ns(cc, swift, base_ns, swift->rtt_ns);
    swift->above = ack->fabric_ns > target_ns ? swift->above + 1 : 0;
    if (swift->above >= HARP_SWIFT_ABOVE || swift->fabric >= swift->stop)
        swift->stop = 0;
    else if (2 * ack->flying * SCALE >= swift->fabric && !swift->above)
        swift->fabric = bounded(cc, swift->fabric + ack->bytes * SCALE);
}

static void swift_on_ack(struct harp_cc *cc, const struct harp_cc_ack *ack)
{
    struct swift *swift = swift_of(cc);
    swift->came += ack->bytes;
    swift->acked += ack->bytes;
    swift->marked += ack->marked;
    swift->used |= 2 * ack->flying * SCALE >= swift->fabric;
    if (!ack->fabric_ns)
        return;
    uint64_t base_ns = cc->config.base_ns ? cc->config.base_ns : ack->least_ns;
    swift->rtt_ns = ack->fabric_ns + ack->host_ns;
    judge_loss(cc, ack->now_ns);
    if (drain(cc, ack, base_ns)) {
        begin_round(swift, ack->now_ns);
        return;
    }
    note_jitter(swift, ack->fabric_ns);
    if (swift->stop)
        start(cc, ack, base_ns);
    if (!swift->round_ns)
        begin_round(swift, ack->now_ns);
    swift->fabric_sum_ns += ack->fabric_ns;
    swift->host_sum_ns += ack->host_ns;
    swift->samples++;
    if (ack->now_ns >= swift->round_ns)
        end_round(cc, base_ns, ack->now_ns);
}

static void swift_on_loss(struct harp_cc *cc, const struct harp_cc_loss *loss)
{
    swift_of(cc)->lost += loss->bytes;
}

/* Nothing has come back at all: start again from one segment, quickly up to half the old window. */
static void swift_on_timeout(struct harp_cc *cc, uint64_t now_ns)
{
    struct swift *swift = swift_of(cc);
    if (!swift->before)
        swift->before = swift->fabric;
    uint64_t one = (uint64_t)cc->config.segment_bytes * SCALE;
    swift->stop = swift->fabric / 2 > one ? swift->fabric / 2 : 0;
    swift->fabric = bounded(cc, harp_min(swift->fabric, one));
    swift->lost = swift->came = 0;
    swift->judge_ns = 0;
    begin_round(swift, now_ns);
}

static void swift_on_spurious(struct harp_cc *cc)
{
    struct swift *swift = swift_of(cc);
    swift->fabric = harp_max(swift->fabric, swift->before);
    swift->before = 0;
}

static uint64_t swift_window(const struct harp_cc *cc)
{
    const struct swift *swift = (const struct swift *)cc->state;
    uint64_t window = harp_min(swift->fabric, swift->host);
    if (swift->drained)
        window = harp_min(window, swift->drained);
    return harp_max(window / SCALE, 1);
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
