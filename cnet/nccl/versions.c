/* NCCL's tables, versions 6 to 12: thin functions where a version differs, plugin.h's where not. */
#include "plugin.h"

#define EXPORTED __attribute__((visibility("default")))
#define NAME "HARP"

/* ---- Contexts: all that differs between communicators is their traffic class ---- */

static const char contexts[1 + UINT8_MAX + 1]; /* the first: NCCL_UNDEFINED */

static void *context_of_class(const struct nccl_config *config)
{
    int traffic_class = config ? config->trafficClass : NCCL_UNDEFINED;
    bool defined = traffic_class >= 0 && traffic_class <= UINT8_MAX;
    return (void *)(uintptr_t)(contexts + (defined ? 1 + traffic_class : 0));
}

static int class_of_context(const void *context)
{
    return context ? (int)((const char *)context - contexts) - 1 : NCCL_UNDEFINED;
}

static enum nccl_result init_v6(nccl_logger logger)
{
    return plugin_init(logger, NULL);
}

static enum nccl_result init_v11(void **context, uint64_t communicator, struct nccl_config *config,
                                 nccl_logger logger, nccl_profiler profiler)
{
    (void)communicator;
    if (context)
        *context = context_of_class(config);
    return plugin_init(logger, profiler);
}

static enum nccl_result finalize_v11(void *context)
{
    (void)context;
    return plugin_finalize();
}

static enum nccl_result listen_v11(void *context, int device, void *handle, void **listening)
{
    (void)context;
    return plugin_listen(device, handle, listening);
}

/* ---- connect and accept: HARP offloads nothing ---- */

static enum nccl_result connect_v6(int device, void *handle, void **sending)
{
    return plugin_connect(device, NCCL_UNDEFINED, handle, sending);
}

static enum nccl_result connect_v7(int device, void *handle, void **sending,
                                   struct nccl_device_handle **offload)
{
    (void)offload;
    return plugin_connect(device, NCCL_UNDEFINED, handle, sending);
}

static enum nccl_result connect_v10(int device, struct nccl_config *config, void *handle,
                                    void **sending, struct nccl_device_handle **offload)
{
    (void)offload;
    return plugin_connect(device, config ? config->trafficClass : NCCL_UNDEFINED, handle, sending);
}

static enum nccl_result connect_v11(void *context, int device, void *handle, void **sending,
                                    struct nccl_device_handle **offload)
{
    (void)offload;
    return plugin_connect(device, class_of_context(context), handle, sending);
}

static enum nccl_result accept_v7(void *listening, void **receiving,
                                  struct nccl_device_handle **offload)
{
    (void)offload;
    return plugin_accept(listening, receiving);
}

/* ---- Sizes were int ---- */

static enum nccl_result register_v6(void *comm, void *data, int size, int type, void **memory)
{
    if (size < 0)
        return plugin_fail(NCCL_INVALID_ARGUMENT, "regMr of %d bytes", size);
    return plugin_register(comm, data, (size_t)size, type, memory);
}

static enum nccl_result isend_v6(void *sending, void *data, int size, int tag, void *memory,
                                 void **request)
{
    if (size < 0)
        return plugin_fail(NCCL_INVALID_ARGUMENT, "isend of %d bytes", size);
    return plugin_isend(sending, data, (size_t)size, tag, memory, NULL, request);
}

static enum nccl_result irecv_v6(void *receiving, int n, void **data, int *sizes, int *tags,
                                 void **memories, void **request)
{
    size_t wide = 0;
    if (sizes && n == 1) {
        if (sizes[0] < 0)
            return plugin_fail(NCCL_INVALID_ARGUMENT, "irecv of %d bytes", sizes[0]);
        wide = (size_t)sizes[0];
    }
    return plugin_irecv(receiving, n, data, sizes ? &wide : NULL, tags, memories, NULL, request);
}

/* ---- The profiler's handles came with version 10 ---- */

static enum nccl_result isend_v9(void *sending, void *data, size_t size, int tag, void *memory,
                                 void **request)
{
    return plugin_isend(sending, data, size, tag, memory, NULL, request);
}

static enum nccl_result irecv_v9(void *receiving, int n, void **data, size_t *sizes, int *tags,
                                 void **memories, void **request)
{
    return plugin_irecv(receiving, n, data, sizes, tags, memories, NULL, request);
}

/* ---- Properties ---- */

#define COMMON(p)                                                                                  \
    .name = (p).name, .pciPath = (p).pciPath, .guid = (p).guid, .ptrSupport = (p).ptrSupport,      \
    .speed = (p).speed, .port = (p).port, .latency = (p).latency, .maxComms = (p).maxComms,        \
    .maxRecvs = (p).maxRecvs
#define OFFLOAD(p) .netDeviceType = (p).netDeviceType, .netDeviceVersion = (p).netDeviceVersion
#define LIMITS(p)                                                                                  \
    .vProps = {.ndevs = (p).vProps.ndevs,                                                          \
               .devs = {(p).vProps.devs[0], (p).vProps.devs[1], (p).vProps.devs[2],                \
                        (p).vProps.devs[3]}},                                                      \
    .maxP2pBytes = (p).maxP2pBytes, .maxCollBytes = (p).maxCollBytes

