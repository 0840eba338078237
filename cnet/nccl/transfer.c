/* isend, irecv, test, and the memory that they work on.
 *
 * order.c decides which send goes into which buffer; requests.c is what NCCL asks about. Payload is
 * copied once at either end, into and out of the port's memory.
 *
 * Owner: the thread that NCCL runs the comm on. Only plugin_register and plugin_deregister may come
 * from another one.
 */
#define _GNU_SOURCE
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

#include "plugin.h"

#define POLL 32
#define CONTROLS_MOST (PLUGIN_CONTROLS - NCCL_REQUESTS - 2) /* before receives are put off */

_Static_assert(NCCL_REQUESTS *NCCL_RECEIVES_MAX <= HARP_MESSAGES, "HARP holds fewer messages");
_Static_assert(PLUGIN_CONTROLS <= HARP_MESSAGES, "HARP holds fewer messages");

struct comm *comm_new(enum comm_kind kind, struct device *device, struct harp_engine *engine)
{
    uint32_t n = kind == COMM_SENDING     ? NCCL_REQUESTS * NCCL_RECEIVES_MAX
                 : kind == COMM_RECEIVING ? NCCL_REQUESTS
                                          : 0;
    struct comm *comm = calloc(1, sizeof *comm + n * sizeof comm->requests[0]);
    if (!comm)
        return NULL;
    comm->kind = kind;
    comm->life = plugin.life;
    comm->device = device;
    comm->engine = engine;
    comm->requests_n = comm->free_n = n;
    for (uint32_t i = 0; i < n; i++) {
        comm->requests[i].comm = comm;
        comm->free[i] = (uint16_t)(n - 1 - i);
    }
    return comm;
}

bool comm_idle(const struct comm *comm)
{
    return comm->free_n == comm->requests_n;
}

