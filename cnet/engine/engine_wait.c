#define _GNU_SOURCE
#include <poll.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "engine/engine_state.h"

#define SPIN_NS UINT64_C(20000) /* a wake-up by the kernel takes about as long */
#define NAP_NS UINT64_C(50000)  /* where nobody would wake us */

/* A source of wake-ups. `arm` makes `fd` readable when it happens, or says that it has. */
struct wait {
    struct harp_engine *engine;
    void *what;
    bool (*ready)(void *what);
    bool (*arm)(void *what);
    int (*fd)(void *what);
};

static void sleep_ns(int fd, uint64_t most_ns)
{
    struct pollfd event = {.fd = fd, .events = POLLIN};
    const struct timespec most = {.tv_sec = (time_t)(most_ns / 1000000000),
                                  .tv_nsec = (long)(most_ns % 1000000000)};
    uint64_t cleared;
    if (ppoll(&event, fd >= 0, &most, NULL) > 0)
        (void)!read(fd, &cleared, sizeof cleared);
}

static bool wait_for(const struct wait *wait, uint64_t most_ns)
{
    struct harp_engine *engine = wait->engine;
    bool drives = engine->config.progress != HARP_PROGRESS_THREAD;
    uint64_t start_ns = harp_clock_ns(), moved_ns = start_ns, now_ns = start_ns;
    while (engine->generation == harp_generation && !wait->ready(wait->what)) {
        if (drives && harp_engine_drive(engine))
            moved_ns = now_ns;
        now_ns = harp_clock_ns();
        if (now_ns - start_ns >= most_ns)
            return wait->ready(wait->what);
        if (now_ns - moved_ns < SPIN_NS)
            continue;
        uint64_t left_ns = most_ns - (now_ns - start_ns);
        if (engine->config.progress == HARP_PROGRESS_MANUAL || !wait->fd) {
            sleep_ns(-1, left_ns < NAP_NS ? left_ns : NAP_NS);
            continue;
        }
        int fd = wait->fd(wait->what);
        if (wait->arm(wait->what))
            sleep_ns(fd, left_ns);
        return wait->ready(wait->what); /* a signal may have come: the caller looks after it */
    }
    return engine->generation == harp_generation;
}

static bool completion_ready(void *connection)
{
    return harp_spsc_ready(((struct harp_connection *)connection)->shared.completions) > 0;
}

static bool completion_arm(void *connection)
{
    return harp_arm(connection);
}

static int completion_fd(void *connection)
{
    return harp_connection_fd(connection);
}

bool harp_connection_wait(struct harp_connection *connection, uint64_t most_ns)
{
    return wait_for(&(struct wait){.engine = connection->engine,
                                   .what = connection,
                                   .ready = completion_ready,
                                   .arm = completion_arm,
                                   .fd = completion_fd},
                    most_ns);
}

static bool newcomer_ready(void *what)
{
    struct harp_listening *listening = what;
    harp_token_take(listening->engine);
    bool ready = listening->waiting_n > 0;
    harp_token_drop(listening->engine);
    return ready;
}

static bool newcomer_arm(void *listening)
{
    return !newcomer_ready(listening); /* the descriptor counts them from its making on */
}

static int newcomer_fd(void *listening)
{
    return harp_listening_fd(listening);
}

bool harp_listening_wait(struct harp_listening *listening, uint64_t most_ns)
{
    return wait_for(&(struct wait){.engine = listening->engine,
                                   .what = listening,
                                   .ready = newcomer_ready,
                                   .arm = newcomer_arm,
                                   .fd = newcomer_fd},
                    most_ns);
}

/* The other ends may be in this process, at engines which the caller's thread drives else. */
static bool has_drained(void *what)
{
    struct harp_engine *engine = what;
    harp_engines_drive_inline();
    harp_token_take(engine);
    bool all = engine->connections.closing_n == 0;
    harp_token_drop(engine);
    return all;
}

bool harp_engine_drain(struct harp_engine *engine, uint64_t most_ns)
{
    return wait_for(&(struct wait){.engine = engine, .what = engine, .ready = has_drained},
                    most_ns);
}
