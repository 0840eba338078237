/* Another revision of a plan, for connections that work.
 *
 *     flows from this port to that address   paths between these two, in turn
 *     revision 1    61300   61301               0  by 61300    1  by 61301
 *     revision 2    61300   61407               0  stays       1  moves to 61407
 *
 * The session goes on: frames of a path that moves leave by another UDP port, and the listening end
 * follows, as it follows a NAT (engine_follow.c). The port that a path has left stays open, so what
 * is on its way to it still comes.
 */
#include "engine/engine_state.h"

/* Which of the paths between its port and its address this one is. */
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
    for (uint32_t i = 0; before && i < engine->connections_n; i++) {
        struct harp_connection *connection = engine->connections[i];
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
