/* listen, connect, accept and close. None of them waits for the other end.
 *
 *     rank A                                     rank B
 *     listen --> handle, 128 bytes ----NCCL----> connect ... connect --> sending comm
 *     accept ... accept --> receiving comm
 *     closeListen
 *
 * The handle that NCCL passes to connect again and again is the only place to keep an attempt's
 * state in: its id is written there. An attempt that NCCL stops asking for ends after HARP_TIMEOUT.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "plugin.h"

#define HANDLE_MAGIC UINT32_C(0x50524148) /* "HARP" */
#define HANDLE_LAYOUT 4                   /* of the handle and of announcements */
#define ATTEMPTS 4096

struct handle {
    uint32_t magic;
    uint32_t layout;
    uint64_t attempt; /* 0: none yet */
    struct harp_handle harp;
};

_Static_assert(sizeof(struct handle) <= NCCL_HANDLE_BYTES, "a handle does not fit NCCL's");

static enum nccl_result result_of(int error)
{
    return error == -EINVAL ? NCCL_INVALID_ARGUMENT : NCCL_SYSTEM_ERROR;
}

static void configure_connection(const struct device *device, struct harp_connection_config *config)
{
    harp_connection_defaults(config);
    config->paths = device->paths;
    config->traffic_class = (uint8_t)plugin.settings.traffic_class;
    config->dead_ns = plugin_timeout_ns();
    /* GPUs poll the flags of LL and LL128 in messages up to this size. */
    config->read_early_most = buffers_read_early_most();
    config->short_bytes = HARP_SHORT_BYTES;
    config->crc = (enum harp_crc)plugin.settings.crc;
    config->cc = harp_cc_by_name(settings_cc[plugin.settings.cc]);
}

/* What every call that opens something needs: a device whose engines are there. */
static enum nccl_result begin_call(const char *call, int device)
{
    connect_sweep();
    if (plugin.forked)
        return plugin_fail(NCCL_INVALID_USAGE, "%s: a child of fork cannot use HARP", call);
    if (!plugin.ready)
        return plugin_fail(NCCL_INVALID_USAGE, "%s: no init that succeeded came before", call);
    if (device < 0 || device >= plugin.devices_n)
        return plugin_fail(NCCL_INVALID_ARGUMENT, "%s: there are devices 0 to %d, not %d", call,
                           plugin.devices_n - 1, device);
    return engines_open(&plugin.devices[device]);
}

/* ---- listen ---- */

static enum nccl_result begin_to_listen(int number, void *handle, void **listening)
{
    struct handle made = {.magic = HANDLE_MAGIC, .layout = HANDLE_LAYOUT};
    struct harp_connection_config config;
    char why[HARP_WHY_BYTES];
    enum nccl_result result = begin_call("listen", number);
    if (result != NCCL_SUCCESS)
        return result;
    struct device *device = &plugin.devices[number];
    struct comm *comm = comm_new(COMM_LISTENING, device, engines_next(device));
    if (!comm)
        return plugin_fail(NCCL_SYSTEM_ERROR, "listen: no memory");
    configure_connection(device, &config);
    int error = harp_listen(comm->engine, &config, &comm->listening, &made.harp, why);
    if (error) {
        free(comm);
        return plugin_fail(result_of(error), "listen on %s: %s", device->name, why);
    }
    memset(handle, 0, NCCL_HANDLE_BYTES);
    memcpy(handle, &made, sizeof made);
    plugin.open++;
    *listening = comm;
    return NCCL_SUCCESS;
}

enum nccl_result plugin_listen(int device, void *handle, void **listening)
{
    if (!handle || !listening)
        return plugin_fail(NCCL_INVALID_ARGUMENT, "listen: handle or comm is NULL");
    *listening = NULL;
    pthread_mutex_lock(&plugin.lock);
    enum nccl_result result = begin_to_listen(device, handle, listening);
    pthread_mutex_unlock(&plugin.lock);
    return result;
}

/* ---- connect ---- */

static void unlink_attempt(struct attempt *attempt)
{
    struct attempt **at = &plugin.attempts;
    while (*at != attempt)
        at = &(*at)->next;
    *at = attempt->next;
    plugin.attempts_n--;
    free(attempt);
}

static void abandon_attempt(struct attempt *attempt)
{
    comm_let_go(attempt->comm);
    free(attempt->comm);
    unlink_attempt(attempt);
}

