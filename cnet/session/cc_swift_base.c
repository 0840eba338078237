/* What the empty path takes, and whether others hold the queue. The base is the least delay seen;
 * where the operator knows base_ns, that. Where a drain (cc_swift_drain.c) brings the delay down to
 * it, or most of the way, the queue was ours and of such as drain with us.
 *
 * Drains that miss the base mean one of two things:
 *
 * - The path became longer, or one wrong sample made it look shorter than it is. Then the window
 *   shrinks and nothing changes: several drains, over 150 ms, end at the same delay, and that is
 *   the base from then on. The window doubles up to it, as at first.
 * - Somebody fills the queue who does not drain with us. Then the delay moves from drain to drain,
 *   or frames are lost as never by chance, and we compete (cc_swift_compete.c): as soon as drains
 *   that took less than a quarter of the queue away outweigh those that took more, by 12; or
 *   48 left more than a quarter. So many, because flows of this kind need some periods until they
 *   drain at once, too.
 *
 * A queue of more than 80 T is longer than any flow of this kind wants it (cc_swift.c). Where it is
 * so for 32 rounds in a row, no drain is needed to tell, and the same two cases are told apart. */
#include "base/sequence.h"
#include "session/cc_swift.h"

#define MISSED_LEAST 3 /* drains that must have missed the base before it is learnt again ... */
#define MISSED_NS UINT64_C(150000000) /* ... and the time over which they did; while we ... */
#define MISSED_COMPETING_NS                                                                        \
    (4 * MISSED_NS)    /* ... compete, since plateaus of CUBIC are flat ...                        \
                        */
#define OURS 4         /* ... only if the drain took so many T away, which others would not leave */
#define FLOOR_SAME 32  /* delays are the same that differ by such a part of the queue below them */
#define HELD_UP 4      /* a drain that hardly shortened the queue counts so much, ... */
#define HELD_DOWN 2    /* ... another that missed the base takes so much away, ... */
#define HELD_MOST 48   /* ... and so much it takes to compete, ... */
#define MISSED_MOST 48 /* ... or so many of both kinds */
#define LOST_MOST 64   /* more than one in so many is not lost by chance */
#define STUCK_ROUNDS 32

static uint64_t above(uint64_t delay_ns, uint64_t base_ns)
{
    return delay_ns - harp_min(delay_ns, base_ns);
}

uint64_t harp_swift_base_ns(struct harp_cc *cc, const struct harp_cc_ack *ack)
{
    struct harp_swift *swift = harp_swift_of(cc);
    uint64_t least_ns = swift->base_ns ? harp_min(swift->base_ns, ack->fabric_ns) : 0;
    swift->base_ns = harp_max(least_ns, ack->least_ns);
    return cc->config.base_ns ? cc->config.base_ns : swift->base_ns;
}

/* Whether the queue was ours, or of such as drain with us: at this delay most of it was away. */
static bool reaches_base(const struct harp_cc *cc, uint64_t floor_ns, uint64_t base_ns)
{
    const struct harp_swift *swift = (const struct harp_swift *)cc->state;
    uint64_t queue_ns = above(swift->mean_ns, base_ns);
    return floor_ns <= base_ns + harp_max(queue_ns / 4, cc->config.target_ns / 2);
}

/* A drain reached the base: one more of those after which we cease to compete. If nobody holds the
 * queue, what we took since we began was not ours. */
static void note_reached(struct harp_swift *swift, uint64_t now_ns)
{
    swift->missed = swift->held = 0;
    swift->widest = swift->fabric;
    if (swift->competes && ++swift->reached >= swift->stay) {
        swift->competes = false;
        swift->fabric = harp_min(swift->fabric, swift->entry);
        swift->left_ns = now_ns;
    }
}

static void learn_base(struct harp_swift *swift, uint64_t floor_ns, uint64_t now_ns)
{
    swift->base_ns = floor_ns;
    if (!swift->competes) {
        swift->stop = UINT64_MAX;
        swift->above = 0;
    }
    note_reached(swift, now_ns);
}

