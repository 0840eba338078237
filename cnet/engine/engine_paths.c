/* Paths of live connections move to other UDP ports or addresses, for three reasons:
 *
 *   follow   a frame of the peer came from another address: the listening end answers there
 *   plan     a revision of the plan names another UDP port
 *   steer    frames reach a queue that the engine does not own: the connecting end tries a port
 */
#include "engine/engine_state.h"

#include <string.h>

/* Each end gives up the frames that it had on their way on the TCP flow that a path leaves. When
 * that flow ends, they may be lost, and the port reports the end only to paths that use the flow.
 */
static void give_up_flow(struct harp_connection *connection, uint8_t path)
{
    if (connection->hops[path].remote.family == HARP_TCP)
        harp_session_path_broken(connection->session, connection->engine->now_ns, path, false);
}

/* ---- Follow the peer ---- */

/* The path leaves by this way from now on, if one can be made; the place behind the last path's is
 * for answers alone. */
static bool lead_path(struct harp_connection *connection, uint8_t place, uint8_t port,
                      uint16_t local, const struct harp_address *to)
{
    struct harp_engine *engine = connection->engine;
    struct harp_hop *hop = &connection->hops[place];
    char why[HARP_WHY_BYTES];
    int number = engine->ports[port]->ops->hop(engine->ports[port], to, local, why);
    if (number < 0)
        return false;
    if (hop->hop != HARP_NO_HOP && place < connection->config.paths)
        give_up_flow(connection, place);
    harp_engine_path_ends(connection, place);
    harp_engine_drop_hops(engine, hop, 1);
    hop->port = port;
    hop->local = local;
    hop->hop = number;
    hop->remote = *to;
    harp_engine_mark_hop(engine, hop,
                         connection->handshake.listening_end
                             ? harp_session_peer(connection->session)->traffic_class
                             : connection->config.traffic_class);
    if (place < connection->config.paths)
        harp_engine_path_leads(connection, place);
    harp_recorder_add(engine->recorder, engine->now_ns, HARP_RECORD_PATH, connection->id, place,
                      (uint64_t)number);
    return true;
}

void harp_connection_heard(struct harp_connection *connection, uint8_t path, uint8_t port,
                           uint16_t local, const struct harp_address *from)
{
    if (connection->hops[path].hop == HARP_NO_HOP)
        lead_path(connection, path, port, local, from);
}

void harp_connection_heard_first(struct harp_connection *connection, uint8_t path, uint8_t port,
                                 uint16_t local, const struct harp_address *from)
{
    bool ours = path < connection->config.paths;
    uint8_t place = (uint8_t)(ours ? path : connection->config.paths);
    const struct harp_hop *hop = &connection->hops[place];
    if (hop->hop == HARP_NO_HOP || !harp_address_same(&hop->remote, from))
        lead_path(connection, place, port, local, from);
}

/* Only the listening end follows, as only a QUIC server does (RFC 9000, section 9): it is the
 * connecting end that sits behind a NAT and that chooses paths. A replayed frame is never the
 * newest of its path. */
enum harp_move harp_connection_moves(struct harp_connection *connection, uint8_t port,
                                     const struct harp_arrival *arrival,
                                     const struct harp_header *header)
{
    const struct harp_hop *hop = &connection->hops[header->path];
    bool same_local = hop->port == port && hop->local == arrival->local;
    bool same_host = memcmp(hop->remote.ip, arrival->from->ip, sizeof hop->remote.ip) == 0;
    if (!connection->handshake.listening_end || hop->hop == HARP_NO_HOP ||
        (same_local && harp_address_same(&hop->remote, arrival->from)) ||
        !harp_session_is_newest(connection->session, header) ||
        !lead_path(connection, header->path, port, arrival->local, arrival->from))
        return HARP_MOVE_NONE;
    return same_host ? HARP_MOVE_PORT : HARP_MOVE_HOST;
}

/* ---- Steer to the queues that the engines own ---- */

