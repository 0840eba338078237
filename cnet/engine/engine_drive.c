/* Threads that drive an engine; how they sleep and wake; all engines of the process.
 *
 * An engine has a thread of its own, except under HARP_PROGRESS_MANUAL. Under HARP_PROGRESS_INLINE
 * the application's threads drive the engine, and its own thread, the helper, drives it only while
 * they do not. Five words of struct harp_engine decide between them:
 *
 *     word       writer                          reader and meaning
 *     token      1: a driver or a control call   both: 1 means that another one works; the next
 *                takes it; 0: it is done         holder sees all that the last one wrote
 *     wanted     a control call that waits for   the engine's thread: above 0 means to yield
 *                the token counts itself
 *     sleeping   1: a thread is about to wait,   applications that filled a ring: 1 means to ring
 *                under the token; 0: it waited,  the doorbell (sequentially consistent with the
 *                or an application drove         rings on both sides, so one sees the other)
 *     driven_ns  the application: when it last   the helper: it stands by until quiet_ns later
 *                drove, or will wait until
 *     stop       harp_engine_halt: 1             the engine's thread: 1 means to end
 *
 *     state of the engine's thread   sleeping   driven_ns      ends by
 *     runs turns, with the token     0          long ago       nothing moved for spin_ns
 *     waits in the kernel            1          long ago       doorbell, a port, a timer
 *     stands by (helper)             0 or 1     recent         quiet_ns over, or stop
 *
 * When the application begins to drive while the helper waits in the kernel, it rings the doorbell
 * once: its turn made the ports stop waking sleepers, so the helper must stand by instead.
 */
#define _GNU_SOURCE
#include "base/node_cpus.h"
#include "engine/engine_state.h"

#include <assert.h>
#include <errno.h>
#include <linux/futex.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define LONGEST_NAP_NS UINT64_C(1000000000)
#define SLEEP_ROWS 64   /* of connections, published before it sleeps at most */
#define TICK_NS 4000000 /* the kernel's own timer, where HZ is 250 */

/* ---- Waiting in the kernel ---- */

#define ENGINE_FDS (1 + HARP_PORTS_MAX)

/* Whether there is nothing to do. Asks the ports to wake this thread. */
static bool may_sleep(struct harp_engine *engine)
{
    if (harp_ready_set_any(&engine->due.calls))
        return false;
    for (uint32_t p = 0; p < engine->ports_n; p++)
        if (!engine->ports[p]->ops->sleep(engine->ports[p]))
            return false;
    return true;
}

/* The descriptors that wake a thread that waits for an engine; returns how many they are. */
static uint32_t list_descriptors(const struct harp_engine *engine, struct pollfd *fds)
{
    fds[0] = (struct pollfd){.fd = engine->drive.doorbell, .events = POLLIN};
    for (uint32_t p = 0; p < engine->ports_n; p++)
        fds[1 + p] =
            (struct pollfd){.fd = engine->ports[p]->ops->fd(engine->ports[p]), .events = POLLIN};
    return 1 + engine->ports_n;
}

static void wait_for_work(struct harp_engine *const *engines, uint32_t engines_n, int beside,
                          uint64_t most_ns)
{
    struct pollfd fds[HARP_SLEEP_ENGINES * ENGINE_FDS + 1];
    uint32_t n = 0, bells[HARP_SLEEP_ENGINES];
    for (uint32_t i = 0; i < engines_n; i++) {
        bells[i] = n;
        n += list_descriptors(engines[i], fds + n);
    }
    fds[n++] = (struct pollfd){.fd = beside, .events = POLLIN}; /* -1 is passed over */
    const struct timespec most = {.tv_sec = (time_t)(most_ns / 1000000000),
                                  .tv_nsec = (long)(most_ns % 1000000000)};
    ppoll(fds, n, &most, NULL);
    uint64_t rings;
    for (uint32_t i = 0; i < engines_n; i++)
        if (fds[bells[i]].revents & POLLIN)
            (void)!read(engines[i]->drive.doorbell, &rings, sizeof rings);
}

/* With the token: have ports and applications wake whoever is about to wait. Returns for how long
 * he may at most, or 0 if there is something to do; then or after the wait `sleeping` must be
 * cleared. */
static uint64_t prepare_nap(struct harp_engine *engine)
{
    atomic_store(&engine->drive.sleeping, 1);
    uint64_t deadline_ns = harp_engine_deadline_ns(engine);
    uint64_t now_ns = harp_engine_clock(engine);
    uint64_t nap_ns =
        deadline_ns > now_ns ? harp_engine_to_host_ns(engine, deadline_ns - now_ns) : 0;
    if (!nap_ns || !may_sleep(engine))
        return 0;
    harp_count(&engine->stats.stats->engine.sleeps, 1);
    harp_engine_publish(engine, SLEEP_ROWS);
    engine->tend_ns = 0; /* look around at once when it goes on */
    return nap_ns < LONGEST_NAP_NS ? nap_ns : LONGEST_NAP_NS;
}

