#define _GNU_SOURCE
#include "client.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LINE_BYTES = 128, GUARD_BYTES = 4096 };

/* A call of irecv or isend that is under way. */
struct pending {
    void *request;
    bool used, waits_for_bytes; /* its completion was optional, and the payload is not there */
    uint64_t group;
    int first, n; /* receives of the group: all of them, or the one that is sent */
};

struct flow {
    struct link *link;
    struct plan plan;
    size_t slot_bytes;
    uint64_t capacity; /* of pending */
    struct pending *pending;
    uint64_t posted, done; /* requests; the older ones may be finished, `oldest` is not */
    uint64_t oldest;
    uint64_t group, burst; /* to be posted next; LIFO: at which this burst began */
    int sent;              /* messages of the group */
    bool draining;         /* LIFO: the burst is posted */
    uint64_t chance;
    struct shown *shown;
    atomic_uint_least64_t *watched; /* flags: group + 1 of what is in each slot */
    pthread_t watcher;
    atomic_bool watching;
};

/* ---- What the plan says about a group ---- */

static uint64_t key_of(const struct flow *f, uint64_t group, uint64_t what)
{
    return mix(f->plan.seed ^ mix((uint64_t)f->link->number << 48 ^ group << 8 ^ what));
}

static int receives_of(const struct flow *f, uint64_t group)
{
    return f->plan.receives == 1 ? 1
                                 : 1 + (int)(key_of(f, group, 100) % (uint64_t)f->plan.receives);
}

static size_t any_size(const struct plan *plan, uint64_t chance)
{
    if (chance % 16 == 0)
        return 0;
    unsigned bits = 1;
    while (bits < 63 && (size_t)1 << bits < plan->largest)
        bits++;
    size_t size = (mix(chance) & (((uint64_t)1 << (1 + chance / 16 % bits)) - 1)) % plan->largest;
    return size + 1;
}

static size_t size_of(const struct flow *f, uint64_t group, int receive)
{
    static const size_t list[] = {0,        1,         2,
                                  7,        8,         9,
                                  127,      128,       129,
                                  1407,     1408,      1409,
                                  4095,     4096,      4097,
                                  8832,     65535,     65536,
                                  65537,    1u << 20,  (1u << 20) + 1,
                                  0,        1,         0,
                                  3u << 20, 64u << 20, (64u << 20) - 1};
    size_t size = f->plan.largest;
    if (f->plan.sizes == LISTED_SIZES)
        size = list[(group * (uint64_t)f->plan.receives + (uint64_t)receive) %
                    (sizeof(list) / sizeof(*list))];
    if (f->plan.sizes == ANY_SIZE)
        size = any_size(&f->plan, key_of(f, group, (uint64_t)receive + 1));
    if (f->plan.flags)
        size = (size + LINE_BYTES - 1) / LINE_BYTES * LINE_BYTES;
    return size < f->plan.largest ? size : f->plan.largest;
}

static size_t posted_of(const struct flow *f, uint64_t group, int receive)
{
    size_t size = size_of(f, group, receive);
    uint64_t chance = key_of(f, group, (uint64_t)receive + 20);
    if (!f->plan.smaller || size == f->plan.largest)
        return size;
    return chance % 4 == 0 ? f->plan.largest : size + chance % (f->plan.largest - size + 1);
}

/* Bytes that are watched for what does not belong there: the buffer and some behind it. */
static size_t guarded_bytes(const struct flow *f, uint64_t group, int receive)
{
    size_t bytes = posted_of(f, group, receive) + GUARD_BYTES;
    return bytes < f->slot_bytes ? bytes : f->slot_bytes;
}

static int tag_of(const struct flow *f, uint64_t group, int receive)
{
    return (int)(key_of(f, group, 40) % 1000 * NCCL_RECEIVES_MAX) + receive;
}

/* The receives of a group are met in any order. */
static int nth_sent(const struct flow *f, uint64_t group, int index)
{
    uint64_t chance = key_of(f, group, 41);
    int n = receives_of(f, group);
    int at = (int)(((uint64_t)index + chance / 2) % (uint64_t)n);
    return chance & 1 ? n - 1 - at : at;
}

static uint8_t *buffer_of(const struct flow *f, uint64_t slot, int index)
{
    uint64_t per = f->link->sending ? 1 : (uint64_t)f->plan.receives;
    return f->link->region.bytes + (slot * per + (uint64_t)index) * f->slot_bytes;
}

