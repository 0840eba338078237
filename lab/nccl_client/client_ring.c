/* Allreduce between two ranks of a ring, as NCCL's proxy and kernels move it over a network.
 *
 * Each rank sends to the other and receives from it, on a connection each way for every channel:
 *
 *     GPU thread                        progress thread (NCCL's proxy)           the other rank
 *     write slice, filled++  ------->   isend, test, sent++  --------------->
 *     read slice, consumed++ <-------   irecv, test, received++  <-----------
 *
 * With two ranks an allreduce is three steps of the kernel for each chunk: send the other's half
 * (A), receive one's own, reduce it and send it back (B), receive the result (C). The "GPU" moves
 * no payload, since a real one would not use the CPU for it, but it polls, writes and reads what
 * the protocols need: a slice's number (Simple), or the flags of all its lines (LL).
 *
 * Windows and sizes are NCCL's (src/include/device.h, src/device/all_reduce.h): 8 steps; Simple has
 * steps of 512 KiB, slices of 2 and chunks of 4; LL has steps of 64 KiB, half of them flags. The
 * progress loop is that of src/transport/net.cc: post what the window allows, ask about the oldest
 * request of each connection once, yield if nothing moved. One allreduce follows the other without
 * a pause, as nccl-tests launches them.
 */
#define _GNU_SOURCE
#include "bench.h"
#include "client.h"

#include <sys/socket.h>

enum {
    STEPS = 8,                     /* NCCL_STEPS */
    SIMPLE_STEP_BYTES = 512 << 10, /* NCCL_BUFFSIZE / NCCL_STEPS */
    SLICE_STEPS = 2,               /* ALLREDUCE_SLICESTEPS */
    CHUNK_SLICES = 2,              /* ALLREDUCE_CHUNKSTEPS / ALLREDUCE_SLICESTEPS */
    LL_STEP_BYTES = 64 << 10,
    LL_MOST_BYTES = 64 << 10,    /* larger allreduces take Simple */
    ONE_CHANNEL_BYTES = 1 << 20, /* so do smaller ones with one channel */
    CHANNELS = 2,                /* NCCL doubles the only ring that it finds */
    KERNEL_STEPS = 3,            /* A, B, C */
    STOP_TURNS = 64              /* between two looks at whether the other rank is done */
};

struct ll_line { /* ncclLLFifoLine: each half is written at once */
    uint64_t halves[2];
};

/* One direction of one channel: slices by number, each in slot number % slots. */
struct lane {
    struct link *link;
    uint64_t posted, tested; /* by the progress thread */
    void *requests[STEPS];
    atomic_uint_least64_t ready; /* slices that the writing side gave: filled, or received */
    atomic_uint_least64_t free;  /* slots that the reading side gave back: sent, or consumed */
};

struct channel {
    struct lane out, in;
    uint64_t op; /* of the GPU's program: a slice of a kernel's step */
};

struct ring {
    struct world *world;
    struct channel channels[CHANNELS];
    int channels_n, slots;
    bool ll;
    uint32_t slice_bytes; /* on the wire */
    uint64_t slices;      /* of a chunk */
    uint64_t loops;       /* chunks of an allreduce that a rank begins, on one channel */
    struct bench_window window;
    atomic_bool over;
    struct worker gpu;
};

static void plan_ring(struct ring *ring, size_t size)
{
    ring->ll = size <= LL_MOST_BYTES;
    ring->channels_n = size < ONE_CHANNEL_BYTES ? 1 : CHANNELS;
    ring->slots = ring->ll ? STEPS : STEPS / SLICE_STEPS;
    ring->slices = ring->ll ? 1 : CHUNK_SLICES;
    size_t slice_most = ring->ll ? LL_STEP_BYTES / 2 : SLICE_STEPS * SIMPLE_STEP_BYTES;
    size_t half = (size / 2 + (size_t)ring->channels_n - 1) / (size_t)ring->channels_n;
    size_t loop_bytes = slice_most * ring->slices;
    ring->loops = (half + loop_bytes - 1) / loop_bytes;
    size_t slice = half / (ring->loops * ring->slices);
    slice = slice < sizeof(uint64_t) ? sizeof(uint64_t) : slice; /* a line's payload */
    ring->slice_bytes = (uint32_t)(ring->ll ? 2 * slice : slice);
}

/* ---- The GPU ---- */

