#include "engine/engine_state.h"

#define RETRY_NS UINT64_C(20000) /* when a port had no room */

/* Commands of the applications. */
static void take_commands(struct harp_engine *engine)
{
    for (uint32_t i = 0; i < engine->connections_n; i++)
        if (engine->connections[i])
            harp_connection_command(engine->connections[i]);
}

/* Whether data went out. */
static bool drive_connection(struct harp_engine *engine, struct harp_connection *connection)
{
    uint64_t sent = harp_session_count(connection->session)->data_sent;
    harp_connection_events(connection);
    bool more = harp_engine_send(engine, connection);
    harp_connection_events(connection);
    uint64_t deadline_ns = harp_session_deadline_ns(connection->session);
    if (more)
        harp_count(&engine->stats.stats->engine.no_room, 1);
    if (more && deadline_ns > engine->now_ns + RETRY_NS)
        deadline_ns = engine->now_ns + RETRY_NS;
    engine->deadline_ns[connection->index] = deadline_ns;
    return harp_session_count(connection->session)->data_sent != sent;
}

/* A question and its answer may travel on two connections: what acknowledges the one leaves in one
 * call of the kernel with the other. */
static void drive_due(struct harp_engine *engine)
{
    bool sent = false;
    for (uint32_t i = 0; i < engine->connections_n; i++)
        if (engine->deadline_ns[i] <= engine->now_ns)
            sent |= drive_connection(engine, engine->connections[i]);
    for (uint32_t i = 0; sent && i < engine->connections_n; i++)
        if (engine->connections[i] && harp_session_ack_along(engine->connections[i]->session))
            drive_connection(engine, engine->connections[i]);
}

/* Whether what a notice quotes was a frame of this connection. */
static bool quotes(const struct harp_notice *notice, const struct harp_connection *connection)
{
    _Static_assert(sizeof notice->quote >= HARP_CONNECTION_BYTES, "it is in there");
    uint64_t id = harp_wire_connection(notice->quote);
    return id &&
           (id == harp_session_peer(connection->session)->connection || id == connection->listener);
}

static void take_unreachable(struct harp_engine *engine, struct harp_connection *connection,
                             uint8_t path, const struct harp_notice *notice)
{
    bool gone = notice->type == HARP_NOTICE_GONE;
    bool refused = gone || (notice->type == HARP_NOTICE_REFUSED && quotes(notice, connection));
    /* Of what anybody can write, only what had an effect is recorded. */
    if (refused)
        harp_session_refused(connection->session, engine->now_ns, path, gone);
    else if (!harp_session_unreachable(connection->session, engine->now_ns, path))
        return;
    harp_recorder_add(engine->recorder, engine->now_ns, HARP_RECORD_UNREACHABLE, connection->id,
                      path, refused);
}

static void take_notice(struct harp_engine *engine, uint8_t port, const struct harp_notice *notice)
{
    for (uint32_t i = 0; i < engine->connections_n; i++) {
        struct harp_connection *connection = engine->connections[i];
        for (uint32_t p = 0; connection && p < connection->config.paths; p++) {
            const struct harp_hop *hop = &connection->hops[p];
            if (hop->hop == HARP_NO_HOP || hop->port != port ||
                !harp_address_same(&hop->remote, &notice->about))
                continue;
            if (notice->type != HARP_NOTICE_MTU)
                take_unreachable(engine, connection, (uint8_t)p, notice);
            engine->deadline_ns[i] = 0;
        }
    }
}

/* Connections that nobody will ask for again. One that was made stays until somebody accepts it,
 * though it has ended since: he finds what came on it, and why it ended. */
static void forget_ended_connections(struct harp_engine *engine)
{
    for (uint32_t i = 0; i < engine->connections_n; i++) {
        struct harp_connection *connection = engine->connections[i];
        if (!connection || !connection->ended)
            continue;
        bool never_made = connection->listening && !connection->ready;
        if ((connection->orphan || never_made) && engine->now_ns >= connection->linger_ns)
            harp_engine_forget(engine, connection);
    }
}

static void tend(struct harp_engine *engine)
{
    engine->tend_ns = engine->now_ns + HARP_TEND_NS;
    for (uint8_t p = 0; p < engine->ports_n; p++) {
        struct harp_port *port = engine->ports[p];
        struct harp_notice notice;
        port->ops->tend(port, engine->now_ns);
        while (port->ops->notice(port, &notice))
            take_notice(engine, p, &notice);
    }
    forget_ended_connections(engine);
    harp_engine_publish(engine);
    if (engine->failed)
        harp_engine_dump(engine);
}

bool harp_engine_turn(struct harp_engine *engine)
{
    engine->now_ns = harp_engine_clock(engine);
    engine->moved = false;
    for (uint8_t p = 0; p < engine->ports_n; p++)
        harp_engine_take(engine, p);
    take_commands(engine);
    drive_due(engine);
    for (uint32_t p = 0; p < engine->ports_n; p++)
        engine->ports[p]->ops->flush(engine->ports[p], engine->now_ns);
    if (engine->now_ns >= engine->tend_ns)
        tend(engine);
    struct harp_engine_counters *counters = &engine->stats.stats->engine;
    harp_count(&counters->turns, 1);
    harp_count(&counters->busy_turns, engine->moved);
    return engine->moved;
}

uint64_t harp_engine_deadline_ns(struct harp_engine *engine)
{
    uint64_t earliest_ns = UINT64_MAX;
    for (uint32_t i = 0; i < engine->connections_n; i++)
        if (engine->deadline_ns[i] < earliest_ns)
            earliest_ns = engine->deadline_ns[i];
    for (uint32_t p = 0; p < engine->ports_n; p++) {
        struct harp_port *port = engine->ports[p];
        uint64_t port_ns = port->ops->deadline_ns ? port->ops->deadline_ns(port) : UINT64_MAX;
        if (port_ns < earliest_ns)
            earliest_ns = port_ns;
    }
    return earliest_ns;
}