/* Which flows of the plan the connection takes, if there is one. */
static void take_planned_flows(const struct device *device, const struct harp_handle *handle,
                               struct harp_connection_config *config)
{
    struct harp_address nics[HARP_PORTS_MAX];
    char peer[64];
    for (uint32_t i = 0; i < device->nics_n; i++)
        nics[i] = device->nics[i]->address;
    if (!plugin.plan.used || plan_connection(&plugin.plan, nics, device->nics_n, handle,
                                             (uint32_t)plugin.settings.paths, config))
        return;
    harp_address_format(&handle->addresses[0], peer, sizeof peer);
    if (!plugin.strayed)
        plugin_warn("HARP_PLAN has no flow from %s to %s, so this connection's paths are hashed "
                    "(told once): follow one plan on all hosts, with HARP_PATHS and HARP_ENGINES "
                    "as harp env --plan says",
                    device->name, peer);
    plugin.strayed = true;
}

/* Whether the listener has a port of a kind that this end has, too. */
static bool has_common_kind(const struct comm *comm, const struct harp_handle *handle)
{
    for (uint32_t i = 0; i < HARP_HANDLE_ADDRESSES; i++)
        if (handle->addresses[i].family &&
            harp_engine_has_family(comm->engine, handle->addresses[i].family))
            return true;
    return false;
}

static int begin_connection(struct comm *comm, int traffic_class, const struct handle *handle,
                            char *why)
{
    struct harp_connection_config config;
    configure_connection(comm->device, &config);
    if (traffic_class >= 0 && traffic_class <= UINT8_MAX)
        config.traffic_class = (uint8_t)traffic_class;
    if (!has_common_kind(comm, &handle->harp)) {
        snprintf(why, HARP_WHY_BYTES,
                 "the other end has ports of another kind: set HARP_PORT alike on all hosts");
        return -EINVAL;
    }
    take_planned_flows(comm->device, &handle->harp, &config);
    int error = harp_connect(comm->engine, &handle->harp, &config, &comm->connection, why);
    if (!error && *why)
        plugin_warn("HARP_PLAN: a path from %s leaves by another UDP port than planned and is "
                    "hashed: %s",
                    comm->device->name, why);
    return error;
}

static enum nccl_result begin_to_connect(int number, int traffic_class, struct handle *handle)
{
    char why[HARP_WHY_BYTES] = "no memory";
    enum nccl_result result = begin_call("connect", number);
    if (result != NCCL_SUCCESS || plugin.attempts_n == ATTEMPTS)
        return result; /* too many at once: NCCL asks again */
    struct device *device = &plugin.devices[number];
    struct comm *comm = comm_new(COMM_SENDING, device, engines_next(device));
    struct attempt *attempt = calloc(1, sizeof *attempt);
    int error = comm && attempt ? begin_connection(comm, traffic_class, handle, why) : -ENOMEM;
    if (error) {
        free(comm);
        free(attempt);
        return plugin_fail(result_of(error), "connect from %s: %s", device->name, why);
    }
    *attempt = (struct attempt){.next = plugin.attempts,
                                .id = ++plugin.attempt_last,
                                .asked_ns = plugin_now_ns(),
                                .comm = comm};
    plugin.attempts = attempt;
    plugin.attempts_n++;
    handle->attempt = attempt->id;
    return NCCL_SUCCESS;
}

/* Whether it has become a connection. */
static enum nccl_result look_after(struct attempt *attempt, struct handle *handle, void **sending)
{
    struct harp_completion completion;
    struct comm *comm = attempt->comm;
    attempt->asked_ns = plugin_now_ns();
    comm_drive(comm);
    if (harp_poll(comm->connection, &completion, 1) == 0)
        return NCCL_SUCCESS;
    handle->attempt = 0;
    if (completion.type != HARP_COMPLETION_CONNECTED) {
        enum nccl_result result = plugin_ended(comm, completion.reason);
        abandon_attempt(attempt);
        return result;
    }
    order_begin(comm);
    unlink_attempt(attempt);
    plugin.open++;
    *sending = comm;
    return NCCL_SUCCESS;
}

