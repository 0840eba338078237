#include "world.h"

#include <stdlib.h>
#include <string.h>

#include "base/sequence.h"
#include "forge.h"
#include "wire/crc32c.h"
#include "wire/seal.h"

static uint64_t draw_below(struct dst_world *w, uint64_t n)
{
    return virtual_below(&w->random, n);
}

static bool draw_chance(struct dst_world *w, uint32_t permille)
{
    return virtual_chance(&w->random, permille);
}

/* A FIRST of nobody: of parameters that would do, from an address of its own; the tag holds in half
 * of the cases, as if the secret had leaked. */
static void send_strangers_first(struct dst_world *w)
{
    uint8_t bytes[HARP_HEADER_BYTES + HARP_BODY_MAX] = {0};
    struct harp_parameters first = {.connection = virtual_draw(&w->random),
                                    .epoch = 1,
                                    .segment = HARP_CHUNK_ALIGN,
                                    .paths = 1,
                                    .first = (uint32_t)virtual_draw(&w->random)};
    for (int i = 0; i < 16; i++)
        first.cookie[i] = draw_chance(w, 500) ? (uint8_t)virtual_draw(&w->random) : 0;
    struct harp_header header = {
        .version = HARP_VERSION,
        .type = HARP_FIRST,
        .connection = DST_LISTENER,
        .length = (uint16_t)harp_parameters_encode(&first, bytes + HARP_HEADER_BYTES)};
    harp_header_encode(&header, bytes);
    struct harp_key key = harp_key_hello(&dst_secret, DST_LISTENER);
    harp_seal(&key, bytes, 0, bytes + HARP_HEADER_BYTES, header.length);
    bool forged = draw_chance(w, 500);
    bytes[HARP_TAGGED_BYTES] ^= forged;
    dst_link_inject(&w->link, w->now_ns, 1, 0, 1 + (uint32_t)draw_below(w, 1000000), bytes,
                    HARP_HEADER_BYTES + (size_t)header.length, forged);
}

/* The connection's own FIRST, with the cookie that it brings, from another address. */
static void send_stolen_first(struct dst_world *w)
{
    const struct dst_flight *old = dst_link_recall(&w->link, 1);
    if (old && old->bytes[1] == HARP_FIRST)
        dst_link_inject(&w->link, w->now_ns, 1, 0, 1 + (uint32_t)draw_below(w, 1000000), old->bytes,
                        old->bytes_n, false);
}

static void flood_on(struct dst_world *w)
{
    if (draw_chance(w, 100))
        send_stolen_first(w);
    else
        send_strangers_first(w);
    w->flood_n--;
    w->flood_ns = w->flood_n ? w->now_ns + draw_below(w, 20 * DST_US) : HARP_NEVER;
}

static void draw_jump(struct dst_world *w)
{
    w->jump_ns = w->now_ns + draw_below(w, 100 * DST_MS);
    w->jump_by_ns = draw_chance(w, 500) ? (int64_t)draw_below(w, 10 * DST_S)
                                        : -(int64_t)draw_below(w, 50 * DST_MS);
}

static void jump_clock(struct dst_world *w)
{
    struct dst_end *end = &w->ends[draw_below(w, 2)];
    w->link.late_data += dst_end_in_flight(end); /* as if: they may seem overdue */
    end->clock.off_ns += w->jump_by_ns;
    w->jump_ns = HARP_NEVER;
    if (w->now_ns < w->link.heal_ns && draw_chance(w, 500))
        draw_jump(w);
}

/* As many packets as half or all of the numbers that a header has, and somewhat more. */
static void skip_numbers(struct dst_world *w)
{
    uint64_t packets =
        (UINT64_C(1) << (31 + draw_below(w, 3))) + HARP_SACK_BITS * (1 + draw_below(w, 8));
    w->skip_ns = HARP_NEVER;
    if (dst_end_skip(w->ends, w->now_ns, packets))
        dst_link_age(&w->link);
}

/* The next frame that arrives, or the next end that wants to be driven. */
void dst_step(struct dst_world *w, uint64_t stop_ns)
{
    uint64_t frame_ns = dst_link_next_ns(&w->link);
    uint64_t at_ns = harp_min(frame_ns, harp_min(w->ends[0].wake_ns, w->ends[1].wake_ns));
    at_ns = harp_min(at_ns, harp_min(w->flood_ns, w->prod_ns));
    at_ns = harp_max(w->now_ns, harp_min(at_ns, stop_ns));
    w->now_ns = at_ns;
    if (at_ns >= w->skip_ns)
        skip_numbers(w);
    if (at_ns >= w->jump_ns)
        jump_clock(w);
    if (at_ns >= w->flood_ns)
        flood_on(w);
    if (at_ns >= w->prod_ns) {
        dst_end_prod(&w->ends[draw_below(w, 2)], at_ns);
        w->prod_ns = at_ns < w->link.heal_ns ? at_ns + draw_below(w, 5 * DST_MS) : HARP_NEVER;
    }
    if (frame_ns <= at_ns) {
        struct dst_flight *flight = dst_link_take(&w->link);
        dst_end_receive(&w->ends[flight->to], at_ns, flight);
        free(flight);
        w->result.frames++;
    }
    for (int side = 0; side < 2; side++)
        if (w->ends[side].wake_ns <= at_ns)
            dst_end_drive(&w->ends[side], at_ns);
}