static uint8_t *slot_of(const struct ring *ring, const struct lane *lane, uint64_t slice)
{
    return lane->link->region.bytes + slice % (uint64_t)ring->slots * ring->slice_bytes;
}

/* LL: the upper half of each 8 bytes is the flag. Simple: the first 8 bytes are the number. */
static uint64_t mark_of(const struct ring *ring, uint64_t slice)
{
    return ring->ll ? (slice + 1) << 32 : slice + 1;
}

static uint64_t words_of(const struct ring *ring)
{
    return ring->ll ? ring->slice_bytes / sizeof(uint64_t) : 1;
}

static void write_marks(const struct ring *ring, const struct lane *lane, uint64_t slice)
{
    uint64_t *words = (uint64_t *)(void *)slot_of(ring, lane, slice), mark = mark_of(ring, slice);
    for (uint64_t i = 0; i < words_of(ring); i++)
        __atomic_store_n(&words[i], mark, __ATOMIC_RELAXED);
}

/* Whether all of a slice lies in its slot. */
static bool has_marks(const struct ring *ring, const struct lane *lane, uint64_t slice)
{
    uint64_t *words = (uint64_t *)(void *)slot_of(ring, lane, slice), mark = mark_of(ring, slice);
    for (uint64_t i = 0; i < words_of(ring); i++)
        if (__atomic_load_n(&words[i], __ATOMIC_ACQUIRE) != mark)
            return false;
    return true;
}

static bool may_fill(const struct ring *ring, struct lane *out)
{
    return atomic_load(&out->ready) - atomic_load(&out->free) < (uint64_t)ring->slots;
}

/* LL's kernel looks at the buffer itself while it fills, Simple's waits for the progress thread. */
static bool may_consume(const struct ring *ring, struct lane *in)
{
    uint64_t slice = atomic_load(&in->free);
    if (ring->ll)
        return has_marks(ring, in, slice);
    if (slice == atomic_load(&in->ready))
        return false;
    if (!has_marks(ring, in, slice))
        fail("slice %llu was received, and its slot does not say so", (unsigned long long)slice);
    return true;
}

static void fill_lane(const struct ring *ring, struct lane *out)
{
    write_marks(ring, out, atomic_load(&out->ready));
    atomic_fetch_add(&out->ready, 1);
}

/* One step of a channel's kernel, if it can be made. */
static bool gpu_step(const struct ring *ring, struct channel *channel)
{
    uint64_t kind = channel->op / ring->slices % KERNEL_STEPS;
    bool sends = kind < 2, receives = kind > 0;
    if ((sends && !may_fill(ring, &channel->out)) || (receives && !may_consume(ring, &channel->in)))
        return false;
    if (receives)
        atomic_fetch_add(&channel->in.free, 1);
    if (sends)
        fill_lane(ring, &channel->out);
    channel->op++;
    return true;
}

/* Count an allreduce when a channel has done its part of it; false when the time is over. */
static bool gpu_count(struct ring *ring, const struct channel *channel)
{
    uint64_t ops = ring->loops * ring->slices * KERNEL_STEPS;
    size_t bytes = ring->world->options->size / (size_t)ring->channels_n;
    return channel->op % ops || ring->world->rank != 0 || bench_count(&ring->window, bytes, 1);
}

static void play_gpu(void *of)
{
    struct ring *ring = of;
    bench_pin(ring->world->options->cpu);
    while (!atomic_load(&ring->over)) {
        bool moved = false;
        for (int i = 0; i < ring->channels_n; i++) {
            if (!gpu_step(ring, &ring->channels[i]))
                continue;
            moved = true;
            if (!gpu_count(ring, &ring->channels[i]))
                atomic_store(&ring->over, true);
        }
        if (!moved)
            sched_yield();
    }
}

/* ---- The progress thread ---- */

static bool test_oldest(struct ring *ring, struct lane *lane)
{
    int done = 0, size = -1;
    if (lane->tested == lane->posted)
        return false;
    expect(ring->world,
           plugin_test(&ring->world->plugin, lane->requests[lane->tested % STEPS], &done, &size),
           "test");
    if (done && !lane->link->sending && size != (int)ring->slice_bytes)
        fail("a slice of %u bytes came with %d", ring->slice_bytes, size);
    lane->tested += done ? 1 : 0;
    return done;
}

