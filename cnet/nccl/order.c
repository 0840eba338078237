/* Matching of sends to buffers.
 *
 * A HARP message is a send of NCCL's; HARP puts the n-th message into the n-th buffer that was
 * posted. NCCL posts receives in groups of up to eight buffers with a tag each, and wants a send to
 * go to the buffer of its tag within the first group that is not complete. How these agree:
 *
 * **A run.** All comms but those that several ranks share (PXN) have one tag. The receiving end
 * announces it with its first receive, by a message back on the same connection; from then on sends
 * with that tag go at once, whether their buffers are posted or not, and nothing more is announced
 * but how many buffers
 * are posted, from time to time.
 *
 * **Groups.** With the first receive that has another tag, the run ends: each receive is announced,
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
 * **Memory for what comes aside** is made with the comm, so what may come is bounded: the sending
 * end has sent EARLY_BYTES of the run at most, in EARLY_MESSAGES, but for messages whose buffers it
 * knows to be posted. The receiving end tells it how many are (POSTED) after each UNTOLD_BYTES or
 * UNTOLD_MESSAGES, which are less than that: so a sender that waits has filled all buffers that it
 * knows of, and more will be posted.
 *
 * A send without an announced buffer of its tag gets no request: NCCL tries again. One whose buffer
 * is in a later group than the first waits until all sends before it have come, and HARP has room.
 */
#define _GNU_SOURCE
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>

#include "base/copy_lines.h"
#include "base/sequence.h"
#include "plugin.h"

/* ---- Announcements ---- */

static struct announcement *announcement_at(struct comm *comm, uint32_t number)
{
    return &comm->controls[number % PLUGIN_CONTROLS];
}

static void post_control(struct comm *comm, uint32_t number)
{
    harp_receive_unread(comm->connection, announcement_at(comm, number),
                        sizeof(struct announcement), OF_CONTROL);
}

void order_begin(struct comm *comm)
{
    for (uint32_t i = 0; i < PLUGIN_CONTROLS; i++)
        post_control(comm, i);
}

static uint32_t control_bytes(const struct announcement *control)
{
    size_t bytes = control->type == ANNOUNCE_LEAVE    ? MARK_BYTES
                   : control->type == ANNOUNCE_POSTED ? 0
                                                      : control->n * sizeof control->tags[0];
    return (uint32_t)(offsetof(struct announcement, tags) + bytes);
}

static bool makes_sense(const struct announcement *news, uint32_t bytes)
{
    if (bytes < offsetof(struct announcement, tags))
        return false;
    bool known = news->type == ANNOUNCE_LEAVE || news->type == ANNOUNCE_POSTED ||
                 (news->type == ANNOUNCE_RUN && news->n == 1) ||
                 (news->type == ANNOUNCE_GROUP && news->n >= 1 && news->n <= NCCL_RECEIVES_MAX);
    return known && bytes == control_bytes(news);
}

static void refuse_announcement(struct comm *comm)
{
    comm->failed =
        plugin_fail(NCCL_REMOTE_ERROR, "the other rank announced a receive that makes no sense: "
                                       "install the same version of HARP on all hosts");
}

/* Sending end: the next announcement has come. */
void order_announced(struct comm *comm, uint32_t bytes)
{
    if (!makes_sense(announcement_at(comm, comm->controls_tail++), bytes))
        refuse_announcement(comm);
}

/* ---- Sending end ---- */

/* Messages before the n-th have their buffers, and are under way at the sender's risk no more. */
static void raise_posted(struct comm *comm, uint32_t n)
{
    if (n - comm->run_posted > POSTED_MOST) {
        refuse_announcement(comm);
        return;
    }
    for (; comm->run_posted != n; comm->run_posted++)
        if (harp_before(comm->run_posted, comm->run_n))
            comm->run_bytes -= comm->run_sizes[comm->run_posted % EARLY_MESSAGES];
}

static void take_announcement(struct comm *comm, const struct announcement *news)
{
    if (news->type == ANNOUNCE_RUN) {
        comm->run = true;
        comm->run_tag = news->tags[0];
        return;
    }
    raise_posted(comm, news->n);
    if (news->type == ANNOUNCE_POSTED)
        return;
    comm->mark_due = true;
    comm->run_end = news->n;
    memcpy(comm->mark, news->mark, MARK_BYTES);
}

/* The first group that the receiving end announced, after heeding all it said before; NULL: none.
 */
static const struct announcement *first_group(struct comm *comm)
{
    while (comm->controls_head != comm->controls_tail) {
        const struct announcement *news = announcement_at(comm, comm->controls_head);
        if (news->type == ANNOUNCE_GROUP)
            return news;
        take_announcement(comm, news);
        post_control(comm, comm->controls_head++);
    }
    return NULL;
}

