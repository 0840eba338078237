#define _GNU_SOURCE
#include "client.h"

#include <errno.h>
#include <time.h>

static void *run_communicator(void *of)
{
    struct worker *worker = of;
    pthread_mutex_lock(&worker->lock);
    for (;;) {
        while (!worker->busy && !worker->ending)
            pthread_cond_wait(&worker->changed, &worker->lock);
        if (!worker->busy)
            break;
        pthread_mutex_unlock(&worker->lock);
        worker->job(worker->of);
        pthread_mutex_lock(&worker->lock);
        worker->busy = false;
        pthread_cond_broadcast(&worker->changed);
    }
    pthread_mutex_unlock(&worker->lock);
    return NULL;
}

void worker_begin(struct worker *worker)
{
    pthread_condattr_t attributes;
    *worker = (struct worker){.running = true};
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&worker->changed, &attributes);
    pthread_mutex_init(&worker->lock, NULL);
    if (pthread_create(&worker->thread, NULL, run_communicator, worker))
        fail("the client cannot make a thread");
}

void worker_end(struct worker *worker)
{
    if (!worker->running)
        return;
    pthread_mutex_lock(&worker->lock);
    worker->ending = true;
    pthread_cond_broadcast(&worker->changed);
    pthread_mutex_unlock(&worker->lock);
    pthread_join(worker->thread, NULL);
    worker->running = false;
}

void worker_start(struct worker *worker, void (*job)(void *), void *of)
{
    pthread_mutex_lock(&worker->lock);
    worker->job = job;
    worker->of = of;
    worker->busy = true;
    pthread_cond_broadcast(&worker->changed);
    pthread_mutex_unlock(&worker->lock);
}

bool worker_wait(struct worker *worker, double most_s)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    uint64_t ns = (uint64_t)until.tv_nsec + (uint64_t)(most_s * 1e9);
    until.tv_sec += (time_t)(ns / 1000000000u);
    until.tv_nsec = (long)(ns % 1000000000u);
    int result = 0;
    pthread_mutex_lock(&worker->lock);
    while (worker->busy && result != ETIMEDOUT)
        result = pthread_cond_timedwait(&worker->changed, &worker->lock, &until);
    bool done = !worker->busy;
    pthread_mutex_unlock(&worker->lock);
    return done;
}
