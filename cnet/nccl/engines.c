/* Engines of a device: their ports and CPUs. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "engines_auto.h"
#include "plugin.h"

#define XDP_FRAMES 8192
#define UDP_FRAMES 256 /* of control only: payload goes between the port's memory and NCCL's */
#define FRAME_BYTES 4096
#define CONNECTIONS 16384
#define DRAIN_NS UINT64_C(500000000) /* for all engines together */
/* NCCL's thread may be off its CPU for so long while others have it. A helper that came sooner
 * would fall asleep and be woken by each turn of NCCL's. */
#define QUIET_NS UINT64_C(2000000)

static void before_fork(void)
{
    pthread_mutex_lock(&plugin.lock);
}

static void after_fork(void)
{
    pthread_mutex_unlock(&plugin.lock);
}

static void in_child(void)
{
    plugin.forked = true;
    pthread_mutex_unlock(&plugin.lock);
}

static void set_fork_handlers(void)
{
    pthread_atfork(before_fork, after_fork, in_child);
}

/* After an engine's own handlers were set: so ours take their lock first, as all callers do. */
void engines_watch_forks(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, set_fork_handlers);
}

/* Engines of the devices before this one, so that all take the CPUs of HARP_CPUS in turn. */
static uint32_t count_engines_before(const struct device *device)
{
    uint32_t n = 0;
    for (const struct device *at = plugin.devices; at < device; at++)
        n += at->engines_n;
    return n;
}

static void configure_port(const struct nic *nic, enum settings_port kind, uint16_t listen_port,
                           struct harp_engine_port *port)
{
    const struct settings *settings = &plugin.settings;
    const char *why;
    port->faults = *settings->faults ? settings->faults : NULL;
    port->config.locals =
        (uint16_t)(kind == PORT_TCP ? port_choice_flows(nic, &why) : settings->paths);
    port->open = harp_port_mem_open;
    if (kind == PORT_MEM)
        return;
    port->open = kind == PORT_XDP   ? harp_port_xdp_open
                 : kind == PORT_TCP ? harp_port_tcp_open
                                    : harp_port_udp_open;
    port->config.interface = nic->name;
    port->config.local = nic->address;
    port->config.local.port = listen_port;
    port->config.mtu = (uint32_t)settings->mtu;
    port->config.queue = -1;
    port->config.copy_only = settings->xdp == XDP_COPY;
    port->config.busy_poll_us = (uint32_t)settings->busy_poll_us;
}

static void configure_engine(const struct device *device, uint32_t index, enum settings_port kind,
                             bool planned, struct harp_engine_config *config)
{
    const struct settings *settings = &plugin.settings;
    uint32_t of_process = count_engines_before(device) + index;
    harp_engine_defaults(config);
    config->name = device->name;
    config->progress = plugin.drives ? HARP_PROGRESS_INLINE : HARP_PROGRESS_THREAD;
    config->quiet_ns = QUIET_NS;
    if (settings->cpus.n)
        config->cpu = settings->cpus.cpu[of_process % settings->cpus.n];
    config->node = device->nics[0]->node;
    config->frames = (kind == PORT_XDP ? XDP_FRAMES : UDP_FRAMES) * device->nics_n;
    config->frame_bytes = FRAME_BYTES;
    config->connections = CONNECTIONS;
    config->dump = *settings->dump ? settings->dump : NULL;
    config->ports_n = device->nics_n;
    for (uint32_t i = 0; i < device->nics_n; i++) {
        const struct harp_address *nic = &device->nics[i]->address;
        uint16_t listen_port = planned ? plan_listen_port(&plugin.plan, nic, index) : 0;
        configure_port(device->nics[i], kind, listen_port, &config->ports[i]);
    }
}

/* Ports for ranks that have no xdp, behind those of xdp: what both ends have first is taken. */
static void add_tcp_ports(const struct device *device, struct harp_engine_config *config)
{
    for (uint32_t i = 0; i < device->nics_n; i++)
        configure_port(device->nics[i], PORT_TCP, 0, &config->ports[config->ports_n++]);
}

/* Whether xdp is worth trying where nobody asks for it. With a copy it loses to udp, since the
 * kernel takes and gives many packets of udp at once. Only a real card's driver copies nothing. */
