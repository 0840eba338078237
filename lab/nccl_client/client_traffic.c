/* Scenarios in which everything goes well, in every order and size. */
#define _GNU_SOURCE
#include "client.h"

#include <string.h>
#include <time.h>

/* Links both ways, a plan on all of them, and the end. */
static void run_traffic(struct world *world, int count, struct plan plan)
{
    struct link links[LINKS_MAX];
    world_open(world, 1);
    if (plan.receives > world->properties.maxRecvs)
        plan.receives = world->properties.maxRecvs;
    links_open(world, links, count, 0);
    for (int i = 0; i < count; i++)
        link_register(&links[i], flow_bytes(&plan));
    links_run(world, links, count, &plan);
    links_close(world, links, count);
    world_close(world);
}

static struct plan plan_of(const struct world *world, uint64_t groups)
{
    return (struct plan){.seed = world->options->seed,
                         .groups = groups,
                         .receives = 1,
                         .depth = NCCL_REQUESTS,
                         .largest = 256 << 10};
}

static void move_all_sizes(struct world *world)
{
    struct plan plan = plan_of(world, 27);
    plan.sizes = LISTED_SIZES;
    plan.depth = 3;
    plan.largest = world->options->largest;
    run_traffic(world, 2, plan);
}

static void complete_in_order(struct world *world)
{
    run_traffic(world, 2, plan_of(world, 400));
}

static void complete_in_reverse(struct world *world)
{
    struct plan plan = plan_of(world, 400);
    plan.order = LIFO;
    run_traffic(world, 2, plan);
}

static void any_order(struct world *world)
{
    struct plan plan = plan_of(world, 400);
    plan.order = RANDOM;
    run_traffic(world, 2, plan);
}

static void receive_into_larger(struct world *world)
{
    struct plan plan = plan_of(world, 300);
    plan.smaller = true;
    run_traffic(world, 2, plan);
}

static void match_tags(struct world *world)
{
    struct plan plan = plan_of(world, 200);
    plan.receives = NCCL_RECEIVES_MAX;
    plan.smaller = true;
    plan.largest = 64 << 10;
    run_traffic(world, 2, plan);
}

static void tags_lifo(struct world *world)
{
    struct plan plan = plan_of(world, 200);
    plan.receives = NCCL_RECEIVES_MAX;
    plan.order = LIFO;
    plan.largest = 64 << 10;
    run_traffic(world, 2, plan);
}

static void keep_old_requests(struct world *world)
{
    struct plan plan = plan_of(world, 300);
    plan.stale = true;
    run_traffic(world, 2, plan);
}

static void leave_completion_to_flags(struct world *world)
{
    struct plan plan = plan_of(world, 300);
    plan.optional = true;
    run_traffic(world, 2, plan);
}

static void read_early(struct world *world)
{
    struct plan plan = plan_of(world, 600);
    plan.flags = true;
    plan.optional = world->options->seed % 2;
    plan.depth = 8;
    run_traffic(world, 2, plan);
}

static void open_many_links(struct world *world)
{
    struct plan plan = plan_of(world, 60);
    plan.receives = NCCL_RECEIVES_MAX;
    plan.order = RANDOM;
    plan.depth = 8;
    plan.largest = 32 << 10;
    run_traffic(world, 32, plan);
}

static void one_thread(struct world *world)
{
    world->one_thread = true;
    run_traffic(world, 2, plan_of(world, 200));
}

/* ---- Properties ---- */

static bool is_unset(const void *field, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        if (((const uint8_t *)field)[i] != PLUGIN_POISON)
            return false;
    return true;
}

