#define _GNU_SOURCE
#include "plugin.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

bool plugin_load(struct plugin *plugin, const char *path, int version, char *why, size_t room)
{
    *plugin = (struct plugin){.library = dlopen(path, RTLD_NOW | RTLD_LOCAL)};
    if (!plugin->library) {
        snprintf(why, room, "the plugin cannot be loaded: %s", dlerror());
        return false;
    }
    for (int v = version ? version : PLUGIN_NEWEST; v >= PLUGIN_OLDEST; v--) {
        char symbol[32];
        snprintf(symbol, sizeof(symbol), "ncclNetPlugin_v%d", v);
        plugin->table = dlsym(plugin->library, symbol);
        plugin->version = v;
        if (plugin->table || version)
            break;
    }
    if (plugin->table)
        return true;
    snprintf(why, room, version ? "%s has no ncclNetPlugin_v%d" : "%s has no ncclNetPlugin_v6 … 12",
             path, version);
    plugin_unload(plugin);
    return false;
}

void plugin_unload(struct plugin *plugin)
{
    dlclose(plugin->library);
    *plugin = (struct plugin){0};
}

const char *plugin_name(const struct plugin *plugin)
{
    return plugin->table->v6.name;
}

enum nccl_result plugin_init(const struct plugin *plugin, void **context, uint64_t communicator,
                             nccl_logger logger, nccl_profiler profiler)
{
    struct nccl_config config = {.trafficClass = plugin->traffic_class};
    if (plugin->version >= PLUGIN_CONTEXTS)
        return plugin->table->v12.init(context, communicator, &config, logger, profiler);
    *context = NULL;
    return plugin->version == 10 ? plugin->table->v10.init(logger, profiler)
                                 : plugin->table->v6.init(logger);
}

enum nccl_result plugin_devices(const struct plugin *plugin, int *count)
{
    return plugin->table->v6.devices(count);
}

/* Version 6 to 8: what came later is as NCCL fills it in. */
#define TAKE_OLD(out, in)                                                                          \
    do {                                                                                           \
        (out)->name = (in).name;                                                                   \
        (out)->pciPath = (in).pciPath;                                                             \
        (out)->guid = (in).guid;                                                                   \
        (out)->ptrSupport = (in).ptrSupport;                                                       \
        (out)->speed = (in).speed;                                                                 \
        (out)->port = (in).port;                                                                   \
        (out)->latency = (in).latency;                                                             \
        (out)->maxComms = (in).maxComms;                                                           \
        (out)->maxRecvs = (in).maxRecvs;                                                           \
    } while (0)

static enum nccl_result old_properties(const struct plugin *plugin, int device,
                                       struct nccl_properties_v12 *out)
{
    union {
        struct nccl_properties_v6 v6;
        struct nccl_properties_v7 v7;
        struct nccl_properties_v8 v8;
    } in;
    memset(&in, PLUGIN_POISON, sizeof(in));
    enum nccl_result result = plugin->table->v6.getProperties(device, &in.v6);
    *out = (struct nccl_properties_v12){.vProps = {.ndevs = 1, .devs = {device}},
                                        .maxP2pBytes = NCCL_SIZE_MAX,
                                        .maxCollBytes = NCCL_SIZE_MAX};
    if (plugin->version == 6)
        TAKE_OLD(out, in.v6);
    if (plugin->version == 7)
        TAKE_OLD(out, in.v7);
    if (plugin->version == 7)
        out->netDeviceType = in.v7.netDeviceType, out->netDeviceVersion = in.v7.netDeviceVersion;
    if (plugin->version < 8)
        return result;
    TAKE_OLD(out, in.v8);
    out->regIsGlobal = in.v8.regIsGlobal;
    out->netDeviceType = in.v8.netDeviceType, out->netDeviceVersion = in.v8.netDeviceVersion;
    return result;
}

enum nccl_result plugin_properties(const struct plugin *plugin, int device,
                                   struct nccl_properties_v12 *out)
{
    if (plugin->version < 9) {
        enum nccl_result result = old_properties(plugin, device, out);
        out->maxMultiRequestSize = 1, out->railId = out->planeId = NCCL_UNDEFINED;
        return result;
    }
    memset(out, PLUGIN_POISON, sizeof(*out));
    if (plugin->version == 12)
        return plugin->table->v12.getProperties(device, out);
    struct nccl_properties_v11 in;
    memset(&in, PLUGIN_POISON, sizeof(in));
    enum nccl_result result = plugin->table->v11.getProperties(device, &in);
    memcpy(out, &in, offsetof(struct nccl_properties_v11, vProps)); /* the same up to here */
    out->vProps.ndevs = in.vProps.ndevs;
    memcpy(out->vProps.devs, in.vProps.devs, sizeof(in.vProps.devs));
    out->maxP2pBytes = in.maxP2pBytes;
    out->maxCollBytes = in.maxCollBytes;
    out->maxMultiRequestSize = plugin->version == 11 ? in.maxMultiRequestSize : 1;
    out->railId = out->planeId = NCCL_UNDEFINED;
    return result;
}

