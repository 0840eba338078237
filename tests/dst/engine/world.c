#include "world.h"

#include <stdlib.h>
#include <string.h>

#include "base/sequence.h"
#include "session/pmtu.h"
#include "tcp_kernel.h"
#include "wire/seal.h"

#define RECOVERY_NS (4 * DST_S)
#define DEAD_NS DST_S
#define HALF_OPEN_MOST 64
#define LEAST_BYTES (1 << 20) /* over tcp in RECOVERY_NS, as long as not all has come */
#define LAST_NS (30 * DST_S)  /* the kernel ends what is dark by then, TCP_UNACKED_MS */
#define TICK_NS (10 * DST_MS) /* engines look at what is not urgent only when they are driven */

struct world {
    uint64_t random;
    uint64_t now_ns;
    uint64_t heal_ns; /* all faults are over */
    enum dst_kind kind;
    bool over_tcp;
    struct dst_link link;
    struct dst_side sides[2];
    struct dst_script scripts[2];
    uint64_t jump_ns;
    int64_t jump_by_ns;
    uint64_t prod_ns, flood_ns, move_ns;
    uint32_t flood_n;
    uint64_t frames;
};

static uint64_t draw_below(struct world *w, uint64_t n)
{
    return virtual_below(&w->random, n);
}

static bool draw_chance(struct world *w, uint32_t permille)
{
    return virtual_chance(&w->random, permille);
}

/* Drawing ----------------------------------------------------------------------------------- */

static void draw_card(struct world *w, struct dst_card *card, uint16_t segment)
{
    *card = (struct dst_card){.pool = draw_chance(w, 600),
                              .payload_max = HARP_HEADER_BYTES + segment + HARP_BODY_MAX -
                                             HARP_CHUNK_ALIGN + (uint32_t)draw_below(w, 100),
                              .fill = HARP_BATCH,
                              .queue = DST_QUEUE,
                              .ring = DST_BUSY,
                              .complete_ns = draw_chance(w, 500) ? 0 : 50 * DST_US};
    if (w->kind == DST_PLAIN)
        return;
    if (draw_chance(w, 300))
        card->fill = 1 + (uint32_t)draw_below(w, 20);
    if (draw_chance(w, 300))
        card->queue = 8 + (uint32_t)draw_below(w, 100);
    if (draw_chance(w, 300))
        card->ring = 4 + (uint32_t)draw_below(w, 100);
    if (draw_chance(w, 300))
        card->complete_ns = draw_below(w, 20 * DST_MS);
    card->missing = dst_rate(&w->random, 300, 100);
    if (draw_chance(w, 200)) {
        card->full_from_ns = w->now_ns + draw_below(w, 20 * DST_MS);
        card->full_to_ns = card->full_from_ns + draw_below(w, 80 * DST_MS);
    }
}

/* As many frames as it needs at least, or some more. */
static uint32_t draw_frames(struct world *w, const struct dst_side *side)
{
    uint32_t each = side->wanted.stream_frames + side->wanted.draft_frames;
    /* A half-open connection has its frames reserved, too. */
    uint32_t least = side->card.fill + each * (w->kind == DST_FLOOD ? HALF_OPEN_MOST + 1 : 1);
    if (side->card.missing)
        least += side->card.ring / DST_RING_MISSING; /* which the card never gives back */
    return least + 1 + (uint32_t)draw_below(w, draw_chance(w, 500) ? 64 : 2048);
}

/* Configuration of an end over any port. */
static void begin_side(struct world *w, uint8_t number)
{
    struct dst_side *side = &w->sides[number];
    memset(side, 0, sizeof *side);
    side->number = number;
    side->over_tcp = w->over_tcp;
    side->peer = &w->sides[!number];
    side->link = &w->link;
    side->true_ns = &w->now_ns;
    side->random = virtual_draw(&w->random);
    side->app.out = &w->scripts[number];
    side->app.in = &w->scripts[!number];
    side->app.return_ns = side->wake_ns = HARP_NEVER;
    side->trusts = w->kind != DST_MALICE;
}