static bool is_through(const struct dst_world *w)
{
    return dst_app_done(&w->ends[0].app) && dst_app_done(&w->ends[1].app);
}

static bool any_closed(const struct dst_world *w)
{
    return w->ends[0].app.closed || w->ends[1].app.closed;
}

/* The listening end may never have heard of the connection. */
static bool both_closed(const struct dst_world *w)
{
    return w->ends[0].app.closed && (w->ends[1].app.closed || !w->ends[1].session);
}

/* Chunks are sent again for what happened to frames: one for each DATA frame that was destroyed or
 * late, and as many as an ACK speaks for, which are at most `ack.every`, for each ACK. Besides, the
 * tail of each end may be probed in vain. */
static void check_retransmissions(struct dst_world *w)
{
    const struct dst_link *l = &w->link;
    uint64_t bound = l->destroyed_data + l->late_data + DST_PROBES_IN_VAIN;
    for (int side = 0; side < 2; side++) {
        const struct harp_session_counters *c = harp_session_count(w->ends[side].session);
        w->result.data_again += c->data_again;
        w->result.spurious += c->spurious;
        w->result.paths_died += c->paths_died;
        w->result.pmtu_shrunk += c->pmtu_shrunk;
        w->result.pmtu_grown += c->pmtu_grown;
    }
    bound += w->ends[0].config.ack.every * (l->destroyed_acks + l->late_acks);
    w->result.disturbed = bound;
    DST_CHECK(w->result.data_again <= bound, "too much was sent again", w->result.data_again,
              bound);
}

static void check_reasons(const struct dst_world *w, uint32_t reason)
{
    for (int side = 0; side < 2; side++)
        DST_CHECK(w->ends[side].app.reason == reason, "closed for another reason", side,
                  w->ends[side].app.reason);
}

static void run_until_closed(struct dst_world *w)
{
    uint64_t stop_ns = w->now_ns + 2 * DST_DEAD_NS;
    while (w->now_ns < stop_ns && !both_closed(w))
        dst_step(w, stop_ns);
    DST_CHECK(both_closed(w), "not closed in time", w->ends[0].app.closed, w->ends[1].app.closed);
}

static void run_to_the_end(struct dst_world *w)
{
    uint64_t stop_ns = w->link.heal_ns + DST_RECOVERY_NS;
    while (w->now_ns < stop_ns && !is_through(w) && !any_closed(w))
        dst_step(w, stop_ns);
    DST_CHECK(!any_closed(w), "the connection broke", w->ends[0].app.reason, w->ends[1].app.reason);
    DST_CHECK(is_through(w), "no progress after all faults healed", w->ends[0].app.received,
              w->ends[1].app.received);
    check_retransmissions(w);
    dst_end_close(&w->ends[0], w->now_ns);
    run_until_closed(w);
    check_reasons(w, HARP_REASON_DONE);
}

static void run_restart(struct dst_world *w)
{
    uint64_t gone_ns = w->now_ns + draw_below(w, 5 * DST_MS);
    while (w->now_ns < gone_ns)
        dst_step(w, gone_ns);
    dst_end_stop(&w->ends[1]);
    w->ends[1].app.closed = true; /* the old listener does not come back */
    uint64_t stop_ns = w->now_ns + 2 * DST_DEAD_NS;
    while (w->now_ns < stop_ns && !w->ends[0].app.closed)
        dst_step(w, stop_ns);
    DST_CHECK(w->ends[0].app.closed, "a gone peer was not noticed", w->now_ns, gone_ns);
    DST_CHECK(w->ends[0].app.reason >= HARP_REASON_SILENT, "gone for another reason", 0,
              w->ends[0].app.reason);
    dst_end_stop(&w->ends[0]);
    w->kind = DST_FAULTS;
    dst_begin(w, 2);
    run_to_the_end(w);
}

static void run_silence(struct dst_world *w)
{
    uint64_t stop_ns = w->now_ns + 3 * DST_DEAD_NS;
    while (w->now_ns < stop_ns && !is_through(w) && !both_closed(w))
        dst_step(w, stop_ns);
    DST_CHECK(is_through(w) || both_closed(w), "silence was not noticed", w->ends[0].app.closed,
              w->ends[1].app.closed);
}

static void run_cheat(struct dst_world *w)
{
    uint64_t stop_ns = w->link.heal_ns + DST_RECOVERY_NS;
    while (w->now_ns < stop_ns && !is_through(w) && !w->ends[0].app.closed)
        dst_step(w, stop_ns);
    DST_CHECK(is_through(w) || w->ends[0].app.reason == HARP_REASON_PROTOCOL, "the cheat won",
              w->ends[0].app.closed, w->ends[0].app.reason);
}

