/* Ways that frames of a path take: by which UDP port of the connecting end.
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
 * A path whose port a plan has chosen keeps it: the links that it spares are worth more.
 */
#include "engine/engine_state.h"

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
    port->ops->unhop(port, hop->hop);
    hop->local = local;
    hop->hop = number;
    harp_engine_mark_hop(engine, hop, connection->config.traffic_class);
    harp_session_path_rerouted(connection->session, path);
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
    if (connection->listening_end || hop->planned || !port->ops->add_local ||
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
    return connection->listening_end ? newest : hop->port == port && hop->local == arrival->local;
}

void harp_engine_way_of_frame(struct harp_connection *connection, uint8_t path, uint8_t port,
                              const struct harp_arrival *arrival, bool newest)
{
    struct harp_hop *hop = &connection->hops[path];
    if (hop->hop == HARP_NO_HOP || !is_by_this_way(connection, hop, port, arrival, newest))
        return;
    if (hop->strays != arrival->stray) {
        hop->strays = arrival->stray;
        harp_session_path_off_queue(connection->session, path, arrival->stray);
    }
    if (arrival->stray)
        try_next_local(connection, path, false);
    else if (!hop->found && !connection->listening_end)
        hop->found = !sends_off_queue(connection, path);
}

void harp_engine_way_of_ours(struct harp_connection *connection, uint8_t path)
{
    if (path < connection->config.paths && connection->hops[path].hop != HARP_NO_HOP &&
        sends_off_queue(connection, path))
        try_next_local(connection, path, true);
}
