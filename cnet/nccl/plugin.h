/* HARP's network plugin for NCCL, libnccl-net-harp.so, as its own files share it. Page:
 * docs/use/nccl.md.
 *
 *      NCCL                      versions.c                      one implementation
 *     +-----------------+       +----------------+       +--------------------------------+
 *     | ncclNetPlugin_v6| ----> | thin functions | ----> | plugin.c    init, finalize     |
 *     |       ...   _v12|       | per version    |       | device.c    network cards      |
 *     +-----------------+       +----------------+       | fused_devices.c  several as one|
 *                                                        | engines.c   engines of a card  |
 *                                                        |   engines_auto.c: how many     |
 *                                                        |   port_choice.c: xdp, tcp, udp |
 *                                                        | connect.c   listen to accept   |
 *                                                        |   trial.c: which port is faster|
 *                                                        |   trial_cache.c: and was       |
 *                                                        | close.c                        |
 *                                settings.c: HARP_ names | transfer.c  isend, irecv, test |
 *                                log.c: NCCL's log       +--------------------------------+
 *                            plan.c, json_reader.c: ports
 *                            plan_watch.c: when it changes
 *                                abi.h: NCCL's tables      buffers.c: what NCCL's GPUs read
 *                                state.c: what all share   cnet/engine/engine.h
 *
 * Beside it, and with nothing of it but settings.c: tuner.c, tuner_table.c (tuner_abi.h).
 *
 * **Threads.** NCCL calls init, devices, finalize on the application's threads, listen to close and
 * registration on a service thread, isend to test on a progress thread; a comm belongs to one of
 * them at a time. All but the last group hold `plugin.lock`; isend, irecv and test take no lock,
 * allocate nothing, and touch nothing but their comm.
 *
 * **Life.** Engines are opened with the first listen or connect on their device and closed with the
 * last finalize, or, before version 11, when the library is closed. A child of fork can only close.
 *
 *     comm        made by          ends in
 *     listening   listen           closeListen
 *     sending     connect          closeSend
 *     receiving   accept           closeRecv
 *
 * A receiving comm stays as `lingering` after closeRecv until the sending end has closed: that end
 * must hear that all has arrived.
 */
#ifndef HARP_NCCL_PLUGIN_H
#define HARP_NCCL_PLUGIN_H

#include <net/if.h>
#include <pthread.h>
#include <stdatomic.h>

#include "abi.h"
#include "engine/engine.h"
#include "engines_auto.h"
#include "plan.h"
#include "settings.h"
#include "trial.h"

#define PLUGIN_DEVICES 32
#define PLUGIN_RAILS (HARP_PORTS_MAX / 2) /* NICs of a device; tcp may be on each, too */
#define PLUGIN_NAME_BYTES (PLUGIN_RAILS * IF_NAMESIZE) /* "eth1+eth2" */
#define PLUGIN_PARTS 4         /* devices that NCCL fuses to one, as many as all its versions can */
#define PLUGIN_ENGINES 16      /* a device, at most */
#define PLUGIN_PATH_BYTES 4096 /* of a file's name */
#define PLUGIN_PROFILER_ID ((INT64_C(0x4852) << 16) | 1) /* "HR", layout 1 */

/* A network card, or a bond of several. */
struct nic {
    char name[IF_NAMESIZE];
    char card[IF_NAMESIZE];      /* what the interface lies on: itself, or of a bond the first */
    char pci[PLUGIN_PATH_BYTES]; /* "": virtual */
    uint64_t guid;
    uint32_t speed_mbps; /* 0: unknown */
    uint32_t queues;     /* that receive; 0: unknown */
    uint32_t vendor;     /* of the PCI device; 0: none */
    int node;            /* NUMA, or HARP_ARENA_LOCAL */
    struct harp_address address;
};

/* A device as NCCL uses it: a NIC, or several that are fused (fused_devices.c). */
struct device {
    char name[PLUGIN_NAME_BYTES];
    struct nic *nics[PLUGIN_RAILS];
    uint32_t nics_n;
    uint32_t speed_mbps;     /* of all NICs; 0: unknown */
    int parts[PLUGIN_PARTS]; /* NCCL fused it of these devices; */
    int parts_n;             /* 0: it did not */
    bool is_part;            /* of a device that NCCL fused */
    struct harp_engine *engines[PLUGIN_ENGINES];
    uint32_t engines_n; /* that it is to have; 0: not decided yet */
    char engines_why[ENGINES_AUTO_WHY_BYTES];
    uint32_t next;           /* engine that the next connection lives on */
    enum settings_port port; /* of its engines, the first kind if there are two */
    bool has_both;           /* and tcp beside it: trials decide between them */
    bool said_cached;        /* the log has a line about a result that was there */
};