static void begin_competing(struct harp_cc *cc, uint64_t now_ns)
{
    struct harp_swift *swift = harp_swift_of(cc);
    swift->missed = swift->held = 0;
    if (!swift->competes)
        harp_swift_compete(cc, now_ns);
}

static void note_missed(struct harp_swift *swift, uint64_t floor_ns, uint64_t now_ns,
                        uint64_t base_ns)
{
    if (!swift->missed++) {
        swift->missed_at_ns = now_ns;
        swift->floor_ns[0] = swift->floor_ns[1] = floor_ns;
        swift->missed_came = swift->missed_lost = 0;
    }
    swift->reached = 0;
    swift->patience = HARP_SWIFT_PATIENCE_LEAST;
    swift->floor_ns[0] = harp_min(swift->floor_ns[0], floor_ns);
    swift->floor_ns[1] = harp_max(swift->floor_ns[1], floor_ns);
    if (4 * above(floor_ns, base_ns) >= 3 * above(swift->mean_ns, base_ns))
        swift->held += HELD_UP;
    else
        swift->held -= harp_min(swift->held, HELD_DOWN);
}

/* Whether what stands in the way comes and goes between these delays, as queues do and paths do
 * not. */
static bool delay_moves(const struct harp_cc *cc, const uint64_t *floor_ns, uint64_t base_ns)
{
    const struct harp_swift *swift = (const struct harp_swift *)cc->state;
    uint64_t same_ns = cc->config.target_ns / 2;
    if (!swift->competes)
        same_ns = harp_max(same_ns, above(floor_ns[0], base_ns) / FLOOR_SAME);
    return floor_ns[1] - floor_ns[0] > same_ns;
}

void harp_swift_learn_from_drain(struct harp_cc *cc, uint64_t now_ns, uint64_t base_ns)
{
    struct harp_swift *swift = harp_swift_of(cc);
    uint64_t floor_ns = harp_min(swift->low_ns, swift->period_low_ns);
    if (reaches_base(cc, floor_ns, base_ns)) {
        note_reached(swift, now_ns);
        return;
    }
    note_missed(swift, floor_ns, now_ns, base_ns);
    if (swift->missed < MISSED_LEAST)
        return;
    bool lossy = swift->missed_lost * LOST_MOST > swift->missed_came;
    uint64_t since_ns = now_ns - swift->missed_at_ns;
    bool ours = swift->mean_ns > floor_ns + OURS * cc->config.target_ns;
    if (lossy || delay_moves(cc, swift->floor_ns, base_ns)) {
        if (swift->held >= HELD_MOST || swift->missed >= MISSED_MOST)
            begin_competing(cc, now_ns);
    } else if (swift->competes ? ours && since_ns >= MISSED_COMPETING_NS : since_ns >= MISSED_NS) {
        learn_base(swift, swift->floor_ns[0], now_ns);
    }
}

void harp_swift_learn_from_round(struct harp_cc *cc, uint64_t now_ns, uint64_t base_ns,
                                 uint64_t most_ns)
{
    struct harp_swift *swift = harp_swift_of(cc);
    uint64_t low_ns = swift->round_low_ns;
    if (swift->mean_ns <= most_ns) {
        swift->stuck = 0;
        return;
    }
    if (!swift->stuck++) {
        swift->stuck_at_ns = now_ns;
        swift->stuck_ns[0] = swift->stuck_ns[1] = low_ns;
    }
    swift->stuck_ns[0] = harp_min(swift->stuck_ns[0], low_ns);
    swift->stuck_ns[1] = harp_max(swift->stuck_ns[1], low_ns);
    if (swift->stuck < STUCK_ROUNDS)
        return;
    bool held = delay_moves(cc, swift->stuck_ns, base_ns);
    if (!held && now_ns - swift->stuck_at_ns < MISSED_NS)
        return;
    swift->stuck = 0;
    if (held)
        begin_competing(cc, now_ns);
    else
        learn_base(swift, swift->stuck_ns[0], now_ns);
}