/* The UDP port of the connecting end decides on which queues the frames of a path arrive.
 *
 *     connecting end                                     listening end
 *     local 0: its frames reach another queue there  ->  stray: says so in its ACKs
 *     local 1: the answers reach another queue here  <-  answers go to local 1
 *     local 2: both reach the engines' queues        <-> stays
 *
 * A card with several queues hashes a datagram's addresses and ports to one of them, each end's
 * card by its own key, and an engine owns one queue. All but the connecting end's UDP port is
 * given. So while one side's frames are strays it moves the path to another port: one that another
 * connection to the same peer has found, else one that the engine has already, else a new one. A
 * probe at once shows what that is worth, and the listening end follows, as it does where a NAT
 * gives the path another address. Neither keys nor tables of the cards need be known, and what a
 * cloud's own network does is in it.
 *
 * Each port is a socket, so there is an end to it. With q and r queues a port is right for both
 * ways once in q * r: among 256 there is one with probability 98 % for 8 and 8 queues, 63 % for
 * 16 and 16. Where there is none, a second round is content with what the path sends (16 queues:
 * one port in 16), which is where the payload goes: NCCL's senders connect.
 *
 * A path keeps a port that a plan has chosen: the links that it spares are worth more.
 */

/* UDP ports that a path tries, as many as a port can open; in each of two rounds. */
#define STEER_TRIES 256

static bool is_used(const struct harp_connection *connection, uint8_t port, uint16_t local)
{
    for (uint32_t p = 0; p < connection->config.paths; p++) {
        const struct harp_hop *hop = &connection->hops[p];
        if (hop->hop != HARP_NO_HOP && hop->port == port && hop->local == local)
            return true;
    }
    return false;
}

bool harp_engine_path_leaves_by(struct harp_connection *connection, uint8_t path, uint16_t local)
{
    struct harp_engine *engine = connection->engine;
    struct harp_hop *hop = &connection->hops[path];
    struct harp_port *port = engine->ports[hop->port];
    const struct harp_address remote = hop->remote;
    char why[HARP_WHY_BYTES];
    int number = port->ops->hop(port, &remote, local, why);
    if (number < 0)
        return false;
    if (port->ops->give_up)
        port->ops->give_up(port, hop->hop);
    port->ops->unhop(port, hop->hop);
    hop->local = local;
    hop->hop = number;
    harp_engine_mark_hop(engine, hop, connection->config.traffic_class);
    harp_session_path_rerouted(connection->session, path);
    give_up_flow(connection, path);
    harp_recorder_add(engine->recorder, engine->now_ns, HARP_RECORD_PATH, connection->id, path,
                      (uint64_t)number);
    return true;
}

static bool sends_off_queue(const struct harp_connection *connection, uint8_t path)
{
    struct harp_path_info info;
    return harp_session_path_info(connection->session, path, &info) && info.off_queue;
}

/* Take the way of another connection that leads to the same peer by the right queues, if there is
 * one among the first few. */
static bool take_known_local(struct harp_connection *connection, uint8_t path)
{
    enum { LOOK_AT = 16 };
    const struct harp_hop *hop = &connection->hops[path];
    const struct harp_hop *other = hop->peer ? hop->peer->hops : NULL;
    for (int i = 0; other && i < LOOK_AT; i++, other = other->next) {
        uint8_t number = (uint8_t)(other - other->connection->hops);
        if (other->connection != connection && other->found && !other->strays &&
            !sends_off_queue(other->connection, number) &&
            !is_used(connection, hop->port, other->local))
            return harp_engine_path_leaves_by(connection, path, other->local);
    }
    return false;
}

/* Frames of this path reach a wrong queue, at one end or the other. */
static void try_next_local(struct harp_connection *connection, uint8_t path, bool ours)
{
    struct harp_hop *hop = &connection->hops[path];
    struct harp_port *port = connection->engine->ports[hop->port];
    char why[HARP_WHY_BYTES];
    if (connection->handshake.listening_end || hop->planned || !port->ops->add_local ||
        (hop->tried >= STEER_TRIES && !ours))
        return;
    hop->found = false;
    if (take_known_local(connection, path))
        return;
    while (hop->tried < 2 * STEER_TRIES) {
        uint16_t local = hop->tried++ % STEER_TRIES;
        if (local >= port->locals_n && port->ops->add_local(port, 0, why) < 0)
            hop->tried = hop->tried <= STEER_TRIES ? STEER_TRIES : 2 * STEER_TRIES;
        else if (!is_used(connection, hop->port, local) &&
                 harp_engine_path_leaves_by(connection, path, local))
            return;
    }
}