/* Called with the token, which is dropped while waiting. */
static void sleep_until_work(struct harp_engine *engine)
{
    uint64_t nap_ns = prepare_nap(engine);
    harp_token_drop(engine);
    if (nap_ns)
        wait_for_work(&engine, 1, -1, nap_ns);
    atomic_store(&engine->drive.sleeping, 0);
}

/* The application's thread waits: its helper must stand by meanwhile. */
static uint64_t prepare_application_nap(struct harp_engine *engine)
{
    if (engine->generation != harp_generation || !harp_token_try(engine))
        return 0;
    uint64_t nap_ns = prepare_nap(engine);
    atomic_store_explicit(&engine->drive.driven_ns,
                          harp_engine_clock(engine) + harp_engine_from_host_ns(engine, nap_ns),
                          memory_order_relaxed);
    harp_token_drop(engine);
    return nap_ns;
}

bool harp_engines_sleep(struct harp_engine *const *engines, uint32_t n, int beside,
                        uint64_t most_ns)
{
    assert(n <= HARP_SLEEP_ENGINES);
    uint64_t nap_ns = most_ns;
    uint32_t asked = 0;
    while (asked < n && nap_ns) {
        uint64_t own_ns = prepare_application_nap(engines[asked++]);
        nap_ns = own_ns < nap_ns ? own_ns : nap_ns;
    }
    if (nap_ns)
        wait_for_work(engines, n, beside, nap_ns);
    for (uint32_t i = 0; i < asked; i++) {
        atomic_store(&engines[i]->drive.sleeping, 0);
        atomic_store_explicit(&engines[i]->drive.driven_ns, harp_engine_clock(engines[i]),
                              memory_order_relaxed);
    }
    return nap_ns > 0;
}

/* ---- Threads ---- */

/* The application drives: look again later, or when the engine closes. A timer takes the CPU from
 * it for some 40 us in a virtual machine, so this nap has none of its own: it ends with the
 * kernel's next tick. */
static void stand_by(struct harp_engine *engine)
{
    uint64_t quiet_ns = engine->config.quiet_ns;
    const struct timespec nap = {.tv_sec = (time_t)(quiet_ns / 1000000000),
                                 .tv_nsec = (long)(quiet_ns % 1000000000)};
    prctl(PR_SET_TIMERSLACK, TICK_NS, 0, 0, 0);
    syscall(SYS_futex, &engine->drive.stop, FUTEX_WAIT_PRIVATE, 0, &nap, NULL, 0);
    prctl(PR_SET_TIMERSLACK, 0, 0, 0, 0); /* 0: what the thread had at first */
}

/* Another thread has the token. It may be an application's thread that was preempted in the middle
 * of a turn and waits for this CPU. */
static void step_aside(struct harp_engine *engine)
{
    if (engine->config.progress == HARP_PROGRESS_INLINE)
        stand_by(engine);
    else
        sched_yield();
}

static void run_turns(struct harp_engine *engine)
{
    if (atomic_load_explicit(&engine->drive.wanted, memory_order_relaxed)) {
        sched_yield();
        return;
    }
    if (!harp_token_try(engine)) {
        step_aside(engine);
        return;
    }
    bool moved = harp_engine_turn(engine);
    if (moved)
        engine->active_ns = engine->now_ns;
    if (engine->now_ns - engine->active_ns >
        harp_engine_from_host_ns(engine, engine->config.spin_ns)) {
        sleep_until_work(engine);
        return;
    }
    harp_token_drop(engine);
    if (!moved)
        sched_yield(); /* a thread that shares this CPU may bring the next work */
}

/* Whether the application drives the engine. While its thread waits, driven_ns lies in the future.
 */
static bool is_driven(struct harp_engine *engine)
{
    uint64_t driven_ns = atomic_load_explicit(&engine->drive.driven_ns, memory_order_relaxed);
    return harp_engine_clock(engine) <
           driven_ns + harp_engine_from_host_ns(engine, engine->config.quiet_ns);
}

static void *engine_thread(void *argument)
{
    struct harp_engine *engine = argument;
    /* A helper that wakes up to see that the application drives must not take its CPU for that. */
    if (engine->config.progress == HARP_PROGRESS_INLINE)
        pthread_setschedparam(pthread_self(), SCHED_BATCH, &(struct sched_param){0});
    while (!atomic_load_explicit(&engine->drive.stop, memory_order_relaxed)) {
        if (engine->config.progress == HARP_PROGRESS_INLINE && is_driven(engine))
            stand_by(engine);
        else
            run_turns(engine);
    }
    return NULL;
}

/* The thread runs where the engine's memory is wanted; if nothing is known, where the thread does
 * that made it. */