static void configure_side(struct world *w, struct dst_side *side, uint16_t unit)
{
    harp_connection_defaults(&side->wanted);
    side->wanted.paths = (uint16_t)(1 + draw_below(w, DST_PATHS));
    side->wanted.dead_ns = DEAD_NS;
    side->wanted.read_early_most = draw_chance(w, 300) ? 16u * unit : 0;
    harp_engine_defaults(&side->config);
    side->config.frame_bytes = 2048;
    side->config.connections = w->kind == DST_CROWD ? DST_CONNECTIONS : 80;
    side->is_crowded = w->kind == DST_CROWD;
}

static void draw_side(struct world *w, uint8_t number, uint16_t segment)
{
    struct dst_side *side = &w->sides[number];
    begin_side(w, number);
    draw_card(w, &side->card, segment);
    configure_side(w, side, segment);
    if (w->kind != DST_CROWD) {
        side->wanted.stream_frames = side->app.in->stream_frames;
        side->wanted.draft_frames = side->app.out->pieces ? 1 + (uint32_t)draw_below(w, 600) : 0;
    }
    side->config.frames = draw_frames(w, side);
    side->app.lent = calloc(side->wanted.stream_frames + 1, sizeof *side->app.lent);
    side->app.drafts = calloc(side->wanted.draft_frames + 1, sizeof *side->app.drafts);
}

static enum dst_weather weather_of(enum dst_kind kind)
{
    return kind == DST_PLAIN ? DST_CALM : kind == DST_FAULTS ? DST_STORM : DST_ROUGH;
}

/* Small messages that nobody reads before their sender may be done. */
static void draw_unread(struct world *w, struct dst_script *script, uint16_t segment)
{
    script->n = 1 + (uint32_t)draw_below(w, HARP_EAGER + 2);
    for (uint32_t m = 0; m < script->n; m++)
        script->size[m] = (uint32_t)draw_below(w, segment + 1u);
    script->stream_frames = 0;
    script->stall_from_ns = w->now_ns;
    script->stall_to_ns = w->now_ns + draw_below(w, 100 * DST_MS);
}

static void open_sides(struct world *w)
{
    dst_side_open(&w->sides[1]);
    w->sides[0].handle = w->sides[1].handle;
    dst_side_open(&w->sides[0]);
}

static void begin_over_links(struct world *w)
{
    uint16_t segment =
        (uint16_t)(HARP_CHUNK_ALIGN * (1 + draw_below(w, draw_chance(w, 500) ? 1 : 11)));
    if ((w->kind == DST_FAULTS || w->kind == DST_LET_GO) && draw_chance(w, 200))
        segment =
            (uint16_t)(HARP_CHUNK_ALIGN * (10 + draw_below(w, 2))); /* more than BASE_PLPMTU */
    for (int i = 0; i < 2; i++) {
        memset(&w->scripts[i], 0, sizeof w->scripts[i]);
        dst_script_draw(&w->random, &w->scripts[i], segment, w->now_ns, w->kind == DST_FAULTS);
        if (w->kind == DST_LET_GO && draw_chance(w, 500))
            draw_unread(w, &w->scripts[i], segment);
    }
    draw_side(w, 0, segment);
    draw_side(w, 1, segment);
    dst_network_draw(&w->link, &w->random, w->now_ns, weather_of(w->kind));
    if ((w->kind == DST_FAULTS || w->kind == DST_LET_GO) &&
        segment + HARP_HEADER_BYTES > HARP_PMTU_BASE)
        dst_network_draw_mtu(&w->link, &w->random, w->now_ns, HARP_PMTU_LEAST,
                             HARP_HEADER_BYTES + (size_t)segment);
    if (w->kind == DST_MALICE)
        w->sides[draw_below(w, 2)].tamper =
            1 + (uint32_t)draw_below(w, draw_chance(w, 500) ? 10 : 200);
    w->heal_ns = w->link.heal_ns;
}

/* Over tcp --------------------------------------------------------------------------------- */