static bool run_is_over(const struct comm *comm)
{
    return comm->mark_due && !harp_before(comm->run_n, comm->run_end);
}

static bool fits_in_run(const struct comm *comm, int tag, uint32_t size)
{
    uint32_t ahead = comm->run_n - comm->run_posted;
    bool posted = harp_before(comm->run_n, comm->run_posted);
    bool early = ahead < EARLY_MESSAGES && comm->run_bytes + size <= EARLY_BYTES;
    return tag == comm->run_tag && !run_is_over(comm) && !comm->waiting_n && (posted || early);
}

/* Buffers of this tag that are announced and for which there is no send yet. */
static uint32_t count_places(struct comm *comm, int tag)
{
    uint32_t places = 0, taken = 0;
    for (uint32_t number = comm->controls_head; number != comm->controls_tail; number++) {
        const struct announcement *group = announcement_at(comm, number);
        uint32_t first = number == comm->controls_head ? comm->sent_of_group : 0;
        for (uint32_t i = first; i < group->n; i++)
            places += group->tags[i] == tag;
    }
    for (uint32_t i = 0; i < NCCL_RECEIVES_MAX; i++)
        taken += comm->held[i].request && comm->held[i].tag == tag;
    for (uint32_t i = 0; i < comm->waiting_n; i++)
        taken += comm->waiting[i].tag == tag;
    return places - taken;
}

bool order_may_send(struct comm *comm, int tag, uint32_t size)
{
    if (comm->run)
        return fits_in_run(comm, tag, size);
    return comm->waiting_n < NCCL_REQUESTS && count_places(comm, tag) > 0;
}

static void stop_waiting(struct comm *comm, uint32_t i)
{
    comm->waiting_n--;
    memmove(&comm->waiting[i], &comm->waiting[i + 1],
            (comm->waiting_n - i) * sizeof comm->waiting[0]);
}

/* A short one is done at once, as with a socket: NCCL does not wait for the other end. */
static bool send_now(struct comm *comm, const struct waiting_send *send)
{
    if (send->size <= HARP_SHORT_BYTES &&
        harp_send_short(comm->connection, send->data, send->size)) {
        request_end_part(comm, context_of(send->request, 0), send->size);
        return true;
    }
    return harp_send(comm->connection, send->data, send->size, context_of(send->request, 0));
}

static void send_run(struct comm *comm)
{
    while (comm->run && comm->waiting_n && send_now(comm, &comm->waiting[0])) {
        if (!harp_before(comm->run_n, comm->run_posted)) {
            comm->run_sizes[comm->run_n % EARLY_MESSAGES] = comm->waiting[0].size;
            comm->run_bytes += comm->waiting[0].size;
        }
        comm->run_n++;
        stop_waiting(comm, 0);
    }
}

static void send_mark(struct comm *comm)
{
    if (run_is_over(comm) && !comm->waiting_n &&
        harp_send(comm->connection, comm->mark, MARK_BYTES, OF_MARK))
        comm->mark_due = comm->run = false;
}

static struct waiting_send *find_place(struct comm *comm, const struct announcement *group, int tag)
{
    for (uint32_t i = comm->sent_of_group; i < group->n; i++)
        if (group->tags[i] == tag && !comm->held[i].request)
            return &comm->held[i];
    return NULL;
}

static void hold_sends_of_group(struct comm *comm, const struct announcement *group)
{
    for (uint32_t i = 0; i < comm->waiting_n;) {
        struct waiting_send *place = find_place(comm, group, comm->waiting[i].tag);
        if (place) {
            *place = comm->waiting[i];
            stop_waiting(comm, i);
        } else {
            i++;
        }
    }
}

/* Whether all of the group has gone. */
static bool send_group(struct comm *comm, const struct announcement *group)
{
    hold_sends_of_group(comm, group);
    for (struct waiting_send *held; comm->sent_of_group < group->n; comm->sent_of_group++) {
        held = &comm->held[comm->sent_of_group];
        if (!held->request || !send_now(comm, held))
            return false;
        held->request = NULL;
    }
    comm->sent_of_group = 0;
    /* Its place in the ring is for a coming one. */
    post_control(comm, comm->controls_head++);
    return true;
}

void order_flush(struct comm *comm)
{
    if (!comm_lives(comm) || comm->failed != NCCL_SUCCESS)
        return;
    const struct announcement *group = first_group(comm);
    send_run(comm);
    send_mark(comm);
    while (group && !comm->run && send_group(comm, group))
        group = first_group(comm);
}

void order_wait(struct comm *comm, const struct waiting_send *send)
{
    comm->waiting[comm->waiting_n++] = *send;
    order_flush(comm);
}

/* ---- Receiving end ---- */