static size_t slot_bytes(const struct plan *plan)
{
    size_t bytes = plan->largest ? plan->largest : 1;
    return (bytes + LINE_BYTES - 1) / LINE_BYTES * LINE_BYTES;
}

size_t flow_bytes(const struct plan *plan)
{
    return slot_bytes(plan) * (size_t)plan->depth * (size_t)plan->receives;
}

/* ---- A reader that watches, as the GPU does with LL and LL128 ---- */

static uint64_t load_number(const uint8_t *at)
{
    return __atomic_load_n((const uint64_t *)(const void *)at, __ATOMIC_ACQUIRE);
}

/* Once the last 8 bytes of a line are new, so are the others; once the upper half of 8 bytes is
 * new, so is the lower. */
static const char *wrong_order(const uint8_t *line, uint64_t key, size_t first)
{
    uint64_t last = load_number(line + LINE_BYTES - 8);
    bool whole = last == payload_word(key, first + 15);
    for (size_t i = 0; i < 15; i++) {
        uint64_t word = load_number(line + 8 * i), new = payload_word(key, first + i);
        if (whole && word != new)
            return "the last 8 bytes of a line of 128 were there before its others (LL128)";
        if (word >> 32 == new >> 32 && (uint32_t)word != (uint32_t)new)
            return "the flag of an 8-byte word was there before its data (LL)";
    }
    return NULL;
}

static void watch_slot(struct flow *f, uint64_t slot, uint64_t chance)
{
    uint64_t seen = atomic_load(&f->watched[slot]);
    if (!seen)
        return;
    size_t size = size_of(f, seen - 1, 0);
    if (!size)
        return;
    size_t line = chance % (size / LINE_BYTES);
    const char *wrong = wrong_order(buffer_of(f, slot, 0) + line * LINE_BYTES,
                                    key_of(f, seen - 1, 60), line * (LINE_BYTES / 8));
    if (wrong && atomic_load(&f->watched[slot]) == seen)
        fail("%s: line %zu of a message of %zu bytes", wrong, line, size);
}

static void *watch_flags(void *of)
{
    struct flow *f = of;
    for (uint64_t i = f->plan.seed; atomic_load(&f->watching); i++)
        watch_slot(f, i % f->capacity, mix(i));
    return NULL;
}

/* ---- Life ---- */

struct flow *flow_make(struct link *link, const struct plan *plan)
{
    struct flow *f = calloc(1, sizeof(*f));
    f->link = link;
    f->plan = *plan;
    f->slot_bytes = slot_bytes(plan);
    f->capacity = (uint64_t)plan->depth * (uint64_t)(link->sending ? plan->receives : 1);
    f->pending = calloc(f->capacity, sizeof(*f->pending));
    f->chance = mix(plan->seed + (uint64_t)link->number);
    f->shown = &shared->flows[link->number % FLOWS_SHOWN];
    f->shown->what = link->sending ? "isend" : "irecv";
    f->shown->of = plan->groups;
    atomic_store(&f->shown->posted, 0);
    atomic_store(&f->shown->done, 0);
    if (!plan->flags || link->sending)
        return f;
    f->watched = calloc(f->capacity, sizeof(*f->watched));
    atomic_store(&f->watching, true);
    if (pthread_create(&f->watcher, NULL, watch_flags, f))
        fail("the client cannot make a thread");
    return f;
}

void flow_free(struct flow *f)
{
    if (f->watched) {
        atomic_store(&f->watching, false);
        pthread_join(f->watcher, NULL);
    }
    free(f->watched);
    free(f->pending);
    free(f);
}

bool flow_finished(const struct flow *f)
{
    return f->group == f->plan.groups && f->done == f->posted;
}

uint64_t flow_done(const struct flow *f)
{
    return f->done;
}
/* ---- Posting ---- */

static bool post_receive(struct flow *f, struct pending *p, enum nccl_result *failed)
{
    void *data[NCCL_RECEIVES_MAX], *memories[NCCL_RECEIVES_MAX], *parents[NCCL_RECEIVES_MAX];
    size_t sizes[NCCL_RECEIVES_MAX];
    int tags[NCCL_RECEIVES_MAX], n = receives_of(f, f->group);
    uint64_t slot = f->posted % f->capacity;
    for (int i = 0; i < n; i++) {
        data[i] = buffer_of(f, slot, i);
        sizes[i] = posted_of(f, f->group, i);
        tags[i] = tag_of(f, f->group, i);
        memories[i] = f->link->region.memory;
        parents[i] = profiler_parent();
        canary_fill(data[i], guarded_bytes(f, f->group, i));
    }
    void *request = NULL;
    if (f->plan.optional)
        request = NCCL_OPTIONAL_COMPLETION;
    else if (f->plan.stale)
        request = f->group % 2 ? (void *)data : f; /* some address that is no request */
    void *before = request;
    if (f->watched)
        atomic_store(&f->watched[slot], f->group + 1);
    *failed = plugin_receive(&f->link->world->plugin, f->link->comm, n, data, sizes, tags, memories,
                             parents, &request);
    if (*failed)
        return false;
    if (before && request == before)
        fail("irecv left *request as it was, %p, which is no request of its own", before);
    if (!request)
        return false;
    *p = (struct pending){.request = request, .used = true, .group = f->group, .n = n};
    f->group++;
    return true;
}

