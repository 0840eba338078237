#include <string.h>

#include "base/siphash.h"
#include "engine/engine_state.h"
#include "wire/seal.h"

static struct harp_listening *listening_of(struct harp_engine *engine, uint64_t id)
{
    struct harp_listening *listening = engine->listenings;
    while (listening && listening->listener.id != id)
        listening = listening->next;
    return listening;
}

/* The identity of an attempt to connect among all that this engine sees. */
static uint64_t key_of_attempt(const struct harp_engine *engine,
                               const struct harp_parameters *first, uint64_t listener)
{
    uint8_t bytes[2 * sizeof(uint64_t) + sizeof first->nonce];
    memcpy(bytes, &first->connection, sizeof first->connection);
    memcpy(bytes + sizeof first->connection, &listener, sizeof listener);
    memcpy(bytes + 2 * sizeof(uint64_t), first->nonce, sizeof first->nonce);
    uint64_t key = harp_siphash(&engine->lookup.hash_key, bytes, sizeof bytes);
    return key ? key : 1;
}

/* Answer where a frame came from, though there is no path. */
static void answer_arrival(struct harp_engine *engine, uint8_t port,
                           const struct harp_arrival *arrival, const struct harp_key *key,
                           const struct harp_frame *frame)
{
    char why[HARP_WHY_BYTES];
    struct harp_port *to = engine->ports[port];
    int hop = to->ops->hop(to, arrival->from, arrival->local, why);
    if (hop < 0)
        return;
    harp_engine_write_control(engine, port, hop, key, frame);
    to->ops->flush(to, engine->now_ns);
    to->ops->unhop(to, hop);
}

/* Keys, and what else is known with the peer's parameters. */
static void make_keys(struct harp_connection *connection)
{
    const struct harp_parameters *peer = harp_session_peer(connection->session);
    if (connection->keys.made || !peer->connection) /* not known yet: no peer has the id 0 */
        return;
    const struct harp_session_config *own = &connection->own;
    struct harp_end here = {.connection = own->connection, .epoch = own->epoch};
    struct harp_end there = {.connection = peer->connection, .epoch = peer->epoch};
    memcpy(here.nonce, own->nonce, sizeof here.nonce);
    memcpy(there.nonce, peer->nonce, sizeof there.nonce);
    const struct harp_end *up = connection->handshake.listening_end ? &there : &here;
    const struct harp_end *down = connection->handshake.listening_end ? &here : &there;
    struct harp_key to_listener = harp_key_up(&connection->keys.secret, up, down);
    struct harp_key to_other = harp_key_down(&connection->keys.secret, up, down);
    connection->keys.accept =
        harp_key_accept(&connection->keys.secret, connection->handshake.listener, up);
    connection->keys.in = connection->handshake.listening_end ? to_listener : to_other;
    connection->keys.out = connection->handshake.listening_end ? to_other : to_listener;
    connection->shared.segment = harp_session_segment(connection->session);
    connection->received.first = peer->first;
    connection->keys.made = true;
}

/* Where else this engine can be reached by ports of this family, those first that no handle has
 * room for. */
static void advertise_addresses(const struct harp_engine *engine, enum harp_family family,
                                struct harp_session_config *config)
{
    const struct harp_address *own[HARP_PORTS_MAX];
    uint32_t n = harp_engine_list_own(engine, own);
    for (uint32_t i = 0; i < n && config->addresses_n < HARP_ADDRESSES_MAX; i++) {
        const struct harp_address *local = own[(i + HARP_HANDLE_ADDRESSES) % n];
        if (local->family != family || family == HARP_MEM)
            continue;
        struct harp_wire_address *advertised = &config->addresses[config->addresses_n++];
        memcpy(advertised->ip, local->ip, sizeof advertised->ip);
        advertised->port = local->port;
    }
}

static void make_connection(struct harp_engine *engine, uint8_t port,
                            const struct harp_arrival *arrival, struct harp_listening *listening,
                            uint8_t path, const struct harp_parameters *first, uint64_t attempt)
{
    struct harp_session_config config;
    harp_engine_session_config(engine, &listening->config,
                               harp_engine_payload_max_beside(engine, port), engine->ports[port],
                               &config);
    config.listener = listening->listener.id;
    advertise_addresses(engine, arrival->from->family, &config);
    struct harp_connection *connection = harp_connection_new(engine, &listening->config, &config);
    if (!connection)
        return;
    connection->session =
        harp_session_accept(connection->session, &config, engine->now_ns, first, path);
    connection->handshake.listening_end = true;
    connection->omits_crc = harp_engine_omits_crc(&listening->config, engine->ports[port]);
    connection->handshake.listening = listening;
    connection->handshake.listener = listening->listener.id;
    connection->keys.secret = listening->secret;
    connection->keys.hello = listening->hello;
    if (harp_engine_adopt(engine, connection) != 0) {
        harp_connection_free(connection);
        return;
    }
    connection->handshake.attempt = attempt;
    harp_table_add(&engine->lookup.attempts, attempt, connection);
    listening->half_open++;
    make_keys(connection);
    harp_connection_heard_first(connection, path, port, arrival->local, arrival->from);
    harp_recorder_add(engine->recorder, engine->now_ns, HARP_RECORD_ACCEPT, config.connection,
                      config.paths, config.segment);
}

