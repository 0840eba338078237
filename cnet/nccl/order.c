/* Which send goes into which buffer.
 *
 * A HARP message is a send of NCCL's; HARP puts the n-th message into the n-th buffer that was
 * posted. NCCL posts receives in groups of up to eight buffers with a tag each, and wants a send to
 * go to the buffer of its tag within the first group that is not complete. How these agree:
 *
 * **A run.** All comms but those that several ranks share (PXN) have one tag and single buffers.
 * The receiving end announces the tag with its first receive, by a message back on the same
 * connection; from then on sends with that tag go at once, and nothing more is announced.
 *
 * **Groups.** With the first receive that does not fit, the run ends: each receive is announced,
 * and the sending end gives HARP the sends of a group in the order of its buffers.
 *
 *     receiving end                                             sending end
 *     irecv(a, tag 5)    announces RUN 5  ------------------->  isend(tag 5) goes
 *     irecv(b, c; tags 5, 7)
 *       waits              announces LEAVE, mark ------------>  no more without announcement
 *       aside <-----------------------------------------------  isends that went before that
 *       aside <-----------------------------------------------  mark
 *       b has come; posts c, announces GROUP [7] ------------>  isend(tag 7) goes
 *       c <---------------------------------------------------
 *
 * The mark goes when all messages have gone whose buffers were posted before. The sending end may
 * have sent more: these are received aside until the mark comes, and copied to the buffers of that
 * tag as they are posted. No other payload is copied twice, and this once in the life of a comm.
 *
 * A send without a group, or whose tag the first group lacks, gets no request: NCCL tries again.
 */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>

#include "base/copy_lines.h"
#include "plugin.h"

/* ---- Announcements ---- */

static struct announcement *control(struct comm *comm, uint32_t number)
{
    return &comm->controls[number % PLUGIN_CONTROLS];
}

static void post_control(struct comm *comm, uint32_t number)
{
    harp_receive(comm->connection, control(comm, number), sizeof(struct announcement), OF_CONTROL);
}

void order_begin(struct comm *comm)
{
    for (uint32_t i = 0; i < PLUGIN_CONTROLS; i++)
        post_control(comm, i);
}

static uint32_t control_bytes(const struct announcement *control)
{
    size_t bytes =
        control->type == ANNOUNCE_LEAVE ? MARK_BYTES : control->n * sizeof control->tags[0];
    return (uint32_t)(offsetof(struct announcement, tags) + bytes);
}

/* Sending end: the next announcement has come. */
void order_announced(struct comm *comm, uint32_t bytes)
{
    const struct announcement *news = control(comm, comm->controls_tail++);
    bool leave = news->type == ANNOUNCE_LEAVE;
    bool tags = (news->type == ANNOUNCE_RUN && news->n == 1) ||
                (news->type == ANNOUNCE_GROUP && news->n >= 1 && news->n <= NCCL_RECEIVES_MAX);
    if (bytes < offsetof(struct announcement, tags) || (!leave && !tags) ||
        bytes != control_bytes(news))
        comm->failed = plugin_fail(
            NCCL_REMOTE_ERROR, "the other rank announced a receive that makes no sense: install "
                               "the same version of HARP on all hosts");
}

/* Sending end: what the receiving one said, up to the first group. */
void order_heed(struct comm *comm)
{
    while (comm->controls_head != comm->controls_tail) {
        const struct announcement *news = control(comm, comm->controls_head);
        if (news->type == ANNOUNCE_GROUP)
            return;
        if (news->type == ANNOUNCE_RUN) {
            comm->run = true;
            comm->run_tag = news->tags[0];
        } else {
            comm->mark_due = true;
            comm->run_end = news->n;
            memcpy(comm->mark, news->mark, MARK_BYTES);
        }
        post_control(comm, comm->controls_head++);
    }
}

/* Receiving end: take what comes, whatever its size, until the mark does. Memory is touched only as
 * far as messages are long. */
