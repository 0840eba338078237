/* Peers: connections that lead to the same process. Paths are found by their remote address and
 * port.
 *
 *     engine->peers  [ ][*][ ][ ]        by a hash of port and address
 *                        |
 *                       peer --> peer    liveness: what all of its connections know together
 *                        |
 *                       hop --> hop      one for each path that leads there
 *
 * Three things are the process's and not a connection's. What its port holds of arrivals
 * (session/far_buffer.h). That its port is refused: Linux answers
 * datagrams to a port that nobody has by ICMP once a second for each host that asks
 * (icmp_ratelimit; six at once after a pause), however many connections it has there. And that it
 * lives: thousands of idle connections that each asked once a second would drown everything else.
 */
#include <stdlib.h>
#include <string.h>

#include "base/siphash.h"
#include "engine/engine_state.h"

bool harp_engine_peers_open(struct harp_engine *engine)
{
    engine->lookup.peers_mask = harp_table_slots(engine->config.connections) - 1;
    engine->lookup.peers = calloc(engine->lookup.peers_mask + 1, sizeof *engine->lookup.peers);
    return engine->lookup.peers;
}

void harp_engine_peers_close(struct harp_engine *engine)
{
    for (uint32_t i = 0; engine->lookup.peers && i <= engine->lookup.peers_mask; i++)
        while (engine->lookup.peers[i]) {
            struct harp_peer *peer = engine->lookup.peers[i];
            engine->lookup.peers[i] = peer->next;
            free(peer);
        }
    free(engine->lookup.peers);
}

/* The link to a peer, or to NULL where one that is not known yet belongs. */
static struct harp_peer **link_of_peer(const struct harp_engine *engine, uint8_t port,
                                       const struct harp_address *remote)
{
    uint64_t hash = harp_siphash(&engine->lookup.hash_key, (const uint8_t *)remote, sizeof *remote);
    struct harp_peer **link = &engine->lookup.peers[hash & engine->lookup.peers_mask];
    while (*link && ((*link)->port != port || !harp_address_same(&(*link)->remote, remote)))
        link = &(*link)->next;
    return link;
}

struct harp_peer *harp_engine_find_peer(const struct harp_engine *engine, uint8_t port,
                                        const struct harp_address *remote)
{
    return *link_of_peer(engine, port, remote);
}

static struct harp_peer *find_or_make_peer(struct harp_engine *engine, uint8_t port,
                                           const struct harp_address *remote)
{
    struct harp_peer **link = link_of_peer(engine, port, remote);
    if (!*link && (*link = calloc(1, sizeof **link)))
        **link = (struct harp_peer){.port = port, .remote = *remote};
    return *link;
}

void harp_engine_path_leads(struct harp_connection *connection, uint32_t path)
{
    struct harp_hop *hop = &connection->hops[path];
    struct harp_peer *peer = find_or_make_peer(connection->engine, hop->port, &hop->remote);
    if (path == 0)
        harp_address_format(&hop->remote, connection->peer, sizeof connection->peer);
    if (!peer)
        return; /* without memory it asks for itself, and hears of no notices */
    hop->connection = connection;
    hop->peer = peer;
    hop->link = &peer->hops;
    hop->next = peer->hops;
    if (hop->next)
        hop->next->link = &hop->next;
    peer->hops = hop;
    harp_session_share_buffer(connection->session, (uint8_t)path, &peer->buffer);
    if (path == 0 || !connection->liveness_of) {
        connection->liveness_of = peer;
        harp_session_share_liveness(connection->session, &peer->liveness);
    }
}

void harp_engine_path_ends(struct harp_connection *connection, uint32_t path)
{
    struct harp_hop *hop = &connection->hops[path];
    struct harp_peer *peer = hop->peer;
    if (!peer)
        return;
    *hop->link = hop->next;
    if (hop->next)
        hop->next->link = hop->link;
    hop->peer = NULL;
    harp_session_share_buffer(connection->session, (uint8_t)path, NULL);
    if (connection->liveness_of == peer) {
        connection->liveness_of = NULL;
        harp_session_share_liveness(connection->session, NULL);
    }
    if (peer->hops)
        return;
    *link_of_peer(connection->engine, peer->port, &peer->remote) = peer->next;
    free(peer);
}
