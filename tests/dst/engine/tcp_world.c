#include "tcp_world.h"

#include <stdlib.h>
#include <string.h>

#include "base/sequence.h"
#include "side.h"
#include "tcp_kernel.h"
#include "world.h"

#define DEAD_NS DST_S
#define RECOVERY_NS (6 * DST_S)
#define LEAST_BYTES (1 << 20) /* in RECOVERY_NS, as long as not all has come */
#define TICK_NS (10 * DST_MS)
#define FAULTS_NS (400 * DST_MS)
#define LAST_NS (30 * DST_S) /* the kernel ends what is dark by then, TCP_UNACKED_MS */

struct world {
    uint64_t random, now_ns, heal_ns, jump_ns;
    int64_t jump_by_ns;
    enum dst_kind kind;
    struct dst_side sides[2];
    struct dst_script scripts[2];
};

static uint64_t draw_below(struct world *w, uint64_t n)
{
    return virtual_below(&w->random, n);
}

static bool draw_chance(struct world *w, uint32_t permille)
{
    return virtual_chance(&w->random, permille);
}

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

static void draw_side(struct world *w, uint8_t number, uint16_t unit)
{
    struct dst_side *side = &w->sides[number];
    memset(side, 0, sizeof *side);
    side->number = number;
    side->over_tcp = side->trusts = true;
    side->peer = &w->sides[!number];
    side->true_ns = &w->now_ns;
    side->random = virtual_draw(&w->random);
    side->out = &w->scripts[number];
    side->in = &w->scripts[!number];
    side->return_ns = side->wake_ns = HARP_NEVER;
    harp_connection_defaults(&side->wanted);
    side->wanted.paths = (uint16_t)(1 + draw_below(w, DST_PATHS));
    side->wanted.dead_ns = DEAD_NS;
    side->wanted.read_early_most = draw_chance(w, 300) ? 16u * unit : 0;
    side->wanted.crc = draw_chance(w, 500) ? HARP_CRC_ON : HARP_CRC_AUTO;
    harp_engine_defaults(&side->config);
    side->config.frames = 64;
    side->config.frame_bytes = 2048;
    side->config.connections = 80;
    side->lent = calloc(1, sizeof *side->lent);
    side->drafts = calloc(1, sizeof *side->drafts);
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

static void begin_world(struct world *w)
{
    uint16_t unit =
        (uint16_t)(HARP_CHUNK_ALIGN * (1 + draw_below(w, draw_chance(w, 700) ? 32 : 200)));
    w->heal_ns = w->kind == DST_PLAIN ? w->now_ns : w->now_ns + draw_below(w, FAULTS_NS);
    draw_scripts(w, unit);
    draw_side(w, 0, unit);
    draw_side(w, 1, unit);
    begin_kernel(w);
    dst_side_open(&w->sides[1]);
    w->sides[0].handle = w->sides[1].handle;
    dst_side_open(&w->sides[0]);
}

static void step_world(struct world *w, uint64_t stop_ns)
{
    uint64_t at_ns = harp_min(dst_kernel_next_ns(), w->jump_ns);
    at_ns = harp_min(at_ns, harp_min(w->sides[0].wake_ns, w->sides[1].wake_ns));
    w->now_ns = harp_max(w->now_ns, harp_min(at_ns, stop_ns));
    if (w->now_ns >= w->jump_ns) {
        w->sides[draw_below(w, 2)].clock_off_ns += w->jump_by_ns;
        w->jump_ns = HARP_NEVER;
    }
    dst_kernel_step();
    for (int i = 0; i < 2; i++)
        if (w->sides[i].wake_ns <= w->now_ns)
            dst_side_drive(&w->sides[i]);
}

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
    return w->sides[0].closed || w->sides[1].closed;
}

static void run_through(struct world *w)
{
    uint64_t stop_ns = w->heal_ns + RECOVERY_NS, received = 0;
    while (w->now_ns < stop_ns && !is_through(w) && !any_closed(w)) {
        step_world(w, stop_ns);
        if (w->now_ns > w->heal_ns && dst_kernel_received() >= received + LEAST_BYTES) {
            received = dst_kernel_received();
            stop_ns = w->now_ns + RECOVERY_NS;
        }
    }
    DST_CHECK(!any_closed(w), "the connection broke", w->sides[0].reason, w->sides[1].reason);
    DST_CHECK(is_through(w), "no progress after all faults healed", w->sides[0].received,
              w->sides[1].received);
}

