/* A plain TCP transport as an NCCL plugin: what others are compared with, in tests and in speed.
 *
 * It does what NCCL's own Socket transport does: non-blocking kernel sockets, a large message split
 * evenly over 1, 2 or 4 of them, all of it moved within isend, irecv and test, and no thread.
 *
 *     message i, n sockets       socket 0   | header i | part 0 of i | header i+1 | part 0 ...
 *                                socket 1   | part 1 of i | part 1 of i+1 ...
 *                                ...        | ...
 *
 * A receiver reads header i only when a receive is posted for it, so that TCP's window holds the
 * sender back. Each socket goes on to the next message by itself. test() moves the whole comm, so
 * requests may be polled in any order. A send is done once the kernel has copied it.
 *
 * Environment: TCP_REF_SOCKETS (1, 2, 4), TCP_REF_IFNAME (an interface's name; all that are up but
 * loopback), TCP_REF_CONGESTION (a congestion control of the kernel's).
 *
 * Its limits: it cannot see that a frozen process will not answer, since that process's kernel
 * does; nor keep the order of bytes within a line (LL128), since the kernel copies as it likes. The
 * client's `frozen` and `flags` are about these.
 *
 * Threads: control plane (init to accept, close) from any; a comm's isend, irecv and test from one.
 */
#ifndef TEST_NCCL_TCP_REF_H
#define TEST_NCCL_TCP_REF_H

#include "nccl/abi.h"

#include <netinet/in.h>
#include <pthread.h>
#include <stdbool.h>

/* Deliberate faults, chosen by -DBROKEN=NAME: a client that tests plugins must notice. */
enum broken {
    SOUND,
    SWAPPED_BLOCKS,   /* two 4 KiB blocks of a message change places */
    POSTED_SIZE,      /* test returns what was posted, not what came */
    EARLY_DONE,       /* a send is done when it is queued, and its buffer is read later */
    STALE_REQUEST,    /* irecv leaves a *request that is not NULL as it is */
    FIFO_ONLY,        /* a request makes progress only while it is the oldest */
    BLOCKING_ACCEPT,  /* accept waits for somebody to connect */
    BLOCKING_CONNECT, /* connect waits until it was accepted */
    TOUCHED_LATE,     /* close takes what there is off the sockets, into buffers that are gone */
    READ_LATE,        /* close sends what was queued, from buffers that are gone */
    LISTENER_OWNS,    /* closeListen ends what was accepted */
    IGNORED_TAGS,     /* messages fill a multi-receive in order */
    LEFT_THREAD,      /* a thread survives dlclose */
    LEFT_DESCRIPTOR,  /* a descriptor does */
    UNSET_PROPERTY,   /* railId is not written */
    SILENT_DEATH,     /* an end of file is "later" */
    ONE_FOR_ALL,      /* finalize of one communicator ends the comms of the others */
    OVERRUN,          /* a byte behind the message is written */
    BACKWARDS,        /* a message is copied to its buffer from its end on */
    NO_EMPTY,         /* a message of no bytes is never done */
    CUT_LARGE,        /* more than 32 MiB are cut short */
};

#ifndef BROKEN
#define BROKEN SOUND
#endif

static inline bool is_broken(enum broken kind)
{
    return kind == BROKEN;
}

enum {
    TCP_SOCKETS_MAX = 4,
    TCP_REQUESTS = NCCL_REQUESTS * NCCL_RECEIVES_MAX, /* of a comm; a power of two */
    TCP_PART_BYTES = 64 << 10,                        /* of a socket's part, at least */
    TCP_PART_ALIGN = 128,
    TCP_NAME_BYTES = 16,
    TCP_DEVICES_MAX = 8,
};

struct tcp_header {
    uint64_t size;
    int32_t tag;
    uint32_t mark;
};

struct tcp_request {
    struct tcp_comm *comm;
    bool used;
    int n;       /* receives of it */
    int left;    /* that are not complete */
    int matched; /* bit per receive: a message was found for it */
    void *data[NCCL_RECEIVES_MAX];
    size_t posted[NCCL_RECEIVES_MAX];
    size_t size[NCCL_RECEIVES_MAX]; /* of the message */
    int tag[NCCL_RECEIVES_MAX];
};

struct tcp_message {
    struct tcp_request *request;
    int receive; /* within the request */
    int left;    /* sockets whose part is not complete */
    uint8_t *data;
    struct tcp_header header;
};

struct tcp_socket {
    int fd;
    uint64_t message; /* that it works at, counted from 0 */
    size_t moved;     /* bytes of its part, header included on socket 0 */
};

struct tcp_comm {
    struct tcp_context *context;
    struct tcp_comm *next; /* of the context */
    bool sending;
    enum nccl_result failed; /* for good, unless it is NCCL_SUCCESS */
    int sockets_n;
    struct tcp_socket sockets[TCP_SOCKETS_MAX];
    uint64_t known; /* messages queued, or whose header came */
    struct tcp_message messages[TCP_REQUESTS];
    struct tcp_header incoming;
    uint64_t posted, begun; /* receives posted, and those that know all of their messages */
    struct tcp_request *order[TCP_REQUESTS];
    struct tcp_request requests[TCP_REQUESTS];
};

struct tcp_device {
    char name[TCP_NAME_BYTES];
    char *pci_path;
    int speed_mbps;
    struct sockaddr_in address;
};

struct tcp_context {
    pthread_mutex_t lock; /* of the lists */
    struct tcp_attempt *attempts;
    struct tcp_comm *comms;
};

extern nccl_logger tcp_log;
extern struct tcp_context *tcp_only; /* of the versions that know no context */

#define TCP_WARN(...) tcp_log(NCCL_LOG_WARN, NCCL_PART_NET, __FILE__, __LINE__, __VA_ARGS__)

/* Control plane: tcp_ref_connect.c */
enum nccl_result tcp_init(void **context, uint64_t communicator, struct nccl_config *config,
                          nccl_logger logger, nccl_profiler profiler);
enum nccl_result tcp_finalize(void *context);
enum nccl_result tcp_listen(void *context, int device, void *handle, void **listening);
enum nccl_result tcp_connect(void *context, int device, void *handle, void **sending,
                             struct nccl_device_handle **offload);
enum nccl_result tcp_accept(void *listening, void **receiving, struct nccl_device_handle **offload);
enum nccl_result tcp_close_listen(void *listening);
enum nccl_result tcp_close(void *comm);

/* Devices: tcp_ref_devices.c */
enum nccl_result tcp_find_devices(void);
const struct tcp_device *tcp_device(int device); /* NULL: there is none */
enum nccl_result tcp_devices(int *count);

/* Data path: tcp_ref.c */
enum nccl_result tcp_send(void *comm, void *data, size_t size, int tag, void *memory, void *parent,
                          void **request);
enum nccl_result tcp_receive(void *comm, int n, void **data, size_t *sizes, int *tags,
                             void **memories, void **parents, void **request);
enum nccl_result tcp_test(void *request, int *done, int *sizes);
void tcp_progress(struct tcp_comm *comm);

#endif