/* A frame that took a way that the path has left says nothing about the one that it has. */
static bool is_by_this_way(const struct harp_connection *connection, const struct harp_hop *hop,
                           uint8_t port, const struct harp_arrival *arrival, bool newest)
{
    return connection->handshake.listening_end ? newest
                                               : hop->port == port && hop->local == arrival->local;
}

void harp_engine_way_of_frame(struct harp_connection *connection, uint8_t path, uint8_t port,
                              const struct harp_arrival *arrival, bool newest)
{
    struct harp_hop *hop = &connection->hops[path];
    if (hop->hop == HARP_NO_HOP || !is_by_this_way(connection, hop, port, arrival, newest))
        return;
    if (connection->off_rail && connection->off_rail != path + 1)
        harp_engine_widen_hops(connection, path);
    if (hop->strays != arrival->stray) {
        hop->strays = arrival->stray;
        harp_session_path_off_queue(connection->session, path, arrival->stray);
    }
    if (arrival->stray)
        try_next_local(connection, path, false);
    else if (!hop->found && !connection->handshake.listening_end)
        hop->found = !sends_off_queue(connection, path);
}

void harp_engine_way_of_ours(struct harp_connection *connection, uint8_t path)
{
    if (path < connection->config.paths && connection->hops[path].hop != HARP_NO_HOP &&
        sends_off_queue(connection, path))
        try_next_local(connection, path, true);
}

/* ---- Follow a revision of the plan ---- */

/* Another revision of a plan, for connections that work.
 *
 *     flows from this port to that address   paths between these two, in turn
 *     revision 1    61300   61301               0  by 61300    1  by 61301
 *     revision 2    61300   61407               0  stays       1  moves to 61407
 *
 * The session goes on: frames of a path that moves leave by another UDP port, and the listening end
 * follows, as it follows a NAT (engine_paths.c). The port that a path has left stays open, so what
 * is on its way to it still comes.
 */

/* Number of this path among those between its port and its address. */
static uint32_t turn_of_path(const struct harp_connection *connection, uint32_t path)
{
    const struct harp_hop *hop = &connection->hops[path];
    uint32_t turn = 0;
    for (uint32_t p = 0; p < path; p++)
        turn += connection->hops[p].hop != HARP_NO_HOP && connection->hops[p].port == hop->port &&
                harp_address_same(&connection->hops[p].remote, &hop->remote);
    return turn;
}

/* Whether the path has left its UDP port for another one of the plan's. A port that cannot be had
 * leaves it where it is. */
static bool follow_flow(struct harp_connection *connection, uint32_t path, char *note)
{
    struct harp_hop *hop = &connection->hops[path];
    uint16_t local;
    if (hop->hop == HARP_NO_HOP ||
        !harp_engine_choose_local(&connection->config, connection->engine->ports[hop->port],
                                  &hop->remote, turn_of_path(connection, path), &local, note))
        return false;
    bool moves = local != hop->local;
    if (moves && !harp_engine_path_leaves_by(connection, (uint8_t)path, local))
        return false;
    hop->planned = true;
    return moves;
}

uint32_t harp_engine_follow_plan(struct harp_engine *engine, const struct harp_planned_flow *before,
                                 const struct harp_planned_flow *flows, uint32_t flows_n, char *why)
{
    uint32_t moved = 0;
    *why = 0;
    harp_token_take(engine);
    harp_engine_clock(engine);
    for (uint32_t i = 0; before && i < engine->connections.n; i++) {
        struct harp_connection *connection = engine->connections.at[i];
        if (!connection || connection->config.flows != before)
            continue;
        connection->config.flows = flows;
        connection->config.flows_n = flows_n;
        for (uint32_t p = 0; p < connection->config.paths; p++)
            moved += follow_flow(connection, p, why);
        harp_engine_wake(engine, connection);
    }
    harp_token_drop(engine);
    harp_engine_ring(engine);
    return moved;
}