static void run_restart(struct world *w)
{
    uint64_t gone_ns = w->now_ns + draw_below(w, 5 * DST_MS);
    while (w->now_ns < gone_ns)
        step_world(w, gone_ns);
    dst_side_kill(&w->sides[1]);
    uint64_t stop_ns = w->now_ns + 2 * DEAD_NS;
    while (w->now_ns < stop_ns && !w->sides[0].closed)
        step_world(w, stop_ns);
    DST_CHECK(w->sides[0].closed, "a gone peer was not noticed", w->now_ns, gone_ns);
    DST_CHECK(w->sides[0].reason >= HARP_REASON_SILENT, "gone for another reason", 0,
              w->sides[0].reason);
}

static void run_let_go(struct world *w)
{
    uint64_t go_ns = w->now_ns + draw_below(w, 10 * DST_MS);
    while (w->now_ns < go_ns && !is_through(w))
        step_world(w, go_ns);
    struct dst_side *side = &w->sides[draw_below(w, 2)];
    bool open = side->connected && side->peer->connection && dst_side_established(side->peer);
    dst_side_let_go(side);
    uint64_t stop_ns = w->heal_ns + 2 * DEAD_NS;
    while (open && w->now_ns < stop_ns && !side->peer->closed)
        step_world(w, stop_ns);
    DST_CHECK(!open || side->peer->closed, "the other end does not know", side->number, go_ns);
    for (stop_ns = w->now_ns + DEAD_NS; w->now_ns < stop_ns && side->peer->left;)
        step_world(w, stop_ns);
    DST_CHECK(!side->peer->left, "messages that were left cannot be received", side->number,
              side->peer->left);
}

/* What the other end does not hear of ends by the kernel's timeout. */
static void finish_world(struct world *w)
{
    for (int i = 0; i < 2; i++) {
        if (!w->sides[i].engine)
            continue;
        dst_side_let_go(&w->sides[i]);
        dst_side_stop_listening(&w->sides[i]);
    }
    pass_time(w, 3 * DEAD_NS);
    uint64_t stop_ns = w->now_ns + LAST_NS;
    while (w->now_ns < stop_ns && dst_kernel_open(0) + dst_kernel_open(1))
        pass_time(w, DST_S);
    for (int i = 0; i < 2; i++) {
        const struct dst_side *side = &w->sides[i];
        for (uint32_t c = 0; side->engine && c < side->engine->connections_n; c++)
            DST_CHECK(!side->engine->connections[c], "a connection stays after its end", i, c);
        DST_CHECK(!dst_kernel_open(side->number), "flows stay after all connections", i,
                  dst_kernel_open(side->number));
    }
}

static enum dst_kind draw_kind(uint64_t seed)
{
    static const enum dst_kind kinds[8] = {DST_PLAIN, DST_RESTART, DST_LET_GO};
    return seed % 8 < 3 ? kinds[seed % 8] : DST_FAULTS;
}

uint64_t dst_run_tcp(uint64_t seed)
{
    static void (*const runs[])(struct world *) = {[DST_PLAIN] = run_through,
                                                   [DST_FAULTS] = run_through,
                                                   [DST_RESTART] = run_restart,
                                                   [DST_LET_GO] = run_let_go};
    struct world *w = calloc(1, sizeof *w);
    w->random = seed;
    w->kind = draw_kind(seed);
    w->now_ns = 100 * DST_MS;
    w->jump_ns = HARP_NEVER;
    begin_world(w);
    if (w->kind == DST_FAULTS && draw_chance(w, 150)) {
        w->jump_ns = w->now_ns + draw_below(w, 100 * DST_MS);
        w->jump_by_ns = draw_chance(w, 500) ? (int64_t)draw_below(w, 10 * DST_S)
                                            : -(int64_t)draw_below(w, 50 * DST_MS);
    }
    runs[w->kind](w);
    finish_world(w);
    uint64_t received = dst_kernel_received();
    for (int i = 0; i < 2; i++) {
        dst_side_kill(&w->sides[i]);
        free(w->sides[i].lent);
        free(w->sides[i].drafts);
    }
    dst_kernel_end();
    free(w);
    return received;
}