void comm_end(struct comm *comm, const char *text)
{
    if (comm_lives(comm) && text)
        harp_connection_abort(comm->connection, text);
    else if (comm_lives(comm))
        harp_connection_close(comm->connection);
    comm->connection = NULL;
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
    uint32_t under_way = comm->requests_n - comm->free_n;
    snprintf(text, sizeof text, "NCCL aborted it with %u requests under way", under_way);
    if (!comm->closed) {
        struct harp_connection_info info;
        harp_connection_info(comm->connection, &info);
        harp_address_format(&info.peer, peer, sizeof peer);
        plugin_warn("NCCL aborts %s %s on %s with %u requests under way; the other rank is told so",
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
    order_forget(comm);
}

/* ---- Receives ---- */

/* Fill the buffers that what came aside is for. Returns whether the receive waits for more. */
static bool fill_from_aside(struct comm *comm, struct receive *receive)
{
    for (uint32_t i = 0; i < receive->request->n; i++) {
        uint32_t came;
        if (receive->filled[i] ||
            !order_take_early(comm, receive->tags[i], receive->data[i], receive->sizes[i], &came))
            continue;
        receive->filled[i] = true;
        request_end_part(comm, context_of(receive->request, i), came);
    }
    return receive->request->left;
}

static void post_buffer(struct comm *comm, const struct receive *receive, uint32_t i)
{
    const struct memory *memory = receive->request->memory[i];
    bool watched = !memory || memory->watched;
    (watched ? harp_receive : harp_receive_unread)(
        comm->connection, receive->data[i], receive->sizes[i], context_of(receive->request, i));
}

/* Post the buffers of a request whose turn has come, and say which tags they have. */
static void post_receive(struct comm *comm, struct receive *receive)
{
    struct announcement group = {.type = ANNOUNCE_GROUP};
    fill_from_aside(comm, receive);
    for (uint32_t i = 0; i < receive->request->n; i++) {
        if (receive->filled[i])
            continue;
        post_buffer(comm, receive, i);
        group.tags[group.n++] = receive->tags[i];
    }
    order_posted(comm, receive, &group);
}

static void post_later(struct comm *comm, struct receive *receive)
{
    assert(comm->later_n < NCCL_REQUESTS);
    if (fill_from_aside(comm, receive))
        comm->later[comm->later_n++] = *receive;
}

static void post_what_waited(struct comm *comm)
{
    for (uint32_t i = 0; i < comm->later_n; i++)
        post_receive(comm, &comm->later[i]);
    comm->later_n = 0;
}

/* ---- Completions ---- */

/* Buffers need not wait for the mark: it may be long before NCCL calls the sending end again. */
static void take_aside(struct comm *comm, uint32_t bytes)
{
    uint32_t left = 0;
    order_aside(comm, bytes);
    for (uint32_t i = 0; i < comm->later_n; i++)
        if (fill_from_aside(comm, &comm->later[i]))
            comm->later[left++] = comm->later[i];
    comm->later_n = left;
}

static void take_completion(struct comm *comm, const struct harp_completion *completion)
{
    switch (completion->type) {
    case HARP_COMPLETION_SENT:
        if (completion->context == OF_CONTROL)
            comm->controls_head++;
        else if (completion->context != OF_MARK)
            request_end_part(comm, completion->context, completion->size);
        break;
    case HARP_COMPLETION_RECEIVED:
        if (completion->context == OF_CONTROL)
            order_announced(comm, completion->size);
        else if (completion->context == OF_ASIDE)
            take_aside(comm, completion->size);
        else
            request_end_part(comm, completion->context, completion->size);
        comm->coming -= comm->coming > 0;
        break;
    case HARP_COMPLETION_CLOSED:
        comm->closed = true;
        comm->reason = completion->reason;
        comm->coming = comm->kind == COMM_RECEIVING ? completion->size : 0;
        break;
    default:
        break;
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
    if (!comm_lives(comm))
        return;
    if (comm->kind == COMM_SENDING) {
        order_flush(comm);
        return;
    }
    if (comm->closed && !comm->coming)
        order_end_aside(comm);
    order_receive_aside(comm);
    if (comm->later_n && comm->posting == POSTING_GROUPS)
        post_what_waited(comm);
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

static bool may_send(struct comm *comm, int tag, size_t size)
{
    return comm->free_n && order_may_send(comm, tag, (uint32_t)size);
}

enum nccl_result plugin_isend(void *sending, void *data, size_t size, int tag, void *memory,
                              void *parent, void **request)
{
    struct comm *comm = sending;
    if (!is_usable(comm, COMM_SENDING) || !request || (size && (!data || !memory)))
        return plugin_fail(NCCL_INVALID_ARGUMENT,
                           "isend: no sending comm, no data, no registered memory, or no request");
    *request = NULL;
    if (size > HARP_MESSAGE_MAX)
        return plugin_fail(NCCL_INVALID_ARGUMENT, "isend of %zu bytes: the most is %u", size,
                           HARP_MESSAGE_MAX);
    take_completions(comm);
    if (!may_send(comm, tag, size))
        drive_and_take(comm);
    /* That the other end has closed is for test to say. */
    bool closed = why_failed(comm) != NCCL_SUCCESS && comm->closed && comm->free_n;
    if (comm->failed != NCCL_SUCCESS && !closed)
        return comm->failed;
    if (!closed && !may_send(comm, tag, size))
        return NCCL_SUCCESS;
    struct request *made = request_take(comm, 1);
    request_begin_part(made, 0, memory, closed ? NULL : parent, size);
    if (!closed)
        order_wait(comm, &(struct waiting_send){.request = made,
                                                .data = size ? data : comm->controls,
                                                .size = (uint32_t)size,
                                                .tag = tag});
    *request = made;
    return NCCL_SUCCESS;
}

/* ---- irecv ---- */

static const char *wrong_receive(int n, void **data, const size_t *sizes, void **memories)
{
    if (n < 1 || n > NCCL_RECEIVES_MAX)
        return "1 to 8 buffers are possible";
    for (int i = 0; i < n; i++) {
        if (sizes[i] && (!data[i] || !memories[i]))
            return "no buffer, or one in memory that is not registered";
        if (sizes[i] > HARP_MESSAGE_MAX)
            return "a buffer is longer than 1 GiB";
    }
    return NULL;
}

static bool may_receive(const struct comm *comm)
{
    return comm->free_n && comm->controls_tail - comm->controls_head < CONTROLS_MOST;
}

enum nccl_result plugin_irecv(void *receiving, int n, void **data, size_t *sizes, int *tags,
                              void **memories, void **parents, void **request)
{
    struct comm *comm = receiving;
    if (!is_usable(comm, COMM_RECEIVING) || !request || !data || !sizes || !tags || !memories)
        return plugin_fail(NCCL_INVALID_ARGUMENT, "irecv: no receiving comm, or a list is NULL");
    *request = NULL;
    const char *wrong = wrong_receive(n, data, sizes, memories);
    if (wrong)
        return plugin_fail(NCCL_INVALID_ARGUMENT, "irecv: %s", wrong);
    take_completions(comm);
    if (!may_receive(comm))
        drive_and_take(comm);
    if (why_failed(comm) != NCCL_SUCCESS)
        return comm->failed;
    if (!may_receive(comm))
        return NCCL_SUCCESS;
    struct receive receive = {.request = request_take(comm, (uint32_t)n)};
    for (int i = 0; i < n; i++) {
        receive.data[i] = sizes[i] ? data[i] : comm->controls;
        receive.sizes[i] = (uint32_t)sizes[i];
        receive.tags[i] = tags[i];
        request_begin_part(receive.request, (uint32_t)i, memories[i], parents ? parents[i] : NULL,
                           sizes[i]);
    }
    if (order_may_post(comm, &receive))
        post_receive(comm, &receive);
    else
        post_later(comm, &receive);
    *request = receive.request;
    return comm->failed;
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
    if (!made || !done || !made->n)
        return plugin_fail(NCCL_INVALID_ARGUMENT, "test: no request, or one that was done before");
    *done = 0;
    if (made->left)
        take_completions(made->comm);
    if (made->left)
        drive_and_take(made->comm);
    if (made->left)
        return why_failed(made->comm);
    *done = 1;
    for (uint32_t i = 0; sizes && i < made->n; i++)
        sizes[i] = made->sizes[i];
    request_give_back(made);
    return NCCL_SUCCESS;
}
