/* A client of NCCL network plugins that behaves as NCCL's net.cc does, and checks what it gets.
 *
 * Two processes, rank 0 and rank 1, run the same scenarios. Each scenario runs in a child of its
 * own, so that a plugin that crashes or hangs is seen from outside, within a bounded time:
 *
 *     rank 0: supervisor ---------- control ---------- supervisor :rank 1
 *               | fork, watch                            | fork, watch
 *             child  ------------- meet, a socket ------ child
 *               | main thread        load, init, devices, properties, finalize, unload
 *               | service thread     listen, connect, accept, regMr, deregMr, close
 *               | progress thread    isend, irecv, test
 *
 * A scenario is written as one sequence of steps on the main thread; on_service and on_progress
 * carry a step out on the thread that NCCL would use for it.
 *
 * A thread that finds a fault calls `fail` with one sentence, which ends the process.
 */
#ifndef TEST_NCCL_CLIENT_H
#define TEST_NCCL_CLIENT_H

#include "plugin.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>

enum { LINKS_MAX = 64, FLOWS_SHOWN = 64 };

struct options {
    const char *path;
    const char *without; /* a scenario to leave out; NULL: none */
    int version;         /* 0: the newest that it has */
    int rank;
    int device;
    int traffic_class;
    double limit_s; /* of one scenario */
    double bound_s; /* within which a dead peer must be noticed */
    double quiet_s; /* for which nobody calls the plugin, in `quiet` */
    size_t largest; /* message */
    uint64_t seed;
    bool verbose;
    bool json;
    int cpu; /* of the progress thread; below 0: any */
    int depth;
    size_t size;
    double seconds;
};

/* The supervisor's output if its child ends otherwise than it should. */
struct shared {
    char step[128];
    char verdict[768];
    char said[512]; /* last warning that the plugin wrote to NCCL's log */
    struct shown {
        const char *what;
        atomic_uint_least64_t posted, done;
        uint64_t of;
    } flows[FLOWS_SHOWN];
};

extern struct shared *shared;

__attribute__((noreturn, format(printf, 1, 2))) void fail(const char *format, ...);
__attribute__((format(printf, 1, 2))) void step(const char *format, ...);
uint64_t now_ns(void);
uint64_t mix(uint64_t value); /* a well mixed function of it */

/* ---- Threads: client_threads.c ---- */

struct worker {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    void (*job)(void *);
    void *of;
    bool running, ending, busy;
};

void worker_begin(struct worker *worker);
void worker_end(struct worker *worker);

/* Have it do a job; worker_wait returns when it is done, or false after `most_s`. */
void worker_start(struct worker *worker, void (*job)(void *), void *of);
bool worker_wait(struct worker *worker, double most_s);

/* ---- Two processes: client_meet.c ---- */

struct meeting {
    int control, meet;
};

/* Rank 0 prints "ready PLACE" and waits there; rank 1 is given PLACE, a path or HOST:PORT. */
struct meeting meet_open(int rank, const char *place);
void meet_send(int fd, const void *bytes, size_t count);
void meet_receive(int fd, void *bytes, size_t count);
void meet_barrier(int fd);
void meet_forget(void); /* remove what meet_open left in the file system */

/* ---- A world: what one scenario has ---- */

enum { COMMUNICATORS = 2 };

struct world {
    const struct options *options;
    int rank, meet;
    struct plugin plugin;
    int communicators;
    void *contexts[COMMUNICATORS];
    struct nccl_properties_v12 properties; /* of the device in use */
    bool one_thread;                       /* NCCL_OOB_NET_ENABLE: main does everything */
    bool unfinished;                       /* requests were left in flight */
    struct worker service, progress[COMMUNICATORS];
    int threads_before;
    uint64_t files_before[16]; /* bit per descriptor */
};

void world_open(struct world *world, int communicators);
void world_close(struct world *world);
void world_finalize(struct world *world, int communicator);
void on_service(struct world *world, void (*job)(void *), void *of);