static enum nccl_result go_on_connecting(int device, int traffic_class, struct handle *handle,
                                         void **sending)
{
    enum nccl_result result =
        handle->attempt ? NCCL_SUCCESS : begin_to_connect(device, traffic_class, handle);
    if (result != NCCL_SUCCESS || !handle->attempt)
        return result;
    for (struct attempt *at = plugin.attempts; at; at = at->next)
        if (at->id == handle->attempt)
            return look_after(at, handle, sending);
    handle->attempt = 0;
    return plugin_fail(NCCL_REMOTE_ERROR,
                       "connect: NCCL has not asked for this attempt for %llu s; raise "
                       "HARP_TIMEOUT if ranks start that far apart",
                       (unsigned long long)plugin.settings.timeout_s);
}

enum nccl_result plugin_connect(int device, int traffic_class, void *bytes, void **sending)
{
    struct handle handle;
    if (!bytes || !sending)
        return plugin_fail(NCCL_INVALID_ARGUMENT, "connect: handle or comm is NULL");
    *sending = NULL;
    memcpy(&handle, bytes, sizeof handle);
    if (handle.magic != HANDLE_MAGIC || handle.layout != HANDLE_LAYOUT)
        return plugin_fail(NCCL_INVALID_ARGUMENT,
                           "connect: the other rank's handle is not one of this HARP: set "
                           "NCCL_NET_PLUGIN and NCCL_NET=HARP alike, and install the same version "
                           "of HARP, on all hosts");
    pthread_mutex_lock(&plugin.lock);
    enum nccl_result result = go_on_connecting(device, traffic_class, &handle, sending);
    pthread_mutex_unlock(&plugin.lock);
    memcpy(bytes, &handle, sizeof handle);
    return result;
}

/* ---- accept ---- */

/* Who can be accepted is connected: that is a session's first completion. */
static struct harp_connection *take_newcomer(const struct comm *listening)
{
    struct harp_completion completion;
    if (plugin.drives)
        harp_engine_drive(listening->engine);
    struct harp_connection *connection = harp_accept(listening->listening);
    if (connection)
        harp_poll(connection, &completion, 1);
    return connection;
}

static enum nccl_result look_for_newcomer(const struct comm *listening, void **receiving)
{
    struct harp_connection *connection = take_newcomer(listening);
    if (!connection)
        return NCCL_SUCCESS;
    struct comm *comm = comm_new(COMM_RECEIVING, listening->device, listening->engine);
    if (!comm || !order_prepare(comm)) {
        free(comm);
        harp_connection_close(connection);
        return plugin_fail(NCCL_SYSTEM_ERROR, "accept: no memory");
    }
    comm->connection = connection;
    plugin.open++;
    *receiving = comm;
    return NCCL_SUCCESS;
}

enum nccl_result plugin_accept(void *listening, void **receiving)
{
    struct comm *comm = listening;
    if (!comm || comm->kind != COMM_LISTENING || !receiving)
        return plugin_fail(NCCL_INVALID_ARGUMENT, "accept: this is no listening comm");
    *receiving = NULL;
    pthread_mutex_lock(&plugin.lock);
    connect_sweep();
    enum nccl_result result =
        plugin.forked ? plugin_fail(NCCL_INVALID_USAGE, "accept: a child of fork cannot use HARP")
                      : look_for_newcomer(comm, receiving);
    pthread_mutex_unlock(&plugin.lock);
    return result;
}

/* ---- close ---- */

enum nccl_result plugin_close_listen(void *listening)
{
    struct comm *comm = listening;
    if (!comm || comm->kind != COMM_LISTENING)
        return plugin_fail(NCCL_INVALID_ARGUMENT, "closeListen: this is no listening comm");
    pthread_mutex_lock(&plugin.lock);
    plugin.open -= comm->life == plugin.life;
    if (comm->life == plugin.life)
        harp_unlisten(comm->listening);
    free(comm);
    pthread_mutex_unlock(&plugin.lock);
    return NCCL_SUCCESS;
}

/* ---- Attempts that NCCL does not ask for any more ---- */

void connect_sweep(void)
{
    if (plugin.forked)
        return;
    uint64_t now_ns = plugin_now_ns();
    for (struct attempt *at = plugin.attempts, *next; at; at = next) {
        next = at->next;
        if (now_ns - at->asked_ns > plugin_timeout_ns())
            abandon_attempt(at);
    }
    close_sweep();
}

void connect_give_up(void)
{
    while (plugin.attempts && !plugin.forked)
        abandon_attempt(plugin.attempts);
}
