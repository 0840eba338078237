/* NCCL's network plugin interface, versions 6 to 12, in our own words.
 *
 * NCCL opens a plugin by dlopen and takes the newest table that it knows of ncclNetPlugin_v12 down
 * to ncclNetPlugin_v6. The structs below describe these tables as NCCL 2.13 to 2.32 lay them out in
 * memory; the assertions at the end hold sizes and offsets. docs/use/nccl.md says what NCCL expects
 * of each call.
 *
 *     version   first in NCCL   what changed
 *     6         2.13
 *     7         2.19            device handles; getDeviceMr, irecvConsumed
 *     8         2.20            regIsGlobal; size_t in regMr
 *     9         2.24            size_t in isend and irecv; forceFlush, virtual devices, limits
 *     10        2.26            profiler; configuration with connect; a handle of the profiler's
 *                               with each request
 *     11        2.28            a context for each communicator, finalize, setNetAttr
 *     12        2.30            rails and planes; eight physical devices in a virtual one
 *
 * This header stands alone: it includes nothing of HARP and needs nothing of NCCL or CUDA.
 */
#ifndef HARP_NCCL_ABI_H
#define HARP_NCCL_ABI_H

#include <stddef.h>
#include <stdint.h>

/* Results, ncclResult_t. */
enum nccl_result {
    NCCL_SUCCESS = 0,
    NCCL_UNHANDLED_CUDA_ERROR = 1,
    NCCL_SYSTEM_ERROR = 2,
    NCCL_INTERNAL_ERROR = 3,
    NCCL_INVALID_ARGUMENT = 4,
    NCCL_INVALID_USAGE = 5,
    NCCL_REMOTE_ERROR = 6,
    NCCL_IN_PROGRESS = 7,
};

enum nccl_log_level {
    NCCL_LOG_NONE,
    NCCL_LOG_VERSION,
    NCCL_LOG_WARN,
    NCCL_LOG_INFO,
    NCCL_LOG_ABORT,
    NCCL_LOG_TRACE,
};

/* Parts of NCCL that a line of the log belongs to; NCCL_DEBUG_SUBSYS chooses by them. */
enum nccl_log_part {
    NCCL_PART_INIT = 0x1,
    NCCL_PART_NET = 0x10,
    NCCL_PART_ENV = 0x80,
    NCCL_PART_ALL = ~0,
};

typedef void (*nccl_logger)(enum nccl_log_level level, unsigned long parts, const char *file,
                            int line, const char *format, ...);

/* Events that a plugin reports to NCCL's profiler. `event` is the plugin's place to keep a handle;
 * `parent` came with isend or irecv; `data` is the plugin's own, named by `plugin`. */
enum nccl_profiler_type {
    NCCL_PROFILER_START = 0,
    NCCL_PROFILER_STOP = 1,
    NCCL_PROFILER_UPDATE = 2,
    NCCL_PROFILER_UPDATE_AND_STOP = 3,
};

typedef enum nccl_result (*nccl_profiler)(void **event, int type, void *parent, int64_t plugin,
                                          void *data);

enum {
    NCCL_HANDLE_BYTES = 128, /* of what listen gives, for connect */
    NCCL_REQUESTS = 32,      /* outstanding requests of one comm */
    NCCL_RECEIVES_MAX = 8,   /* buffers of one irecv, NCCL_PROXY_MAX_SUBS */
    NCCL_PTR_HOST = 1,       /* memory that a plugin takes */
    NCCL_PTR_CUDA = 2,
    NCCL_PTR_DMABUF = 4,
    NCCL_DEVICE_HOST = 0,       /* netDeviceType: nothing is offloaded to the GPU */
    NCCL_DEVICES_IN_NIC_V9 = 4, /* physical devices in a virtual one; v9 to v11 */
    NCCL_DEVICES_IN_NIC_V12 = 8,
    NCCL_UNDEFINED = -1, /* traffic class, railId, planeId */
};

#define NCCL_OPTIONAL_COMPLETION ((void *)1) /* *request on entry of irecv: LL, LL128 */
#define NCCL_SIZE_MAX (UINT64_C(1) << 40)    /* of maxP2pBytes and maxCollBytes */

struct nccl_config { /* v10 and later */
    int trafficClass;
};

