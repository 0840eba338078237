/* Pages by threads: each takes a request, and a call of pread or pwrite does it. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#include "store/page_io.h"

/* Four keep an NVMe disk busy with transfers of megabytes; more only wait for one another. */
enum { THREADS = 4 };

struct page_list {
    struct page_request *first, **end;
};

struct page_io {
    pthread_mutex_t lock;
    pthread_cond_t wanted, over;
    struct page_list todo, done;
    pthread_t threads[THREADS];
    int threads_n;
    bool closing;
};

static void append_request(struct page_list *list, struct page_request *request)
{
    request->next = NULL;
    *list->end = request;
    list->end = &request->next;
}

static struct page_request *take_first(struct page_list *list)
{
    struct page_request *first = list->first;
    list->first = first->next;
    if (!list->first)
        list->end = &list->first;
    return first;
}

static int move_page(const struct page_request *request)
{
    ssize_t moved =
        request->write
            ? pwrite(request->fd, request->memory, request->bytes, (off_t)request->offset)
            : pread(request->fd, request->memory, request->bytes, (off_t)request->offset);
    return moved < 0 ? -errno : (int)moved;
}

static void *serve_requests(void *argument)
{
    struct page_io *io = argument;
    pthread_mutex_lock(&io->lock);
    for (;;) {
        while (!io->todo.first && !io->closing)
            pthread_cond_wait(&io->wanted, &io->lock);
        if (io->closing)
            break;
        struct page_request *request = take_first(&io->todo);
        pthread_mutex_unlock(&io->lock);
        request->result = move_page(request);
        pthread_mutex_lock(&io->lock);
        append_request(&io->done, request);
        pthread_cond_signal(&io->over);
    }
    pthread_mutex_unlock(&io->lock);
    return NULL;
}

static void close_threads(struct page_io *io)
{
    pthread_mutex_lock(&io->lock);
    io->closing = true;
    pthread_cond_broadcast(&io->wanted);
    pthread_mutex_unlock(&io->lock);
    for (int i = 0; i < io->threads_n; i++)
        pthread_join(io->threads[i], NULL);
    pthread_cond_destroy(&io->over);
    pthread_cond_destroy(&io->wanted);
    pthread_mutex_destroy(&io->lock);
    free(io);
}

static struct page_io *open_threads(void)
{
    struct page_io *io = calloc(1, sizeof *io);
    if (!io)
        return NULL;
    io->todo.end = &io->todo.first;
    io->done.end = &io->done.first;
    pthread_mutex_init(&io->lock, NULL);
    pthread_cond_init(&io->wanted, NULL);
    pthread_cond_init(&io->over, NULL);
    for (; io->threads_n < THREADS; io->threads_n++) {
        int failed = pthread_create(&io->threads[io->threads_n], NULL, serve_requests, io);
        if (failed) {
            close_threads(io);
            errno = failed;
            return NULL;
        }
    }
    return io;
}

static void submit_to_threads(struct page_io *io, struct page_request *request)
{
    pthread_mutex_lock(&io->lock);
    append_request(&io->todo, request);
    pthread_cond_signal(&io->wanted);
    pthread_mutex_unlock(&io->lock);
}

static struct page_request *reap_from_threads(struct page_io *io)
{
    pthread_mutex_lock(&io->lock);
    while (!io->done.first)
        pthread_cond_wait(&io->over, &io->lock);
    struct page_request *request = take_first(&io->done);
    pthread_mutex_unlock(&io->lock);
    return request;
}

const struct page_io_ops page_io_threads = {
    .name = "threads",
    .open = open_threads,
    .submit = submit_to_threads,
    .reap = reap_from_threads,
    .close = close_threads,
};