static void *post_send(const struct ring *ring, const struct lane *lane)
{
    void *request = NULL;
    expect(ring->world,
           plugin_send(&ring->world->plugin, lane->link->comm, slot_of(ring, lane, lane->posted),
                       ring->slice_bytes, 0, lane->link->region.memory, NULL, &request),
           "isend");
    return request;
}

static void *post_receive(const struct ring *ring, const struct lane *lane)
{
    void *request = NULL, *memory = lane->link->region.memory, *parent = NULL;
    void *data = slot_of(ring, lane, lane->posted);
    size_t size = ring->slice_bytes;
    int tag = 0;
    expect(ring->world,
           plugin_receive(&ring->world->plugin, lane->link->comm, 1, &data, &size, &tag, &memory,
                          &parent, &request),
           "irecv");
    return request;
}

/* With LL nobody but the flags tells the proxy that a slice to send is whole. */
static bool may_post(const struct ring *ring, struct lane *lane)
{
    if (lane->link->sending)
        return lane->posted < atomic_load(&lane->ready) &&
               (!ring->ll || has_marks(ring, lane, lane->posted));
    uint64_t consumed = atomic_load(&lane->free);
    uint64_t done = consumed < lane->tested ? consumed : lane->tested;
    return lane->posted < done + (uint64_t)ring->slots;
}

static bool progress_lane(struct ring *ring, struct lane *lane)
{
    bool sends = lane->link->sending, moved = false;
    if (may_post(ring, lane)) {
        void *request = sends ? post_send(ring, lane) : post_receive(ring, lane);
        if (request)
            lane->requests[lane->posted++ % STEPS] = request;
        moved = request != NULL;
    }
    if (test_oldest(ring, lane)) {
        atomic_store(sends ? &lane->free : &lane->ready, lane->tested);
        moved = true;
    }
    return moved;
}

static bool stop_requested(const struct world *world)
{
    char byte;
    return recv(world->meet, &byte, 1, MSG_DONTWAIT) > 0;
}

static void play_proxy(void *of)
{
    struct ring *ring = of;
    bench_pin(ring->world->options->cpu);
    for (uint64_t turn = 0; !atomic_load(&ring->over); turn++) {
        bool moved = false;
        for (int i = 0; i < ring->channels_n; i++) {
            moved |= progress_lane(ring, &ring->channels[i].in);
            moved |= progress_lane(ring, &ring->channels[i].out);
        }
        if (!moved)
            sched_yield();
        if (ring->world->rank != 0 && turn % STOP_TURNS == 0 && stop_requested(ring->world))
            atomic_store(&ring->over, true);
    }
}

/* ---- The scenario ---- */

static void ring_run(struct ring *ring)
{
    struct world *world = ring->world;
    step("allreduces of %zu bytes", world->options->size);
    bench_open(&ring->window, world->options->seconds);
    alarm(0); /* the supervisor has a limit */
    worker_begin(&ring->gpu);
    worker_start(&ring->gpu, play_gpu, ring);
    worker_start(&world->progress[0], play_proxy, ring);
    worker_wait(&world->progress[0], 1e6);
    worker_wait(&ring->gpu, 1e6);
    worker_end(&ring->gpu);
    if (world->rank != 0)
        return;
    bench_print(&ring->window, "");
    meet_send(world->meet, "x", 1);
}

static void ring_scenario(struct world *world)
{
    struct link links[2 * CHANNELS];
    struct ring ring = {.world = world};
    plan_ring(&ring, world->options->size);
    int links_n = 2 * ring.channels_n;
    bench_pin(world->options->cpu);
    world->unfinished = true;
    world_open(world, 1);
    links_open(world, links, links_n, 0);
    for (int i = 0; i < links_n; i++) {
        struct channel *channel = &ring.channels[i / 2];
        *(links[i].sending ? &channel->out : &channel->in) = (struct lane){.link = &links[i]};
        link_register(&links[i], (size_t)ring.slots * ring.slice_bytes);
        memset(links[i].region.bytes, 0, links[i].region.size);
    }
    meet_barrier(world->meet);
    ring_run(&ring);
    meet_barrier(world->meet); /* what is in flight stays there */
    links_close(world, links, links_n);
    world_close(world);
}

const struct scenario scenarios_ring[] = {
    {"ring", "allreduces of --size bytes between two ranks; JSON", ring_scenario, .json = true},
    {0},
};