/* Handles of regMr. */
struct memory {
    _Atomic uint32_t used; /* by this many requests that are not done */
    bool watched;          /* NCCL may read it while a message comes */
};

enum request_state { REQUEST_FREE, REQUEST_POSTED, REQUEST_DONE };

/* A send or a receive that NCCL asks about by test. */
struct request {
    struct comm *comm;
    enum request_state state;
    int bytes; /* of the message, when it is done */
    struct memory *memory;
    void *event; /* the profiler's */
};

enum comm_kind {
    COMM_LISTENING = 0x6c697374,
    COMM_SENDING = 0x73656e64,
    COMM_RECEIVING = 0x72656376
};

struct comm {
    enum comm_kind kind;
    enum nccl_result failed; /* NCCL_SUCCESS as long as it works */
    bool closed;             /* the connection is, for this reason: */
    uint32_t reason;
    uint32_t coming; /* messages that came before that and are still to be received */
    uint32_t life;   /* of the plugin, in which its engine was opened */
    struct device *device;
    struct harp_engine *engine;
    struct harp_listening *listening;
    struct harp_connection *connection; /* NULL: it was let go */
    struct comm *next;                  /* lingering, or listening */
    uint64_t until_ns;                  /* lingering so long at most */
    struct listed_newcomer *newcomers;  /* listening: connections that are not accepted yet */
    bool expects_openings;              /* listening: its handle has two kinds of ports (trial.h) */
    bool serves;                        /* listening: a trial is under way here */

    uint32_t free_n;
    uint8_t free[NCCL_REQUESTS]; /* stack */
    struct request requests[NCCL_REQUESTS];
};

/* An attempt to connect that NCCL will ask for again. */
struct attempt {
    struct attempt *next;
    uint64_t id;
    uint64_t begun_ns, asked_ns; /* asked: when NCCL last did */
    struct comm *comm;
    int traffic_class;
    /* Until its connection is begun: which ports are to carry it. */
    struct trial *trial;   /* NULL: none is under way */
    int cache_lock;        /* of its result; -1: none */
    uint64_t elsewhere_ns; /* when another rank's trial was first seen; 0: never */
};

/* A connection to a listener that expects openings. */
struct listed_newcomer {
    struct listed_newcomer *next;
    struct newcomer *newcomer;
};

struct plugin {
    pthread_mutex_t lock;
    nccl_logger logger;
    nccl_profiler profiler; /* NULL: none */
    uint32_t users;         /* contexts that are not finalized */
    uint32_t life;          /* counts how often the engines were closed */
    uint32_t open;          /* comms and listeners that NCCL has */
    bool forked;            /* this is a child of the process that NCCL runs in */
    bool ready;             /* settings and devices are read */
    bool drives;            /* NCCL's threads drive the engines */
    char progress_why[ENGINES_AUTO_WHY_BYTES]; /* of `drives`; "": not decided yet */
    struct settings settings;
    struct plan plan;
    bool strayed; /* the log has a line about a connection that the plan has no flow for */
    struct nic nics[PLUGIN_DEVICES];
    int nics_n;
    struct device devices[2 * PLUGIN_DEVICES]; /* NCCL's come behind those that HARP offers */
    int devices_n;
    struct attempt *attempts;
    uint32_t attempts_n;
    uint64_t attempt_last; /* id */
    uint64_t swept_ns;     /* when connect_sweep last looked at all listeners */
    struct comm *lingering, *listening;
};

/* state.c: what all of them share. */
extern struct plugin plugin;
uint64_t plugin_timeout_ns(void);         /* HARP_TIMEOUT */
bool comm_lives(const struct comm *comm); /* it has a connection, and its engine is there */

/* log.c: one line each, through NCCL's logger. plugin_fail returns `result`. plugin_info_of begins
 * "NET/HARP/0", as NCCL's "Channel ... via NET/HARP/0" does for this device. */