/* Of connections of one path none stays dark for ever: nothing could carry them on. */
static void begin_kernel(struct world *w)
{
    bool faulty = w->kind != DST_PLAIN;
    uint16_t paths = (uint16_t)harp_min(w->sides[0].wanted.paths, w->sides[1].wanted.paths);
    struct dst_kernel_faults faults = {
        .heal_ns = w->heal_ns,
        .delay_ns = 1 + draw_below(w, draw_chance(w, 300) ? 5 * DST_MS : 100 * DST_US),
        .room_bytes = 4096 + (uint32_t)draw_below(w, draw_chance(w, 500) ? 100000 : 4000000)};
    if (faulty) {
        faults.late = dst_rate(&w->random, 300, 50);
        faults.reset = dst_rate(&w->random, 500, 800);
        faults.dark = dst_rate(&w->random, 500, 800);
        faults.dead = paths > 1 && draw_chance(w, 500);
        faults.no_room = dst_rate(&w->random, 300, 300);
        faults.no_number = dst_rate(&w->random, 200, 500);
    }
    uint64_t *const wake_ns[2] = {&w->sides[0].wake_ns, &w->sides[1].wake_ns};
    dst_kernel_begin(virtual_draw(&w->random), &w->now_ns, wake_ns, &faults);
}

static void draw_tcp_side(struct world *w, uint8_t number, uint16_t unit)
{
    struct dst_side *side = &w->sides[number];
    begin_side(w, number);
    configure_side(w, side, unit);
    side->wanted.crc = draw_chance(w, 500) ? HARP_CRC_ON : HARP_CRC_AUTO;
    side->config.frames = 64;
    side->app.lent = calloc(1, sizeof *side->app.lent);
    side->app.drafts = calloc(1, sizeof *side->app.drafts);
}

/* Messages fill from a part of a frame to some dozens of frames, which are 64 KiB long. */
static void draw_scripts(struct world *w, uint16_t unit)
{
    for (int i = 0; i < 2; i++) {
        memset(&w->scripts[i], 0, sizeof w->scripts[i]);
        dst_script_draw(&w->random, &w->scripts[i], unit, w->now_ns, w->kind == DST_FAULTS);
        w->scripts[i].stream_frames = 0;
        w->scripts[i].pieces = false;
    }
}

static void begin_over_tcp(struct world *w)
{
    uint16_t unit =
        (uint16_t)(HARP_CHUNK_ALIGN * (1 + draw_below(w, draw_chance(w, 700) ? 32 : 200)));
    w->heal_ns = w->kind == DST_PLAIN ? w->now_ns : w->now_ns + draw_below(w, DST_FAULTS_NS);
    draw_scripts(w, unit);
    draw_tcp_side(w, 0, unit);
    draw_tcp_side(w, 1, unit);
    begin_kernel(w);
}

static void begin_world(struct world *w)
{
    if (w->over_tcp)
        begin_over_tcp(w);
    else
        begin_over_links(w);
    open_sides(w);
}

/* Steps ------------------------------------------------------------------------------------- */

static void send_strangers_first(struct world *w)
{
    uint8_t bytes[HARP_HEADER_BYTES + HARP_BODY_MAX] = {0};
    const struct harp_handle *handle = &w->sides[1].handle;
    struct harp_parameters first = {.connection = virtual_draw(&w->random),
                                    .epoch = 1,
                                    .segment = HARP_CHUNK_ALIGN,
                                    .paths = 1};
    struct harp_header header = {
        .version = HARP_VERSION,
        .type = HARP_FIRST,
        .connection = handle->listener,
        .length = (uint16_t)harp_parameters_encode(&first, bytes + HARP_HEADER_BYTES)};
    harp_header_encode(&header, bytes);
    struct harp_key secret;
    memcpy(&secret, handle->secret, sizeof secret);
    struct harp_key key = harp_key_hello(&secret, handle->listener);
    harp_seal(&key, bytes, 0, bytes + HARP_HEADER_BYTES, header.length);
    bool forged = draw_chance(w, 300);
    bytes[HARP_TAGGED_BYTES] ^= forged;
    dst_link_inject(&w->link, w->now_ns, 1, 0, 1 + (uint32_t)draw_below(w, 1000000), bytes,
                    HARP_HEADER_BYTES + (size_t)header.length, forged);
    w->flood_n--;
    w->flood_ns = w->flood_n ? w->now_ns + draw_below(w, 50 * DST_US) : HARP_NEVER;
    const struct harp_listening *listening = w->sides[1].listening;
    DST_CHECK(!listening || listening->half_open <= HALF_OPEN_MOST + 1,
              "more half-open connections than the listener allows", listening->half_open, 0);
}

