#define _GNU_SOURCE
#include "tcp_ref.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

enum { CALLERS_MAX = 64, BACKLOG = 128 };

/* The first bytes on each socket: which listener is meant, and which sockets belong together. */
struct hello {
    uint64_t secret, attempt;
    uint32_t index, count;
};

struct tcp_attempt {
    struct tcp_attempt *next;
    struct hello hello;
    int fds[TCP_SOCKETS_MAX];
    bool greeted[TCP_SOCKETS_MAX];
};

struct handle {
    uint64_t secret;
    struct sockaddr_in address;
    struct tcp_attempt *attempt; /* of the connecting end */
};

_Static_assert(sizeof(struct handle) <= NCCL_HANDLE_BYTES, "a handle has 128 bytes");

/* A socket that was accepted, until all of its attempt's are there. */
struct caller {
    int fd; /* below 0: none */
    size_t heard;
    struct hello hello;
};

struct listener {
    struct tcp_context *context;
    int fd;
    uint64_t secret;
    struct tcp_comm *last; /* accepted; LISTENER_OWNS */
    struct caller callers[CALLERS_MAX];
};

static void log_nothing(enum nccl_log_level level, unsigned long parts, const char *file, int line,
                        const char *format, ...)
{
    (void)level, (void)parts, (void)file, (void)line, (void)format;
}

nccl_logger tcp_log = log_nothing;
struct tcp_context *tcp_only;

static void *stay_loaded(void *of)
{
    for (;;)
        pause();
    return of;
}

enum nccl_result tcp_init(void **context, uint64_t communicator, struct nccl_config *config,
                          nccl_logger logger, nccl_profiler profiler)
{
    (void)communicator, (void)config, (void)profiler;
    tcp_log = logger ? logger : log_nothing;
    *context = NULL;
    enum nccl_result result = tcp_find_devices();
    if (result)
        return result;
    pthread_t thread;
    if (is_broken(LEFT_THREAD))
        pthread_create(&thread, NULL, stay_loaded, NULL);
    if (is_broken(LEFT_DESCRIPTOR) && dup(2) < 0)
        return NCCL_SYSTEM_ERROR;
    struct tcp_context *made = calloc(1, sizeof(*made));
    if (!made)
        return NCCL_SYSTEM_ERROR;
    pthread_mutex_init(&made->lock, NULL);
    *context = made;
    if (is_broken(ONE_FOR_ALL) && !tcp_only)
        tcp_only = made;
    tcp_log(NCCL_LOG_INFO, NCCL_PART_INIT | NCCL_PART_NET, __FILE__, __LINE__,
            "TCP reference on %s", tcp_device(0)->name);
    return NCCL_SUCCESS;
}

static void close_all(const int *fds, int count)
{
    for (int i = 0; i < count; i++)
        if (fds[i] >= 0)
            close(fds[i]);
}

static void forget_attempt(struct tcp_context *context, struct tcp_attempt *attempt, bool closing)
{
    pthread_mutex_lock(&context->lock);
    for (struct tcp_attempt **at = &context->attempts; *at; at = &(*at)->next)
        if (*at == attempt) {
            *at = attempt->next;
            break;
        }
    pthread_mutex_unlock(&context->lock);
    if (closing)
        close_all(attempt->fds, TCP_SOCKETS_MAX);
    free(attempt);
}

enum nccl_result tcp_finalize(void *of)
{
    struct tcp_context *context = of;
    while (context->attempts)
        forget_attempt(context, context->attempts, true);
    struct tcp_context *shared = is_broken(ONE_FOR_ALL) ? tcp_only : NULL;
    for (struct tcp_comm *at = shared ? shared->comms : NULL; at; at = at->next)
        for (int i = 0; i < at->sockets_n; i++)
            shutdown(at->sockets[i].fd, SHUT_RDWR);
    if (context == tcp_only)
        tcp_only = NULL;
    pthread_mutex_destroy(&context->lock);
    free(context);
    return NCCL_SUCCESS;
}