struct nccl_comm_attr {
    int32_t maxConcurrentPeers, minConcurrentPeers, maxFlowsPerPeer, minFlowsPerPeer;
};

struct nccl_net_attr { /* v11 and later */
    struct nccl_comm_attr send, recv;
    uint32_t op, algo, proto;
};

struct nccl_vdevice_v9 { /* v9 to v11 */
    int ndevs;
    int devs[NCCL_DEVICES_IN_NIC_V9];
};

struct nccl_vdevice_v12 {
    int ndevs;
    int devs[NCCL_DEVICES_IN_NIC_V12];
};

struct nccl_device_handle { /* v7 and later; a plugin without offload leaves it alone */
    int netDeviceType, netDeviceVersion;
    void *handle;
    size_t size;
    int needsProxyProgress;
};

/* ---- Properties of a device ---- */

struct nccl_properties_v6 {
    char *name, *pciPath;
    uint64_t guid;
    int ptrSupport;
    int speed; /* Mb/s */
    int port;
    float latency; /* us */
    int maxComms, maxRecvs;
};

struct nccl_properties_v7 {
    char *name, *pciPath;
    uint64_t guid;
    int ptrSupport;
    int speed, port;
    float latency;
    int maxComms, maxRecvs;
    int netDeviceType, netDeviceVersion;
};

struct nccl_properties_v8 {
    char *name, *pciPath;
    uint64_t guid;
    int ptrSupport, regIsGlobal;
    int speed, port;
    float latency;
    int maxComms, maxRecvs;
    int netDeviceType, netDeviceVersion;
};

struct nccl_properties_v9 { /* and v10 */
    char *name, *pciPath;
    uint64_t guid;
    int ptrSupport, regIsGlobal, forceFlush;
    int speed, port;
    float latency;
    int maxComms, maxRecvs;
    int netDeviceType, netDeviceVersion;
    struct nccl_vdevice_v9 vProps;
    size_t maxP2pBytes, maxCollBytes;
};

struct nccl_properties_v11 {
    char *name, *pciPath;
    uint64_t guid;
    int ptrSupport, regIsGlobal, forceFlush;
    int speed, port;
    float latency;
    int maxComms, maxRecvs;
    int netDeviceType, netDeviceVersion;
    struct nccl_vdevice_v9 vProps;
    size_t maxP2pBytes, maxCollBytes;
    int maxMultiRequestSize;
};

struct nccl_properties_v12 {
    char *name, *pciPath;
    uint64_t guid;
    int ptrSupport, regIsGlobal, forceFlush;
    int speed, port;
    float latency;
    int maxComms, maxRecvs;
    int netDeviceType, netDeviceVersion;
    struct nccl_vdevice_v12 vProps;
    size_t maxP2pBytes, maxCollBytes;
    int maxMultiRequestSize;
    int16_t railId, planeId;
};

/* ---- Tables: calls, by the version that each form came with ---- */

typedef enum nccl_result nccl_init_v6(nccl_logger logger);
typedef enum nccl_result nccl_init_v10(nccl_logger logger, nccl_profiler profiler);
typedef enum nccl_result nccl_init_v11(void **context, uint64_t communicator,
                                       struct nccl_config *config, nccl_logger logger,
                                       nccl_profiler profiler);

typedef enum nccl_result nccl_listen_v6(int device, void *handle, void **listening);
typedef enum nccl_result nccl_listen_v11(void *context, int device, void *handle, void **listening);

typedef enum nccl_result nccl_connect_v6(int device, void *handle, void **sending);
typedef enum nccl_result nccl_connect_v7(int device, void *handle, void **sending,
                                         struct nccl_device_handle **offload);
typedef enum nccl_result nccl_connect_v10(int device, struct nccl_config *config, void *handle,
                                          void **sending, struct nccl_device_handle **offload);
typedef enum nccl_result nccl_connect_v11(void *context, int device, void *handle, void **sending,
                                          struct nccl_device_handle **offload);

typedef enum nccl_result nccl_accept_v6(void *listening, void **receiving);
typedef enum nccl_result nccl_accept_v7(void *listening, void **receiving,
                                        struct nccl_device_handle **offload);

typedef enum nccl_result nccl_register_v6(void *comm, void *data, int size, int type,
                                          void **memory);
typedef enum nccl_result nccl_register_v8(void *comm, void *data, size_t size, int type,
                                          void **memory);

