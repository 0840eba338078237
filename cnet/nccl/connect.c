/* listen, connect, accept and close. None of them waits for the other end.
 *
 *     rank A                                     rank B
 *     listen --> handle, 128 bytes ----NCCL----> connect ... connect --> sending comm
 *     accept ... accept --> receiving comm
 *     closeListen
 *
 * The handle that NCCL passes to connect again and again is the only place to keep an attempt's
 * state in: its id is written there. An attempt that NCCL stops asking for ends after HARP_TIMEOUT.
 *
 * Where both ends have two kinds of ports, a trial comes first (trial.h). A file keeps its result
 * for other ranks and later jobs (trial_cache.h). Every call here serves the listening end of
 * trials: NCCL's older versions call nothing but connect until the connection is made.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "plugin.h"
#include "trial_cache.h"

#define HANDLE_MAGIC UINT32_C(0x50524148) /* "HARP" */
#define HANDLE_LAYOUT 6                   /* of the handle and of what follows a connect */
#define ATTEMPTS 4096
#define ELSEWHERE_NS UINT64_C(10000000000) /* to wait for another rank's trial, at most */
/* Between two looks at listeners that nobody has come to: a rank may have hundreds. */
#define SWEEP_NS UINT64_C(1000000)

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

/* A listener's paths are as many as the port with the most asks for. */
static uint16_t paths_of_listener(const struct device *device)
{
    uint16_t paths = port_choice_paths(device, device->port);
    uint16_t flows = device->has_both ? port_choice_paths(device, PORT_TCP) : 0;
    return paths > flows ? paths : flows;
}

static void configure_connection(const struct device *device, struct harp_connection_config *config)
{
    harp_connection_defaults(config);
    config->paths = paths_of_listener(device);
    config->traffic_class = (uint8_t)plugin.settings.traffic_class;
    config->dead_ns = plugin_timeout_ns();
    /* GPUs poll the flags of LL and LL128 in messages up to this size. */
    config->read_early_most = buffers_read_early_most();
    config->short_bytes = HARP_SHORT_BYTES;
    config->crc = (enum harp_crc)plugin.settings.crc;
    config->cc = harp_cc_by_name(settings_cc[plugin.settings.cc]);
}

/* Every call that opens something needs a device with its engines. */
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
    comm->expects_openings = trial_is_due(&made.harp);
    comm->next = plugin.listening;
    plugin.listening = comm;
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

static void end_trial(struct attempt *attempt, const struct trial_result *result,
                      const struct harp_address *peer)
{
    const struct nic *nic = attempt->comm->device->nics[0];
    if (attempt->trial)
        trial_end(attempt->trial);
    attempt->trial = NULL;
    if (attempt->cache_lock >= 0)
        trial_cache_write(attempt->cache_lock, &nic->address, peer, result);
    attempt->cache_lock = -1;
}

static void abandon_attempt(struct attempt *attempt)
{
    end_trial(attempt, NULL, NULL);
    comm_let_go(attempt->comm);
    free(attempt->comm);
    unlink_attempt(attempt);
}