static bool may_have_zero_copy(const struct device *device, char *why)
{
    for (uint32_t i = 0; i < device->nics_n; i++) {
        if (*device->nics[i]->pci)
            continue;
        snprintf(why, HARP_WHY_BYTES, "a virtual interface has no zero copy");
        return false;
    }
    snprintf(why, HARP_WHY_BYTES, "HARP_XDP asks for a copy");
    return plugin.settings.xdp == XDP_BEST;
}

/* `auto` by xdp, if that is possible without a copy. */
static int open_without_copies(struct device *device, uint32_t index, bool planned, char *why)
{
    struct harp_engine_config config;
    if (!may_have_zero_copy(device, why))
        return -EOPNOTSUPP;
    configure_engine(device, index, PORT_XDP, planned, &config);
    for (uint32_t i = 0; i < config.ports_n; i++)
        config.ports[i].config.zero_copy_only = true;
    if (port_choice_has_tcp(&plugin.settings))
        add_tcp_ports(device, &config);
    return harp_engine_open(&device->engines[index], &config, why);
}

/* Open one engine by the port that the settings say; `not_xdp`: why `auto` did not take xdp. */
static int open_one(struct device *device, uint32_t index, bool planned, char *why, char *not_xdp)
{
    struct harp_engine_config config;
    bool has_tcp = port_choice_has_tcp(&plugin.settings);
    *not_xdp = 0;
    if (plugin.settings.port == PORT_AUTO &&
        open_without_copies(device, index, planned, not_xdp) == 0) {
        *not_xdp = 0;
        device->port = PORT_XDP;
        device->has_both = has_tcp;
        return 0;
    }
    device->port = port_choice_first(&plugin.settings);
    device->has_both = has_tcp && device->port != PORT_TCP;
    configure_engine(device, index, device->port, planned, &config);
    if (device->has_both)
        add_tcp_ports(device, &config);
    return harp_engine_open(&device->engines[index], &config, why);
}

/* The same, on the ports that the plan says if they can be had, else on any. */
static int open_as_planned(struct device *device, uint32_t index, char *why, char *not_xdp)
{
    int error = open_one(device, index, true, why, not_xdp);
    if (error != -EADDRINUSE || !plugin.plan.used)
        return error;
    plugin_warn("HARP_PLAN: %s listens on another port than planned, and paths to it are "
                "hashed: %s",
                device->name, why);
    return open_one(device, index, false, why, not_xdp);
}

/* The queues that each NIC of a device has; 0: unknown. */
static uint32_t count_queues(const struct device *device)
{
    uint32_t least = UINT32_MAX;
    for (uint32_t i = 0; i < device->nics_n; i++)
        least = device->nics[i]->queues < least ? device->nics[i]->queues : least;
    return least;
}

static uint32_t count_devices_in_use(void)
{
    uint32_t n = 0;
    for (int i = 0; i < plugin.devices_n; i++)
        n += !plugin.devices[i].is_part;
    return n;
}

static void decide_progress(const struct engines_host *host)
{
    bool threads = engines_auto_threads(host, plugin.progress_why);
    plugin.drives = plugin.settings.progress == PROGRESS_INLINE ||
                    (plugin.settings.progress == PROGRESS_AUTO && !threads);
    if (plugin.settings.progress == PROGRESS_THREADS && !threads)
        plugin_warn("HARP_PROGRESS=threads, but %s: the engine's thread takes time from NCCL's, "
                    "which makes both slower; give this rank more CPUs, or set "
                    "HARP_PROGRESS=inline",
                    plugin.progress_why);
    if (plugin.settings.progress != PROGRESS_AUTO)
        snprintf(plugin.progress_why, sizeof plugin.progress_why, "HARP_PROGRESS");
}

static void decide_how_many(struct device *device, const struct cores *cores)
{
    struct engines_host host = {
        .speed_mbps = device->speed_mbps,
        .cpus = cores_of_rank(cores),
        .engine_cpus = plugin.settings.cpus.n,
        .devices = count_devices_in_use(),
        .queues = plugin.settings.port == PORT_XDP || plugin.settings.port == PORT_AUTO ||
                          plugin.settings.port == PORT_XDP_OR_TCP
                      ? count_queues(device)
                      : 0,
    };
    if (!*plugin.progress_why)
        decide_progress(&host);
    host.drives_inline = plugin.drives;
    device->engines_n = engines_auto(&host, PLUGIN_ENGINES, device->engines_why);
    if (!plugin.settings.engines)
        return;
    device->engines_n = (uint32_t)plugin.settings.engines;
    snprintf(device->engines_why, sizeof device->engines_why, "HARP_ENGINES");
}

