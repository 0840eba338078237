#include "world.h"

#include <stdlib.h>
#include <string.h>

#include "sequence.h"

#define US UINT64_C(1000)
#define MS (1000 * US)
#define S (1000 * MS)
#define DEAD_NS S
#define FAULTS_NS (400 * MS)
#define RECOVERY_NS (4 * S)

struct world {
    uint64_t random;
    uint64_t now_ns;
    enum dst_kind kind;
    struct dst_link link;
    struct dst_end ends[2];
    struct dst_script scripts[2];
    uint64_t jump_ns; /* when a clock jumps */
    int64_t jump_by_ns;
    struct dst_result result;
};

static uint64_t below(struct world *w, uint64_t n)
{
    return dst_below(&w->random, n);
}
static bool chance(struct world *w, uint32_t permille)
{
    return dst_chance(&w->random, permille);
}

static void draw_script(struct world *w, struct dst_script *script, uint16_t segment)
{
    static const uint32_t scale[] = {1, 4, 40, 600};
    script->n = 1 + (uint32_t)below(w, chance(w, 200) ? DST_MESSAGES : 24);
    for (uint32_t m = 0; m < script->n; m++) {
        uint32_t most = segment * scale[below(w, script->n > 30 ? 2 : 3)];
        script->size[m] = (uint32_t)below(w, most + 1u);
    }
    if (chance(w, 60)) /* wider than the window of chunks */
        script->size[0] = segment * (HARP_CHUNK_WINDOW + (uint32_t)below(w, 800));
    script->ahead = 1 + (uint32_t)below(w, chance(w, 500) ? 4 : HARP_MESSAGES);
    script->slack = chance(w, 300) ? (uint32_t)below(w, 5000) : 0;
    if (w->kind == DST_FAULTS && chance(w, 200)) {
        script->stall_from_ns = below(w, 20 * MS);
        script->stall_to_ns = script->stall_from_ns + below(w, 200 * MS);
    }
}

static void draw_span(struct world *w, uint64_t *from_ns, uint64_t *to_ns)
{
    *from_ns = w->now_ns + below(w, chance(w, 500) ? 5 * MS : FAULTS_NS / 2);
    *to_ns = *from_ns + below(w, FAULTS_NS / 2);
}

static void draw_way(struct world *w, struct dst_faults *f)
{
    *f = (struct dst_faults){.delay_ns = 5 * US + below(w, 95 * US), .queue_ns = S};
    f->byte_ps = 80 + below(w, 800); /* 100 down to 9 Gb/s */
    if (chance(w, 500))
        f->queue_ns = 10 * US + below(w, 500 * US);
    if (w->kind == DST_PLAIN) {
        f->queue_ns = S;
        return;
    }
    f->jitter_ns = chance(w, 300) ? f->delay_ns / 8 : 0;
    f->loss = chance(w, 500) ? (uint32_t)below(w, chance(w, 200) ? 300 : 30) : 0;
    f->burst = chance(w, 200) ? (uint32_t)below(w, 10) : 0;
    f->burst_length = 1 + (uint32_t)below(w, 60);
    f->twice = chance(w, 300) ? (uint32_t)below(w, 100) : 0;
    f->late = chance(w, 300) ? (uint32_t)below(w, 100) : 0;
    f->flip_payload = chance(w, 300) ? (uint32_t)below(w, 50) : 0;
    f->flip_header = chance(w, 300) ? (uint32_t)below(w, 50) : 0;
    f->replay = chance(w, 300) ? (uint32_t)below(w, 200) : 0;
    f->stale = chance(w, 300) ? (uint32_t)below(w, 200) : 0;
    if (chance(w, 150))
        draw_span(w, &f->black_from_ns, &f->black_to_ns);
    if (chance(w, 150)) {
        draw_span(w, &f->spike_from_ns, &f->spike_to_ns);
        f->spike_ns = below(w, 5 * MS);
    }
}

/* All paths of one direction, or of both, go black together for a while. */
static void draw_partition(struct world *w)
{
    uint64_t from_ns, to_ns;
    uint64_t which = 1 + below(w, 3);
    draw_span(w, &from_ns, &to_ns);
    for (int to = 0; to < 2; to++)
        for (int p = 0; p < DST_PATHS && which >> to & 1; p++) {
            w->link.ways[to][p].faults.black_from_ns = from_ns;
            w->link.ways[to][p].faults.black_to_ns = to_ns;
        }
}