/* Until the connection is made, ACCEPT answers on the TCP flow that brought the latest FIRST: an
 * earlier flow may have ended. TCP's own handshake proves the sender's address. */
static bool may_change_flows(const struct harp_connection *connection,
                             const struct harp_arrival *arrival)
{
    return arrival->from->family == HARP_TCP && !connection->state.ready;
}

static void take_first(struct harp_engine *engine, uint8_t port, const struct harp_arrival *arrival,
                       const struct harp_header *header, const uint8_t *body)
{
    struct harp_listening *listening = listening_of(engine, header->connection);
    struct harp_parameters first;
    struct harp_frame cookie;
    struct harp_from from = {.port = arrival->from->port};
    if (!listening || harp_parameters_decode(body, header->length, &first) != HARP_WIRE_OK)
        return;
    uint64_t attempt = key_of_attempt(engine, &first, listening->listener.id);
    struct harp_connection *connection = harp_table_find(&engine->lookup.attempts, attempt);
    if (connection) {
        struct harp_place unused;
        if (header->path >= connection->config.paths || may_change_flows(connection, arrival))
            harp_connection_heard_first(connection, header->path, port, arrival->local,
                                        arrival->from);
        harp_session_receive(connection->session, engine->now_ns,
                             harp_engine_from_host_ns(engine, arrival->waited_ns), header, body,
                             false, &unused);
        harp_engine_wake(engine, connection);
        return;
    }
    memcpy(from.address, arrival->from->ip, sizeof from.address);
    switch (harp_listener_judge(&listening->listener, engine->now_ns, &from, listening->half_open,
                                header, body, &first, &cookie)) {
    case HARP_WELCOME_DROP:
        return;
    case HARP_WELCOME_COOKIE:
        answer_arrival(engine, port, arrival, &listening->hello, &cookie);
        return;
    case HARP_WELCOME_MAKE:
        make_connection(engine, port, arrival, listening, header->path, &first, attempt);
    }
}

/* A FIRST of another version, under a tag that holds: say which we speak. There is no connection of
 * which an error could inform, so the recorder does. */
static void refuse_version(struct harp_engine *engine, uint8_t port,
                           const struct harp_arrival *arrival, const struct harp_header *header,
                           const uint8_t *frame)
{
    struct harp_listening *listening = listening_of(engine, header->connection);
    struct harp_frame notice;
    if (!listening || !harp_open_tag(&listening->hello, frame, 0) ||
        !harp_listener_refuse(&listening->listener, header, frame, arrival->length, &notice))
        return;
    harp_recorder_add(engine->recorder, engine->now_ns, HARP_RECORD_VERSION, 0, header->version,
                      HARP_VERSION);
    answer_arrival(engine, port, arrival, &listening->hello, &notice);
}

void harp_engine_take_hello(struct harp_engine *engine, uint8_t port,
                            const struct harp_arrival *arrival, const struct harp_header *header,
                            const uint8_t *frame)
{
    const uint8_t *body = frame + HARP_HEADER_BYTES;
    if (header->version != HARP_VERSION)
        harp_count(&engine->stats.stats->engine.bad_version, 1);
    if (header->version != HARP_VERSION && header->type != HARP_VERSION_NOTICE) {
        refuse_version(engine, port, arrival, header, frame);
        return;
    }
    if (!harp_open_payload(frame, body, header->length))
        return;
    if (header->type == HARP_FIRST) {
        struct harp_listening *listening = listening_of(engine, header->connection);
        if (listening && harp_open_tag(&listening->hello, frame, 0))
            take_first(engine, port, arrival, header, body);
        return;
    }
    struct harp_connection *connection = harp_table_find(&engine->lookup.ids, header->connection);
    if (!connection || connection->handshake.listening_end ||
        !harp_open_tag(header->type == HARP_ACCEPT ? &connection->keys.accept
                                                   : &connection->keys.hello,
                       frame, 0))
        return;
    struct harp_place unused;
    harp_session_receive(connection->session, engine->now_ns,
                         harp_engine_from_host_ns(engine, arrival->waited_ns), header, body, false,
                         &unused);
    bool keyed = connection->keys.made;
    make_keys(connection);
    if (connection->keys.made && !keyed)
        harp_engine_widen_hops(connection, header->path);
    harp_engine_wake(engine, connection);
}