static bool post_send(struct flow *f, struct pending *p, enum nccl_result *failed)
{
    int receive = nth_sent(f, f->group, f->sent);
    uint8_t *data = buffer_of(f, f->posted % f->capacity, 0);
    size_t size = size_of(f, f->group, receive);
    payload_fill(data, size, key_of(f, f->group, (uint64_t)receive + 60));
    void *request = f->plan.stale ? f : NULL;
    *failed = plugin_send(&f->link->world->plugin, f->link->comm, data, size,
                          tag_of(f, f->group, receive), f->link->region.memory, profiler_parent(),
                          &request);
    if (!*failed && request == f)
        fail("isend left *request as it was, which is no request of its own");
    if (*failed || !request)
        return false;
    *p = (struct pending){
        .request = request, .used = true, .group = f->group, .first = receive, .n = 1};
    if (++f->sent == receives_of(f, f->group)) {
        f->sent = 0;
        f->group++;
    }
    return true;
}

/* LIFO posts bursts of whole groups, and the next when all of one is done. */
static bool may_post(struct flow *f)
{
    if (f->group == f->plan.groups || f->pending[f->posted % f->capacity].used)
        return false;
    if (f->plan.order != LIFO)
        return f->posted - f->oldest < f->capacity;
    return !f->draining;
}

bool flow_post(struct flow *f, enum nccl_result *failed)
{
    bool moved = false;
    *failed = NCCL_SUCCESS;
    while (may_post(f)) {
        struct pending *p = &f->pending[f->posted % f->capacity];
        if (!(f->link->sending ? post_send(f, p, failed) : post_receive(f, p, failed)))
            break;
        f->posted++;
        atomic_store(&f->shown->posted, f->posted);
        moved = true;
        if (f->group - f->burst == (uint64_t)f->plan.depth || f->group == f->plan.groups)
            f->draining = f->plan.order == LIFO && f->sent == 0;
    }
    return moved;
}

/* ---- Completion ---- */

static void check_bytes(struct flow *f, const struct pending *p, uint64_t slot, int index)
{
    size_t size = size_of(f, p->group, index), posted = posted_of(f, p->group, index);
    const uint8_t *bytes = buffer_of(f, slot, index);
    uint64_t key = key_of(f, p->group, (uint64_t)index + 60);
    size_t wrong = payload_check(bytes, size, key);
    if (wrong < size)
        fail("link %d, irecv %llu, buffer %d of %d: byte %zu of %zu is %02x and not %02x",
             f->link->number, (unsigned long long)p->group, index, p->n, wrong, size, bytes[wrong],
             (uint8_t)(payload_word(key, wrong / 8) >> 8 * (wrong % 8)));
    size_t behind = guarded_bytes(f, p->group, index) - size;
    wrong = canary_check(bytes + size, behind);
    if (wrong < behind)
        fail("link %d, irecv %llu, buffer %d: byte %zu was written, the message has %zu and the "
             "buffer %zu",
             f->link->number, (unsigned long long)p->group, index, size + wrong, size, posted);
}

static bool all_there(struct flow *f, const struct pending *p, uint64_t slot)
{
    for (int i = 0; i < p->n; i++) {
        size_t size = size_of(f, p->group, i);
        if (payload_check(buffer_of(f, slot, i), size, key_of(f, p->group, (uint64_t)i + 60)) <
            size)
            return false;
    }
    return true;
}

static void finish_message(struct flow *f, struct pending *p, uint64_t slot)
{
    if (f->watched)
        atomic_store(&f->watched[slot], 0);
    if (f->link->sending) /* it is ours again, and what still reads it reads this */
        memset(buffer_of(f, slot, 0), 0x5a, size_of(f, p->group, p->first));
    else
        for (int i = 0; i < p->n; i++)
            check_bytes(f, p, slot, i);
    p->used = false;
    f->done++;
    atomic_store(&f->shown->done, f->done);
    while (f->oldest < f->posted && !f->pending[f->oldest % f->capacity].used)
        f->oldest++;
    if (f->done == f->posted) {
        f->draining = false;
        f->burst = f->group;
    }
}

