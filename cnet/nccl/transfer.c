/* isend, irecv, test, and the memory that they work on.
 *
 * A HARP message is a send of NCCL's; HARP puts the n-th message into the n-th buffer that was
 * posted. NCCL posts receives in groups of up to eight buffers with a tag each, and wants a send to
 * go to the buffer of its tag within the first group that is not complete. So the receiving end
 * announces each group to the sending one, by a message back on the same connection, and the
 * sending end gives HARP the sends of a group in the order of its buffers:
 *
 *     receiving end                                             sending end
 *     irecv(buffers a, b; tags 5, 7)
 *       posts a, posts b
 *       announces {2, [5, 7]}    --------------------------->   first group: [5, 7]
 *                                                               isend(tag 7) is held
 *       a <---------------------------------------------------  isend(tag 5) goes, then tag 7 goes
 *       b <---------------------------------------------------
 *
 * A send without a group, or whose tag the first group lacks, gets no request: NCCL tries again. An
 * announcement is a message of 8 to 36 bytes; payload is copied once at either end, into and out of
 * the port's memory.
 *
 * Owner: the thread that NCCL runs the comm on. Only plugin_register and plugin_deregister may come
 * from another one.
 */
#define _GNU_SOURCE
#include <stdlib.h>

#include "plugin.h"

#define POLL 32
#define OF_CONTROL (UINT64_C(1) << 63) /* context of an announcement; else request and part */
#define PART_BITS 8

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

bool comm_lives(const struct comm *comm)
{
    return comm->connection && comm->life == plugin.life;
}

void comm_let_go(struct comm *comm)
{
    if (comm_lives(comm))
        harp_connection_close(comm->connection);
    comm->connection = NULL;
}

/* ---- Requests ---- */

static struct request *take_request(struct comm *comm, uint32_t n)
{
    struct request *request = &comm->requests[comm->free[--comm->free_n]];
    request->left = request->n = n;
    return request;
}

static void give_back(struct request *request)
{
    struct comm *comm = request->comm;
    request->n = 0; /* so that a second test of it is seen */
    comm->free[comm->free_n++] = (uint16_t)(request - comm->requests);
}

static uint64_t context_of(const struct request *request, uint32_t part)
{
    return (uint64_t)(request - request->comm->requests) << PART_BITS | part;
}

static void begin_part(struct request *request, uint32_t part, struct memory *memory, void *parent,
                       uint64_t bytes)
{
    request->memory[part] = memory;
    request->events[part] = NULL;
    if (memory)
        atomic_fetch_add_explicit(&memory->used, 1, memory_order_relaxed);
    if (parent && plugin.profiler)
        plugin.profiler(&request->events[part], NCCL_PROFILER_START, parent, PLUGIN_PROFILER_ID,
                        &bytes);
}

static void end_part(struct comm *comm, uint64_t context, uint32_t bytes)
{
    struct request *request = &comm->requests[context >> PART_BITS];
    uint32_t part = context & ((1 << PART_BITS) - 1);
    request->sizes[part] = (int)bytes;
    request->left--;
    if (request->memory[part])
        /* Release: who sees it at 0 sees that HARP is done with the memory. */
        atomic_fetch_sub_explicit(&request->memory[part]->used, 1, memory_order_release);
    if (request->events[part])
        plugin.profiler(&request->events[part], NCCL_PROFILER_STOP, NULL, PLUGIN_PROFILER_ID, NULL);
}

/* ---- Announcements ---- */

static struct announcement *control(struct comm *comm, uint32_t number)
{
    return &comm->controls[number % PLUGIN_CONTROLS];
}

static void post_control(struct comm *comm, uint32_t number)
{
    harp_receive(comm->connection, control(comm, number), sizeof(struct announcement), OF_CONTROL);
}

void comm_post_controls(struct comm *comm)
{
    for (uint32_t i = 0; i < PLUGIN_CONTROLS; i++)
        post_control(comm, i);
}

static uint32_t control_bytes(uint32_t n)
{
    return (uint32_t)(sizeof(uint32_t) + n * sizeof(int32_t));
}

/* Sending end: the next announcement has come. */
static void on_announced(struct comm *comm, uint32_t bytes)
{
    uint32_t n = control(comm, comm->controls_tail++)->n;
    if (bytes < sizeof n || n < 1 || n > NCCL_RECEIVES_MAX || bytes != control_bytes(n))
        comm->failed = plugin_fail(
            NCCL_REMOTE_ERROR, "the other rank announced a receive that makes no sense: install "
                               "the same version of HARP on all hosts");
}

/* ---- Completions ---- */

static void complete(struct comm *comm, const struct harp_completion *completion)
{
    switch (completion->type) {
    case HARP_COMPLETION_SENT:
        if (completion->context == OF_CONTROL)
            comm->controls_head++;
        else
            end_part(comm, completion->context, completion->size);
        break;
    case HARP_COMPLETION_RECEIVED:
        if (completion->context == OF_CONTROL)
            on_announced(comm, completion->size);
        else
            end_part(comm, completion->context, completion->size);
        break;
    case HARP_COMPLETION_CLOSED:
        comm->closed = true;
        comm->reason = completion->reason;
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
            complete(comm, &completions[i]);
    }
}