static void prod_side(struct world *w)
{
    struct dst_side *side = &w->sides[draw_below(w, 2)];
    w->prod_ns = w->now_ns < w->heal_ns ? w->now_ns + draw_below(w, 5 * DST_MS) : HARP_NEVER;
    if (side->port)
        dst_port_unreachable(side->port, (uint8_t)draw_below(w, DST_PATHS));
}

/* A path leaves its flow, as for a revision of a plan. */
static void move_path(struct world *w)
{
    struct harp_connection *connection = w->sides[0].connection;
    w->move_ns = w->now_ns < w->heal_ns ? w->now_ns + draw_below(w, 50 * DST_MS) : HARP_NEVER;
    if (!w->sides[0].app.connected || w->sides[0].app.closed)
        return;
    uint8_t path = (uint8_t)draw_below(w, connection->config.paths);
    harp_engine_path_leaves_by(connection, path, (uint16_t)draw_below(w, DST_PATHS));
    harp_engine_wake(w->sides[0].engine, connection);
    w->sides[0].wake_ns = w->now_ns;
}

static void deliver_next(struct world *w)
{
    struct dst_flight *flight = dst_link_take(&w->link);
    struct dst_side *side = &w->sides[flight->to];
    w->frames++;
    if (!side->engine) {
        free(flight);
        return;
    }
    dst_port_arrive(side->port, flight);
    side->wake_ns = w->now_ns;
}

static void step_world(struct world *w, uint64_t stop_ns)
{
    uint64_t frame_ns = w->over_tcp ? dst_kernel_next_ns() : dst_link_next_ns(&w->link);
    uint64_t at_ns = harp_min(frame_ns, harp_min(w->sides[0].wake_ns, w->sides[1].wake_ns));
    at_ns = harp_min(at_ns, harp_min(w->flood_ns, harp_min(w->prod_ns, w->jump_ns)));
    at_ns = harp_min(at_ns, w->move_ns);
    w->now_ns = harp_max(w->now_ns, harp_min(at_ns, stop_ns));
    if (w->now_ns >= w->jump_ns) {
        w->sides[draw_below(w, 2)].clock_off_ns += w->jump_by_ns;
        w->jump_ns = HARP_NEVER;
    }
    if (w->now_ns >= w->flood_ns)
        send_strangers_first(w);
    if (w->now_ns >= w->prod_ns)
        prod_side(w);
    if (w->now_ns >= w->move_ns)
        move_path(w);
    if (frame_ns <= w->now_ns && w->over_tcp)
        dst_kernel_step();
    else if (frame_ns <= w->now_ns)
        deliver_next(w);
    for (int i = 0; i < 2; i++)
        if (w->sides[i].wake_ns <= w->now_ns)
            dst_side_drive(&w->sides[i]);
}

/* Let time pass for what engines do when they look around. */
static void pass_time(struct world *w, uint64_t time_ns)
{
    for (uint64_t end_ns = w->now_ns + time_ns; w->now_ns < end_ns;) {
        uint64_t stop_ns = w->now_ns + TICK_NS;
        while (w->now_ns < stop_ns)
            step_world(w, stop_ns);
        for (int i = 0; i < 2; i++)
            dst_side_drive(&w->sides[i]);
    }
}

static bool is_through(const struct world *w)
{
    return dst_side_done(&w->sides[0]) && dst_side_done(&w->sides[1]);
}

static bool any_closed(const struct world *w)
{
    return w->sides[0].app.closed || w->sides[1].app.closed;
}

/* Runs -------------------------------------------------------------------------------------- */

/* A close that the other end does not see ends by the kernel's timeout. */
static void check_no_flows(struct world *w)
{
    uint64_t stop_ns = w->now_ns + LAST_NS;
    while (w->now_ns < stop_ns && dst_kernel_open(0) + dst_kernel_open(1))
        pass_time(w, DST_S);
    for (uint8_t i = 0; i < 2; i++)
        DST_CHECK(!dst_kernel_open(i), "flows stay after all connections", i, dst_kernel_open(i));
}