/* The answer of plugin_properties in a version's own layout. */
#define PROPERTIES(version, ...)                                                                   \
    static enum nccl_result properties_##version(int device,                                       \
                                                 struct nccl_properties_##version *properties)     \
    {                                                                                              \
        struct nccl_properties_v12 all;                                                            \
        enum nccl_result result = plugin_properties(device, properties ? &all : NULL);             \
        if (result == NCCL_SUCCESS)                                                                \
            *properties = (struct nccl_properties_##version){__VA_ARGS__};                         \
        return result;                                                                             \
    }

PROPERTIES(v6, COMMON(all))
PROPERTIES(v7, COMMON(all), OFFLOAD(all))
PROPERTIES(v8, COMMON(all), OFFLOAD(all))
PROPERTIES(v9, COMMON(all), OFFLOAD(all), LIMITS(all))
PROPERTIES(v11, COMMON(all), OFFLOAD(all), LIMITS(all),
           .maxMultiRequestSize = all.maxMultiRequestSize)

/* ---- Virtual devices: several NICs as one ---- */

_Static_assert(PLUGIN_PARTS <= NCCL_DEVICES_IN_NIC_V9, "LIMITS copies all parts of a device");

static enum nccl_result make_v9(int *made, struct nccl_vdevice_v9 *of)
{
    return plugin_make_device(made, of ? of->devs : NULL, of ? of->ndevs : 0);
}

static enum nccl_result make_v12(int *made, struct nccl_vdevice_v12 *of)
{
    return plugin_make_device(made, of ? of->devs : NULL, of ? of->ndevs : 0);
}

/* ---- Tables. Functions that are not named are NULL: DMA-BUF, offload, attributes ---- */

#define SAME                                                                                       \
    .name = NAME, .devices = plugin_devices, .deregMr = plugin_deregister,                         \
    .iflush = plugin_iflush, .test = plugin_test, .closeSend = plugin_close_send,                  \
    .closeRecv = plugin_close_receive, .closeListen = plugin_close_listen

EXPORTED const struct nccl_net_v6 ncclNetPlugin_v6 = {
    SAME,
    .init = init_v6,
    .getProperties = properties_v6,
    .listen = plugin_listen,
    .connect = connect_v6,
    .accept = plugin_accept,
    .regMr = register_v6,
    .isend = isend_v6,
    .irecv = irecv_v6,
};

EXPORTED const struct nccl_net_v7 ncclNetPlugin_v7 = {
    SAME,
    .init = init_v6,
    .getProperties = properties_v7,
    .listen = plugin_listen,
    .connect = connect_v7,
    .accept = accept_v7,
    .regMr = register_v6,
    .isend = isend_v6,
    .irecv = irecv_v6,
};

EXPORTED const struct nccl_net_v8 ncclNetPlugin_v8 = {
    SAME,
    .init = init_v6,
    .getProperties = properties_v8,
    .listen = plugin_listen,
    .connect = connect_v7,
    .accept = accept_v7,
    .regMr = plugin_register,
    .isend = isend_v6,
    .irecv = irecv_v6,
};

EXPORTED const struct nccl_net_v9 ncclNetPlugin_v9 = {
    SAME,
    .init = init_v6,
    .getProperties = properties_v9,
    .listen = plugin_listen,
    .connect = connect_v7,
    .accept = accept_v7,
    .regMr = plugin_register,
    .isend = isend_v9,
    .irecv = irecv_v9,
    .makeVDevice = make_v9,
};

EXPORTED const struct nccl_net_v10 ncclNetPlugin_v10 = {
    SAME,
    .init = plugin_init,
    .getProperties = properties_v9,
    .listen = plugin_listen,
    .connect = connect_v10,
    .accept = accept_v7,
    .regMr = plugin_register,
    .isend = plugin_isend,
    .irecv = plugin_irecv,
    .makeVDevice = make_v9,
};

EXPORTED const struct nccl_net_v11 ncclNetPlugin_v11 = {
    SAME,
    .init = init_v11,
    .getProperties = properties_v11,
    .listen = listen_v11,
    .connect = connect_v11,
    .accept = accept_v7,
    .regMr = plugin_register,
    .isend = plugin_isend,
    .irecv = plugin_irecv,
    .finalize = finalize_v11,
    .makeVDevice = make_v9,
};

EXPORTED const struct nccl_net_v12 ncclNetPlugin_v12 = {
    SAME,
    .init = init_v11,
    .getProperties = plugin_properties,
    .listen = listen_v11,
    .connect = connect_v11,
    .accept = accept_v7,
    .regMr = plugin_register,
    .isend = plugin_isend,
    .irecv = plugin_irecv,
    .finalize = finalize_v11,
    .makeVDevice = make_v12,
};
