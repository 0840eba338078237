/* What the seed says: scripts, faults, configurations. */
#include <string.h>

#include "sent.h"
#include "sequence.h"
#include "world.h"

static uint64_t below(struct dst_world *w, uint64_t n)
{
    return dst_below(&w->random, n);
}

static bool chance(struct dst_world *w, uint32_t permille)
{
    return dst_chance(&w->random, permille);
}

static uint32_t rate(struct dst_world *w, uint32_t permille, uint64_t most)
{
    return chance(w, permille) ? (uint32_t)below(w, most) : 0;
}

static void draw_script(struct dst_world *w, struct dst_script *script, uint16_t segment)
{
    static const uint32_t scale[] = {1, 4, 40, 600};
    script->n = 1 + (uint32_t)below(w, chance(w, 200) ? DST_MESSAGES : 24);
    for (uint32_t m = 0; m < script->n; m++) {
        uint32_t most = segment * scale[below(w, script->n > 30 ? 2 : 3)];
        script->size[m] = (uint32_t)below(w, most + 1u);
    }
    if (chance(w, 100)) /* wider than the window of chunks */
        script->size[0] = segment * (HARP_CHUNK_WINDOW + (uint32_t)below(w, 800));
    script->ahead = 1 + (uint32_t)below(w, chance(w, 500) ? 4 : HARP_MESSAGES);
    script->slack = rate(w, 300, 5000);
    script->short_at = UINT32_MAX;
    script->pieces = chance(w, 300);
    if (chance(w, 300)) {
        script->stream_frames = 1 + (uint32_t)below(w, chance(w, 300) ? 8 : 2000);
        script->hold_ns = 1 + (uint32_t)below(w, chance(w, 500) ? 10 * DST_US : 300 * DST_US);
    }
    if (w->kind == DST_FAULTS && chance(w, 200)) {
        script->stall_from_ns = w->now_ns + below(w, 20 * DST_MS);
        script->stall_to_ns = script->stall_from_ns + below(w, 200 * DST_MS);
    }
}

static void draw_span(struct dst_world *w, uint64_t *from_ns, uint64_t *to_ns)
{
    *from_ns = w->now_ns + below(w, chance(w, 500) ? 5 * DST_MS : DST_FAULTS_NS / 2);
    *to_ns = *from_ns + below(w, DST_FAULTS_NS / 2);
}

static void draw_way(struct dst_world *w, struct dst_faults *f)
{
    *f = (struct dst_faults){.delay_ns = 5 * DST_US + below(w, 95 * DST_US), .queue_ns = DST_S};
    f->byte_ps = 80 + below(w, 800); /* 100 down to 9 Gb/s */
    if (chance(w, 500))
        f->queue_ns = 10 * DST_US + below(w, 500 * DST_US);
    if (w->kind == DST_PLAIN || w->kind == DST_FIELD) {
        f->queue_ns = DST_S;
        return;
    }
    f->jitter_ns = chance(w, 300) ? f->delay_ns / 8 : 0;
    f->loss = rate(w, 500, chance(w, 200) ? 300 : 30);
    f->burst = rate(w, 200, 10);
    f->burst_length = 1 + (uint32_t)below(w, 60);
    f->twice = rate(w, 300, 100);
    f->late = rate(w, 300, 100);
    f->flip = rate(w, 400, 60);
    f->cut = rate(w, 200, 40);
    f->replay = rate(w, 300, 200);
    f->forge = rate(w, 300, 200);
    if (chance(w, 150))
        draw_span(w, &f->black_from_ns, &f->black_to_ns);
    if (chance(w, 150)) {
        draw_span(w, &f->spike_from_ns, &f->spike_to_ns);
        f->spike_ns = below(w, 5 * DST_MS);
    }
}

/* All paths of one direction, or of both, go black together for a while. */
static void draw_partition(struct dst_world *w)
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

static void draw_network(struct dst_world *w)
{
    w->link.heal_ns = w->kind == DST_PLAIN || w->kind == DST_FIELD ? 0 : w->now_ns + DST_FAULTS_NS;
    for (int to = 0; to < 2; to++)
        for (int p = 0; p < DST_PATHS; p++)
            draw_way(w, &w->link.ways[to][p].faults);
    if (w->kind == DST_FAULTS && chance(w, 200))
        draw_partition(w);
    if (w->kind == DST_SILENCE) {
        uint64_t from_ns = w->now_ns + (chance(w, 300) ? 0 : below(w, 10 * DST_MS));
        for (int i = 0; i < 2 * DST_PATHS; i++) {
            w->link.ways[i % 2][i / 2].faults.black_from_ns = from_ns;
            w->link.ways[i % 2][i / 2].faults.black_to_ns = HARP_NEVER;
        }
    }
}

/* Numbers begin shortly before they wrap, or before their sign changes, more often than not. */
static uint32_t draw_first(struct dst_world *w)
{
    return chance(w, 700)   ? UINT32_MAX - (uint32_t)below(w, 300)
           : chance(w, 500) ? (UINT32_C(1) << 31) - (uint32_t)below(w, 300)
                            : (uint32_t)dst_draw(&w->random);
}