/* A connection that was never accepted goes with its listener. */
static void finish_world(struct world *w)
{
    for (int i = 0; i < 2; i++) {
        if (!w->sides[i].engine)
            continue;
        dst_side_let_go(&w->sides[i]);
        dst_side_stop_listening(&w->sides[i]);
    }
    pass_time(w, 3 * DEAD_NS);
    if (w->over_tcp)
        check_no_flows(w);
    for (int i = 0; i < 2; i++) {
        struct dst_side *side = &w->sides[i];
        if (!side->engine)
            continue;
        for (uint32_t c = 0; c < side->engine->connections.n; c++)
            DST_CHECK(!side->engine->connections.at[c] || w->kind == DST_MALICE,
                      "a connection stays after its end", i, c);
        if (w->kind == DST_MALICE || w->over_tcp)
            continue;
        dst_side_check_frames(side);
        uint32_t hops = dst_port_hops(side->port);
        DST_CHECK(!hops, "hops stay after all connections", i, hops);
    }
}

static void run_through(struct world *w)
{
    uint64_t stop_ns = w->heal_ns + RECOVERY_NS, received = 0;
    while (w->now_ns < stop_ns && !is_through(w) && !any_closed(w)) {
        step_world(w, stop_ns);
        if (w->over_tcp && w->now_ns > w->heal_ns &&
            dst_kernel_received() >= received + LEAST_BYTES) {
            received = dst_kernel_received();
            stop_ns = w->now_ns + RECOVERY_NS;
        }
    }
    DST_CHECK(!any_closed(w), "the connection broke", w->sides[0].app.reason,
              w->sides[1].app.reason);
    DST_CHECK(is_through(w), "no progress after all faults healed", w->sides[0].app.received,
              w->sides[1].app.received);
}

static void free_side(struct dst_side *side)
{
    dst_side_kill(side);
    free(side->app.lent);
    free(side->app.drafts);
}

static void run_restart(struct world *w)
{
    uint64_t gone_ns = w->now_ns + draw_below(w, 5 * DST_MS);
    while (w->now_ns < gone_ns)
        step_world(w, gone_ns);
    dst_side_kill(&w->sides[1]);
    uint64_t stop_ns = w->now_ns + 2 * DEAD_NS;
    while (w->now_ns < stop_ns && !w->sides[0].app.closed)
        step_world(w, stop_ns);
    DST_CHECK(w->sides[0].app.closed, "a gone peer was not noticed", w->now_ns, gone_ns);
    DST_CHECK(w->sides[0].app.reason >= HARP_REASON_SILENT, "gone for another reason", 0,
              w->sides[0].app.reason);
    free_side(&w->sides[0]);
    free_side(&w->sides[1]);
    if (w->over_tcp)
        dst_kernel_end();
    w->kind = DST_FAULTS;
    begin_world(w);
    run_through(w);
}

static void run_let_go(struct world *w)
{
    uint64_t go_ns = w->now_ns + draw_below(w, 10 * DST_MS);
    while (w->now_ns < go_ns && !is_through(w))
        step_world(w, go_ns);
    struct dst_side *side = &w->sides[draw_below(w, 2)];
    bool open = side->app.connected && side->peer->connection && dst_side_established(side->peer);
    dst_side_let_go(side);
    uint64_t stop_ns = w->heal_ns + 2 * DEAD_NS;
    while (open && w->now_ns < stop_ns && !side->peer->app.closed)
        step_world(w, stop_ns);
    DST_CHECK(!open || side->peer->app.closed, "the other end does not know", side->number, go_ns);
    for (stop_ns = w->now_ns + DEAD_NS; w->now_ns < stop_ns && side->peer->app.left;)
        step_world(w, stop_ns);
    DST_CHECK(!side->peer->app.left, "messages that were left cannot be received", side->number,
              side->peer->app.left);
}

static void run_malice(struct world *w)
{
    uint64_t stop_ns = w->heal_ns + RECOVERY_NS;
    while (w->now_ns < stop_ns && !is_through(w) && !any_closed(w))
        step_world(w, stop_ns);
}

static void run_flood(struct world *w)
{
    w->flood_ns = w->now_ns;
    w->flood_n = 100 + (uint32_t)draw_below(w, 600);
    run_through(w);
    pass_time(w, 2 * DEAD_NS);
}

/* All that it was connected to, or that still connects to it, ends in bounded time. */
static void run_crowd_without_peer(struct world *w, struct dst_crowd *crowd)
{
    dst_crowd_killed(crowd, 1);
    dst_side_kill(&w->sides[1]);
    uint64_t stop_ns = w->now_ns + 2 * DEAD_NS;
    while (w->now_ns < stop_ns && !dst_crowd_ended(crowd, 0))
        step_world(w, stop_ns);
    DST_CHECK(dst_crowd_ended(crowd, 0), "a gone peer was not noticed by all", w->now_ns, 0);
}