/* ---- A comm, once its sockets are there ---- */

static void tune_socket(int fd)
{
    const int yes = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
    const char *control = getenv("TCP_REF_CONGESTION");
    if (control && setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, control, (socklen_t)strlen(control)))
        TCP_WARN("TCP reference: TCP_REF_CONGESTION=%s: the kernel has no such control", control);
}

static struct tcp_comm *make_comm(struct tcp_context *context, bool sending, const int *fds,
                                  int count)
{
    struct tcp_comm *comm = calloc(1, sizeof(*comm));
    if (!comm)
        return NULL;
    struct tcp_context *home = is_broken(ONE_FOR_ALL) && tcp_only ? tcp_only : context;
    comm->context = home;
    comm->sending = sending;
    comm->sockets_n = count;
    for (int i = 0; i < count; i++)
        comm->sockets[i].fd = fds[i];
    pthread_mutex_lock(&home->lock);
    comm->next = home->comms;
    home->comms = comm;
    pthread_mutex_unlock(&home->lock);
    return comm;
}

enum nccl_result tcp_close(void *of)
{
    struct tcp_comm *comm = of;
    if (!comm)
        return NCCL_INVALID_ARGUMENT;
    if ((is_broken(TOUCHED_LATE) && !comm->sending) || (is_broken(READ_LATE) && comm->sending)) {
        for (int i = 0; i < comm->sockets_n; i++) {
            const struct tcp_message *at = &comm->messages[comm->sockets[i].message % TCP_REQUESTS];
            if (comm->sockets[i].message == comm->known || !at->header.size)
                continue;
            uint8_t byte = *(volatile uint8_t *)at->data;
            if (!comm->sending)
                *(volatile uint8_t *)at->data = byte;
        }
    }
    pthread_mutex_lock(&comm->context->lock);
    for (struct tcp_comm **at = &comm->context->comms; *at; at = &(*at)->next)
        if (*at == comm) {
            *at = comm->next;
            break;
        }
    pthread_mutex_unlock(&comm->context->lock);
    for (int i = 0; i < comm->sockets_n; i++)
        close(comm->sockets[i].fd);
    free(comm);
    return NCCL_SUCCESS;
}

/* ---- Connecting ---- */

static int sockets_wanted(void)
{
    const char *text = getenv("TCP_REF_SOCKETS");
    int count = text ? atoi(text) : 1;
    return count < 1 ? 1 : count > TCP_SOCKETS_MAX ? TCP_SOCKETS_MAX : count;
}

static struct tcp_attempt *begin_attempt(struct tcp_context *context,
                                         const struct tcp_device *device,
                                         const struct handle *handle)
{
    struct tcp_attempt *attempt = calloc(1, sizeof(*attempt));
    if (!attempt)
        return NULL;
    attempt->hello = (struct hello){.secret = handle->secret, .count = (uint32_t)sockets_wanted()};
    memset(attempt->fds, -1, sizeof(attempt->fds));
    bool ok = getrandom(&attempt->hello.attempt, sizeof(uint64_t), 0) > 0;
    struct sockaddr_in from = device->address;
    from.sin_port = 0;
    for (uint32_t i = 0; ok && i < attempt->hello.count; i++) {
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        attempt->fds[i] = fd;
        ok = fd >= 0 && !bind(fd, (struct sockaddr *)&from, sizeof(from));
        if (ok)
            tune_socket(fd);
        ok = ok &&
             (!connect(fd, (const struct sockaddr *)&handle->address, sizeof(handle->address)) ||
              errno == EINPROGRESS);
    }
    if (!ok)
        close_all(attempt->fds, TCP_SOCKETS_MAX);
    if (!ok)
        free(attempt);
    if (!ok)
        return NULL;
    pthread_mutex_lock(&context->lock);
    attempt->next = context->attempts;
    context->attempts = attempt;
    pthread_mutex_unlock(&context->lock);
    return attempt;
}