static void draw_network(struct world *w)
{
    w->link.heal_ns = w->kind == DST_PLAIN ? 0 : w->now_ns + FAULTS_NS;
    for (int to = 0; to < 2; to++)
        for (int p = 0; p < DST_PATHS; p++)
            draw_way(w, &w->link.ways[to][p].faults);
    if (w->kind == DST_FAULTS && chance(w, 200))
        draw_partition(w);
    if (w->kind == DST_SILENCE) {
        uint64_t from_ns = w->now_ns + (chance(w, 300) ? 0 : below(w, 10 * MS));
        for (int i = 0; i < 2 * DST_PATHS; i++) {
            w->link.ways[i % 2][i / 2].faults.black_from_ns = from_ns;
            w->link.ways[i % 2][i / 2].faults.black_to_ns = HARP_NEVER;
        }
    }
}

static void draw_end(struct world *w, uint8_t side, uint16_t segment, uint16_t epoch,
                     uint64_t dead_ns)
{
    struct dst_end *end = &w->ends[side];
    uint16_t paths = w->kind == DST_PLAIN ? 1 : (uint16_t)(1 + below(w, DST_PATHS));
    memset(end, 0, sizeof *end);
    end->link = &w->link;
    end->peer = &w->ends[!side];
    end->side = side;
    harp_session_defaults(&end->config, segment, paths);
    end->config.connection = dst_draw(&w->random) | 1;
    end->config.listener = 77;
    for (int i = 0; i < 16; i++)
        end->config.nonce[i] = (uint8_t)below(w, 256);
    end->config.seed = dst_draw(&w->random);
    end->config.first = chance(w, 700)   ? UINT32_MAX - (uint32_t)below(w, 300)
                        : chance(w, 500) ? (UINT32_C(1) << 31) - (uint32_t)below(w, 300)
                                         : (uint32_t)dst_draw(&w->random);
    end->config.epoch = epoch;
    end->config.dead_ns = dead_ns;
    end->config.cc = chance(w, 300) ? &harp_cc_fixed : &harp_cc_swift;
    end->config.window.initial_bytes = (4 + below(w, 60)) * (segment + HARP_HEADER_BYTES);
    end->random = dst_draw(&w->random);
    end->driven_ns = HARP_NEVER;
    end->calm = (uint32_t)below(w, 2);
    end->out = &w->scripts[side];
    end->in = &w->scripts[!side];
}

static void begin(struct world *w, uint16_t epoch)
{
    uint16_t segment = (uint16_t)(HARP_CHUNK_ALIGN * (1 + below(w, chance(w, 500) ? 1 : 11)));
    uint64_t dead_ns = w->kind == DST_FAULTS && chance(w, 500) ? 30 * S : DEAD_NS;
    for (uint8_t side = 0; side < 2; side++) {
        memset(&w->scripts[side], 0, sizeof w->scripts[side]);
        draw_script(w, &w->scripts[side], segment);
        draw_end(w, side, segment, epoch, dead_ns);
    }
    w->ends[1].cheats = w->kind == DST_CHEAT;
    draw_network(w);
    for (uint8_t side = 0; side < 2; side++)
        dst_end_start(&w->ends[side], w->now_ns);
}

/* One step of virtual time: the next frame that arrives, or the next end that wants to be driven.
 */
static void step(struct world *w, uint64_t stop_ns)
{
    uint64_t frame_ns = dst_link_next_ns(&w->link);
    uint64_t at_ns = harp_min(frame_ns, harp_min(w->ends[0].wake_ns, w->ends[1].wake_ns));
    at_ns = harp_max(w->now_ns, harp_min(at_ns, stop_ns));
    w->now_ns = at_ns;
    if (at_ns >= w->jump_ns) {
        w->ends[below(w, 2)].clock_off_ns += w->jump_by_ns;
        w->jump_ns = HARP_NEVER;
    }
    if (frame_ns <= at_ns) {
        struct dst_flight *flight = dst_link_take(&w->link);
        dst_end_receive(&w->ends[flight->to], at_ns, flight);
        dst_flight_free(flight);
        w->result.frames++;
    }
    for (int side = 0; side < 2; side++)
        if (w->ends[side].wake_ns <= at_ns)
            dst_end_drive(&w->ends[side], at_ns);
}

static bool through(const struct world *w)
{
    return dst_end_done(&w->ends[0]) && dst_end_done(&w->ends[1]);
}

static bool any_closed(const struct world *w)
{
    return w->ends[0].closed || w->ends[1].closed;
}

/* Chunks may be sent again for what the network did to frames, and not for much else: a tail-loss
 * probe may go off in vain, and a timeout takes back what a late ACK would have spoken for. */
static void check_retransmissions(struct world *w)
{
    uint64_t again = 0;
    for (int side = 0; side < 2; side++) {
        const struct harp_session_counters *c = harp_session_count(w->ends[side].session);
        again += c->data_again;
        w->result.data_again += c->data_again;
        w->result.spurious += c->spurious;
        w->result.paths_died += c->paths_died;
    }
    uint64_t messages = w->scripts[0].n + w->scripts[1].n;
    DST_CHECK(again <= 4 * w->link.disturbed + messages + 64, "too much was sent again", again,
              w->link.disturbed);
}

