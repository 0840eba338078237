/* Draws from the seed: scripts, faults, configurations. */
#include <string.h>

#include "base/sequence.h"
#include "session/fragment.h"
#include "session/sent.h"
#include "world.h"

static uint64_t draw_below(struct dst_world *w, uint64_t n)
{
    return virtual_below(&w->random, n);
}

static bool draw_chance(struct dst_world *w, uint32_t permille)
{
    return virtual_chance(&w->random, permille);
}

static uint32_t draw_rate(struct dst_world *w, uint32_t permille, uint64_t most)
{
    return draw_chance(w, permille) ? (uint32_t)draw_below(w, most) : 0;
}

/* Numbers begin shortly before they wrap, or before their sign changes, more often than not. */
static uint32_t draw_first(struct dst_world *w)
{
    return draw_chance(w, 700)   ? UINT32_MAX - (uint32_t)draw_below(w, 300)
           : draw_chance(w, 500) ? (UINT32_C(1) << 31) - (uint32_t)draw_below(w, 300)
                                 : (uint32_t)virtual_draw(&w->random);
}

static void draw_config(struct dst_world *w, struct harp_session_config *config, uint16_t segment)
{
    uint16_t paths = w->kind == DST_PLAIN ? 1 : (uint16_t)(1 + draw_below(w, DST_PATHS));
    harp_session_defaults(config, segment, paths);
    config->connection = virtual_draw(&w->random) | 1;
    config->listener = DST_LISTENER;
    for (int i = 0; i < 16; i++)
        config->nonce[i] = (uint8_t)draw_below(w, 256);
    config->seed = virtual_draw(&w->random);
    config->first = draw_first(w);
    config->pmtu.base_bytes = w->base_bytes;
    config->pmtu.least_bytes = w->least_bytes;
    config->addresses_n = (uint8_t)(config->nonce[0] % (HARP_ADDRESSES_MAX + 1));
    config->cc = draw_chance(w, 300) ? &harp_cc_fixed : &harp_cc_swift;
    config->window.initial_bytes = (4 + draw_below(w, draw_chance(w, 800) ? 60 : HARP_SENT_SLOTS)) *
                                   (segment + HARP_HEADER_BYTES);
}

/* Little memory. Ends agree about the window of a message: what comes beyond a smaller one counts
 * as lost, and as sent again without a fault. */
static void draw_little_memory(const struct dst_world *w, struct harp_session_config *config)
{
    uint64_t random = config->seed, random_of_both = w->base_bytes;
    config->messages = (uint16_t)(2u << virtual_below(&random, 4));
    config->packets = (uint16_t)(16u << virtual_below(&random, 4));
    config->chunks = (uint16_t)(64u << virtual_below(&random_of_both, 3));
}

/* Room of the port, from a generator of its own, so that seeds mean what they meant before. */
static uint32_t draw_holds(const struct harp_session_config *config)
{
    uint64_t random = config->seed ^ UINT64_C(0x686f6c6473);
    return virtual_chance(&random, 500) ? 0 : (uint32_t)(5000 + virtual_below(&random, 100000));
}

static void draw_faults_of_end(struct dst_world *w, struct dst_end *end)
{
    if (draw_chance(w, 200)) {
        end->full_from_ns = w->now_ns + draw_below(w, 20 * DST_MS);
        end->full_to_ns =
            end->full_from_ns + draw_below(w, draw_chance(w, 500) ? DST_MS : 80 * DST_MS);
    }
    if (draw_chance(w, 100))
        end->memory_to_ns = w->now_ns + draw_below(w, 100 * DST_MS);
    end->malice.stale = draw_rate(w, 300, 200);
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
    end->random = virtual_draw(&w->random);
    end->keys =
        (struct dst_keys){.secret = dst_secret, .listener = DST_LISTENER, .listening = side == 1};
    end->driven_ns = HARP_NEVER;
    end->config.holds_bytes = draw_holds(&end->config);
    if (w->small)
        draw_little_memory(w, &end->config);
    end->one_pass = draw_chance(w, 500);
    end->listener = (struct harp_listener){
        .key = {end->config.seed, 1}, .id = DST_LISTENER, .calm = (uint32_t)draw_below(w, 3)};
    end->app = (struct dst_app){.out = &w->scripts[side],
                                .in = &w->scripts[!side],
                                .peer = &w->ends[!side].app,
                                .side = side,
                                .random = virtual_draw(&w->random),
                                .payloads = w->link.payloads,
                                .trusts = true};
    if (w->kind == DST_FAULTS)
        draw_faults_of_end(w, end);
}

/* Clocks that nobody has set alike, or that run apart by what crystals may, 200 ppm at the most.
 * From a generator of its own, so that seeds mean what they meant before. */
static void draw_clocks(struct dst_world *w)
{
    uint64_t random = w->random ^ UINT64_C(0x636c6f636b73);
    for (int side = 0; side < 2; side++) {
        w->ends[side].clock.off_ns = (int64_t)virtual_below(&random, 10000 * DST_S);
        if (virtual_chance(&random, 700))
            w->ends[side].clock.fast_ppm = (int32_t)virtual_below(&random, 401) - 200;
    }
}

static void draw_malice(struct dst_world *w)
{
    struct dst_end *evil = &w->ends[draw_below(w, 2)];
    evil->malice.tamper = 1 + (uint32_t)draw_below(w, draw_chance(w, 500) ? 10 : 200);
    w->ends[0].app.trusts = w->ends[1].app.trusts = false;
}

