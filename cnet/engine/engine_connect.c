/* Connect, close and abort. */
#include "engine/engine_state.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

/* ---- Connect ---- */

static int begin_connection(struct harp_engine *engine, const struct harp_handle *handle,
                            const struct harp_connection_config *config,
                            struct harp_connection **connection, char *why)
{
    struct harp_hop hops[HARP_PATHS_MAX];
    struct harp_session_config session;
    int error = harp_engine_make_hops(engine, handle, config, hops, why);
    if (error)
        return error;
    uint32_t payload_max = harp_engine_hops_payload_max(engine, hops, config->paths);
    if (payload_max < HARP_PAYLOAD_LEAST) {
        harp_engine_drop_hops(engine, hops, config->paths);
        return snprintf(why, HARP_WHY_BYTES,
                        "the way there takes datagrams of %u bytes, and the protocol needs %d: an "
                        "MTU of 252 is enough",
                        payload_max, HARP_PAYLOAD_LEAST),
               -EMSGSIZE;
    }
    harp_engine_session_config(engine, config, payload_max, engine->ports[hops[0].port], &session);
    session.listener = handle->listener;
    session.traffic_class = config->traffic_class & (uint8_t)~HARP_ECN_MASK;
    session.addresses_n = config->paths > 1 ? HARP_ADDRESSES_MAX : 0;
    struct harp_connection *made = harp_connection_new(engine, config, &session);
    if (made && harp_engine_adopt(engine, made) != 0) {
        harp_connection_free(made);
        made = NULL;
    }
    if (!made) {
        harp_engine_drop_hops(engine, hops, config->paths);
        return snprintf(why, HARP_WHY_BYTES, "no memory, or the engine has %u connections already",
                        engine->config.connections),
               -ENOMEM;
    }
    memcpy(made->hops, hops, config->paths * sizeof hops[0]);
    made->omits_crc = harp_engine_omits_crc(config, engine->ports[hops[0].port]);
    made->handshake.listener = handle->listener;
    memcpy(&made->keys.secret, handle->secret, sizeof made->keys.secret);
    struct harp_end connecting = {.connection = session.connection, .epoch = session.epoch};
    memcpy(connecting.nonce, session.nonce, sizeof connecting.nonce);
    made->keys.hello = harp_key_hello(&made->keys.secret, made->handshake.listener);
    made->keys.accept = harp_key_accept(&made->keys.secret, made->handshake.listener, &connecting);
    made->session = harp_session_connect(made->session, &session, harp_engine_clock(engine));
    for (uint32_t p = 0; p < config->paths; p++)
        harp_engine_path_leads(made, p);
    harp_recorder_add(engine->recorder, engine->now_ns, HARP_RECORD_CONNECT, made->id,
                      session.paths, session.segment);
    *connection = made;
    return 0;
}

int harp_connect(struct harp_engine *engine, const struct harp_handle *handle,
                 const struct harp_connection_config *config, struct harp_connection **connection,
                 char *why)
{
    int error = harp_engine_check_config(engine, config, why);
    if (error)
        return error;
    harp_token_take(engine);
    error = harp_engine_check_frames(engine, config, why);
    if (!error)
        error = begin_connection(engine, handle, config, connection, why);
    harp_token_drop(engine);
    harp_engine_ring(engine);
    return error;
}

/* ---- Close and abort ---- */

static void close_connection(struct harp_connection *connection, uint32_t reason, const char *text)
{
    struct harp_engine *engine = connection->engine;
    if (engine->generation != harp_generation)
        return;
    harp_token_take(engine);
    /* Messages handed over before the close count as handed over. */
    harp_connection_command(connection);
    connection->state.lingers = reason == HARP_REASON_DONE && !connection->state.ended &&
                                harp_connection_has_shorts_alone(connection);
    if (!connection->state.ended && !connection->state.lingers)
        harp_session_close(connection->session, harp_engine_clock(engine), reason, text);
    if (!connection->state.lingers)
        harp_engine_let_go(connection, NULL, 0);
    harp_engine_reclaim_frames(engine, connection);
    harp_connection_orphan(connection);
    harp_token_drop(engine);
    harp_engine_ring(engine);
}

void harp_connection_close(struct harp_connection *connection)
{
    close_connection(connection, HARP_REASON_DONE, NULL);
}

void harp_connection_abort(struct harp_connection *connection, const char *text)
{
    close_connection(connection, HARP_REASON_UNDER_WAY, text);
}