/* 1: greeted, 0: later, -1: failed, with errno. */
static int greet_listener(struct tcp_attempt *attempt, uint32_t index)
{
    struct pollfd ready = {.fd = attempt->fds[index], .events = POLLOUT};
    int error = 0;
    socklen_t room = sizeof(error);
    if (poll(&ready, 1, is_broken(BLOCKING_CONNECT) ? 1000 : 0) <= 0)
        return 0;
    getsockopt(ready.fd, SOL_SOCKET, SO_ERROR, &error, &room);
    attempt->hello.index = index;
    if (!error && send(ready.fd, &attempt->hello, sizeof(attempt->hello),
                       MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)sizeof(attempt->hello))
        return 1;
    errno = error ? error : errno;
    return -1;
}

enum nccl_result tcp_connect(void *of, int index, void *in, void **sending,
                             struct nccl_device_handle **offload)
{
    struct tcp_context *context = of;
    struct handle *handle = in;
    const struct tcp_device *device = tcp_device(index);
    *sending = NULL;
    if (offload)
        *offload = NULL;
    if (!context || !handle || !device)
        return NCCL_INVALID_ARGUMENT;
    if (!handle->attempt)
        handle->attempt = begin_attempt(context, device, handle);
    struct tcp_attempt *attempt = handle->attempt;
    if (!attempt)
        return NCCL_SYSTEM_ERROR;
    uint32_t greeted = 0;
    for (uint32_t i = 0; i < attempt->hello.count; i++) {
        int result = attempt->greeted[i] ? 1 : greet_listener(attempt, i);
        if (result < 0) {
            TCP_WARN("TCP reference: no connection: %s; is the other rank alive?", strerror(errno));
            forget_attempt(context, attempt, true);
            handle->attempt = NULL;
            return NCCL_REMOTE_ERROR;
        }
        attempt->greeted[i] = result;
        greeted += (uint32_t)result;
    }
    if (greeted < attempt->hello.count)
        return NCCL_SUCCESS;
    if (is_broken(BLOCKING_CONNECT)) { /* the listening end answers a byte when it accepts */
        char byte;
        if (recv(attempt->fds[0], &byte, 1, MSG_PEEK | MSG_DONTWAIT) < 0) {
            struct pollfd wait = {.fd = attempt->fds[0], .events = POLLIN};
            poll(&wait, 1, -1);
        }
    }
    *sending = make_comm(context, true, attempt->fds, (int)attempt->hello.count);
    forget_attempt(context, attempt, !*sending);
    handle->attempt = NULL;
    return *sending ? NCCL_SUCCESS : NCCL_SYSTEM_ERROR;
}

/* ---- Listening ---- */

enum nccl_result tcp_listen(void *of, int index, void *out, void **listening)
{
    const struct tcp_device *device = tcp_device(index);
    struct handle *handle = out;
    *listening = NULL;
    if (!of || !device || !out)
        return NCCL_INVALID_ARGUMENT;
    struct listener *listener = calloc(1, sizeof(*listener));
    if (!listener)
        return NCCL_SYSTEM_ERROR;
    for (int i = 0; i < CALLERS_MAX; i++)
        listener->callers[i].fd = -1;
    memset(out, 0, NCCL_HANDLE_BYTES);
    handle->address = device->address;
    handle->address.sin_port = 0;
    socklen_t room = sizeof(handle->address);
    listener->context = of;
    listener->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (listener->fd < 0 || bind(listener->fd, (struct sockaddr *)&handle->address, room) ||
        listen(listener->fd, BACKLOG) ||
        getsockname(listener->fd, (struct sockaddr *)&handle->address, &room) ||
        getrandom(&handle->secret, sizeof(handle->secret), 0) < 0) {
        TCP_WARN("TCP reference: cannot listen on %s: %s", device->name, strerror(errno));
        tcp_close_listen(listener);
        return NCCL_SYSTEM_ERROR;
    }
    listener->secret = handle->secret;
    *listening = listener;
    return NCCL_SUCCESS;
}

