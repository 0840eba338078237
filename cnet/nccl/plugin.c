#define _GNU_SOURCE
#include "plugin.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/descriptors.h"

#define DESCRIPTORS_WANTED 16384 /* 16 flows, as on AWS, each way to each of 512 peers */
#define SPEED_UNKNOWN_MBPS 10000 /* what NCCL takes itself then */
#define LATENCY_UNKNOWN 0.0f     /* NCCL takes its own figure for networks then */

static void say_device(int number)
{
    const struct device *device = &plugin.devices[number];
    char addresses[HARP_PORTS_MAX * 64] = "";
    size_t used = 0;
    for (uint32_t i = 0; plugin.settings.port != PORT_MEM && i < device->nics_n; i++) {
        char address[60];
        harp_address_format(&device->nics[i]->address, address, sizeof address);
        used += (size_t)snprintf(addresses + used, sizeof addresses - used, ", %s", address);
    }
    plugin_info("device %d is %s%s", number, device->name, addresses);
}

/* A rank of a large job has several flows of TCP to each peer. */
static void raise_descriptor_limit(void)
{
    uint64_t descriptors = harp_descriptors_raise();
    if (descriptors < DESCRIPTORS_WANTED)
        plugin_warn("this process may open %" PRIu64 " files at most, enough for %" PRIu64
                    " peers of 16 flows each way: a large job needs more; raise the hard limit "
                    "(ulimit -Hn, LimitNOFILE= of a unit, --ulimit nofile= of a container)",
                    descriptors, descriptors / 32);
}

/* NCCL can encrypt its own sockets (from 2.32 on, where it is built for it); whoever asks for that
 * may believe that it covers these connections, too. */
static void warn_of_encryption(void)
{
    for (char **at = environ; *at; at++) {
        int length = (int)strcspn(*at, "=");
        bool meant = strncmp(*at, "NCCL_", 5) == 0 && (memmem(*at, (size_t)length, "TLS", 3) ||
                                                       memmem(*at, (size_t)length, "ENCRYPT", 7));
        if (meant)
            plugin_warn("%.*s is set, and is for NCCL's own sockets: HARP authenticates its "
                        "connections and encrypts none; NCCL_NET=Socket does without HARP",
                        length, *at);
    }
}

/* Settings and devices are read once, by the first communicator. */
static enum nccl_result start_plugin(void)
{
    char why[SETTINGS_TEXT_BYTES];
    if (!settings_read(&plugin.settings, plugin_warn, why, sizeof why) ||
        !port_choice_fits(&plugin.settings, why, sizeof why))
        return plugin_fail(NCCL_INVALID_USAGE, "%s", why);
    *plugin.progress_why = 0;
    raise_descriptor_limit();
    warn_of_encryption();
    enum nccl_result result = devices_find();
    plugin.ready = result == NCCL_SUCCESS;
    for (int i = 0; plugin.ready && i < plugin.devices_n; i++)
        say_device(i);
    if (plugin.ready && *plugin.settings.plan)
        plan_watch_begin();
    return result;
}

enum nccl_result plugin_init(nccl_logger logger, nccl_profiler profiler)
{
    pthread_mutex_lock(&plugin.lock);
    plugin.logger = logger;
    plugin.profiler = profiler;
    enum nccl_result result =
        plugin.forked  ? plugin_fail(NCCL_INVALID_USAGE, "a child of fork cannot use HARP: start "
                                                          "workers by spawn or exec")
        : plugin.ready ? NCCL_SUCCESS
                       : start_plugin();
    plugin.users += result == NCCL_SUCCESS;
    pthread_mutex_unlock(&plugin.lock);
    return result;
}

static void stop_plugin(void)
{
    connect_give_up();
    close_give_up();
    plan_watch_end();
    engines_close();
    plan_free(&plugin.plan);
    plugin.life++;
    plugin.open = 0;
    plugin.ready = false;
}

enum nccl_result plugin_finalize(void)
{
    pthread_mutex_lock(&plugin.lock);
    if (plugin.users && --plugin.users == 0)
        stop_plugin();
    pthread_mutex_unlock(&plugin.lock);
    return NCCL_SUCCESS;
}

/* Before version 11 NCCL does not say when it is done. Where comms are still open it is not: a
 * process that exits has threads of NCCL's that go on using them. */
__attribute__((destructor)) static void unload(void)
{
    plugin.logger = NULL; /* NCCL may be gone */
    if (plugin.ready && !plugin.open)
        stop_plugin();
}

enum nccl_result plugin_devices(int *count)
{
    if (!count)
        return plugin_fail(NCCL_INVALID_ARGUMENT, "devices: the count is NULL");
    *count = plugin.devices_n;
    return NCCL_SUCCESS;
}

enum nccl_result plugin_properties(int number, struct nccl_properties_v12 *properties)
{
    if (!properties)
        return plugin_fail(NCCL_INVALID_ARGUMENT, "getProperties: the struct is NULL");
    if (number < 0 || number >= plugin.devices_n)
        return plugin_fail(NCCL_INVALID_ARGUMENT,
                           "getProperties: there are devices 0 to %d, not %d", plugin.devices_n - 1,
                           number);
    struct device *device = &plugin.devices[number];
    *properties = (struct nccl_properties_v12){
        .name = device->name,
        .pciPath = *device->nics[0]->pci ? device->nics[0]->pci : NULL,
        .guid = device->nics[0]->guid,
        .ptrSupport = NCCL_PTR_HOST,
        .speed =
            (int)(device->speed_mbps ? device->speed_mbps : SPEED_UNKNOWN_MBPS * device->nics_n),
        .latency = LATENCY_UNKNOWN,
        .maxComms = 65536,
        .maxRecvs = 1, /* as NCCL's own sockets */
        .netDeviceType = NCCL_DEVICE_HOST,
        .vProps = {.ndevs = 1, .devs = {number}},
        .maxP2pBytes = HARP_MESSAGE_MAX,
        .maxCollBytes = HARP_MESSAGE_MAX,
        .maxMultiRequestSize = 1,
        .railId = NCCL_UNDEFINED,
        .planeId = NCCL_UNDEFINED,
    };
    for (int i = 0; i < device->parts_n; i++)
        properties->vProps.devs[i] = device->parts[i];
    if (device->parts_n)
        properties->vProps.ndevs = device->parts_n;
    return NCCL_SUCCESS;
}