static void run_crowd(struct world *w)
{
    uint64_t begin_ns = 1 + draw_below(w, 20 * DST_MS);
    uint32_t count = 10 + (uint32_t)draw_below(w, draw_chance(w, 200) ? DST_CROWD_MOST - 10 : 60);
    bool killed = draw_chance(w, 300);
    uint64_t stop_ns = killed ? w->now_ns + begin_ns + draw_below(w, 20 * DST_MS)
                              : w->heal_ns + RECOVERY_NS + 2 * DEAD_NS;
    struct dst_crowd *crowd = dst_crowd_new(w->sides, &w->random, count, begin_ns);
    for (int i = 0; i < 2; i++) {
        w->sides[i].crowd = crowd;
        dst_side_drive(&w->sides[i]);
    }
    while (w->now_ns < stop_ns && (killed || !dst_crowd_through(crowd)))
        step_world(w, stop_ns);
    if (killed)
        run_crowd_without_peer(w, crowd);
    else
        DST_CHECK(dst_crowd_through(crowd), "no progress after all faults healed", count, 0);
    dst_crowd_close(crowd);
    w->sides[0].crowd = w->sides[1].crowd = NULL;
    dst_crowd_free(crowd);
}

static enum dst_kind draw_kind(uint64_t seed)
{
    static const enum dst_kind kinds[16] = {DST_PLAIN,  DST_RESTART, DST_LET_GO, DST_LET_GO,
                                            DST_MALICE, DST_MALICE,  DST_FLOOD,  DST_CROWD};
    uint64_t draw = seed % 16;
    return draw < 8 ? kinds[draw] : DST_FAULTS;
}

/* Nobody forges what flows carry, and one kernel has no crowds. */
static enum dst_kind draw_tcp_kind(uint64_t seed)
{
    static const enum dst_kind kinds[8] = {DST_PLAIN, DST_RESTART, DST_LET_GO};
    return seed % 8 < 3 ? kinds[seed % 8] : DST_FAULTS;
}

static struct world *new_world(uint64_t seed, bool over_tcp)
{
    struct world *w = calloc(1, sizeof *w);
    w->random = seed;
    w->over_tcp = over_tcp;
    w->kind = over_tcp ? draw_tcp_kind(seed) : draw_kind(seed);
    w->link.random = virtual_draw(&w->random);
    w->link.payloads = true;
    w->now_ns = 100 * DST_MS;
    w->jump_ns = w->flood_ns = w->prod_ns = w->move_ns = HARP_NEVER;
    return w;
}

uint64_t dst_run_engines(uint64_t seed, bool over_tcp)
{
    static void (*const runs[])(struct world *) = {
        [DST_PLAIN] = run_through, [DST_FAULTS] = run_through, [DST_RESTART] = run_restart,
        [DST_LET_GO] = run_let_go, [DST_MALICE] = run_malice,  [DST_FLOOD] = run_flood,
        [DST_CROWD] = run_crowd,
    };
    struct world *w = new_world(seed, over_tcp);
    begin_world(w);
    if (w->kind == DST_FAULTS && draw_chance(w, 150)) {
        w->jump_ns = w->now_ns + draw_below(w, 100 * DST_MS);
        w->jump_by_ns = draw_chance(w, 500) ? (int64_t)draw_below(w, 10 * DST_S)
                                            : -(int64_t)draw_below(w, 50 * DST_MS);
    }
    if (w->kind == DST_FAULTS && draw_chance(w, 300) && !over_tcp)
        w->prod_ns = w->now_ns;
    if (w->kind == DST_FAULTS && over_tcp && draw_chance(w, 300))
        w->move_ns = w->now_ns;
    runs[w->kind](w);
    finish_world(w);
    uint64_t moved = over_tcp ? dst_kernel_received() : w->frames;
    for (int i = 0; i < 2; i++)
        free_side(&w->sides[i]);
    if (over_tcp)
        dst_kernel_end();
    dst_link_free(&w->link);
    free(w);
    return moved;
}