/* Choose the flows of the plan that the connection takes, if there is a plan. */
static void take_planned_flows(const struct device *device, const struct harp_handle *handle,
                               struct harp_connection_config *config)
{
    struct harp_address nics[HARP_PORTS_MAX];
    char peer[64];
    const char *why;
    uint32_t paths = device->port == PORT_TCP ? port_choice_flows(device->nics[0], &why)
                                              : (uint32_t)plugin.settings.paths;
    for (uint32_t i = 0; i < device->nics_n; i++)
        nics[i] = device->nics[i]->address;
    if (!plugin.plan.used ||
        plan_connection(&plugin.plan, nics, device->nics_n, handle, paths, config))
        return;
    harp_address_format(&handle->addresses[0], peer, sizeof peer);
    if (!plugin.strayed)
        plugin_warn("HARP_PLAN has no flow from %s to %s, so this connection's paths are hashed "
                    "(said once): follow one plan on all hosts, with HARP_PATHS and HARP_ENGINES "
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

/* Begin the connection by ports of this family; 0: by the first that leads there. */
static int begin_connection(struct comm *comm, int traffic_class, const struct harp_handle *handle,
                            uint8_t family, char *why)
{
    struct harp_connection_config config;
    configure_connection(comm->device, &config);
    config.paths =
        port_choice_paths(comm->device, family == HARP_TCP ? PORT_TCP : comm->device->port);
    config.family = family;
    if (traffic_class >= 0 && traffic_class <= UINT8_MAX)
        config.traffic_class = (uint8_t)traffic_class;
    if (!has_common_kind(comm, handle)) {
        snprintf(why, HARP_WHY_BYTES,
                 "the other end has ports of another kind: set HARP_PORT alike on all hosts");
        return -EINVAL;
    }
    take_planned_flows(comm->device, handle, &config);
    int error = harp_connect(comm->engine, handle, &config, &comm->connection, why);
    if (!error && *why)
        plugin_warn("HARP_PLAN: a path from %s leaves by another port than planned and is "
                    "hashed: %s",
                    comm->device->name, why);
    return error;
}

/* One line about a trial, with the peer's address and no port. */
static void say_result(const struct comm *comm, const struct harp_address *peer,
                       const struct trial_result *result, const char *whence)
{
    char host[64], than[64];
    struct harp_address address = *peer;
    enum settings_port won = result->family == HARP_TCP ? PORT_TCP : comm->device->port;
    enum settings_port lost = result->family == HARP_TCP ? comm->device->port : PORT_TCP;
    address.family = HARP_INET;
    address.port = 0;
    harp_address_format(&address, host, sizeof host);
    if (result->percent)
        snprintf(than, sizeof than, "%u.%02u times %s", result->percent / 100,
                 result->percent % 100, port_choice_name(lost));
    else
        snprintf(than, sizeof than, "%s brings no message in time", port_choice_name(lost));
    plugin_info_of(comm->device, "data to %s over %s, %s (%s%s: %s)", host, port_choice_name(won),
                   comm->device->name, settings_ports[plugin.settings.port], whence, than);
}

/* Family of the ports that this end takes if nothing was tried; 0: any. */
static uint8_t family_untried(const struct device *device, const struct harp_handle *handle)
{
    bool packets = !device->has_both;
    for (uint32_t i = 0; i < HARP_HANDLE_ADDRESSES; i++)
        packets |= handle->addresses[i].family == HARP_INET;
    return packets ? 0 : HARP_TCP;
}

static bool may_begin_trial(void)
{
    uint32_t busy = 0;
    for (const struct attempt *at = plugin.attempts; at; at = at->next)
        busy += at->trial && trial_is_busy(at->trial);
    return busy < TRIALS;
}

/* Whether another rank's trial of the same two hosts has had its time. */
static bool is_elsewhere_over(struct attempt *attempt)
{
    uint64_t now_ns = harp_clock_ns();
    if (!attempt->elsewhere_ns)
        attempt->elsewhere_ns = now_ns;
    return now_ns - attempt->elsewhere_ns > ELSEWHERE_NS;
}

/* Choose the ports that carry the connection. Returns whether they are known; *family 0: any. */
static bool decide_family(struct attempt *attempt, const struct harp_handle *handle,
                          uint8_t *family)
{
    struct comm *comm = attempt->comm;
    const struct nic *nic = comm->device->nics[0];
    const struct harp_address *peer = &handle->addresses[0];
    struct harp_connection_config config;
    struct trial_result result;
    *family = family_untried(comm->device, handle);
    if (!comm->device->has_both || !trial_is_due(handle))
        return true;
    if (attempt->trial) {
        if (!trial_step(attempt->trial, &result))
            return false;
        end_trial(attempt, result.family ? &result : NULL, peer);
        if (result.family)
            say_result(comm, peer, &result, "");
        *family = result.family;
        return true;
    }
    if (!may_begin_trial())
        return false;
    switch (trial_cache_read(&nic->address, peer, nic->card, &attempt->cache_lock, &result)) {
    case TRIAL_CACHED:
        if (!comm->device->said_cached) /* a job has hundreds of peers */
            say_result(comm, peer, &result, ", tried before");
        comm->device->said_cached = true;
        *family = result.family;
        return true;
    case TRIAL_ELSEWHERE:
        return is_elsewhere_over(attempt);
    case TRIAL_DUE:
        break;
    }
    configure_connection(comm->device, &config);
    attempt->trial = trial_begin(comm->engine, handle, &config);
    return !attempt->trial;
}

static enum nccl_result begin_to_connect(int number, int traffic_class, struct handle *handle)
{
    enum nccl_result result = begin_call("connect", number);
    if (result != NCCL_SUCCESS || plugin.attempts_n == ATTEMPTS)
        return result; /* too many at once: NCCL asks again */
    struct device *device = &plugin.devices[number];
    struct comm *comm = comm_new(COMM_SENDING, device, engines_next(device));
    struct attempt *attempt = calloc(1, sizeof *attempt);
    if (!comm || !attempt) {
        free(comm);
        free(attempt);
        return plugin_fail(NCCL_SYSTEM_ERROR, "connect from %s: no memory", device->name);
    }
    *attempt = (struct attempt){.next = plugin.attempts,
                                .id = ++plugin.attempt_last,
                                .begun_ns = harp_clock_ns(),
                                .asked_ns = harp_clock_ns(),
                                .comm = comm,
                                .traffic_class = traffic_class,
                                .cache_lock = -1};
    plugin.attempts = attempt;
    plugin.attempts_n++;
    handle->attempt = attempt->id;
    return NCCL_SUCCESS;
}

/* Take the steps before its connection is there. Returns whether it is. */
static enum nccl_result look_at_ports(struct attempt *attempt, struct handle *handle, bool *begun)
{
    struct comm *comm = attempt->comm;
    char why[HARP_WHY_BYTES];
    uint8_t family;
    *begun = comm->connection != NULL;
    if (*begun || !decide_family(attempt, &handle->harp, &family))
        return NCCL_SUCCESS;
    int error = begin_connection(comm, attempt->traffic_class, &handle->harp, family, why);
    *begun = !error;
    if (!error)
        return NCCL_SUCCESS;
    handle->attempt = 0;
    plugin_fail(NCCL_SYSTEM_ERROR, "connect from %s: %s", comm->device->name, why);
    abandon_attempt(attempt);
    return result_of(error);
}

/* Whether it has become a connection. */
static enum nccl_result look_after(struct attempt *attempt, struct handle *handle, void **sending)
{
    struct harp_completion completion;
    struct comm *comm = attempt->comm;
    bool begun;
    attempt->asked_ns = harp_clock_ns();
    enum nccl_result result = look_at_ports(attempt, handle, &begun);
    if (result != NCCL_SUCCESS || !begun)
        return result;
    comm_drive(comm);
    if (harp_poll(comm->connection, &completion, 1) == 0)
        return NCCL_SUCCESS;
    handle->attempt = 0;
    bool opened = completion.type == HARP_COMPLETION_CONNECTED &&
                  (!trial_is_due(&handle->harp) || trial_open_data(comm->connection));
    if (!opened) {
        result = plugin_ended(comm, completion.reason);
        abandon_attempt(attempt);
        return result;
    }
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

/* A connection that can be accepted is connected: that is a session's first completion. */
static struct harp_connection *accept_connected(const struct comm *listening)
{
    struct harp_completion completion;
    if (plugin.drives)
        harp_engine_drive(listening->engine);
    struct harp_connection *connection = harp_accept(listening->listening);
    if (connection)
        harp_poll(connection, &completion, 1);
    return connection;
}

static void list_newcomer(struct comm *listening, struct harp_connection *connection)
{
    struct listed_newcomer *listed = calloc(1, sizeof *listed);
    struct newcomer *newcomer = listed ? newcomer_new(listening->engine, connection) : NULL;
    if (!newcomer) {
        free(listed);
        harp_connection_close(connection);
        return;
    }
    *listed = (struct listed_newcomer){.next = listening->newcomers, .newcomer = newcomer};
    listening->newcomers = listed;
}

static void unlist_newcomer(struct listed_newcomer **at)
{
    struct listed_newcomer *listed = *at;
    *at = listed->next;
    newcomer_end(listed->newcomer);
    free(listed);
}

/* Go on with the newcomers of a listener. Returns the first connection that is for NCCL, if it is
 * wanted; else it stays in the list. */
static struct harp_connection *serve_newcomers(struct comm *listening, bool wanted)
{
    struct harp_connection *connection = NULL;
    listening->serves = false;
    for (struct harp_connection *made; (made = accept_connected(listening));)
        list_newcomer(listening, made);
    for (struct listed_newcomer **at = &listening->newcomers; *at && !connection;) {
        enum newcomer_state state = newcomer_step((*at)->newcomer);
        listening->serves |= state == NEWCOMER_RUNS;
        if (state == NEWCOMER_DATA && wanted)
            connection = newcomer_take((*at)->newcomer);
        if (state == NEWCOMER_OVER || connection)
            unlist_newcomer(at);
        else
            at = &(*at)->next;
    }
    return connection;
}

static enum nccl_result look_for_newcomer(struct comm *listening, void **receiving)
{
    struct harp_connection *connection = listening->expects_openings
                                             ? serve_newcomers(listening, true)
                                             : accept_connected(listening);
    if (!connection)
        return NCCL_SUCCESS;
    struct comm *comm = comm_new(COMM_RECEIVING, listening->device, listening->engine);
    if (!comm) {
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

static void forget_listener(struct comm *listening)
{
    struct comm **at = &plugin.listening;
    while (*at && *at != listening)
        at = &(*at)->next;
    if (*at)
        *at = listening->next;
    while (listening->newcomers)
        unlist_newcomer(&listening->newcomers);
}

enum nccl_result plugin_close_listen(void *listening)
{
    struct comm *comm = listening;
    if (!comm || comm->kind != COMM_LISTENING)
        return plugin_fail(NCCL_INVALID_ARGUMENT, "closeListen: this is no listening comm");
    pthread_mutex_lock(&plugin.lock);
    plugin.open -= comm->life == plugin.life;
    forget_listener(comm);
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
    uint64_t now_ns = harp_clock_ns();
    for (struct attempt *at = plugin.attempts, *next; at; at = next) {
        next = at->next;
        if (now_ns - at->asked_ns > plugin_timeout_ns())
            abandon_attempt(at);
    }
    bool all = now_ns - plugin.swept_ns >= SWEEP_NS;
    for (struct comm *at = plugin.listening; at; at = at->next)
        if (at->life == plugin.life && at->expects_openings && (all || at->serves))
            serve_newcomers(at, false);
    if (all)
        plugin.swept_ns = harp_clock_ns();
    close_sweep();
}

void connect_give_up(void)
{
    while (plugin.attempts && !plugin.forked)
        abandon_attempt(plugin.attempts);
    for (struct comm *at = plugin.listening; at && !plugin.forked; at = at->next)
        while (at->newcomers)
            unlist_newcomer(&at->newcomers);
}
