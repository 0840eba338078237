/* One turn of an engine: what ports learned, commands, connections that are due, and upkeep. */
#include <errno.h>

#include "engine/engine_state.h"

/* ---- Notices of ports: about all paths to the port or address that a notice names ---- */

/* Whether what a notice quotes was a frame of this connection. */
static bool quotes_connection(const struct harp_notice *notice,
                              const struct harp_connection *connection)
{
    _Static_assert(sizeof notice->quote >= HARP_CONNECTION_BYTES, "it is in there");
    uint64_t id = harp_wire_connection(notice->quote);
    return id && (id == harp_session_peer(connection->session)->connection ||
                  id == connection->handshake.listener);
}

/* Whether it quotes a frame that any connection sent there: only a host that has seen such a frame
 * can forge that. */
static bool is_refusal(const struct harp_notice *notice, const struct harp_hop *hop)
{
    for (; hop && notice->type == HARP_NOTICE_REFUSED; hop = hop->next)
        if (quotes_connection(notice, hop->connection))
            return true;
    return notice->type == HARP_NOTICE_GONE;
}

/* Anybody can write such notices, so only those that had an effect are recorded. */
static void take_unreachable(struct harp_engine *engine, const struct harp_hop *hop, bool refused,
                             bool gone)
{
    struct harp_connection *connection = hop->connection;
    uint8_t path = (uint8_t)(hop - connection->hops);
    if (refused)
        harp_session_refused(connection->session, engine->now_ns, path, gone);
    else if (!harp_session_unreachable(connection->session, engine->now_ns, path))
        return;
    harp_recorder_add(engine->recorder, engine->now_ns, HARP_RECORD_UNREACHABLE, connection->id,
                      path, refused);
}

/* A flow is broken: of those that lead to its address only the paths that take it are concerned. */
static void take_broken(struct harp_engine *engine, const struct harp_hop *hop,
                        const struct harp_notice *notice)
{
    struct harp_connection *connection = hop->connection;
    uint8_t path = (uint8_t)(hop - connection->hops);
    if (hop->hop != notice->hop)
        return;
    harp_session_path_broken(connection->session, engine->now_ns, path,
                             notice->error == 0 || notice->error == ECONNRESET);
    harp_recorder_add(engine->recorder, engine->now_ns, HARP_RECORD_BROKEN, connection->id, path,
                      (uint64_t)notice->error);
}

void harp_engine_take_notice(struct harp_engine *engine, uint8_t port,
                             const struct harp_notice *notice)
{
    if (notice->type == HARP_NOTICE_TROUBLE) {
        harp_recorder_add(engine->recorder, engine->now_ns, HARP_RECORD_TROUBLE, 0, notice->trouble,
                          (uint64_t)notice->error);
        return;
    }
    const struct harp_peer *peer = harp_engine_find_peer(engine, port, &notice->about);
    const struct harp_hop *hop = peer ? peer->hops : NULL;
    bool refused = is_refusal(notice, hop);
    for (; hop; hop = hop->next) {
        if (notice->type == HARP_NOTICE_MTU)
            harp_session_path_mtu(hop->connection->session, engine->now_ns,
                                  (uint8_t)(hop - hop->connection->hops), notice->payload_max);
        else if (notice->type == HARP_NOTICE_BROKEN)
            take_broken(engine, hop, notice);
        else
            take_unreachable(engine, hop, refused, notice->type == HARP_NOTICE_GONE);
        harp_engine_wake(engine, hop->connection);
    }
}

/* ---- The turn ---- */

#define TURN_FRAMES 512      /* sent in a turn: then it is time to look at what arrives */
#define TURN_CONNECTIONS 256 /* driven in a turn at most */
#define TEND_ROWS 16         /* of connections, published once a millisecond at most */

/* Commands of the applications. */
static void take_commands(struct harp_engine *engine)
{
    struct harp_ready_walk walk = {0};
    uint32_t i;
    while (harp_ready_set_take(&engine->due.calls, &walk, &i))
        if (engine->connections.at[i])
            harp_connection_command(engine->connections.at[i]);
}

/* Drafts that are owed, as soon as the pool has frames again. */
static void refill_drafts(struct harp_engine *engine)
{
    for (uint32_t n = engine->due.draftless.count; n && engine->frames.in_state[HARP_FRAME_FREE];
         n--) {
        struct harp_connection *connection =
            engine->connections.at[harp_index_queue_take(&engine->due.draftless)];
        if (connection && !connection->state.orphan)
            harp_connection_refill_drafts(connection);
    }
}

static void remember_as_recent(struct harp_engine *engine, struct harp_connection *connection)
{
    if (connection->recent)
        return;
    connection->recent = true;
    uint32_t *place = &engine->recent.indices[engine->recent.n++ % HARP_RECENT];
    if (engine->recent.n > HARP_RECENT && engine->connections.at[*place])
        engine->connections.at[*place]->recent = false;
    *place = connection->index;
}

/* When nobody will ask for an ended connection any more; one that was made stays until somebody
 * accepts it, though it has ended since: he finds what came on it, and why it ended. */
static uint64_t forget_at_ns(const struct harp_connection *connection)
{
    bool never_made = connection->handshake.listening && !connection->state.ready;
    return connection->state.ended && (connection->state.orphan || never_made)
               ? connection->state.linger_ns
               : HARP_TIMER_NEVER;
}