void plugin_info(const char *format, ...) __attribute__((format(printf, 1, 2)));
void plugin_info_of(const struct device *device, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
void plugin_warn(const char *format, ...) __attribute__((format(printf, 1, 2)));
enum nccl_result plugin_fail(enum nccl_result result, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* Why a connection ended, and what to do. */
enum nccl_result plugin_ended(const struct comm *comm, uint32_t reason);

/* plan_watch.c, with `plugin.lock` held: follow HARP_PLAN if it fits, and its revisions while the
 * job runs. */
void plan_watch_begin(void);
void plan_watch_end(void);

/* device.c: find the NICs that the settings name, and offer them as devices. */
enum nccl_result devices_find(void);

/* fused_devices.c: the NICs as devices, those of a group of HARP_RAILS as one. */
enum nccl_result devices_offer(void);

/* engines.c: open a device's engines unless they are; the one for the next connection,
 * NULL if it has none. */
enum nccl_result engines_open(struct device *device);
struct harp_engine *engines_next(struct device *device);
void engines_close(void);
void engines_watch_forks(void);

/* port_choice.c. Whether the settings go together; else one sentence in `why`. Whether devices have
 * tcp ports, beside xdp ones with zero copy or alone. How many flows a connection by tcp has on a
 * NIC, and why. */
bool port_choice_fits(const struct settings *settings, char *why, size_t room);
bool port_choice_has_tcp(const struct settings *settings);
uint32_t port_choice_flows(const struct nic *nic, const char **why);
/* The port that is first at a device where `auto` has no zero copy: packets before tcp. */
enum settings_port port_choice_first(const struct settings *settings);
/* All paths of a connection by ports of this kind, over all of a device's NICs. */
uint16_t port_choice_paths(const struct device *device, enum settings_port kind);
/* A kind as people call it. */
const char *port_choice_name(enum settings_port kind);

/* buffers.c. Bytes of the longest message that a GPU may read before all of it is there; whether it
 * may read memory of this size while a message comes. */
uint32_t buffers_read_early_most(void);
bool buffers_watched(size_t bytes);

/* connect.c */
void connect_sweep(void);   /* attempts and lingering comms whose time is over; trials go on */
void connect_give_up(void); /* all attempts, and all that is not accepted yet */

/* close.c */
void close_sweep(void);   /* lingering comms whose time is over */
void close_give_up(void); /* all of them; waits a little */

/* transfer.c. comm_drive: NCCL's thread moves things on, if that is its task. comm_end: close the
 * connection; `text` says why, if it was cut off. comm_let_go: that, and let go of all memory. */
void comm_drive(struct comm *comm);
void comm_end(struct comm *comm, const char *text);
struct comm *comm_new(enum comm_kind kind, struct device *device, struct harp_engine *engine);
bool comm_idle(const struct comm *comm); /* no request is outstanding */
void comm_let_go(struct comm *comm);

/* The implementation that all versions share: calls as in version 12, less the context (there is
 * only one), and structs that differ. */
enum nccl_result plugin_init(nccl_logger logger, nccl_profiler profiler);
enum nccl_result plugin_finalize(void);
enum nccl_result plugin_devices(int *count);
enum nccl_result plugin_properties(int device, struct nccl_properties_v12 *properties);
enum nccl_result plugin_make_device(int *made, const int *parts, int parts_n);
enum nccl_result plugin_listen(int device, void *handle, void **listening);
/* `traffic_class`: of the communicator; NCCL_UNDEFINED: HARP_TRAFFIC_CLASS. */
enum nccl_result plugin_connect(int device, int traffic_class, void *handle, void **sending);
enum nccl_result plugin_accept(void *listening, void **receiving);
enum nccl_result plugin_register(void *comm, void *data, size_t size, int type, void **memory);
enum nccl_result plugin_deregister(void *comm, void *memory);
enum nccl_result plugin_isend(void *sending, void *data, size_t size, int tag, void *memory,
                              void *parent, void **request);
enum nccl_result plugin_irecv(void *receiving, int n, void **data, size_t *sizes, int *tags,
                              void **memories, void **parents, void **request);
enum nccl_result plugin_iflush(void *receiving, int n, void **data, int *sizes, void **memories,
                               void **request);
enum nccl_result plugin_test(void *request, int *done, int *sizes);
enum nccl_result plugin_close_send(void *sending);
enum nccl_result plugin_close_receive(void *receiving);
enum nccl_result plugin_close_listen(void *listening);

#endif