static void progress(struct comm *comm)
{
    if (plugin.drives)
        harp_engine_drive(comm->engine);
    take_completions(comm);
}

/* Why nothing more will happen on this comm; NCCL_SUCCESS if it may. Said once. */
static enum nccl_result failure(struct comm *comm)
{
    if (comm->failed == NCCL_SUCCESS && plugin.forked)
        comm->failed = plugin_fail(NCCL_INVALID_USAGE, "a child of fork cannot use HARP");
    if (comm->failed == NCCL_SUCCESS && comm->life != plugin.life)
        comm->failed = plugin_fail(NCCL_INVALID_USAGE, "the plugin was finalized under a comm");
    if (comm->failed == NCCL_SUCCESS && comm->closed)
        comm->failed = plugin_ended(comm, comm->reason);
    return comm->failed;
}

/* ---- Memory ---- */

enum nccl_result plugin_register(void *comm, void *data, size_t size, int type, void **memory)
{
    const struct comm *of = comm;
    (void)size;
    if (!of || (of->kind != COMM_SENDING && of->kind != COMM_RECEIVING) || !data || !memory)
        return plugin_fail(NCCL_INVALID_ARGUMENT, "regMr: comm, data or handle is NULL");
    *memory = NULL;
    if (type != NCCL_PTR_HOST)
        return plugin_fail(NCCL_INVALID_ARGUMENT,
                           "regMr: memory of type %d; HARP takes the host's only (1)", type);
    *memory = calloc(1, sizeof(struct memory));
    return *memory ? NCCL_SUCCESS : plugin_fail(NCCL_SYSTEM_ERROR, "regMr: no memory");
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
            if (of->failed == NCCL_SUCCESS && !of->closed)
                plugin_info("deregMr with requests under way: the connection is closed");
            of->failed = of->failed == NCCL_SUCCESS ? NCCL_INTERNAL_ERROR : of->failed;
            comm_let_go(of);
        }
    }
    free(made);
    return NCCL_SUCCESS;
}

/* ---- isend ---- */

/* The buffer of the first group that this tag belongs to; -1: none. */
static int place_in_group(const struct comm *comm, const struct announcement *group, int tag)
{
    for (uint32_t i = comm->sent_of_group; i < group->n; i++)
        if (group->tags[i] == tag && !comm->held[i].request)
            return (int)i;
    return -1;
}

/* Give HARP what has its turn. */
static void send_group(struct comm *comm, const struct announcement *group)
{
    while (comm->sent_of_group < group->n && comm->held[comm->sent_of_group].request) {
        struct held *next = &comm->held[comm->sent_of_group++];
        harp_send(comm->connection, next->data, next->size, context_of(next->request, 0));
        next->request = NULL;
    }
    if (comm->sent_of_group < group->n)
        return;
    comm->sent_of_group = 0;
    /* Its place in the ring is for a coming one. */
    post_control(comm, comm->controls_head++);
}

static bool is_usable(const struct comm *comm, enum comm_kind kind)
{
    return comm && comm->kind == kind;
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
    if (comm->controls_head == comm->controls_tail)
        progress(comm);
    if (failure(comm) != NCCL_SUCCESS)
        return comm->failed;
    if (comm->controls_head == comm->controls_tail || comm->free_n == 0)
        return NCCL_SUCCESS;
    const struct announcement *group = control(comm, comm->controls_head);
    int place = place_in_group(comm, group, tag);
    if (place < 0)
        return NCCL_SUCCESS;
    struct request *made = take_request(comm, 1);
    begin_part(made, 0, memory, parent, size);
    comm->held[place] = (struct held){
        .request = made, .data = size ? data : comm->controls, .size = (uint32_t)size};
    send_group(comm, group);
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

static void announce(struct comm *comm, uint32_t n, const int *tags)
{
    struct announcement *group = control(comm, comm->controls_tail++);
    group->n = n;
    for (uint32_t i = 0; i < n; i++)
        group->tags[i] = tags[i];
    harp_send(comm->connection, group, control_bytes(n), OF_CONTROL);
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
    if (failure(comm) != NCCL_SUCCESS)
        return comm->failed;
    if (comm->free_n == 0 || comm->controls_tail - comm->controls_head == PLUGIN_CONTROLS)
        return NCCL_SUCCESS;
    struct request *made = take_request(comm, (uint32_t)n);
    for (uint32_t i = 0; i < made->n; i++) {
        begin_part(made, i, memories[i], parents ? parents[i] : NULL, sizes[i]);
        harp_receive(comm->connection, sizes[i] ? data[i] : (void *)comm->controls,
                     (uint32_t)sizes[i], context_of(made, i));
    }
    announce(comm, made->n, tags);
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
    if (!made || !done || !made->n)
        return plugin_fail(NCCL_INVALID_ARGUMENT, "test: no request, or one that was done before");
    *done = 0;
    if (made->left)
        progress(made->comm);
    if (made->left)
        return failure(made->comm);
    *done = 1;
    for (uint32_t i = 0; sizes && i < made->n; i++)
        sizes[i] = made->sizes[i];
    give_back(made);
    return NCCL_SUCCESS;
}