static void drop_caller(struct caller *caller)
{
    close(caller->fd);
    *caller = (struct caller){.fd = -1};
}

/* Take connections that have come, as far as there are places. */
static void take_callers(struct listener *listener)
{
    for (int i = 0; i < CALLERS_MAX; i++) {
        struct caller *caller = &listener->callers[i];
        if (caller->fd >= 0)
            continue;
        *caller =
            (struct caller){.fd = accept4(listener->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK)};
        if (caller->fd < 0)
            return;
        tune_socket(caller->fd);
    }
}

static void hear_callers(struct listener *listener)
{
    for (int i = 0; i < CALLERS_MAX; i++) {
        struct caller *caller = &listener->callers[i];
        if (caller->fd < 0 || caller->heard == sizeof(caller->hello))
            continue;
        ssize_t got = recv(caller->fd, (uint8_t *)&caller->hello + caller->heard,
                           sizeof(caller->hello) - caller->heard, MSG_DONTWAIT);
        if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) {
            drop_caller(caller);
            continue;
        }
        caller->heard += got > 0 ? (size_t)got : 0;
        if (caller->heard == sizeof(caller->hello) &&
            (caller->hello.secret != listener->secret || caller->hello.count < 1 ||
             caller->hello.count > TCP_SOCKETS_MAX || caller->hello.index >= caller->hello.count))
            drop_caller(caller);
    }
}

/* The sockets of an attempt that has all of its own; their number, 0 if there is no such attempt.
 */
static int gather_sockets(struct listener *listener, int *fds)
{
    for (int i = 0; i < CALLERS_MAX; i++) {
        const struct caller *first = &listener->callers[i];
        if (first->fd < 0 || first->heard < sizeof(first->hello))
            continue;
        const struct hello hello = first->hello;
        struct caller *found[TCP_SOCKETS_MAX] = {0};
        uint32_t count = 0;
        for (int j = i; j < CALLERS_MAX; j++) {
            struct caller *other = &listener->callers[j];
            if (other->fd < 0 || other->heard < sizeof(other->hello) ||
                other->hello.attempt != hello.attempt || found[other->hello.index])
                continue;
            found[other->hello.index] = other;
            count++;
        }
        for (uint32_t j = 0; count == hello.count && j < count; j++) {
            fds[j] = found[j]->fd;
            *found[j] = (struct caller){.fd = -1};
        }
        if (count == hello.count)
            return (int)count;
    }
    return 0;
}

enum nccl_result tcp_accept(void *of, void **receiving, struct nccl_device_handle **offload)
{
    struct listener *listener = of;
    int fds[TCP_SOCKETS_MAX], count;
    *receiving = NULL;
    if (offload)
        *offload = NULL;
    if (!listener)
        return NCCL_INVALID_ARGUMENT;
    do {
        take_callers(listener);
        hear_callers(listener);
        count = gather_sockets(listener, fds);
    } while (is_broken(BLOCKING_ACCEPT) && !count);
    if (!count)
        return NCCL_SUCCESS;
    if (is_broken(BLOCKING_CONNECT) && send(fds[0], "", 1, MSG_NOSIGNAL) < 0)
        return NCCL_SYSTEM_ERROR;
    struct tcp_comm *comm = make_comm(listener->context, false, fds, count);
    *receiving = listener->last = comm;
    return comm ? NCCL_SUCCESS : NCCL_SYSTEM_ERROR;
}

enum nccl_result tcp_close_listen(void *of)
{
    struct listener *listener = of;
    if (!listener)
        return NCCL_INVALID_ARGUMENT;
    for (int i = 0; i < CALLERS_MAX; i++)
        if (listener->callers[i].fd >= 0)
            drop_caller(&listener->callers[i]);
    if (is_broken(LISTENER_OWNS) && listener->last)
        shutdown(listener->last->sockets[0].fd, SHUT_RDWR);
    if (listener->fd >= 0)
        close(listener->fd);
    free(listener);
    return NCCL_SUCCESS;
}
