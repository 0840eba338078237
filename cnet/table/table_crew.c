#include "table/table_crew.h"

#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#include "table/table.h"

/* A call's parts, which threads take one by one. */
struct crew_call {
    table_crew_work *work;
    void *with;
    uint32_t parts;
    atomic_ullong taken; /* a bit for each part */
};
_Static_assert(TABLE_CREW_MOST <= 64, "a part has a bit");

static pthread_mutex_t crew_taken = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t crew_lock = PTHREAD_MUTEX_INITIALIZER; /* guards what follows */
static pthread_cond_t crew_begin = PTHREAD_COND_INITIALIZER, crew_end = PTHREAD_COND_INITIALIZER;
static struct {
    struct crew_call *call;
    uint64_t number;  /* of the call: a thread works once at each */
    uint32_t workers; /* of this call */
    uint32_t at_work; /* threads that have not ended this call */
    uint32_t started; /* threads beside the callers */
    pid_t process;
} crew;
static struct {
    harp_openmp_parallel *parallel;
    pid_t process;
} openmp;

void harp_embedding_use_openmp(harp_openmp_parallel *parallel)
{
    openmp.parallel = parallel;
    openmp.process = getpid();
}

/* A thread begins with the same part in each call, so a shard stays in the caches of one core. */
static void take_parts(void *with)
{
    static atomic_uint seats;
    static _Thread_local uint32_t seat; /* from 1 on; 0: it has none yet */
    struct crew_call *call = with;
    if (!seat)
        seat = 1 + atomic_fetch_add(&seats, 1);
    for (uint32_t i = 0; i < call->parts; i++) {
        uint32_t part = (seat - 1 + i) % call->parts;
        unsigned long long bit = 1ULL << part;
        if (!(atomic_fetch_or(&call->taken, bit) & bit))
            call->work(call->with, part, call->parts);
    }
}

static void *crew_thread(void *argument)
{
    uint32_t worker = (uint32_t)(uintptr_t)argument;
    pthread_mutex_lock(&crew_lock);
    uint64_t done = crew.number - 1; /* it was started for the call that is under way */
    for (;;) {
        while (crew.number == done)
            pthread_cond_wait(&crew_begin, &crew_lock);
        done = crew.number;
        if (worker >= crew.workers)
            continue;
        struct crew_call *call = crew.call;
        pthread_mutex_unlock(&crew_lock);
        take_parts(call);
        pthread_mutex_lock(&crew_lock);
        if (!--crew.at_work)
            pthread_cond_signal(&crew_end);
    }
    return NULL;
}

/* Start threads until there are `workers` of them. Returns how many there are. */
static uint32_t crew_start(uint32_t workers)
{
    if (!crew.started)
        crew.process = getpid();
    while (crew.started + 1 < workers) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, crew_thread, (void *)(uintptr_t)(crew.started + 1)))
            break;
        pthread_detach(thread);
        crew.started++;
    }
    return crew.started + 1 < workers ? crew.started + 1 : workers;
}

static void crew_work(struct crew_call *call)
{
    pthread_mutex_lock(&crew_lock);
    crew.number++;
    crew.workers = crew_start(call->parts);
    crew.call = call;
    crew.at_work = crew.workers - 1;
    pthread_cond_broadcast(&crew_begin);
    pthread_mutex_unlock(&crew_lock);
    take_parts(call);
    pthread_mutex_lock(&crew_lock);
    while (crew.at_work)
        pthread_cond_wait(&crew_end, &crew_lock);
    pthread_mutex_unlock(&crew_lock);
}

void table_crew_run(table_crew_work *work, void *with, uint32_t workers)
{
    struct crew_call call = {work, with, workers < TABLE_CREW_MOST ? workers : TABLE_CREW_MOST, 0};
    pid_t process = getpid();
    bool by_openmp = openmp.parallel && openmp.process == process;
    bool forked = !by_openmp && crew.process && crew.process != process;
    if (workers <= 1 || forked || pthread_mutex_trylock(&crew_taken)) {
        work(with, 0, 1);
        return;
    }
    if (by_openmp)
        openmp.parallel(take_parts, &call, call.parts, 0);
    else
        crew_work(&call);
    pthread_mutex_unlock(&crew_taken);
}
