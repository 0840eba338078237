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
#include <sys/random.h>

#include "transport.h"

#define HANDLE_MAGIC UINT32_C(0x50524148) /* "HARP" */
#define HANDLE_LAYOUT 3                   /* of the handle and of announcements */
#define ATTEMPTS 4096

struct handle {
    uint32_t magic;
    uint32_t layout;
    uint64_t attempt;        /* 0: none yet */
    struct harp_handle harp; /* without a session the secret and the NIC's address alone */
    uint16_t tcp_port;       /* on the first address; 0: no TCP */
    uint8_t transport_flags; /* as transport_choice_flags says */
    uint8_t zero[5];
};

_Static_assert(sizeof(struct handle) <= NCCL_HANDLE_BYTES, "a handle does not fit NCCL's");

static enum nccl_result result_of(int error)
{
    return error == -EINVAL ? NCCL_INVALID_ARGUMENT : NCCL_SYSTEM_ERROR;
}

/* HARP_PATHS of each NIC. */
static uint16_t count_paths(const struct device *device)
{
    uint64_t paths = plugin.settings.paths * device->nics_n;
    return (uint16_t)(paths < HARP_PATHS_MAX ? paths : HARP_PATHS_MAX);
}

static void configure_connection(const struct device *device, struct harp_connection_config *config)
{
    harp_connection_defaults(config);
    config->paths = count_paths(device);
    config->traffic_class = (uint8_t)plugin.settings.traffic_class;
    config->dead_ns = plugin_timeout_ns();
    /* GPUs poll the flags of LL and LL128 in messages up to this size. */
    config->read_early_most = transport_choice_staged_most();
    config->cc = harp_cc_by_name(settings_cc[plugin.settings.cc]);
}

static void configure_tcp(const struct device *device, int traffic_class, struct tcp_config *config)
{
    bool defined = traffic_class >= 0 && traffic_class <= UINT8_MAX;
    *config = (struct tcp_config){
        .sockets = device->sockets,
        .staged_most = transport_choice_staged_most(),
        .timeout_s = (uint32_t)plugin.settings.timeout_s,
        .mtu = (uint32_t)plugin.settings.mtu,
        .traffic_class = (uint8_t)(defined ? traffic_class : (int)plugin.settings.traffic_class)};
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
    return transport_choice_open(&plugin.devices[device]);
}

/* ---- listen ---- */

/* For sessions, if the device has engines. */
static int offer_session(struct comm *comm, struct handle *handle, char *why)
{
    struct harp_connection_config config;
    if (comm->engine) {
        configure_connection(comm->device, &config);
        return harp_listen(comm->engine, &config, &comm->listening, &handle->harp, why);
    }
    while (getrandom(handle->harp.secret, sizeof handle->harp.secret, 0) !=
           sizeof handle->harp.secret)
        ; /* only a signal interrupts it */
    handle->harp.addresses[0] = comm->device->nics[0]->address;
    return 0;
}

static int offer_tcp(struct comm *comm, struct handle *handle, char *why)
{
    struct tcp_config config;
    if (!transport_choice_offers_tcp(comm->device))
        return 0;
    configure_tcp(comm->device, NCCL_UNDEFINED, &config);
    return tcp_listen(&config, &comm->device->nics[0]->address, handle->harp.secret,
                      &comm->tcp_listening, &handle->tcp_port, why);
}

static void stop_listening(struct comm *comm)
{
    if (comm->tcp_listening)
        tcp_unlisten(comm->tcp_listening);
    if (comm->listening && comm->life == plugin.life)
        harp_unlisten(comm->listening);
    free(comm);
}