static void close_both(struct world *w)
{
    w->ends[0].wake_ns = w->now_ns;
    harp_session_close(w->ends[0].session, w->now_ns + (uint64_t)w->ends[0].clock_off_ns,
                       HARP_REASON_DONE, NULL);
    uint64_t stop_ns = w->now_ns + 2 * DEAD_NS;
    while (w->now_ns < stop_ns && !(w->ends[0].closed && w->ends[1].closed))
        step(w, stop_ns);
    DST_CHECK(w->ends[0].closed && w->ends[1].closed, "not closed in time", w->ends[0].closed,
              w->ends[1].closed);
    DST_CHECK(w->ends[0].reason == HARP_REASON_DONE, "closed for another reason", 0,
              w->ends[0].reason);
    DST_CHECK(w->ends[1].reason == HARP_REASON_DONE, "closed for another reason", 1,
              w->ends[1].reason);
}

static void run_to_the_end(struct world *w)
{
    uint64_t stop_ns = w->link.heal_ns + RECOVERY_NS;
    while (w->now_ns < stop_ns && !through(w) && !any_closed(w))
        step(w, stop_ns);
    DST_CHECK(!any_closed(w), "the connection broke", w->ends[0].reason, w->ends[1].reason);
    DST_CHECK(through(w), "no progress after all faults healed", w->ends[0].received,
              w->ends[1].received);
    check_retransmissions(w);
    close_both(w);
}

static void run_restart(struct world *w)
{
    uint64_t gone_ns = w->now_ns + below(w, 5 * MS);
    while (w->now_ns < gone_ns)
        step(w, gone_ns);
    dst_end_stop(&w->ends[1]);
    w->ends[1].closed = true; /* the old listener does not come back */
    uint64_t stop_ns = w->now_ns + 2 * DEAD_NS;
    while (w->now_ns < stop_ns && !w->ends[0].closed)
        step(w, stop_ns);
    DST_CHECK(w->ends[0].closed, "a gone peer was not noticed", w->now_ns, gone_ns);
    DST_CHECK(w->ends[0].reason >= HARP_REASON_SILENT, "gone for another reason", 0,
              w->ends[0].reason);
    dst_end_stop(&w->ends[0]);
    w->kind = DST_FAULTS;
    begin(w, 2);
    run_to_the_end(w);
}

static void run_silence(struct world *w)
{
    uint64_t stop_ns = w->now_ns + 3 * DEAD_NS;
    while (w->now_ns < stop_ns && !through(w) &&
           !(w->ends[0].closed && (w->ends[1].closed || !w->ends[1].session)))
        step(w, stop_ns);
    if (through(w))
        return;
    DST_CHECK(w->ends[0].closed, "silence was not noticed", 0, w->now_ns);
    DST_CHECK(w->ends[1].closed || !w->ends[1].session, "silence was not noticed", 1, w->now_ns);
}

static void run_cheat(struct world *w)
{
    uint64_t stop_ns = w->link.heal_ns + RECOVERY_NS;
    while (w->now_ns < stop_ns && !through(w) && !w->ends[0].closed)
        step(w, stop_ns);
    DST_CHECK(through(w) || w->ends[0].reason == HARP_REASON_PROTOCOL, "the cheat won",
              w->ends[0].closed, w->ends[0].reason);
}

static enum dst_kind draw_kind(uint64_t seed)
{
    uint64_t draw = seed % 16;
    return draw == 0   ? DST_PLAIN
           : draw == 1 ? DST_RESTART
           : draw == 2 ? DST_SILENCE
           : draw == 3 ? DST_CHEAT
                       : DST_FAULTS;
}

struct dst_result dst_run(uint64_t seed, bool payloads)
{
    struct world *w = calloc(1, sizeof *w);
    w->random = seed;
    w->kind = w->result.kind = draw_kind(seed);
    w->link.random = dst_draw(&w->random);
    w->link.payloads = payloads;
    w->now_ns = 100 * MS;
    w->jump_ns = HARP_NEVER;
    if (w->kind == DST_FAULTS && chance(w, 150)) {
        w->jump_ns = w->now_ns + below(w, 100 * MS);
        w->jump_by_ns = chance(w, 500) ? (int64_t)below(w, 10 * S) : -(int64_t)below(w, 50 * MS);
    }
    begin(w, 1);
    if (w->kind == DST_RESTART)
        run_restart(w);
    else if (w->kind == DST_SILENCE)
        run_silence(w);
    else if (w->kind == DST_CHEAT)
        run_cheat(w);
    else
        run_to_the_end(w);
    w->result.trace = w->link.trace;
    w->result.now_ns = w->now_ns;
    struct dst_result result = w->result;
    for (int side = 0; side < 2; side++)
        dst_end_stop(&w->ends[side]);
    dst_link_free(&w->link);
    free(w);
    return result;
}