bool order_prepare(struct comm *comm)
{
    struct early *early = &comm->early;
    early->room = EARLY_BYTES + (EARLY_MESSAGES + 1) * HARP_LINE_BYTES;
    void *memory =
        mmap(NULL, early->room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return false;
    early->bytes = memory;
    while (getrandom(comm->mark, MARK_BYTES, 0) != MARK_BYTES)
        ; /* only a signal interrupts it */
    return true;
}

/* HARP takes it: no more are under way than the ring has places, unless the connection ended. */
static void send_announcement(struct comm *comm, const struct announcement *news)
{
    struct announcement *place = announcement_at(comm, comm->controls_tail++);
    *place = *news;
    harp_send(comm->connection, place, control_bytes(place), OF_CONTROL);
}

static void leave_run(struct comm *comm)
{
    struct announcement leave = {.type = ANNOUNCE_LEAVE, .n = comm->run_n};
    memcpy(leave.mark, comm->mark, MARK_BYTES);
    send_announcement(comm, &leave);
    comm->posting = POSTING_LEAVE;
}

static bool fits_run(const struct comm *comm, const struct receive *receive)
{
    int tag = comm->posting == POSTING_NOTHING ? receive->tags[0] : comm->run_tag;
    for (uint32_t i = 0; i < receive->request->n; i++)
        if (receive->tags[i] != tag)
            return false;
    return true;
}

bool order_may_post(struct comm *comm, const struct receive *receive)
{
    bool fits = fits_run(comm, receive);
    if (comm->posting == POSTING_NOTHING) {
        comm->posting = fits ? POSTING_RUN : POSTING_GROUPS;
        comm->run_tag = receive->tags[0];
        if (fits)
            send_announcement(comm, &(struct announcement){
                                        .type = ANNOUNCE_RUN, .n = 1, .tags = {comm->run_tag}});
    } else if (comm->posting == POSTING_RUN && !fits) {
        leave_run(comm);
    }
    return comm->posting != POSTING_LEAVE;
}

void order_posted(struct comm *comm, const struct receive *receive,
                  const struct announcement *group)
{
    if (comm->posting == POSTING_GROUPS) {
        if (group->n)
            send_announcement(comm, group);
        return;
    }
    for (uint32_t i = 0; i < receive->request->n; i++)
        comm->untold_bytes += receive->sizes[i];
    comm->run_n += receive->request->n;
    comm->untold_n += receive->request->n;
    if (comm->untold_bytes <= UNTOLD_BYTES && comm->untold_n < UNTOLD_MESSAGES)
        return;
    send_announcement(comm, &(struct announcement){.type = ANNOUNCE_POSTED, .n = comm->run_n});
    comm->untold_bytes = comm->untold_n = 0;
}

void order_receive_aside(struct comm *comm)
{
    struct early *early = &comm->early;
    if (comm->posting == POSTING_LEAVE && !comm->aside_posted)
        comm->aside_posted = harp_receive_unread(comm->connection, early->bytes + early->to,
                                                 (uint32_t)(early->room - early->to), OF_ASIDE);
}

void order_end_aside(struct comm *comm)
{
    if (comm->posting == POSTING_LEAVE)
        comm->posting = POSTING_GROUPS;
}

static size_t whole_lines(size_t bytes)
{
    return (bytes + HARP_LINE_BYTES - 1) / HARP_LINE_BYTES * HARP_LINE_BYTES;
}

void order_aside(struct comm *comm, uint32_t size)
{
    struct early *early = &comm->early;
    comm->aside_posted = false;
    if (size == MARK_BYTES && memcmp(early->bytes + early->to, comm->mark, MARK_BYTES) == 0) {
        order_end_aside(comm);
        return;
    }
    if (early->n == EARLY_MESSAGES) {
        comm->failed = plugin_fail(NCCL_REMOTE_ERROR, "the other rank sent more than it may: "
                                                      "install the same version of HARP on all "
                                                      "hosts");
        return;
    }
    early->sizes[early->n++] = size;
    early->to += whole_lines(size);
}

bool order_take_early(struct comm *comm, int tag, void *to, size_t room, uint32_t *came)
{
    struct early *early = &comm->early;
    if (early->first == early->n || tag != comm->run_tag)
        return false;
    *came = early->sizes[early->first++];
    if (*came > room)
        comm->failed = plugin_fail(NCCL_INVALID_USAGE, "irecv of %zu bytes: %u came", room, *came);
    else
        harp_copy_lines(to, early->bytes + early->from, *came);
    early->from += whole_lines(*came);
    return true;
}

void order_forget(struct comm *comm)
{
    if (comm->early.bytes)
        munmap(comm->early.bytes, comm->early.room);
    comm->early.bytes = NULL;
}