static enum nccl_result begin_to_listen(int number, void *handle, void **listening)
{
    struct handle made = {.magic = HANDLE_MAGIC, .layout = HANDLE_LAYOUT};
    char why[HARP_WHY_BYTES];
    enum nccl_result result = begin_call("listen", number);
    if (result != NCCL_SUCCESS)
        return result;
    struct device *device = &plugin.devices[number];
    struct comm *comm = comm_new(COMM_LISTENING, device, engines_next(device));
    if (!comm)
        return plugin_fail(NCCL_SYSTEM_ERROR, "listen: no memory");
    int error = offer_session(comm, &made, why);
    if (!error)
        error = offer_tcp(comm, &made, why);
    if (error) {
        stop_listening(comm);
        return plugin_fail(result_of(error), "listen on %s: %s", device->name, why);
    }
    made.transport_flags = transport_choice_flags(device);
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

static int connect_session(struct comm *comm, int traffic_class, const struct handle *handle,
                           char *why)
{
    struct harp_connection_config config;
    configure_connection(comm->device, &config);
    if (traffic_class >= 0 && traffic_class <= UINT8_MAX)
        config.traffic_class = (uint8_t)traffic_class;
    take_planned_flows(comm->device, &handle->harp, &config);
    int error = harp_connect(comm->engine, &handle->harp, &config, &comm->connection, why);
    if (!error && *why)
        plugin_warn("HARP_PLAN: a path from %s leaves by another UDP port than planned and is "
                    "hashed: %s",
                    comm->device->name, why);
    return error;
}

static int connect_tcp(struct comm *comm, int traffic_class, const struct handle *handle, char *why)
{
    struct tcp_config config;
    struct harp_address peer = handle->harp.addresses[0];
    peer.port = handle->tcp_port;
    configure_tcp(comm->device, traffic_class, &config);
    return tcp_connect(&config, &comm->device->nics[0]->address, &peer, handle->harp.secret,
                       &comm->tcp, why);
}

/* A transport is taken if both ends ask for it, or one of them leaves the choice to the other. */
static int connect_by_chosen_transport(struct comm *comm, int traffic_class,
                                       const struct handle *handle, char *why)
{
    enum transport transport = transport_choice_meet(comm->device, handle->transport_flags);
    if (transport == TRANSPORT_TCP)
        return connect_tcp(comm, traffic_class, handle, why);
    if (transport == TRANSPORT_SESSION)
        return connect_session(comm, traffic_class, handle, why);
    snprintf(why, HARP_WHY_BYTES,
             "HARP_PORT is %s here and %s at the other rank: set it alike, or leave it to auto",
             comm->device->transport == TRANSPORT_TCP ? "tcp" : "xdp, udp or mem",
             comm->device->transport == TRANSPORT_TCP ? "xdp, udp or mem" : "tcp");
    return -EINVAL;
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
    int error =
        comm && attempt ? connect_by_chosen_transport(comm, traffic_class, handle, why) : -ENOMEM;
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
    transport_drive(comm, true);
    if (transport_poll(comm, &completion, 1) == 0)
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
static struct harp_connection *accept_session(const struct comm *listening)
{
    struct harp_completion completion;
    if (!listening->listening)
        return NULL;
    if (plugin.drives)
        harp_engine_drive(listening->engine);
    struct harp_connection *connection = harp_accept(listening->listening);
    if (connection)
        harp_poll(connection, &completion, 1);
    return connection;
}

static enum nccl_result look_for_newcomer(const struct comm *listening, void **receiving)
{
    struct tcp_connection *tcp =
        listening->tcp_listening ? tcp_accept(listening->tcp_listening) : NULL;
    struct harp_connection *connection = tcp ? NULL : accept_session(listening);
    if (!tcp && !connection)
        return NCCL_SUCCESS;
    struct comm *comm = comm_new(COMM_RECEIVING, listening->device, listening->engine);
    if (!comm || !order_prepare(comm)) {
        free(comm);
        if (tcp)
            tcp_close(tcp, NULL);
        else
            harp_connection_close(connection);
        return plugin_fail(NCCL_SYSTEM_ERROR, "accept: no memory");
    }
    comm->tcp = tcp;
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
    stop_listening(comm);
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