static void check_sizes(struct flow *f, const struct pending *p, const int *sizes)
{
    for (int i = 0; i < p->n; i++) {
        int size = (int)size_of(f, p->group, p->first + i);
        bool unsaid = (f->link->sending && sizes[i] == -1) || (f->plan.optional && sizes[i] <= 0);
        if (sizes[i] != size && !unsaid)
            fail("link %d, %s %llu: test says that buffer %d got %d bytes; %d were sent",
                 f->link->number, f->shown->what, (unsigned long long)p->group, i, sizes[i], size);
    }
}

/* Ask about one request. Returns whether it is done. */
static bool poll_one(struct flow *f, uint64_t number, enum nccl_result *failed)
{
    uint64_t slot = number % f->capacity;
    struct pending *p = &f->pending[slot];
    if (!p->used)
        return true;
    if (!p->waits_for_bytes) {
        int done = 0, sizes[NCCL_RECEIVES_MAX];
        memset(sizes, -1, sizeof(sizes));
        *failed = plugin_test(&f->link->world->plugin, p->request, &done, sizes);
        if (*failed || !done)
            return false;
        check_sizes(f, p, sizes);
        p->waits_for_bytes = f->plan.optional && !f->link->sending;
    }
    if (p->waits_for_bytes && !all_there(f, p, slot))
        return false;
    finish_message(f, p, slot);
    return true;
}

static bool poll_all(struct flow *f, enum nccl_result *failed)
{
    if (f->oldest == f->posted)
        return false;
    if (f->plan.order == FIFO)
        return poll_one(f, f->oldest, failed);
    if (f->plan.order == RANDOM) {
        f->chance = mix(f->chance);
        uint64_t done = f->done;
        poll_one(f, f->oldest + f->chance % (f->posted - f->oldest), failed);
        return f->done != done;
    }
    /* The newest alone, until it is done. */
    for (uint64_t number = f->posted; f->draining && number-- > f->oldest;)
        if (f->pending[number % f->capacity].used)
            return poll_one(f, number, failed);
    return false;
}

bool flow_turn(struct flow *f, enum nccl_result *failed)
{
    bool moved = flow_post(f, failed);
    for (int i = 0; i < 8 && !*failed && poll_all(f, failed); i++)
        moved = true;
    return moved;
}

/* ---- Many of them ---- */

static bool turn_all(struct run *run, bool *moved)
{
    bool ended = true;
    for (int i = 0; i < run->count; i++) {
        enum nccl_result failed = NCCL_SUCCESS;
        if (!run->flows[i] || flow_finished(run->flows[i]))
            continue;
        *moved |= flow_turn(run->flows[i], &failed);
        ended = false;
        if (!failed)
            continue;
        if (!run->until_errors)
            expect(run->world, failed, run->flows[i]->shown->what);
        run->error = run->error ? run->error : failed;
        flow_free(run->flows[i]);
        run->flows[i] = NULL;
    }
    return ended;
}

/* A rank that ends before its flows leaves requests under way on all of them. */
static void post_on_all(struct run *run)
{
    enum nccl_result failed = NCCL_SUCCESS;
    for (int i = 0; i < run->count; i++)
        if (run->flows[i])
            flow_post(run->flows[i], &failed);
}

void run_flows(void *of)
{
    struct run *run = of;
    for (bool moved = false; !turn_all(run, &moved); moved = false) {
        if (atomic_load(&run->stop))
            break;
        if (run->until_done && run->flows[0] && flow_done(run->flows[0]) >= run->until_done) {
            post_on_all(run);
            break;
        }
        if (!moved)
            sched_yield();
    }
}

void links_run(struct world *world, struct link *links, int count, const struct plan *plan)
{
    struct run run = {.world = world, .count = count};
    for (int i = 0; i < count; i++)
        run.flows[i] = flow_make(&links[i], plan);
    step("%llu messages on each of %d links", (unsigned long long)plan->groups, count);
    if (world->one_thread)
        run_flows(&run);
    else
        worker_start(&world->progress[links[0].communicator], run_flows, &run);
    if (!world->one_thread)
        worker_wait(&world->progress[links[0].communicator], 1e6);
    for (int i = 0; i < count; i++)
        flow_free(run.flows[i]);
}