static void place_on_node(struct harp_engine *engine)
{
    int node = engine->config.node;
    char *line = engine->arena.line;
    size_t n = strlen(line), room = sizeof engine->arena.line - n;
    cpu_set_t cpus;
    if (harp_node_cpus(HARP_NODES_FOLDER, node, &cpus) &&
        pthread_setaffinity_np(engine->drive.thread, sizeof cpus, &cpus) == 0)
        return;
    if (node >= 0)
        snprintf(line + n, room, "; its thread may use no CPU of node %d", node);
    else if (harp_nodes_are_several(HARP_NODES_FOLDER))
        snprintf(line + n, room, "; its thread's node is unknown: HARP_CPUS places it");
}

static int pin_thread(struct harp_engine *engine, char *why)
{
    if (engine->config.cpu < 0) {
        place_on_node(engine);
        return 0;
    }
    cpu_set_t cpus;
    CPU_ZERO(&cpus);
    CPU_SET((size_t)engine->config.cpu, &cpus);
    int error = pthread_setaffinity_np(engine->drive.thread, sizeof cpus, &cpus);
    if (error)
        snprintf(why, HARP_WHY_BYTES, "the engine's thread cannot run on CPU %d: %s",
                 engine->config.cpu, strerror(error));
    return -error;
}

int harp_engine_start(struct harp_engine *engine, char *why)
{
    if (engine->config.progress == HARP_PROGRESS_MANUAL)
        return 0;
    engine->drive.doorbell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (engine->drive.doorbell < 0)
        return snprintf(why, HARP_WHY_BYTES, "no eventfd: %s", strerror(errno)), -errno;
    /* Signals are the application's business: none comes to a thread that it knows nothing of. */
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(&engine->drive.thread, NULL, engine_thread, engine);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    engine->drive.threaded = error == 0;
    if (error) {
        snprintf(why, HARP_WHY_BYTES, "no thread: %s", strerror(error));
        error = -error;
    } else {
        error = pin_thread(engine, why);
    }
    if (error)
        harp_engine_halt(engine);
    return error;
}

void harp_engine_halt(struct harp_engine *engine)
{
    atomic_store(&engine->drive.stop, 1);
    harp_engine_ring(engine);
    syscall(SYS_futex, &engine->drive.stop, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
    if (engine->drive.threaded)
        pthread_join(engine->drive.thread, NULL);
    engine->drive.threaded = false;
    if (engine->drive.doorbell >= 0)
        close(engine->drive.doorbell);
    engine->drive.doorbell = -1;
}

static bool drive_by(struct harp_engine *engine, bool (*turn)(struct harp_engine *engine))
{
    if (engine->generation != harp_generation)
        return false;
    if (!harp_token_try(engine))
        return false;
    bool moved = turn(engine);
    atomic_store_explicit(&engine->drive.driven_ns, engine->now_ns, memory_order_relaxed);
    /* After a turn the ports wake no sleeper, so the helper must stop sleeping and stand by. */
    if (atomic_load_explicit(&engine->drive.sleeping, memory_order_relaxed) &&
        atomic_exchange(&engine->drive.sleeping, 0))
        harp_engine_ring(engine);
    harp_token_drop(engine);
    return moved;
}

bool harp_engine_drive(struct harp_engine *engine)
{
    return drive_by(engine, harp_engine_turn);
}

bool harp_engine_push(struct harp_engine *engine)
{
    return drive_by(engine, harp_engine_push_turn);
}

/* ---- All engines of this process: fork, and driving each other's ---- */

static struct harp_engine *open_engines;
static pthread_mutex_t open_lock = PTHREAD_MUTEX_INITIALIZER;

static void before_fork(void)
{
    pthread_mutex_lock(&open_lock);
}

static void after_fork(void)
{
    pthread_mutex_unlock(&open_lock);
}

/* The child closes sockets and cards at once, else they would stay open when the parent ends; and
 * it closes the statistics, since a lock on them says that the parent lives. */
static void in_child(void)
{
    harp_generation++;
    for (struct harp_engine *engine = open_engines; engine; engine = engine->next_open) {
        for (uint32_t p = 0; p < engine->ports_n; p++)
            engine->ports[p]->ops->close(engine->ports[p]);
        harp_stats_destroy(&engine->stats);
    }
    open_engines = NULL;
    pthread_mutex_unlock(&open_lock);
}

static void watch_forks(void)
{
    pthread_atfork(before_fork, after_fork, in_child);
}

void harp_engine_enlist(struct harp_engine *engine)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, watch_forks);
    pthread_mutex_lock(&open_lock);
    engine->next_open = open_engines;
    open_engines = engine;
    pthread_mutex_unlock(&open_lock);
}

void harp_engine_delist(struct harp_engine *engine)
{
    pthread_mutex_lock(&open_lock);
    struct harp_engine **at = &open_engines;
    while (*at != engine)
        at = &(*at)->next_open;
    *at = engine->next_open;
    pthread_mutex_unlock(&open_lock);
}

void harp_engines_drive_inline(void)
{
    pthread_mutex_lock(&open_lock);
    for (struct harp_engine *engine = open_engines; engine; engine = engine->next_open)
        if (engine->config.progress == HARP_PROGRESS_INLINE)
            harp_engine_drive(engine);
    pthread_mutex_unlock(&open_lock);
}
