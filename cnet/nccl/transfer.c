/* isend, irecv, test, and the memory that they work on.
 *
 * A HARP message is a send of NCCL's, and the n-th goes into the n-th buffer that was posted: HARP
 * announces maxRecvs 1, so NCCL gives each pair of ranks comms of its own, on which all tags are
 * equal. A send may come before its buffer is posted: the session keeps it until then. Except over
 * tcp, each end copies payload once, between NCCL's memory and the port's.
 *
 * Owner: the thread that NCCL runs the comm on. Only plugin_register and plugin_deregister may come
 * from another one.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>

#include "plugin.h"

#define POLL 32

_Static_assert(NCCL_REQUESTS <= HARP_MESSAGES, "HARP holds fewer messages");

static char nothing[1]; /* where messages of no bytes lie */

struct comm *comm_new(enum comm_kind kind, struct device *device, struct harp_engine *engine)
{
    struct comm *comm = calloc(1, sizeof *comm);
    if (!comm)
        return NULL;
    comm->kind = kind;
    comm->life = plugin.life;
    comm->device = device;
    comm->engine = engine;
    comm->free_n = NCCL_REQUESTS;
    for (uint32_t i = 0; i < NCCL_REQUESTS; i++) {
        comm->requests[i].comm = comm;
        comm->free[i] = (uint8_t)(NCCL_REQUESTS - 1 - i);
    }
    return comm;
}

bool comm_idle(const struct comm *comm)
{
    return comm->free_n == NCCL_REQUESTS;
}

void comm_end(struct comm *comm, const char *text)
{
    if (comm_lives(comm) && text)
        harp_connection_abort(comm->connection, text);
    else if (comm_lives(comm))
        harp_connection_close(comm->connection);
    comm->connection = NULL;
}

/* What was handed over leaves now, if NCCL's thread drives. */
static void push_sends(struct comm *comm)
{
    if (plugin.drives && comm_lives(comm))
        harp_engine_push(comm->engine);
}

void comm_drive(struct comm *comm)
{
    if (plugin.drives && comm_lives(comm))
        harp_engine_drive(comm->engine);
}

/* NCCL closes, or frees the memory, while requests are under way: it aborts. Both logs say so, for
 * the other rank reports an error and sends its reader to this one's. */
static void abort_connection(struct comm *comm)
{
    char peer[64], text[HARP_WHY_BYTES];
    uint32_t under_way = NCCL_REQUESTS - comm->free_n;
    snprintf(text, sizeof text, "NCCL aborted it with %u requests under way", under_way);
    if (!comm->closed) {
        struct harp_connection_info info;
        harp_connection_info(comm->connection, &info);
        harp_address_format(&info.peer, peer, sizeof peer);
        plugin_warn("NCCL aborts %s %s on %s with %u requests under way; the other rank hears it",
                    comm->kind == COMM_SENDING ? "sending to" : "receiving from", peer,
                    comm->device->name, under_way);
    }
    comm_end(comm, text);
}

void comm_let_go(struct comm *comm)
{
    if (comm_lives(comm) && !comm_idle(comm))
        abort_connection(comm);
    else
        comm_end(comm, NULL);
}

/* ---- Requests ---- */

static struct request *take_request(struct comm *comm, struct memory *memory, void *parent,
                                    uint64_t bytes)
{
    struct request *request = &comm->requests[comm->free[--comm->free_n]];
    *request = (struct request){.comm = comm, .state = REQUEST_POSTED, .memory = memory};
    if (memory)
        atomic_fetch_add_explicit(&memory->used, 1, memory_order_relaxed);
    if (parent && plugin.profiler)
        plugin.profiler(&request->event, NCCL_PROFILER_START, parent, PLUGIN_PROFILER_ID, &bytes);
    return request;
}

static void stop_event(struct request *request)
{
    if (request->event)
        plugin.profiler(&request->event, NCCL_PROFILER_STOP, NULL, PLUGIN_PROFILER_ID, NULL);
    request->event = NULL;
}

static void end_request(struct request *request, uint32_t bytes)
{
    request->state = REQUEST_DONE;
    request->bytes = (int)bytes;
    if (request->memory)
        /* Release: a thread that sees it at 0 sees that HARP is done with the memory. */
        atomic_fetch_sub_explicit(&request->memory->used, 1, memory_order_release);
    stop_event(request);
}

