/* The engines of this process: what a child of fork gives back, and who drives those that wait. */
#include "engine/engine_state.h"

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

/* The child lets go of sockets and cards at once, else they would outlive the parent; and of the
 * statistics, whose lock says that the parent lives. */
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
