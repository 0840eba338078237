/* What ports learn besides datagrams, and whom it concerns: paths are found by their remote
 * address.
 *
 * Linux answers datagrams to a port that nobody has by ICMP once a second for each host that asks
 * (icmp_ratelimit; six at once after a pause), however many connections it has there. So what says
 * of one connection that its peer's port is refused is taken for all that lead to this port.
 */
#include <string.h>

#include "engine/engine_state.h"
#include "wire/siphash.h"

static struct harp_hop **hops_of(struct harp_engine *engine, const struct harp_address *remote)
{
    uint64_t hash = harp_siphash(&engine->hash_key, (const uint8_t *)remote, sizeof *remote);
    return &engine->hops[hash & engine->hops_mask];
}

void harp_engine_path_leads(struct harp_connection *connection, uint32_t path)
{
    struct harp_hop *hop = &connection->hops[path];
    struct harp_hop **head = hops_of(connection->engine, &hop->remote);
    hop->connection = connection;
    hop->link = head;
    hop->next = *head;
    if (hop->next)
        hop->next->link = &hop->next;
    *head = hop;
    if (path == 0)
        harp_address_format(&hop->remote, connection->peer, sizeof connection->peer);
}

void harp_engine_path_ends(struct harp_connection *connection, uint32_t path)
{
    struct harp_hop *hop = &connection->hops[path];
    if (!hop->link)
        return;
    *hop->link = hop->next;
    if (hop->next)
        hop->next->link = hop->link;
    hop->link = NULL;
}

/* Whether a notice is about this path. */
static bool is_about(const struct harp_notice *notice, uint8_t port, const struct harp_hop *hop)
{
    return hop->port == port && harp_address_same(&hop->remote, &notice->about);
}

/* Whether what a notice quotes was a frame of this connection. */
static bool quotes(const struct harp_notice *notice, const struct harp_connection *connection)
{
    _Static_assert(sizeof notice->quote >= HARP_CONNECTION_BYTES, "it is in there");
    uint64_t id = harp_wire_connection(notice->quote);
    return id &&
           (id == harp_session_peer(connection->session)->connection || id == connection->listener);
}

/* Whether it quotes a frame that any connection sent there: nobody can forge that who has not seen
 * one. */
static bool is_refusal(const struct harp_notice *notice, uint8_t port, const struct harp_hop *hop)
{
    for (; hop && notice->type == HARP_NOTICE_REFUSED; hop = hop->next)
        if (is_about(notice, port, hop) && quotes(notice, hop->connection))
            return true;
    return notice->type == HARP_NOTICE_GONE;
}

/* Of what anybody can write, only what had an effect is recorded. */
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

/* Whether a smaller MTU concerns this path is the session's to find out. */
static void take_mtu(struct harp_engine *engine, const struct harp_hop *hop, uint32_t payload_max)
{
    struct harp_session *session = hop->connection->session;
    if (payload_max < HARP_HEADER_BYTES + (uint32_t)harp_session_segment(session))
        harp_session_path_narrowed(session, engine->now_ns, (uint8_t)(hop - hop->connection->hops));
}

void harp_engine_take_notice(struct harp_engine *engine, uint8_t port,
                             const struct harp_notice *notice)
{
    if (notice->type == HARP_NOTICE_TROUBLE) {
        harp_recorder_add(engine->recorder, engine->now_ns, HARP_RECORD_TROUBLE, 0, notice->trouble,
                          (uint64_t)notice->error);
        return;
    }
    struct harp_hop *hop = *hops_of(engine, &notice->about);
    bool refused = is_refusal(notice, port, hop);
    for (; hop; hop = hop->next) {
        if (!is_about(notice, port, hop))
            continue;
        if (notice->type == HARP_NOTICE_MTU)
            take_mtu(engine, hop, notice->payload_max);
        else
            take_unreachable(engine, hop, refused, notice->type == HARP_NOTICE_GONE);
        harp_engine_wake(engine, hop->connection);
    }
}