static void give_back(struct request *request)
{
    struct comm *comm = request->comm;
    request->state = REQUEST_FREE; /* so that a second test of it is seen */
    comm->free[comm->free_n++] = (uint8_t)(request - comm->requests);
}

static uint64_t context_of(const struct request *request)
{
    return (uint64_t)(request - request->comm->requests);
}

/* ---- Completions ---- */

static void take_completion(struct comm *comm, const struct harp_completion *completion)
{
    if (completion->type == HARP_COMPLETION_CLOSED) {
        comm->closed = true;
        comm->reason = completion->reason;
        comm->coming = comm->kind == COMM_RECEIVING ? completion->size : 0;
    } else if (completion->type == HARP_COMPLETION_SENT ||
               completion->type == HARP_COMPLETION_RECEIVED) {
        end_request(&comm->requests[completion->context], completion->size);
        comm->coming -= comm->coming > 0;
    }
}

static void take_completions(struct comm *comm)
{
    struct harp_completion completions[POLL];
    size_t n = POLL;
    while (n == POLL && comm_lives(comm)) {
        n = harp_poll(comm->connection, completions, POLL);
        for (size_t i = 0; i < n; i++)
            take_completion(comm, &completions[i]);
    }
}

static void drive_and_take(struct comm *comm)
{
    comm_drive(comm);
    take_completions(comm);
}

/* Why nothing more will happen on this comm; NCCL_SUCCESS if it may, be it that messages which came
 * before the end are still to be received. Said once. */
static enum nccl_result why_failed(struct comm *comm)
{
    if (comm->failed == NCCL_SUCCESS && plugin.forked)
        comm->failed = plugin_fail(NCCL_INVALID_USAGE, "a child of fork cannot use HARP");
    if (comm->failed == NCCL_SUCCESS && comm->life != plugin.life)
        comm->failed = plugin_fail(NCCL_INVALID_USAGE, "the plugin was finalized under a comm");
    if (comm->failed == NCCL_SUCCESS && comm->closed && !comm->coming)
        comm->failed = plugin_ended(comm, comm->reason);
    return comm->failed;
}

/* ---- Memory ---- */

enum nccl_result plugin_register(void *comm, void *data, size_t size, int type, void **memory)
{
    const struct comm *of = comm;
    if (!of || (of->kind != COMM_SENDING && of->kind != COMM_RECEIVING) || !data || !memory)
        return plugin_fail(NCCL_INVALID_ARGUMENT, "regMr: comm, data or handle is NULL");
    *memory = NULL;
    if (type != NCCL_PTR_HOST)
        return plugin_fail(NCCL_INVALID_ARGUMENT,
                           "regMr: memory of type %d; HARP takes the host's only (1)", type);
    struct memory *made = calloc(1, sizeof *made);
    if (!made)
        return plugin_fail(NCCL_SYSTEM_ERROR, "regMr: no memory");
    made->watched = buffers_watched(size);
    *memory = made;
    return NCCL_SUCCESS;
}

/* NCCL frees the buffers next. If requests are under way on them, NCCL is aborting and has stopped
 * its progress thread; nothing but the end of the connection makes HARP forget them. */
enum nccl_result plugin_deregister(void *comm, void *memory)
{
    struct comm *of = comm;
    struct memory *made = memory;
    if (!of || (of->kind != COMM_SENDING && of->kind != COMM_RECEIVING) || !made)
        return plugin_fail(NCCL_INVALID_ARGUMENT, "deregMr: comm or handle is NULL");
    if (atomic_load_explicit(&made->used, memory_order_acquire) && comm_lives(of)) {
        take_completions(of);
        if (atomic_load_explicit(&made->used, memory_order_acquire)) {
            of->failed = of->failed == NCCL_SUCCESS ? NCCL_INTERNAL_ERROR : of->failed;
            comm_let_go(of);
        }
    }
    free(made);
    return NCCL_SUCCESS;
}

/* ---- isend ---- */

static bool is_usable(const struct comm *comm, enum comm_kind kind)
{
    return comm && comm->kind == kind;
}

/* Whether a request may be made, after what came to completion has made room. */
static bool has_room(struct comm *comm)
{
    take_completions(comm);
    if (!comm->free_n)
        drive_and_take(comm);
    return comm->free_n;
}

/* A short one is done at once, as with a socket: NCCL does not wait for the other end. */
static bool send_now(struct comm *comm, struct request *request, const void *data, uint32_t size)
{
    if (size <= HARP_SHORT_BYTES && harp_send_short(comm->connection, data, size)) {
        end_request(request, size);
        return true;
    }
    return harp_send(comm->connection, data, size, context_of(request));
}