/* Fails unless the result is success. */
void expect(const struct world *world, enum nccl_result result, const char *call);
const char *result_name(enum nccl_result result);

/* ---- Memory: client_memory.c ---- */

/* Bytes between two pages that nobody may touch, registered with a comm. */
struct region {
    uint8_t *bytes;
    size_t size;
    void *memory; /* the plugin's handle */
};

struct region region_make(size_t size);

/* From now on whoever touches it ends the process, with a sentence that says so. */
void region_retire(struct region *region);
void region_guard(void); /* installs the handler */
void regions_forget(void);

/* Payload: every 8 bytes depend on the key and on their place. */
void payload_fill(uint8_t *bytes, size_t size, uint64_t key);

/* The first byte that is not what it should be, or `size`. */
size_t payload_check(const uint8_t *bytes, size_t size, uint64_t key);
uint64_t payload_word(uint64_t key, size_t index);
void canary_fill(uint8_t *bytes, size_t size);
size_t canary_check(const uint8_t *bytes, size_t size);

/* ---- Links: connections, in net.cc's order of calls: client_links.c ---- */

struct link {
    struct world *world;
    int number, communicator;
    bool sending;
    void *listening, *comm;
    uint8_t handle[NCCL_HANDLE_BYTES];
    struct region region;
};

/* `count` links: even ones from rank 0 to rank 1, odd ones back. */
void links_open(struct world *world, struct link *links, int count, int communicator);

/* Memory for each, and its registration. */
void link_register(struct link *link, size_t size);
void link_deregister(struct link *link); /* and the memory is gone */

/* deregMr, memory gone, close: in NCCL's order, whatever is in flight. */
void links_close(struct world *world, struct link *links, int count);

/* ---- Flows: messages over a link: client_flow.c ---- */

enum order { FIFO, LIFO, RANDOM };
enum sizes { ANY_SIZE, LISTED_SIZES, FIXED_SIZE };

struct plan {
    uint64_t seed;
    uint64_t groups; /* irecv calls */
    int receives;    /* buffers of an irecv, at most */
    int depth;       /* irecv calls outstanding */
    enum sizes sizes;
    size_t largest;
    enum order order;
    bool smaller;  /* less is sent than was posted */
    bool stale;    /* *request has some value when irecv is called */
    bool optional; /* that value is 1: completion is optional */
    bool flags;    /* a reader watches the buffers while they are filled */
};

struct flow;

struct flow *flow_make(struct link *link, const struct plan *plan);
void flow_free(struct flow *flow);
size_t flow_bytes(const struct plan *plan); /* of memory that the link needs */

/* A turn: post and poll. Returns whether something moved; `failed` gets the plugin's error. */
bool flow_turn(struct flow *flow, enum nccl_result *failed);
bool flow_finished(const struct flow *flow);
uint64_t flow_done(const struct flow *flow);

/* Post what can be posted, without a test. */
bool flow_post(struct flow *flow, enum nccl_result *failed);

struct run {
    struct world *world;
    struct flow *flows[LINKS_MAX];
    int count;
    int until_errors;       /* go on until each flow has got an error */
    uint64_t until_done;    /* or, if not 0, until the first has done this many groups */
    enum nccl_result error; /* the first that came */
    atomic_bool stop;
};

/* Runs all flows to their end; for on_progress. */
void run_flows(void *of_run);

/* Make flows of the plan over the links, run them to their end, and free them. */
void links_run(struct world *world, struct link *links, int count, const struct plan *plan);

/* ---- Scenarios ---- */

struct scenario {
    const char *name, *what;
    void (*run)(struct world *world);
    bool mortal; /* rank 1 does not come back */
    bool json;   /* what it prints is for programs */
    int since;   /* version of the table */
};

extern const struct scenario scenarios_traffic[], scenarios_ends[], scenarios_deaths[];
extern const struct scenario scenarios_speed[], scenarios_ring[];

enum nccl_result profiler_call(void **event, int type, void *parent, int64_t plugin, void *data);
void *profiler_parent(void);

#endif