static void receive_aside(struct comm *comm)
{
    if (!comm->aside) {
        void *memory = mmap(NULL, HARP_MESSAGE_MAX, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (memory == MAP_FAILED) {
            comm->failed = plugin_fail(NCCL_SYSTEM_ERROR, "irecv: no memory for what came early");
            return;
        }
        comm->aside = memory;
    }
    harp_receive(comm->connection, comm->aside, HARP_MESSAGE_MAX, OF_ASIDE);
}

void order_end_aside(struct comm *comm)
{
    if (comm->posting != POSTING_LEAVE)
        return;
    if (comm->aside)
        munmap(comm->aside, HARP_MESSAGE_MAX);
    comm->aside = NULL;
    comm->posting = POSTING_GROUPS;
}

void order_aside(struct comm *comm, uint32_t size)
{
    if (size == MARK_BYTES && memcmp(comm->aside, comm->mark, MARK_BYTES) == 0) {
        order_end_aside(comm);
        return;
    }
    struct early *early = malloc(sizeof *early + size);
    if (!early) {
        comm->failed = plugin_fail(NCCL_SYSTEM_ERROR, "irecv: no memory for what came early");
        return;
    }
    early->next = NULL;
    early->size = size;
    memcpy(early->bytes, comm->aside, size);
    *comm->early_end = early;
    comm->early_end = &early->next;
    receive_aside(comm);
}

/* ---- Sending end ---- */

int order_place(struct comm *comm, int tag)
{
    if (comm->run)
        return tag == comm->run_tag ? 0 : -1;
    const struct announcement *group = control(comm, comm->controls_head);
    for (uint32_t i = comm->sent_of_group; i < group->n; i++)
        if (group->tags[i] == tag && !comm->held[i].request)
            return (int)i;
    return -1;
}

static void send_held(struct comm *comm, struct held *held)
{
    harp_send(comm->connection, held->data, held->size, context_of(held->request, 0));
    held->request = NULL;
}

bool order_may_send(struct comm *comm)
{
    bool over = comm->mark_due && (int32_t)(comm->run_n - comm->run_end) >= 0;
    if (over && comm_lives(comm)) {
        comm->mark_due = !harp_send(comm->connection, comm->mark, MARK_BYTES, OF_MARK);
        comm->run = comm->mark_due;
    }
    if (over && comm->mark_due)
        return false;
    return comm->run || comm->controls_head != comm->controls_tail;
}

void order_send(struct comm *comm)
{
    if (comm->run) {
        comm->run_n++;
        send_held(comm, &comm->held[0]);
        return;
    }
    const struct announcement *group = control(comm, comm->controls_head);
    while (comm->sent_of_group < group->n && comm->held[comm->sent_of_group].request)
        send_held(comm, &comm->held[comm->sent_of_group++]);
    if (comm->sent_of_group < group->n)
        return;
    comm->sent_of_group = 0;
    /* Its place in the ring is for a coming one. */
    post_control(comm, comm->controls_head++);
}

/* ---- Receiving end ---- */

void order_announce(struct comm *comm, const struct announcement *news)
{
    struct announcement *place = control(comm, comm->controls_tail++);
    *place = *news;
    harp_send(comm->connection, place, control_bytes(place), OF_CONTROL);
}

static void leave_run(struct comm *comm)
{
    struct announcement leave = {.type = ANNOUNCE_LEAVE, .n = comm->run_n};
    while (getrandom(comm->mark, MARK_BYTES, 0) != MARK_BYTES)
        ; /* only a signal interrupts it */
    memcpy(leave.mark, comm->mark, MARK_BYTES);
    order_announce(comm, &leave);
    comm->posting = POSTING_LEAVE;
    comm->early_end = &comm->early;
    receive_aside(comm);
}

bool order_may_post(struct comm *comm, uint32_t n, const int *tags)
{
    bool fits = n == 1 && (comm->posting == POSTING_NOTHING || tags[0] == comm->run_tag);
    if (comm->posting == POSTING_NOTHING) {
        comm->posting = fits ? POSTING_RUN : POSTING_GROUPS;
        comm->run_tag = tags[0];
        if (fits)
            order_announce(comm,
                           &(struct announcement){.type = ANNOUNCE_RUN, .n = 1, .tags = {tags[0]}});
    } else if (comm->posting == POSTING_RUN && !fits) {
        leave_run(comm);
    }
    comm->run_n += comm->posting == POSTING_RUN;
    return comm->posting != POSTING_LEAVE;
}

bool order_take_early(struct comm *comm, int tag, void *to, size_t room, uint32_t *came)
{
    struct early *early = comm->early;
    if (!early || tag != comm->run_tag)
        return false;
    *came = early->size;
    if (early->size > room)
        comm->failed = plugin_fail(NCCL_INVALID_USAGE, "irecv of %zu bytes: %u came", room, *came);
    else
        harp_copy_lines(to, early->bytes, early->size);
    comm->early = early->next;
    if (!comm->early)
        comm->early_end = &comm->early;
    free(early);
    return true;
}

void order_forget(struct comm *comm)
{
    if (comm->aside)
        munmap(comm->aside, HARP_MESSAGE_MAX);
    comm->aside = NULL;
    while (comm->early) {
        struct early *next = comm->early->next;
        free(comm->early);
        comm->early = next;
    }
}