#define MUST_SET(p, field)                                                                         \
    do {                                                                                           \
        if (is_unset(&(p)->field, sizeof((p)->field)))                                             \
            fail("getProperties does not set %s", #field);                                         \
    } while (0)

static void check_set(const struct nccl_properties_v12 *p)
{
    MUST_SET(p, name);
    MUST_SET(p, pciPath);
    MUST_SET(p, guid);
    MUST_SET(p, ptrSupport);
    MUST_SET(p, regIsGlobal);
    MUST_SET(p, forceFlush);
    MUST_SET(p, speed);
    MUST_SET(p, port);
    MUST_SET(p, latency);
    MUST_SET(p, maxComms);
    MUST_SET(p, maxRecvs);
    MUST_SET(p, netDeviceType);
    MUST_SET(p, netDeviceVersion);
    MUST_SET(p, vProps.ndevs);
    MUST_SET(p, vProps.devs[0]);
    MUST_SET(p, maxP2pBytes);
    MUST_SET(p, maxCollBytes);
    MUST_SET(p, maxMultiRequestSize);
    MUST_SET(p, railId);
    MUST_SET(p, planeId);
}

static void check_sense(const struct nccl_properties_v12 *p)
{
    if (!p->name || !p->name[0])
        fail("getProperties: a device has no name");
    if (!(p->ptrSupport & NCCL_PTR_HOST))
        fail("getProperties: %s does not take host memory", p->name);
    if (p->maxRecvs < 1 || p->maxRecvs > NCCL_RECEIVES_MAX)
        fail("getProperties: maxRecvs %d; 1 to %d are allowed", p->maxRecvs, NCCL_RECEIVES_MAX);
    if (p->maxP2pBytes < 1 || p->maxP2pBytes > NCCL_SIZE_MAX)
        fail("getProperties: maxP2pBytes %zu; 1 to 1 TiB are allowed", p->maxP2pBytes);
    if (p->maxComms < 1)
        fail("getProperties: maxComms %d", p->maxComms);
    if (p->netDeviceType != NCCL_DEVICE_HOST || p->netDeviceVersion != 0)
        fail("getProperties: netDeviceType %d, version %d; both are 0 without offload",
             p->netDeviceType, p->netDeviceVersion);
    if (p->vProps.ndevs != 1)
        fail("getProperties: vProps.ndevs %d of a device of its own", p->vProps.ndevs);
    if (p->maxMultiRequestSize < 1)
        fail("getProperties: maxMultiRequestSize %d", p->maxMultiRequestSize);
}

/* Memory of a GPU is refused where it is not offered. */
static void refuse_cuda(void *of)
{
    struct link *link = of;
    struct world *world = link->world;
    uint8_t bytes[64];
    void *memory = NULL;
    if (!(world->properties.ptrSupport & NCCL_PTR_CUDA) &&
        plugin_register(&world->plugin, link->comm, bytes, sizeof(bytes), NCCL_PTR_CUDA, &memory) ==
            NCCL_SUCCESS)
        fail("regMr takes CUDA memory, which ptrSupport does not offer");
}

static void check_properties(struct world *world)
{
    struct link links[2];
    struct nccl_properties_v12 p, other;
    world_open(world, 1);
    int devices;
    expect(world, plugin_devices(&world->plugin, &devices), "devices");
    for (int i = 0; i < devices; i++) {
        expect(world, plugin_properties(&world->plugin, i, &p), "getProperties");
        check_set(&p);
        check_sense(&p);
        for (int j = 0; j < i; j++) {
            expect(world, plugin_properties(&world->plugin, j, &other), "getProperties");
            if (strcmp(other.name, p.name) == 0)
                fail("two devices have the name %s", p.name);
        }
    }
    if (plugin_properties(&world->plugin, devices, &p) == NCCL_SUCCESS)
        fail("getProperties gives a device beyond the last");
    links_open(world, links, 2, 0);
    on_service(world, refuse_cuda, &links[0]);
    links_close(world, links, 2);
    world_close(world);
}

/* ---- When the two ends do not keep step ---- */

/* All that can be sent is, before anything is posted. */
static void post_alone(void *of)
{
    struct run *run = of;
    enum nccl_result failed = NCCL_SUCCESS;
    flow_post(run->flows[0], &failed);
    expect(run->world, failed, "isend");
}

static void post_late(struct world *world)
{
    struct link links[2];
    struct plan plan = plan_of(world, 96);
    world_open(world, 1);
    links_open(world, links, 2, 0);
    for (int i = 0; i < 2; i++)
        link_register(&links[i], flow_bytes(&plan));
    struct run run = {.world = world, .count = 2};
    for (int i = 0; i < 2; i++)
        run.flows[i] = flow_make(&links[links[0].sending ? i : 1 - i], &plan);
    step("send before anything is posted");
    worker_start(&world->progress[0], post_alone, &run);
    worker_wait(&world->progress[0], 1e6);
    meet_barrier(world->meet);
    step("post what was sent before");
    worker_start(&world->progress[0], run_flows, &run);
    worker_wait(&world->progress[0], 1e6);
    for (int i = 0; i < 2; i++)
        flow_free(run.flows[i]);
    links_close(world, links, 2);
    world_close(world);
}

static void sleep_for(double seconds)
{
    struct timespec time = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
    while (nanosleep(&time, &time))
        ;
}

static void post_both(void *of)
{
    struct run *run = of;
    for (int i = 0; i < run->count; i++) {
        enum nccl_result failed = NCCL_SUCCESS;
        flow_post(run->flows[i], &failed);
        expect(run->world, failed, "a post");
    }
}

/* Rank 1 has posted and then computes for long; rank 0 goes on asking. */
static void compute_long(struct world *world)
{
    struct link links[2];
    struct plan plan = plan_of(world, 64);
    world_open(world, 1);
    links_open(world, links, 2, 0);
    for (int i = 0; i < 2; i++)
        link_register(&links[i], flow_bytes(&plan));
    links_run(world, links, 2, &plan);
    struct run run = {.world = world, .count = 2};
    for (int i = 0; i < 2; i++)
        run.flows[i] = flow_make(&links[i], &plan);
    worker_start(&world->progress[0], post_both, &run);
    worker_wait(&world->progress[0], 1e6);
    step("rank 1 calls nothing for %.1f s", world->options->quiet_s);
    if (world->rank == 1)
        sleep_for(world->options->quiet_s);
    worker_start(&world->progress[0], run_flows, &run);
    worker_wait(&world->progress[0], 1e6);
    for (int i = 0; i < 2; i++)
        flow_free(run.flows[i]);
    step("nobody calls anything for %.1f s", world->options->quiet_s);
    sleep_for(world->options->quiet_s);
    links_run(world, links, 2, &plan);
    links_close(world, links, 2);
    world_close(world);
}

/* ---- Memory ---- */

static void register_again(void *of)
{
    struct link *link = of;
    struct world *world = link->world;
    struct region region = region_make(100000);
    expect(world,
           plugin_register(&world->plugin, link->comm, region.bytes, region.size, NCCL_PTR_HOST,
                           &region.memory),
           "regMr");
    expect(world, plugin_deregister(&world->plugin, link->comm, region.memory), "deregMr");
    region_retire(&region);
}

static void register_memory(struct world *world)
{
    struct link links[2];
    struct plan plan = plan_of(world, 600);
    world_open(world, 1);
    links_open(world, links, 2, 0);
    for (int i = 0; i < 2; i++)
        link_register(&links[i], flow_bytes(&plan));
    struct run run = {.world = world, .count = 2};
    for (int i = 0; i < 2; i++)
        run.flows[i] = flow_make(&links[i], &plan);
    step("regMr and deregMr while the progress thread sends and receives");
    worker_start(&world->progress[0], run_flows, &run);
    for (int i = 0; i < 1000; i++)
        on_service(world, register_again, &links[i % 2]);
    worker_wait(&world->progress[0], 1e6);
    for (int i = 0; i < 2; i++)
        flow_free(run.flows[i]);
    links_close(world, links, 2);
    world_close(world);
}

static void unmap_registered(struct world *world)
{
    struct link links[2];
    struct plan plan = plan_of(world, 40);
    world_open(world, 1);
    links_open(world, links, 2, 0);
    for (int round = 0; round < 12; round++) {
        plan.seed = mix(plan.seed);
        for (int i = 0; i < 2; i++)
            link_register(&links[i], flow_bytes(&plan));
        links_run(world, links, 2, &plan);
        for (int i = 0; i < 2; i++)
            link_deregister(&links[i]);
    }
    links_close(world, links, 2);
    world_close(world);
}

const struct scenario scenarios_traffic[] = {
    {"properties", "every property is set and makes sense; CUDA memory is refused",
     check_properties, .since = 0},
    {"sizes", "0, 1, … bytes to 64 MiB", move_all_sizes, .since = 0},
    {"fifo", "32 requests outstanding, the oldest polled first", complete_in_order, .since = 0},
    {"lifo", "the newest polled first, alone", complete_in_reverse, .since = 0},
    {"random", "polled in any order", any_order, .since = 0},
    {"smaller", "less is sent than was posted", receive_into_larger, .since = 0},
    {"tags", "several receives at once, matched by tags", match_tags, .since = 0},
    {"tags-lifo", "the same, the newest polled first", tags_lifo, .since = 0},
    {"stale", "*request holds something when irecv is called", keep_old_requests, .since = 0},
    {"optional", "it holds 1: completion is optional", leave_completion_to_flags, .since = 0},
    {"flags", "somebody reads the buffer while it is filled (LL, LL128)", read_early, .since = 0},
    {"many", "16 connections each way at once", open_many_links, .since = 0},
    {"late", "sends long before their receives", post_late, .since = 0},
    {"quiet", "nobody calls the plugin for a while", compute_long, .since = 0},
    {"one-thread", "all calls from the application's thread", one_thread, .since = 0},
    {"register", "regMr and deregMr during isend", register_memory, .since = 0},
    {"unmap", "memory is gone after deregMr, the connection goes on", unmap_registered, .since = 0},
    {0},
};