/* Events of its session, what it wants to send, and when to look at it again. Adds the frames that
 * left to *frames; whether data was among them. */
static bool drive_connection(struct harp_engine *engine, struct harp_connection *connection,
                             uint32_t *frames)
{
    struct harp_schedule *schedule = &engine->due.schedule;
    uint64_t sent = harp_session_count(connection->session)->data_sent;
    harp_count(&engine->stats.stats->engine.visits, 1);
    harp_connection_events(connection);
    enum harp_sending sending = harp_engine_send(engine, connection, frames);
    harp_connection_events(connection);
    harp_count(&engine->stats.stats->engine.no_room, sending == HARP_SENDING_BLOCKED);
    uint64_t deadline_ns = harp_session_deadline_ns(connection->session);
    uint64_t forget_ns = forget_at_ns(connection);
    harp_index_queue_put(&engine->due.unpublished, connection->index);
    remember_as_recent(engine, connection);
    bool data = harp_session_count(connection->session)->data_sent != sent;
    if (forget_ns <= engine->now_ns)
        harp_engine_forget(engine, connection);
    else if (sending == HARP_SENDING_SHARE || (sending == HARP_SENDING_BLOCKED && data))
        harp_schedule_again(schedule, connection->index);
    else if (sending == HARP_SENDING_BLOCKED)
        harp_schedule_blocked(schedule, connection->index);
    else
        harp_schedule_wait(schedule, connection->index,
                           deadline_ns < forget_ns ? deadline_ns : forget_ns);
    return data;
}

/* A question and its answer may be sent on two connections: what acknowledges the one leaves in one
 * call of the kernel with the other. Only what was driven since data last left can have such an
 * ACK. */
static void send_acks_along(struct harp_engine *engine)
{
    uint32_t first = engine->recent.n > HARP_RECENT ? engine->recent.n - HARP_RECENT : 0;
    uint32_t last = engine->recent.n, frames = 0, due[HARP_RECENT], n = 0;
    for (engine->recent.n = 0; first < last; first++) {
        uint32_t i = engine->recent.indices[first % HARP_RECENT];
        struct harp_connection *connection = engine->connections.at[i];
        if (!connection)
            continue;
        connection->recent = false;
        if (harp_session_ack_along(connection->session))
            due[n++] = i;
    }
    for (uint32_t d = 0; d < n; d++)
        if (engine->connections.at[due[d]])
            drive_connection(engine, engine->connections.at[due[d]], &frames);
}

static void drive_due(struct harp_engine *engine)
{
    struct harp_schedule *schedule = &engine->due.schedule;
    uint32_t frames = 0;
    bool data = false;
    uint32_t n = harp_schedule_begin(schedule, engine->now_ns);
    for (uint32_t served = 0; n && served < TURN_CONNECTIONS && frames < TURN_FRAMES; served++) {
        struct harp_connection *connection = engine->connections.at[harp_schedule_next(schedule)];
        if (connection)
            data |= drive_connection(engine, connection, &frames);
        n--;
    }
    if (data)
        send_acks_along(engine);
    harp_schedule_end(schedule, engine->now_ns);
}

static void tend_ports(struct harp_engine *engine)
{
    engine->tend_ns = engine->now_ns + HARP_TEND_NS;
    for (uint8_t p = 0; p < engine->ports_n; p++) {
        struct harp_port *port = engine->ports[p];
        struct harp_notice notice;
        port->ops->tend(port, engine->now_ns);
        while (port->ops->notice(port, &notice))
            harp_engine_take_notice(engine, p, &notice);
    }
    harp_engine_publish(engine, TEND_ROWS);
    if (engine->failed)
        harp_engine_dump(engine);
}

static void send_due(struct harp_engine *engine)
{
    take_commands(engine);
    refill_drafts(engine);
    drive_due(engine);
    for (uint32_t p = 0; p < engine->ports_n; p++)
        engine->ports[p]->ops->flush(engine->ports[p], engine->now_ns);
}

bool harp_engine_push_turn(struct harp_engine *engine)
{
    engine->now_ns = harp_engine_clock(engine);
    engine->moved = false;
    send_due(engine);
    return engine->moved;
}

bool harp_engine_turn(struct harp_engine *engine)
{
    engine->now_ns = harp_engine_clock(engine);
    engine->moved = false;
    for (uint8_t p = 0; p < engine->ports_n; p++)
        harp_engine_take(engine, p);
    send_due(engine);
    if (engine->now_ns >= engine->tend_ns)
        tend_ports(engine);
    struct harp_engine_counters *counters = &engine->stats.stats->engine;
    harp_count(&counters->turns, 1);
    harp_count(&counters->busy_turns, engine->moved);
    return engine->moved;
}

uint64_t harp_engine_deadline_ns(struct harp_engine *engine)
{
    uint64_t earliest_ns = harp_schedule_deadline_ns(&engine->due.schedule);
    for (uint32_t p = 0; p < engine->ports_n; p++) {
        struct harp_port *port = engine->ports[p];
        uint64_t port_ns = port->ops->deadline_ns ? port->ops->deadline_ns(port) : UINT64_MAX;
        if (port_ns < earliest_ns)
            earliest_ns = port_ns;
    }
    return earliest_ns;
}