enum nccl_result plugin_isend(void *sending, void *data, size_t size, int tag, void *memory,
                              void *parent, void **request)
{
    struct comm *comm = sending;
    (void)tag; /* all of a comm's are equal */
    if (!is_usable(comm, COMM_SENDING) || !request || (size && (!data || !memory)))
        return plugin_fail(NCCL_INVALID_ARGUMENT,
                           "isend: no sending comm, no data, no registered memory, or no request");
    *request = NULL;
    if (size > HARP_MESSAGE_MAX)
        return plugin_fail(NCCL_INVALID_ARGUMENT, "isend of %zu bytes: the most is %u", size,
                           HARP_MESSAGE_MAX);
    bool room = has_room(comm);
    /* That the other end has closed is for test to say. */
    bool closed = why_failed(comm) != NCCL_SUCCESS && comm->closed && room;
    if (comm->failed != NCCL_SUCCESS && !closed)
        return comm->failed;
    if (!room)
        return NCCL_SUCCESS;
    struct request *made = take_request(comm, memory, closed ? NULL : parent, size);
    if (!closed && !send_now(comm, made, size ? data : nothing, (uint32_t)size)) {
        end_request(made, 0);
        give_back(made);
        return NCCL_SUCCESS;
    }
    if (!closed)
        push_sends(comm);
    *request = made;
    return NCCL_SUCCESS;
}

/* ---- irecv ---- */

enum nccl_result plugin_irecv(void *receiving, int n, void **data, size_t *sizes, int *tags,
                              void **memories, void **parents, void **request)
{
    struct comm *comm = receiving;
    (void)tags; /* all of a comm's are equal */
    if (!is_usable(comm, COMM_RECEIVING) || !request || !data || !sizes || !memories)
        return plugin_fail(NCCL_INVALID_ARGUMENT, "irecv: no receiving comm, or a list is NULL");
    *request = NULL;
    if (n != 1)
        return plugin_fail(NCCL_INVALID_ARGUMENT, "irecv of %d buffers: maxRecvs is 1", n);
    if (sizes[0] && (!data[0] || !memories[0]))
        return plugin_fail(NCCL_INVALID_ARGUMENT,
                           "irecv: no buffer, or one in memory that is not registered");
    if (sizes[0] > HARP_MESSAGE_MAX)
        return plugin_fail(NCCL_INVALID_ARGUMENT, "irecv of %zu bytes: the most is %u", sizes[0],
                           HARP_MESSAGE_MAX);
    bool room = has_room(comm);
    if (why_failed(comm) != NCCL_SUCCESS)
        return comm->failed;
    if (!room)
        return NCCL_SUCCESS;
    struct memory *memory = memories[0];
    struct request *made = take_request(comm, memory, parents ? parents[0] : NULL, sizes[0]);
    bool watched = !memory || memory->watched;
    /* The session has room for all requests; at its end, test says why. */
    (watched ? harp_receive : harp_receive_unread)(comm->connection, sizes[0] ? data[0] : nothing,
                                                   (uint32_t)sizes[0], context_of(made));
    *request = made;
    return NCCL_SUCCESS;
}

enum nccl_result plugin_iflush(void *receiving, int n, void **data, int *sizes, void **memories,
                               void **request)
{
    (void)receiving, (void)n, (void)data, (void)sizes, (void)memories;
    if (!request)
        return plugin_fail(NCCL_INVALID_ARGUMENT, "iflush: no request");
    *request = NULL; /* host memory needs none: it is done */
    return NCCL_SUCCESS;
}

/* ---- test ---- */

enum nccl_result plugin_test(void *request, int *done, int *sizes)
{
    struct request *made = request;
    if (!made || !done || made->state == REQUEST_FREE)
        return plugin_fail(NCCL_INVALID_ARGUMENT, "test: no request, or one that was done before");
    *done = 0;
    if (made->state != REQUEST_DONE)
        take_completions(made->comm);
    if (made->state != REQUEST_DONE)
        drive_and_take(made->comm);
    if (made->state != REQUEST_DONE) {
        enum nccl_result failed = why_failed(made->comm);
        if (failed != NCCL_SUCCESS)
            stop_event(made); /* NCCL asks no more */
        return failed;
    }
    *done = 1;
    if (sizes)
        sizes[0] = made->bytes;
    give_back(made);
    return NCCL_SUCCESS;
}