/* How engines are driven, and how many each device is to have: of all, since they take CPUs in
 * turn. */
static void decide_engines(void)
{
    struct cores cores;
    cores_find(&cores);
    for (int i = 0; i < plugin.devices_n; i++)
        if (!plugin.devices[i].engines_n)
            decide_how_many(&plugin.devices[i], &cores);
}

/* One short line that says what carries the data; then its reasons, a line each. */
static void say_what_carries(const struct device *device, const char *not_xdp)
{
    const char *asked = settings_ports[plugin.settings.port], *flows_why = "HARP_PATHS";
    uint16_t paths = port_choice_paths(device, device->port);
    bool is_auto = plugin.settings.port == PORT_AUTO;
    if (device->port == PORT_TCP)
        port_choice_flows(device->nics[0], &flows_why);
    if (device->has_both)
        plugin_info_of(device,
                       "data over %s or kernel TCP, %s (%s: a trial with each host decides)",
                       port_choice_name(device->port), device->name, asked);
    else
        plugin_info_of(device, "data over %s, %u path%s, %s (%s%s)", port_choice_name(device->port),
                       paths, paths > 1 ? "s" : "", device->name, is_auto ? "auto" : "HARP_PORT",
                       is_auto && *not_xdp ? ": xdp has no zero copy here" : "");
    if (*not_xdp)
        plugin_info_of(device, "%s: not xdp: %s", device->name, not_xdp);
    plugin_info_of(device, "%s: paths %u: %s", device->name, paths, flows_why);
    plugin_info_of(device, "%s: engines %u: %s", device->name, device->engines_n,
                   device->engines_why);
    plugin_info_of(device, "%s: %s: %s", device->name,
                   plugin.drives ? "engines driven inline" : "engines with a thread of their own",
                   plugin.progress_why);
}

static void say_which(const struct device *device, uint32_t index)
{
    const struct harp_engine *engine = device->engines[index];
    for (uint32_t i = 1; harp_engine_line(engine, i); i++)
        plugin_info_of(device, "%s, engine %u of %u: %s", device->name, index + 1,
                       device->engines_n, harp_engine_line(engine, i));
}

enum nccl_result engines_open(struct device *device)
{
    char why[HARP_WHY_BYTES], not_xdp[HARP_WHY_BYTES];
    if (!device->engines_n)
        decide_engines();
    for (uint32_t i = 0; i < device->engines_n; i++) {
        if (device->engines[i])
            continue;
        if (open_as_planned(device, i, why, not_xdp) != 0) {
            device->engines[i] = NULL;
            return plugin_fail(NCCL_SYSTEM_ERROR, "%s cannot be used: %s", device->name, why);
        }
        engines_watch_forks();
        if (i == 0)
            say_what_carries(device, not_xdp);
        say_which(device, i);
    }
    return NCCL_SUCCESS;
}

struct harp_engine *engines_next(struct device *device)
{
    return device->engines_n ? device->engines[device->next++ % device->engines_n] : NULL;
}

/* Until other ranks have heard of all that was closed. Engines go on meanwhile, so the waits for
 * several of them overlap. */
static void drain_all(void)
{
    uint64_t until_ns = harp_clock_ns() + DRAIN_NS;
    for (int d = 0; d < plugin.devices_n; d++) {
        for (uint32_t i = 0; i < PLUGIN_ENGINES; i++) {
            uint64_t now_ns = harp_clock_ns();
            if (plugin.devices[d].engines[i] && now_ns < until_ns)
                harp_engine_drain(plugin.devices[d].engines[i], until_ns - now_ns);
        }
    }
}

void engines_close(void)
{
    if (!plugin.forked)
        drain_all();
    for (int d = 0; d < plugin.devices_n; d++) {
        for (uint32_t i = 0; i < PLUGIN_ENGINES; i++) {
            struct harp_engine *engine = plugin.devices[d].engines[i];
            plugin.devices[d].engines[i] = NULL;
            if (engine)
                harp_engine_close(engine);
        }
    }
}