static void draw_config(struct dst_world *w, struct harp_session_config *config, uint16_t segment)
{
    uint16_t paths = w->kind == DST_PLAIN ? 1 : (uint16_t)(1 + below(w, DST_PATHS));
    harp_session_defaults(config, segment, paths);
    config->connection = dst_draw(&w->random) | 1;
    config->listener = DST_LISTENER;
    for (int i = 0; i < 16; i++)
        config->nonce[i] = (uint8_t)below(w, 256);
    config->seed = dst_draw(&w->random);
    config->first = draw_first(w);
    config->cc = chance(w, 300) ? &harp_cc_fixed : &harp_cc_swift;
    config->window.initial_bytes =
        (4 + below(w, chance(w, 800) ? 60 : HARP_SENT_SLOTS)) * (segment + HARP_HEADER_BYTES);
}

static void draw_faults_of_end(struct dst_world *w, struct dst_end *end)
{
    if (chance(w, 200)) {
        end->full_from_ns = w->now_ns + below(w, 20 * DST_MS);
        end->full_to_ns = end->full_from_ns + below(w, chance(w, 500) ? DST_MS : 80 * DST_MS);
    }
    if (chance(w, 100))
        end->memory_to_ns = w->now_ns + below(w, 100 * DST_MS);
    end->malice.stale = rate(w, 300, 200);
}

static void draw_end(struct dst_world *w, uint8_t side, uint16_t segment, uint16_t epoch,
                     uint64_t dead_ns)
{
    struct dst_end *end = &w->ends[side];
    memset(end, 0, sizeof *end);
    end->link = &w->link;
    end->peer = &w->ends[!side];
    end->side = side;
    draw_config(w, &end->config, segment);
    end->config.epoch = epoch;
    end->config.dead_ns = dead_ns;
    end->config.stream_frames = w->scripts[!side].stream_frames;
    end->random = dst_draw(&w->random);
    end->driven_ns = HARP_NEVER;
    end->one_pass = chance(w, 500);
    end->listener = (struct harp_listener){
        .key = {end->config.seed, 1}, .id = DST_LISTENER, .calm = (uint32_t)below(w, 3)};
    end->app = (struct dst_app){.out = &w->scripts[side],
                                .in = &w->scripts[!side],
                                .peer = &w->ends[!side].app,
                                .side = side,
                                .random = dst_draw(&w->random),
                                .payloads = w->link.payloads,
                                .trusts = true};
    if (w->kind == DST_FAULTS)
        draw_faults_of_end(w, end);
}

static void draw_malice(struct dst_world *w)
{
    struct dst_end *evil = &w->ends[below(w, 2)];
    evil->malice.tamper = 1 + (uint32_t)below(w, chance(w, 500) ? 10 : 200);
    w->ends[0].app.trusts = w->ends[1].app.trusts = false;
}

static void draw_break(struct dst_world *w)
{
    struct dst_script *script = &w->scripts[below(w, 2)];
    w->breaks = (enum dst_break)below(w, 4);
    if (w->breaks != DST_BY_SHORT_BUFFER)
        return;
    script->slack = script->stream_frames = 0;
    script->size[script->n - 1] += script->size[script->n - 1] == 0;
    script->short_at = script->n - 1;
    for (uint32_t m = 0; m < script->n; m++)
        if (script->size[m] && chance(w, 300))
            script->short_at = m;
}

/* Some ways take no whole frames; the first path's do, unless that is what breaks. */
static void draw_mtu(struct dst_world *w, uint16_t segment)
{
    bool all = w->kind == DST_BREAK && w->breaks == DST_BY_MTU;
    for (int i = 0; i < 2 * DST_PATHS; i++)
        if (all || (i >= 2 && w->kind == DST_FAULTS && segment > 160 && chance(w, 60)))
            w->link.ways[i % 2][i / 2].faults.most_bytes = HARP_HEADER_BYTES + segment - 1u;
}

void dst_begin(struct dst_world *w, uint16_t epoch)
{
    uint16_t segment = (uint16_t)(HARP_CHUNK_ALIGN * (1 + below(w, chance(w, 500) ? 1 : 11)));
    if (w->kind == DST_BREAK)
        segment += 2 * HARP_CHUNK_ALIGN; /* longer than an ACK */
    uint64_t dead_ns = w->kind == DST_FAULTS && chance(w, 500) ? 30 * DST_S : DST_DEAD_NS;
    for (uint8_t side = 0; side < 2; side++) {
        memset(&w->scripts[side], 0, sizeof w->scripts[side]);
        draw_script(w, &w->scripts[side], segment);
    }
    if (w->kind == DST_BREAK)
        draw_break(w);
    for (uint8_t side = 0; side < 2; side++)
        draw_end(w, side, segment, epoch, dead_ns);
    draw_network(w);
    draw_mtu(w, segment);
    w->ends[0].malice.old = w->kind == DST_BREAK && w->breaks == DST_BY_VERSION;
    if (w->kind == DST_CHEAT)
        w->ends[1].malice.optimistic = 30;
    if (w->kind == DST_MALICE)
        draw_malice(w);
    if (w->kind == DST_FAULTS && chance(w, 300))
        w->prod_ns = w->now_ns;
    if (w->kind == DST_FLOOD) {
        w->flood_ns = w->now_ns;
        w->flood_n = 500 + (uint32_t)below(w, 3000);
    }
    for (uint8_t side = 0; side < 2; side++)
        dst_end_start(&w->ends[side], w->now_ns);
}