enum nccl_result plugin_listen(const struct plugin *plugin, void *context, int device, void *handle,
                               void **listening)
{
    return plugin->version >= PLUGIN_CONTEXTS
               ? plugin->table->v12.listen(context, device, handle, listening)
               : plugin->table->v6.listen(device, handle, listening);
}

enum nccl_result plugin_connect(const struct plugin *plugin, void *context, int device,
                                void *handle, void **sending)
{
    struct nccl_config config = {.trafficClass = plugin->traffic_class};
    struct nccl_device_handle *offload = NULL;
    switch (plugin->version) {
    case 6:
        return plugin->table->v6.connect(device, handle, sending);
    case 7:
    case 8:
    case 9:
        return plugin->table->v7.connect(device, handle, sending, &offload);
    case 10:
        return plugin->table->v10.connect(device, &config, handle, sending, &offload);
    default:
        return plugin->table->v12.connect(context, device, handle, sending, &offload);
    }
}

enum nccl_result plugin_accept(const struct plugin *plugin, void *listening, void **receiving)
{
    struct nccl_device_handle *offload = NULL;
    return plugin->version == 6 ? plugin->table->v6.accept(listening, receiving)
                                : plugin->table->v7.accept(listening, receiving, &offload);
}

enum nccl_result plugin_register(const struct plugin *plugin, void *comm, void *data, size_t bytes,
                                 int type, void **memory)
{
    if (plugin->version >= 8)
        return plugin->table->v8.regMr(comm, data, bytes, type, memory);
    if (bytes > INT_MAX)
        return NCCL_INVALID_ARGUMENT;
    return plugin->table->v6.regMr(comm, data, (int)bytes, type, memory);
}

enum nccl_result plugin_deregister(const struct plugin *plugin, void *comm, void *memory)
{
    return plugin->table->v6.deregMr(comm, memory);
}

enum nccl_result plugin_send(const struct plugin *plugin, void *comm, void *data, size_t bytes,
                             int tag, void *memory, void *parent, void **request)
{
    if (plugin->version >= 10)
        return plugin->table->v10.isend(comm, data, bytes, tag, memory, parent, request);
    if (plugin->version == 9)
        return plugin->table->v9.isend(comm, data, bytes, tag, memory, request);
    if (bytes > INT_MAX)
        return NCCL_INVALID_ARGUMENT;
    return plugin->table->v6.isend(comm, data, (int)bytes, tag, memory, request);
}

enum nccl_result plugin_receive(const struct plugin *plugin, void *comm, int n, void **data,
                                const size_t *bytes, int *tags, void **memories, void **parents,
                                void **request)
{
    size_t sizes[NCCL_RECEIVES_MAX];
    int ints[NCCL_RECEIVES_MAX];
    for (int i = 0; i < n; i++) {
        if (plugin->version < 9 && bytes[i] > INT_MAX)
            return NCCL_INVALID_ARGUMENT;
        sizes[i] = bytes[i];
        ints[i] = (int)bytes[i];
    }
    if (plugin->version >= 10)
        return plugin->table->v10.irecv(comm, n, data, sizes, tags, memories, parents, request);
    if (plugin->version == 9)
        return plugin->table->v9.irecv(comm, n, data, sizes, tags, memories, request);
    return plugin->table->v6.irecv(comm, n, data, ints, tags, memories, request);
}

enum nccl_result plugin_test(const struct plugin *plugin, void *request, int *done, int *sizes)
{
    return plugin->table->v6.test(request, done, sizes);
}

enum nccl_result plugin_close_send(const struct plugin *plugin, void *comm)
{
    return plugin->table->v6.closeSend(comm);
}

enum nccl_result plugin_close_receive(const struct plugin *plugin, void *comm)
{
    return plugin->table->v6.closeRecv(comm);
}

enum nccl_result plugin_close_listen(const struct plugin *plugin, void *listening)
{
    return plugin->table->v6.closeListen(listening);
}

enum nccl_result plugin_finalize(const struct plugin *plugin, void *context)
{
    return plugin->version >= PLUGIN_CONTEXTS ? plugin->table->v12.finalize(context) : NCCL_SUCCESS;
}
