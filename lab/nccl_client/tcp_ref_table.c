/* The plugin's tables: version 12, and 10 for NCCL releases that know no contexts. */
#define _GNU_SOURCE
#include "tcp_ref.h"

static enum nccl_result get_properties(int index, struct nccl_properties_v12 *out)
{
    const struct tcp_device *device = tcp_device(index);
    if (!device)
        return NCCL_INVALID_ARGUMENT;
    int16_t rail = out->railId;
    *out = (struct nccl_properties_v12){.name = (char *)(uintptr_t)device->name,
                                        .pciPath = device->pci_path,
                                        .guid = (uint64_t)index,
                                        .ptrSupport = NCCL_PTR_HOST,
                                        .speed = device->speed_mbps,
                                        .maxComms = 65536,
                                        .maxRecvs = NCCL_RECEIVES_MAX,
                                        .netDeviceType = NCCL_DEVICE_HOST,
                                        .vProps = {.ndevs = 1, .devs = {index}},
                                        .maxP2pBytes = NCCL_SIZE_MAX,
                                        .maxCollBytes = NCCL_SIZE_MAX,
                                        .maxMultiRequestSize = 1,
                                        .railId = NCCL_UNDEFINED,
                                        .planeId = NCCL_UNDEFINED};
    if (is_broken(UNSET_PROPERTY))
        out->railId = rail;
    return NCCL_SUCCESS;
}

static enum nccl_result properties_v10(int index, struct nccl_properties_v9 *out)
{
    struct nccl_properties_v12 in = {0};
    enum nccl_result result = get_properties(index, &in);
    if (result)
        return result;
    *out = (struct nccl_properties_v9){.name = in.name,
                                       .pciPath = in.pciPath,
                                       .guid = in.guid,
                                       .ptrSupport = in.ptrSupport,
                                       .speed = in.speed,
                                       .maxComms = in.maxComms,
                                       .maxRecvs = in.maxRecvs,
                                       .netDeviceType = in.netDeviceType,
                                       .vProps = {.ndevs = 1, .devs = {index}},
                                       .maxP2pBytes = in.maxP2pBytes,
                                       .maxCollBytes = in.maxCollBytes};
    return NCCL_SUCCESS;
}

static enum nccl_result register_memory(void *comm, void *data, size_t size, int type,
                                        void **memory)
{
    *memory = NULL;
    return comm && (data || !size) && type == NCCL_PTR_HOST ? NCCL_SUCCESS : NCCL_INVALID_ARGUMENT;
}

static enum nccl_result register_dmabuf(void *comm, void *data, size_t size, int type,
                                        uint64_t offset, int fd, void **memory)
{
    (void)comm, (void)data, (void)size, (void)type, (void)offset, (void)fd;
    *memory = NULL;
    return NCCL_INVALID_USAGE;
}

static enum nccl_result deregister_memory(void *comm, void *memory)
{
    (void)comm, (void)memory;
    return NCCL_SUCCESS;
}

static enum nccl_result flush_nothing(void *comm, int n, void **data, int *sizes, void **memories,
                                      void **request)
{
    (void)comm, (void)n, (void)data, (void)sizes, (void)memories;
    *request = NULL;
    return NCCL_INVALID_USAGE;
}

static enum nccl_result init_v10(nccl_logger logger, nccl_profiler profiler)
{
    void *context;
    if (tcp_only)
        return NCCL_SUCCESS;
    enum nccl_result result = tcp_init(&context, 0, NULL, logger, profiler);
    tcp_only = result ? NULL : context;
    return result;
}

__attribute__((destructor)) static void end_v10(void)
{
    if (tcp_only)
        tcp_finalize(tcp_only);
}

static enum nccl_result listen_v10(int device, void *handle, void **listening)
{
    return tcp_listen(tcp_only, device, handle, listening);
}

static enum nccl_result connect_v10(int device, struct nccl_config *config, void *handle,
                                    void **sending, struct nccl_device_handle **offload)
{
    (void)config;
    return tcp_connect(tcp_only, device, handle, sending, offload);
}

#define COMMON                                                                                     \
    .name = "TCP-REF", .devices = tcp_devices, .accept = tcp_accept, .regMr = register_memory,     \
    .regMrDmaBuf = register_dmabuf, .deregMr = deregister_memory, .isend = tcp_send,               \
    .irecv = tcp_receive, .iflush = flush_nothing, .test = tcp_test, .closeSend = tcp_close,       \
    .closeRecv = tcp_close, .closeListen = tcp_close_listen

extern const struct nccl_net_v12 ncclNetPlugin_v12;
const struct nccl_net_v12 ncclNetPlugin_v12 = {COMMON,
                                               .init = tcp_init,
                                               .getProperties = get_properties,
                                               .listen = tcp_listen,
                                               .connect = tcp_connect,
                                               .finalize = tcp_finalize};

extern const struct nccl_net_v10 ncclNetPlugin_v10;
const struct nccl_net_v10 ncclNetPlugin_v10 = {COMMON, .init = init_v10,
                                               .getProperties = properties_v10,
                                               .listen = listen_v10, .connect = connect_v10};
