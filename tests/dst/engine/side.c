#include "side.h"

#include <stdlib.h>
#include <string.h>

#include "base/sequence.h"
#include "session/session_state.h"
#include "wire/crc32c.h"
#include "wire/seal.h"

#define TURNS_MOST 20000
#define HASHED_MOST 4 /* of a flood's sessions */
#define LOOK_NS (2 * DST_US)

static uint64_t clock_of(void *context)
{
    const struct dst_side *side = context;
    return *side->true_ns + (uint64_t)side->clock_off_ns;
}

static void chance_of(void *context, void *bytes, size_t count)
{
    struct dst_side *side = context;
    for (size_t i = 0; i < count; i++)
        ((uint8_t *)bytes)[i] = (uint8_t)virtual_draw(&side->random);
}

void dst_side_open(struct dst_side *side)
{
    char why[HARP_WHY_BYTES] = "";
    side->config.progress = HARP_PROGRESS_MANUAL;
    side->config.world =
        (struct harp_world){.now_ns = clock_of, .random = chance_of, .context = side};
    side->config.ports_n = 1;
    if (side->over_tcp) {
        side->config.ports[0].open = harp_port_tcp_open;
        side->config.ports[0].config.locals = side->number ? 1 : DST_PATHS;
        side->config.ports[0].config.local = dst_address(side->number, 0, 0);
        side->config.ports[0].config.local.port = 0;
    } else {
        side->config.ports[0].open = dst_port_open;
        dst_port_next(side);
    }
    int error = harp_engine_open(&side->engine, &side->config, why);
    if (!error && side->number)
        error = harp_listen(side->engine, &side->wanted, &side->listening, &side->handle, why);
    if (!error && !side->number && !side->is_crowded)
        error = harp_connect(side->engine, &side->handle, &side->wanted, &side->connection, why);
    DST_CHECK(!error, why, -error, side->number);
    side->wake_ns = *side->true_ns;
}

void dst_side_kill(struct dst_side *side)
{
    if (side->engine)
        harp_engine_close(side->engine);
    side->engine = NULL;
    side->connection = NULL;
    side->listening = NULL;
    side->port = NULL;
    side->wake_ns = HARP_NEVER;
    dst_app_forget(side);
}

/* A real port is asked as by a thread that would sleep; until it may, it looks again and again. */
static bool may_sleep(struct dst_side *side)
{
    struct harp_port *port = side->engine->ports[0];
    if (!side->over_tcp)
        return true;
    bool sleeps = port->ops->sleep(port);
    if (sleeps)
        side->engine->tend_ns = 0; /* as harp_engines_sleep has it */
    return sleeps;
}

void dst_side_drive(struct dst_side *side)
{
    if (!side->engine)
        return;
    uint64_t app_ns = HARP_NEVER;
    bool moved = true;
    for (uint32_t turns = 0; moved; turns++) {
        moved = harp_engine_drive(side->engine);
        moved |= dst_app_work(side, &app_ns);
        moved |= !side->over_tcp && dst_port_waits(side->port);
        DST_CHECK(turns < TURNS_MOST, "driven over and over without time going on", turns,
                  *side->true_ns);
    }
    uint64_t deadline_ns = may_sleep(side) ? harp_engine_deadline_ns(side->engine) : 0;
    if (deadline_ns != HARP_NEVER)
        deadline_ns = harp_max(deadline_ns, clock_of(side)) - (uint64_t)side->clock_off_ns;
    /* One that waits for room is due all the time; so much time passes between two looks. */
    side->wake_ns = harp_max(harp_min(app_ns, deadline_ns), *side->true_ns + LOOK_NS);
}

void dst_side_let_go(struct dst_side *side)
{
    if (side->connection)
        harp_connection_close(side->connection);
    side->connection = NULL;
    side->app.closed = true; /* and it accepts no other */
    dst_app_forget(side);
    side->wake_ns = *side->true_ns;
}

void dst_side_stop_listening(struct dst_side *side)
{
    if (side->listening)
        harp_unlisten(side->listening);
    side->listening = NULL;
}

bool dst_side_done(const struct dst_side *side)
{
    return side->app.received == side->app.in->n && side->app.reported_sent == side->app.out->n;
}

bool dst_side_established(const struct dst_side *side)
{
    bool any = false;
    for (uint32_t i = 0; i < side->engine->connections.n; i++)
        any |= side->engine->connections.at[i] && side->engine->connections.at[i]->state.ready;
    return any;
}

uint64_t dst_side_state(const struct dst_side *side)
{
    uint64_t state = side->listening ? side->listening->half_open : 0;
    for (uint32_t i = 0; i < side->engine->connections.n; i++) {
        const struct harp_connection *connection = side->engine->connections.at[i];
        if (!connection)
            continue;
        if (i < HASHED_MOST || connection == side->connection)
            state = state * 31 + harp_crc32c((const uint8_t *)connection->session,
                                             harp_session_size(&connection->own));
        state = state * 31 + harp_crc32c((const uint8_t *)connection->hops,
                                         connection->own.paths * sizeof connection->hops[0]);
    }
    return state;
}

/* The key under which this end's frames of a type are sealed. */
static struct harp_key key_of(const struct dst_side *side, uint8_t type)
{
    struct harp_key secret;
    memcpy(&secret, side->handle.secret, sizeof secret);
    const struct harp_connection *connection = NULL;
    for (uint32_t i = 0; !connection && i < side->engine->connections.n; i++)
        connection = side->engine->connections.at[i];
    if (type == HARP_ACCEPT && connection)
        return connection->keys.accept;
    if (type <= HARP_ACCEPT || type == HARP_VERSION_NOTICE || !connection)
        return harp_key_hello(&secret, side->handle.listener);
    return connection->keys.out;
}

/* The lap of a frame that this end has sealed. */
static uint32_t lap_of(const struct dst_side *side, const uint8_t *bytes, size_t bytes_n)
{
    struct harp_header header;
    if (harp_header_decode(bytes, bytes_n, &header) != HARP_WIRE_OK || header.type < HARP_DATA ||
        header.type > HARP_PROBE)
        return 0;
    for (uint32_t i = 0; i < side->engine->connections.n; i++) {
        const struct harp_connection *connection = side->engine->connections.at[i];
        if (!connection)
            continue;
        const struct harp_path *path = &connection->session->paths[header.path];
        uint64_t about = header.type == HARP_ACK ? path->sack.largest : path->sent.next;
        return (uint32_t)(harp_packet_near(about, header.packet) >> 32) & HARP_LAP_MAX;
    }
    return 0;
}

void dst_side_spoil(struct dst_side *side, uint8_t *bytes, size_t bytes_n)
{
    if (!virtual_chance(&side->random, side->tamper))
        return;
    uint32_t lap = lap_of(side, bytes, bytes_n);
    dst_tamper(&side->random, bytes, bytes_n);
    struct harp_key key = key_of(side, bytes[1]);
    harp_seal_known(&key, bytes, lap,
                    harp_crc32c(bytes + HARP_HEADER_BYTES, bytes_n - HARP_HEADER_BYTES));
}

void dst_side_check_frames(const struct dst_side *side)
{
    const uint32_t *n = side->engine->frames.in_state;
    for (int state = HARP_FRAME_FREE + 1; state < HARP_FRAME_STATES; state++) {
        bool port_has = state == HARP_FRAME_FILL || state == HARP_FRAME_LEAVING;
        DST_CHECK(port_has || n[state] == 0, "frames leaked", state, n[state]);
    }
}
