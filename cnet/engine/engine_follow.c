/* Where paths lead, as the listening end learns it from the frames that come on them. */
#include <string.h>

#include "engine/engine_state.h"

void harp_connection_heard(struct harp_connection *connection, uint8_t path, uint8_t port,
                           uint16_t local, const struct harp_address *from)
{
    bool ours = path < connection->config.paths;
    struct harp_hop *hop = &connection->hops[ours ? path : connection->config.paths];
    struct harp_port *to = connection->engine->ports[port];
    if (hop->hop != HARP_NO_HOP && (ours || harp_address_same(&hop->remote, from)))
        return;
    if (hop->hop != HARP_NO_HOP)
        connection->engine->ports[hop->port]->ops->unhop(connection->engine->ports[hop->port],
                                                         hop->hop);
    hop->hop = HARP_NO_HOP;
    char why[HARP_WHY_BYTES];
    int number = to->ops->hop(to, from, local, why);
    if (number < 0)
        return;
    *hop = (struct harp_hop){.port = port, .local = local, .hop = number, .remote = *from};
    harp_engine_mark_hop(connection->engine, hop,
                         connection->listening_end
                             ? harp_session_peer(connection->session)->traffic_class
                             : connection->config.traffic_class);
    if (ours)
        harp_engine_path_leads(connection, path);
    harp_recorder_add(connection->engine->recorder, connection->engine->now_ns, HARP_RECORD_PATH,
                      connection->id, path, (uint64_t)number);
}

/* Only the listening end follows, as only a QUIC server does (RFC 9000, section 9): it is the
 * connecting end that sits behind a NAT and that chooses paths. A replayed frame is never the
 * newest of its path. */
enum harp_move harp_connection_moves(struct harp_connection *connection, uint8_t port,
                                     const struct harp_arrival *arrival,
                                     const struct harp_header *header)
{
    struct harp_engine *engine = connection->engine;
    struct harp_hop *hop = &connection->hops[header->path];
    bool same_local = hop->port == port && hop->local == arrival->local;
    if (!connection->listening_end || hop->hop == HARP_NO_HOP ||
        (same_local && harp_address_same(&hop->remote, arrival->from)) ||
        !harp_session_is_newest(connection->session, header))
        return HARP_MOVE_NONE;
    char why[HARP_WHY_BYTES];
    const struct harp_port_ops *ops = engine->ports[port]->ops;
    int number = ops->hop(engine->ports[port], arrival->from, arrival->local, why);
    if (number < 0)
        return HARP_MOVE_NONE;
    bool same_host = memcmp(hop->remote.ip, arrival->from->ip, sizeof hop->remote.ip) == 0;
    harp_engine_path_ends(connection, header->path);
    harp_engine_drop_hops(engine, hop, 1);
    hop->port = port;
    hop->local = arrival->local;
    hop->hop = number;
    hop->remote = *arrival->from;
    harp_engine_path_leads(connection, header->path);
    harp_engine_mark_hop(engine, hop, harp_session_peer(connection->session)->traffic_class);
    harp_recorder_add(engine->recorder, engine->now_ns, HARP_RECORD_PATH, connection->id,
                      header->path, (uint64_t)number);
    return same_host ? HARP_MOVE_PORT : HARP_MOVE_HOST;
}