static void draw_break(struct dst_world *w)
{
    struct dst_script *script = &w->scripts[draw_below(w, 2)];
    w->breaks = (enum dst_break)draw_below(w, 4);
    if (w->breaks != DST_BY_SHORT_BUFFER)
        return;
    script->slack = script->stream_frames = 0;
    script->size[script->n - 1] += script->size[script->n - 1] == 0;
    script->short_at = script->n - 1;
    for (uint32_t m = 0; m < script->n; m++)
        if (script->size[m] && draw_chance(w, 300))
            script->short_at = m;
}

/* Small messages that nobody reads before their sender may be done. */
static void draw_unread(struct dst_world *w, uint16_t segment)
{
    for (int side = 0; side < 2; side++) {
        struct dst_script *script = &w->scripts[side];
        script->n = 1 + (uint32_t)draw_below(w, HARP_EAGER + 2);
        for (uint32_t m = 0; m < script->n; m++)
            script->size[m] = (uint32_t)draw_below(w, segment + 1u);
        script->stream_frames = draw_chance(w, 800) ? 0 : script->stream_frames;
        script->stall_from_ns = w->now_ns;
        script->stall_to_ns = w->now_ns + draw_below(w, 100 * DST_MS);
    }
}

/* Frames that any way takes, but for when the way is what breaks. */
static size_t least_frame(const struct dst_world *w, uint16_t segment)
{
    return harp_fragment_frame_bytes(segment, harp_fragments_within(segment, w->least_bytes));
}

static void draw_mtu(struct dst_world *w, uint16_t segment)
{
    size_t least_bytes = least_frame(w, segment);
    if (w->kind == DST_FAULTS)
        dst_network_draw_mtu(&w->link, &w->random, w->now_ns, least_bytes,
                             HARP_HEADER_BYTES + (size_t)segment);
    for (int i = 0; i < 2 * DST_PATHS && w->kind == DST_BREAK && w->breaks == DST_BY_MTU; i++)
        w->link.ways[i % 2][i / 2].link.faults.most_bytes = least_bytes - 1;
}

/* BASE_PLPMTU; longer than an ACK where a way may not take it. */
static uint16_t draw_base(struct dst_world *w, uint16_t segment)
{
    uint16_t least = w->kind == DST_BREAK ? 2 * HARP_CHUNK_ALIGN : HARP_CHUNK_ALIGN;
    return (uint16_t)(HARP_HEADER_BYTES + least + draw_below(w, segment - least + 1u));
}

/* MIN_PLPMTU, from a generator of its own, so that seeds mean what they meant before. */
static uint16_t draw_least(const struct dst_world *w)
{
    uint16_t least = HARP_HEADER_BYTES + (w->kind == DST_BREAK ? 2 : 1) * HARP_CHUNK_ALIGN;
    uint64_t random = w->random ^ UINT64_C(0x6c65617374);
    return virtual_chance(&random, 500)
               ? w->base_bytes
               : (uint16_t)(least + virtual_below(&random, w->base_bytes - least + 1u));
}

static enum dst_weather weather_of(enum dst_kind kind)
{
    return kind == DST_PLAIN || kind == DST_FIELD ? DST_CALM
           : kind == DST_FAULTS                   ? DST_STORM
           : kind == DST_SILENCE                  ? DST_DARK
                                                  : DST_ROUGH;
}

void dst_begin(struct dst_world *w, uint16_t epoch)
{
    uint16_t segment =
        (uint16_t)(HARP_CHUNK_ALIGN * (1 + draw_below(w, draw_chance(w, 500) ? 1 : 11)));
    if (w->kind == DST_BREAK)
        segment += 2 * HARP_CHUNK_ALIGN; /* longer than an ACK */
    w->base_bytes = draw_base(w, segment);
    w->least_bytes = draw_least(w);
    uint64_t dead_ns = w->kind == DST_FAULTS && draw_chance(w, 500) ? 30 * DST_S : DST_DEAD_NS;
    for (uint8_t side = 0; side < 2; side++) {
        memset(&w->scripts[side], 0, sizeof w->scripts[side]);
        dst_script_draw(&w->random, &w->scripts[side], segment, w->now_ns, w->kind == DST_FAULTS);
    }
    if (w->kind == DST_BREAK)
        draw_break(w);
    if (w->kind == DST_BREAK && w->breaks == DST_BY_CLOSE && draw_chance(w, 500))
        draw_unread(w, segment);
    for (uint8_t side = 0; side < 2; side++)
        draw_end(w, side, segment, epoch, dead_ns);
    draw_clocks(w);
    dst_network_draw(&w->link, &w->random, w->now_ns, weather_of(w->kind));
    draw_mtu(w, segment);
    w->ends[0].malice.old = w->kind == DST_BREAK && w->breaks == DST_BY_VERSION;
    if (w->kind == DST_CHEAT)
        w->ends[1].malice.optimistic = 30;
    if (w->kind == DST_MALICE)
        draw_malice(w);
    if (w->kind == DST_FAULTS && draw_chance(w, 300))
        w->prod_ns = w->now_ns;
    if (w->kind == DST_FLOOD) {
        w->flood_ns = w->now_ns;
        w->flood_n = 500 + (uint32_t)draw_below(w, 3000);
    }
    for (uint8_t side = 0; side < 2; side++)
        dst_end_start(&w->ends[side], w->now_ns);
}