typedef enum nccl_result nccl_isend_v6(void *sending, void *data, int size, int tag, void *memory,
                                       void **request);
typedef enum nccl_result nccl_isend_v9(void *sending, void *data, size_t size, int tag,
                                       void *memory, void **request);
typedef enum nccl_result nccl_isend_v10(void *sending, void *data, size_t size, int tag,
                                        void *memory, void *parent, void **request);

typedef enum nccl_result nccl_irecv_v6(void *receiving, int n, void **data, int *sizes, int *tags,
                                       void **memories, void **request);
typedef enum nccl_result nccl_irecv_v9(void *receiving, int n, void **data, size_t *sizes,
                                       int *tags, void **memories, void **request);
typedef enum nccl_result nccl_irecv_v10(void *receiving, int n, void **data, size_t *sizes,
                                        int *tags, void **memories, void **parents, void **request);

/* Members of all versions' tables. */
#define NCCL_NET(INIT, PROPERTIES, LISTEN, CONNECT, ACCEPT, REGISTER, ISEND, IRECV)                \
    const char *name;                                                                              \
    nccl_init_##INIT *init;                                                                        \
    enum nccl_result (*devices)(int *count);                                                       \
    enum nccl_result (*getProperties)(int device, struct nccl_properties_##PROPERTIES *);          \
    nccl_listen_##LISTEN *listen;                                                                  \
    nccl_connect_##CONNECT *connect;                                                               \
    nccl_accept_##ACCEPT *accept;                                                                  \
    nccl_register_##REGISTER *regMr;                                                               \
    enum nccl_result (*regMrDmaBuf)(void *comm, void *data, size_t size, int type,                 \
                                    uint64_t offset, int fd, void **memory);                       \
    enum nccl_result (*deregMr)(void *comm, void *memory);                                         \
    nccl_isend_##ISEND *isend;                                                                     \
    nccl_irecv_##IRECV *irecv;                                                                     \
    enum nccl_result (*iflush)(void *receiving, int n, void **data, int *sizes, void **memories,   \
                               void **request);                                                    \
    enum nccl_result (*test)(void *request, int *done, int *sizes);                                \
    enum nccl_result (*closeSend)(void *sending);                                                  \
    enum nccl_result (*closeRecv)(void *receiving);                                                \
    enum nccl_result (*closeListen)(void *listening)

/* And of those from v7 on, from v9 on, and from v11 on. */
#define NCCL_NET_OFFLOAD                                                                           \
    enum nccl_result (*getDeviceMr)(void *comm, void *memory, void **offloaded);                   \
    enum nccl_result (*irecvConsumed)(void *receiving, int n, void *request)
#define NCCL_NET_VDEVICE(VDEVICE)                                                                  \
    enum nccl_result (*makeVDevice)(int *device, struct nccl_vdevice_##VDEVICE *of)
#define NCCL_NET_CONTEXT                                                                           \
    enum nccl_result (*finalize)(void *context);                                                   \
    enum nccl_result (*setNetAttr)(void *context, struct nccl_net_attr *attr)

struct nccl_net_v6 {
    NCCL_NET(v6, v6, v6, v6, v6, v6, v6, v6);
};

struct nccl_net_v7 {
    NCCL_NET(v6, v7, v6, v7, v7, v6, v6, v6);
    NCCL_NET_OFFLOAD;
};

struct nccl_net_v8 {
    NCCL_NET(v6, v8, v6, v7, v7, v8, v6, v6);
    NCCL_NET_OFFLOAD;
};

struct nccl_net_v9 {
    NCCL_NET(v6, v9, v6, v7, v7, v8, v9, v9);
    NCCL_NET_OFFLOAD;
    NCCL_NET_VDEVICE(v9);
};

struct nccl_net_v10 {
    NCCL_NET(v10, v9, v6, v10, v7, v8, v10, v10);
    NCCL_NET_OFFLOAD;
    NCCL_NET_VDEVICE(v9);
};

struct nccl_net_v11 {
    NCCL_NET(v11, v11, v11, v11, v7, v8, v10, v10);
    NCCL_NET_OFFLOAD;
    NCCL_NET_VDEVICE(v9);
    NCCL_NET_CONTEXT;
};

struct nccl_net_v12 {
    NCCL_NET(v11, v12, v11, v11, v7, v8, v10, v10);
    NCCL_NET_OFFLOAD;
    NCCL_NET_VDEVICE(v12);
    NCCL_NET_CONTEXT;
};

/* ---- Layout ---- */

#define NCCL_AT(type, member, bytes)                                                               \
    _Static_assert(offsetof(struct type, member) == (bytes), #type "." #member " is not in place")
#define NCCL_SIZE(type, bytes)                                                                     \
    _Static_assert(sizeof(struct type) == (bytes), #type " is not " #bytes " bytes long")

NCCL_SIZE(nccl_config, 4);
NCCL_SIZE(nccl_net_attr, 44);
NCCL_SIZE(nccl_vdevice_v9, 20);
NCCL_SIZE(nccl_vdevice_v12, 36);
NCCL_SIZE(nccl_device_handle, 32);

NCCL_SIZE(nccl_properties_v6, 48);
NCCL_AT(nccl_properties_v6, ptrSupport, 24);
NCCL_AT(nccl_properties_v6, speed, 28);
NCCL_AT(nccl_properties_v6, latency, 36);
NCCL_AT(nccl_properties_v6, maxRecvs, 44);
NCCL_SIZE(nccl_properties_v7, 56);
NCCL_AT(nccl_properties_v7, maxRecvs, 44);
NCCL_AT(nccl_properties_v7, netDeviceVersion, 52);
NCCL_SIZE(nccl_properties_v8, 64);
NCCL_AT(nccl_properties_v8, regIsGlobal, 28);
NCCL_AT(nccl_properties_v8, maxRecvs, 48);
NCCL_AT(nccl_properties_v8, netDeviceVersion, 56);
NCCL_SIZE(nccl_properties_v9, 104);
NCCL_AT(nccl_properties_v9, forceFlush, 32);
NCCL_AT(nccl_properties_v9, latency, 44);
NCCL_AT(nccl_properties_v9, vProps, 64);
NCCL_AT(nccl_properties_v9, maxP2pBytes, 88);
NCCL_SIZE(nccl_properties_v11, 112);
NCCL_AT(nccl_properties_v11, maxCollBytes, 96);
NCCL_AT(nccl_properties_v11, maxMultiRequestSize, 104);
NCCL_SIZE(nccl_properties_v12, 128);
NCCL_AT(nccl_properties_v12, vProps, 64);
NCCL_AT(nccl_properties_v12, maxP2pBytes, 104);
NCCL_AT(nccl_properties_v12, maxMultiRequestSize, 120);
NCCL_AT(nccl_properties_v12, railId, 124);
NCCL_AT(nccl_properties_v12, planeId, 126);

NCCL_SIZE(nccl_net_v6, 17 * 8);
NCCL_AT(nccl_net_v6, closeListen, 16 * 8);
NCCL_SIZE(nccl_net_v7, 19 * 8);
NCCL_AT(nccl_net_v7, irecvConsumed, 18 * 8);
NCCL_SIZE(nccl_net_v8, 19 * 8);
NCCL_AT(nccl_net_v8, irecvConsumed, 18 * 8);
NCCL_SIZE(nccl_net_v9, 20 * 8);
NCCL_AT(nccl_net_v9, makeVDevice, 19 * 8);
NCCL_SIZE(nccl_net_v10, 20 * 8);
NCCL_AT(nccl_net_v10, isend, 10 * 8);
NCCL_AT(nccl_net_v10, makeVDevice, 19 * 8);
NCCL_SIZE(nccl_net_v11, 22 * 8);
NCCL_AT(nccl_net_v11, isend, 10 * 8);
NCCL_AT(nccl_net_v11, finalize, 20 * 8);
NCCL_SIZE(nccl_net_v12, 22 * 8);
NCCL_AT(nccl_net_v12, isend, 10 * 8);
NCCL_AT(nccl_net_v12, test, 13 * 8);
NCCL_AT(nccl_net_v12, finalize, 20 * 8);
NCCL_AT(nccl_net_v12, setNetAttr, 21 * 8);

#undef NCCL_AT
#undef NCCL_SIZE
#undef NCCL_NET
#undef NCCL_NET_OFFLOAD
#undef NCCL_NET_VDEVICE
#undef NCCL_NET_CONTEXT

#endif
