/* The application lets go of a connection. */
#include "engine/engine_state.h"

static void close_connection(struct harp_connection *connection, uint32_t reason, const char *text)
{
    struct harp_engine *engine = connection->engine;
    if (engine->generation != harp_generation)
        return;
    harp_token_take(engine);
    /* What was handed over before the close counts as handed over. */
    harp_connection_command(connection);
    if (!connection->ended)
        harp_session_close(connection->session, harp_engine_clock(engine), reason, text);
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
