/* Listeners, and the connections that wait at them to be accepted. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "engine/engine_state.h"

#define CALM 64 /* half-open connections up to which no cookie is asked for */

static void list_addresses(const struct harp_engine *engine, struct harp_handle *handle)
{
    const struct harp_address *own[HARP_PORTS_MAX];
    uint32_t n = harp_engine_list_own(engine, own);
    for (uint32_t i = 0; i < n && i < HARP_HANDLE_ADDRESSES; i++)
        handle->addresses[i] = *own[i];
}

int harp_listen(struct harp_engine *engine, const struct harp_connection_config *config,
                struct harp_listening **listening, struct harp_handle *handle, char *why)
{
    int error = harp_engine_check_config(engine, config, why);
    if (error)
        return error;
    harp_token_take(engine);
    error = harp_engine_check_frames(engine, config, why);
    harp_token_drop(engine);
    if (error)
        return error;
    struct harp_listening *made = calloc(1, sizeof *made);
    if (!made)
        return snprintf(why, HARP_WHY_BYTES, "no memory to listen"), -ENOMEM;
    made->engine = engine;
    made->config = *config;
    made->listener.calm = CALM;
    made->fd = -1;
    harp_engine_random(engine, &made->listener.key, sizeof made->listener.key);
    harp_engine_random(engine, &made->secret, sizeof made->secret);
    do
        harp_engine_random(engine, &made->listener.id, sizeof made->listener.id);
    while (!made->listener.id);
    made->hello = harp_key_hello(&made->secret, made->listener.id);
    *handle = (struct harp_handle){.listener = made->listener.id};
    memcpy(handle->secret, &made->secret, sizeof handle->secret);
    list_addresses(engine, handle);
    harp_token_take(engine);
    made->next = engine->listenings;
    engine->listenings = made;
    harp_recorder_add(engine->recorder, harp_engine_clock(engine), HARP_RECORD_LISTEN, 0,
                      made->listener.id, 0);
    harp_token_drop(engine);
    *listening = made;
    return 0;
}

void harp_engine_welcome(struct harp_listening *listening, struct harp_connection *connection)
{
    listening->half_open--;
    if (listening->waiting_n == HARP_MESSAGES) {
        harp_session_close(connection->session, listening->engine->now_ns, HARP_REASON_MEMORY,
                           "too many connections wait to be accepted");
        harp_connection_orphan(connection);
        return;
    }
    listening->waiting[listening->waiting_n++] = connection;
    if (listening->fd >= 0)
        (void)!write(listening->fd, &(uint64_t){1}, sizeof(uint64_t));
}

struct harp_connection *harp_accept(struct harp_listening *listening)
{
    struct harp_engine *engine = listening->engine;
    if (engine->generation != harp_generation)
        return NULL;
    struct harp_connection *connection = NULL;
    harp_token_take(engine);
    if (listening->waiting_n) {
        connection = listening->waiting[0];
        memmove(listening->waiting, listening->waiting + 1,
                --listening->waiting_n * sizeof listening->waiting[0]);
        connection->handshake.listening = NULL;
    }
    harp_token_drop(engine);
    return connection;
}

int harp_listening_fd(struct harp_listening *listening)
{
    struct harp_engine *engine = listening->engine;
    if (engine->generation != harp_generation)
        return -1;
    harp_token_take(engine);
    if (listening->fd < 0)
        listening->fd = eventfd(listening->waiting_n, EFD_CLOEXEC | EFD_NONBLOCK);
    harp_token_drop(engine);
    return listening->fd;
}

/* Connections that nobody will accept any more. */
static void close_unaccepted(struct harp_engine *engine, const struct harp_listening *listening)
{
    for (uint32_t i = 0; i < engine->connections.n; i++) {
        struct harp_connection *connection = engine->connections.at[i];
        if (!connection || connection->handshake.listening != listening)
            continue;
        harp_session_close(connection->session, harp_engine_clock(engine), HARP_REASON_DONE,
                           "the listener was closed");
        harp_connection_orphan(connection);
    }
}

void harp_unlisten(struct harp_listening *listening)
{
    struct harp_engine *engine = listening->engine;
    if (engine->generation != harp_generation)
        return;
    harp_token_take(engine);
    close_unaccepted(engine, listening);
    struct harp_listening **at = &engine->listenings;
    while (*at != listening)
        at = &(*at)->next;
    *at = listening->next;
    harp_token_drop(engine);
    harp_engine_ring(engine);
    if (listening->fd >= 0)
        close(listening->fd);
    free(listening);
}