/* A malicious end may achieve anything, as long as nothing else breaks. */
static void run_malice(struct dst_world *w)
{
    uint64_t stop_ns = w->link.heal_ns + DST_RECOVERY_NS;
    while (w->now_ns < stop_ns && !is_through(w) && !both_closed(w))
        dst_step(w, stop_ns);
}

/* After the flood, half-open sessions give up by themselves. */
static void run_flood(struct dst_world *w)
{
    run_to_the_end(w);
    uint64_t stop_ns = w->now_ns + 2 * DST_DEAD_NS;
    while (w->now_ns < stop_ns)
        dst_step(w, stop_ns);
    DST_CHECK(!dst_end_strangers(&w->ends[1]), "a flood left half-open sessions",
              dst_end_strangers(&w->ends[1]), 0);
}

/* Until it breaks by itself, or at some time by a call of the application. */
static void run_break(struct dst_world *w)
{
    static const uint32_t reasons[] = {HARP_REASON_UNDER_WAY, HARP_REASON_TOO_LONG,
                                       HARP_REASON_VERSION, HARP_REASON_MTU};
    bool closes = w->breaks == DST_BY_CLOSE;
    uint64_t stop_ns =
        closes ? w->now_ns + draw_below(w, 20 * DST_MS) : w->link.heal_ns + DST_RECOVERY_NS;
    while (w->now_ns < stop_ns && !is_through(w) && !any_closed(w))
        dst_step(w, stop_ns);
    uint8_t side = (uint8_t)draw_below(w, 2);
    if (is_through(w))
        return;
    if (closes)
        dst_end_close(&w->ends[w->ends[side].session ? side : 0], w->now_ns);
    run_until_closed(w);
    stop_ns = w->now_ns + DST_DEAD_NS;
    while (w->now_ns < stop_ns && (w->ends[0].app.left || w->ends[1].app.left))
        dst_step(w, stop_ns);
    for (side = 0; side < 2; side++) {
        const struct dst_end *end = &w->ends[side];
        uint32_t reason = end->app.reason;
        DST_CHECK(!end->app.left, "messages that were left cannot be received", side,
                  end->app.left);
        bool too_early = reason == HARP_REASON_DONE || reason == HARP_REASON_NO_ANSWER ||
                         (reason == HARP_REASON_SILENT && !end->peer->app.connected);
        DST_CHECK(!end->session || reason == reasons[w->breaks] || (closes && too_early),
                  "closed for another reason", side, reason);
    }
}

static enum dst_kind draw_kind(uint64_t seed)
{
    static const enum dst_kind kinds[16] = {DST_PLAIN,  DST_RESTART, DST_SILENCE, DST_CHEAT,
                                            DST_MALICE, DST_MALICE,  DST_FLOOD,   DST_BREAK};
    uint64_t draw = seed % 16;
    return draw < 8 ? kinds[draw] : DST_FAULTS;
}

struct dst_world *dst_world_new(uint64_t seed, enum dst_kind kind, bool payloads)
{
    struct dst_world *w = calloc(1, sizeof *w);
    w->random = seed % DST_SMALL;
    w->small = seed >= DST_SMALL;
    w->kind = w->result.kind = kind;
    w->link.random = virtual_draw(&w->random);
    w->link.payloads = payloads;
    w->now_ns = 100 * DST_MS;
    w->jump_ns = w->skip_ns = w->flood_ns = w->prod_ns = HARP_NEVER;
    if (kind == DST_FAULTS && draw_chance(w, 200))
        w->skip_ns = w->now_ns + draw_below(w, 50 * DST_MS);
    if (kind == DST_FAULTS && draw_chance(w, 150))
        draw_jump(w);
    return w;
}

void dst_world_free(struct dst_world *w)
{
    for (int side = 0; side < 2; side++)
        dst_end_stop(&w->ends[side]);
    dst_link_free(&w->link);
    free(w);
}

struct dst_result dst_run(uint64_t seed, bool payloads)
{
    static void (*const runs[])(struct dst_world *) = {
        [DST_PLAIN] = run_to_the_end, [DST_FAULTS] = run_to_the_end, [DST_RESTART] = run_restart,
        [DST_SILENCE] = run_silence,  [DST_CHEAT] = run_cheat,       [DST_MALICE] = run_malice,
        [DST_FLOOD] = run_flood,      [DST_BREAK] = run_break,
    };
    struct dst_world *w = dst_world_new(seed, draw_kind(seed), payloads);
    dst_begin(w, 1);
    runs[w->kind](w);
    w->result.trace = w->link.trace;
    w->result.now_ns = w->now_ns;
    struct dst_result result = w->result;
    dst_world_free(w);
    return result;
}
