/* What ports learn besides datagrams, and whom it concerns: all paths to the port that a notice is
 * about (engine_peers.c).
 */
#include "engine/engine_state.h"

/* Whether what a notice quotes was a frame of this connection. */
static bool quotes_connection(const struct harp_notice *notice,
                              const struct harp_connection *connection)
{
    _Static_assert(sizeof notice->quote >= HARP_CONNECTION_BYTES, "it is in there");
    uint64_t id = harp_wire_connection(notice->quote);
    return id &&
           (id == harp_session_peer(connection->session)->connection || id == connection->listener);
}

/* Whether it quotes a frame that any connection sent there: nobody can forge that who has not seen
 * one. */
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
        else
            take_unreachable(engine, hop, refused, notice->type == HARP_NOTICE_GONE);
        harp_engine_wake(engine, hop->connection);
    }
}
