#include "table/table_crew.h"

#include <pthread.h>
#include <unistd.h>

static pthread_mutex_t crew_taken = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t crew_lock = PTHREAD_MUTEX_INITIALIZER; /* guards what follows */
static pthread_cond_t crew_begin = PTHREAD_COND_INITIALIZER, crew_end = PTHREAD_COND_INITIALIZER;
static struct {
    table_crew_work *work;
    void *with;
    uint64_t call;    /* its number: a thread works once at each */
    uint32_t workers; /* of this call */
    uint32_t at_work; /* threads that have not ended this call */
    uint32_t started; /* threads beside the callers */
    pid_t process;
} crew;

static void *crew_thread(void *argument)
{
    uint32_t worker = (uint32_t)(uintptr_t)argument;
    pthread_mutex_lock(&crew_lock);
    uint64_t done = crew.call - 1; /* it was started for the call that is under way */
    for (;;) {
        while (crew.call == done)
            pthread_cond_wait(&crew_begin, &crew_lock);
        done = crew.call;
        if (worker >= crew.workers)
            continue;
        table_crew_work *work = crew.work;
        void *with = crew.with;
        uint32_t workers = crew.workers;
        pthread_mutex_unlock(&crew_lock);
        work(with, worker, workers);
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

void table_crew_run(table_crew_work *work, void *with, uint32_t workers)
{
    if (workers > TABLE_CREW_MOST)
        workers = TABLE_CREW_MOST;
    if (workers <= 1 || (crew.process && crew.process != getpid()) ||
        pthread_mutex_trylock(&crew_taken)) {
        work(with, 0, 1);
        return;
    }
    pthread_mutex_lock(&crew_lock);
    crew.call++;
    crew.workers = workers = crew_start(workers);
    crew.work = work;
    crew.with = with;
    crew.at_work = workers - 1;
    pthread_cond_broadcast(&crew_begin);
    pthread_mutex_unlock(&crew_lock);
    work(with, 0, workers);
    pthread_mutex_lock(&crew_lock);
    while (crew.at_work)
        pthread_cond_wait(&crew_end, &crew_lock);
    pthread_mutex_unlock(&crew_lock);
    pthread_mutex_unlock(&crew_taken);
}
