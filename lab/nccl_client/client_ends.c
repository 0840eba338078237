/* Scenarios about ends: of connections, of communicators, of the plugin, of the other process. */
#define _GNU_SOURCE
#include "client.h"

#include <sched.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

static const struct plan few = {
    .seed = 1, .groups = 50, .receives = 1, .depth = 8, .largest = 9000};

static void exchange_both_ways(struct world *world, struct link *links, int count, int communicator)
{
    links_open(world, links, count, communicator);
    for (int i = 0; i < count; i++)
        link_register(&links[i], flow_bytes(&few));
    links_run(world, links, count, &few);
}

static void run_once(struct world *world, int count, int communicator)
{
    struct link links[LINKS_MAX];
    exchange_both_ways(world, links, count, communicator);
    links_close(world, links, count);
}

/* ---- Requests in flight ---- */

static void post_some(void *of)
{
    struct run *run = of;
    for (int i = 0; i < run->count; i++) {
        enum nccl_result failed = NCCL_SUCCESS;
        for (int turn = 0; turn < 20 && !failed; turn++)
            flow_turn(run->flows[i], &failed);
        expect(run->world, failed, "a request");
    }
}

static void in_flight(struct world *world)
{
    struct link links[4];
    world->unfinished = true;
    world_open(world, 1);
    for (int round = 0; round < 4; round++) {
        struct plan plan = {.seed = mix((uint64_t)round),
                            .groups = 1000000,
                            .receives = 1,
                            .depth = 16,
                            .sizes = FIXED_SIZE,
                            .largest = 512 << 10};
        struct run run = {.world = world, .count = 4};
        links_open(world, links, 4, 0);
        for (int i = 0; i < 4; i++) {
            /* On one link of the four each way nothing is posted for what is sent. */
            if (!links[i].sending && i >= 2)
                plan.groups = 1;
            link_register(&links[i], flow_bytes(&plan));
            run.flows[i] = flow_make(&links[i], &plan);
            plan.groups = 1000000;
        }
        step("requests get into flight");
        worker_start(&world->progress[0], post_some, &run);
        worker_wait(&world->progress[0], 1e6);
        meet_barrier(world->meet);
        /* Both ends at the same time, the two receive links of the other end still being sent to.
         */
        links_close(world, links, 4);
        for (int i = 0; i < 4; i++)
            flow_free(run.flows[i]);
        meet_barrier(world->meet);
    }
    run_once(world, 2, 0);
    world_close(world);
}

/* ---- Plugin and communicators ---- */

static void reload_plugin(struct world *world)
{
    for (int i = 0; i < 3; i++) {
        world_open(world, 1);
        if (i != 1) /* and once unloaded without a connection */
            run_once(world, 2, 0);
        world_close(world);
    }
}

static void end_communicators(struct world *world)
{
    struct link first[4], second[4];
    world_open(world, 2);
    exchange_both_ways(world, first, 4, 0);
    exchange_both_ways(world, second, 4, 1);
    step("both communicators at once");
    struct run runs[2] = {{.world = world, .count = 4}, {.world = world, .count = 4}};
    struct plan plan = few;
    plan.groups = 400;
    for (int i = 0; i < 4; i++) {
        runs[0].flows[i] = flow_make(&first[i], &plan);
        runs[1].flows[i] = flow_make(&second[i], &plan);
    }
    for (int i = 0; i < 2; i++)
        worker_start(&world->progress[i], run_flows, &runs[i]);
    for (int i = 0; i < 2; i++)
        worker_wait(&world->progress[i], 1e6);
    for (int i = 0; i < 8; i++)
        flow_free(runs[i / 4].flows[i % 4]);
    links_close(world, first, 4);
    world_finalize(world, 0);
    meet_barrier(world->meet);
    step("the second communicator, after the first was finalised");
    links_run(world, second, 4, &few);
    run_once(world, 4, 1);
    links_close(world, second, 4);
    world_close(world);
}

/* ---- Listeners that nobody accepts on ---- */

struct listening {
    struct world *world;
    void *comms[8];
    uint8_t handle[NCCL_HANDLE_BYTES];
    int first;
};

static void listen_only(void *of)
{
    struct listening *l = of;
    for (int i = 0; i < 8; i++)
        expect(l->world,
               plugin_listen(&l->world->plugin, l->world->contexts[0], l->world->options->device,
                             l->handle, &l->comms[i]),
               "listen");
}

static void accept_nobody(void *of)
{
    struct listening *l = of;
    for (int i = 0; i < 7; i++) {
        void *comm = NULL;
        expect(l->world, plugin_accept(&l->world->plugin, l->comms[i], &comm), "accept");
        if (comm)
            fail("accept gave a comm though nobody connected");
    }
}

static void unlisten_late(void *of)
{
    struct listening *l = of;
    for (int i = l->first; i < 8; i++)
        expect(l->world, plugin_close_listen(&l->world->plugin, l->comms[i]), "closeListen");
}

static void connect_some(void *of)
{
    struct listening *l = of;
    for (int i = 0; i < 200 && !l->comms[0]; i++) {
        expect(l->world,
               plugin_connect(&l->world->plugin, l->world->contexts[0], l->world->options->device,
                              l->handle, &l->comms[0]),
               "connect");
        sched_yield();
    }
}

/* Connect, and if that is possible a message, must end in an error now. */
static void connect_until_error(void *of)
{
    struct listening *l = of;
    struct world *world = l->world;
    enum nccl_result result = NCCL_SUCCESS;
    uint64_t until = now_ns() + (uint64_t)(world->options->bound_s * 1e9);
    uint8_t bytes[64] = {0};
    void *memory = NULL, *request = NULL;
    int done = 0, sizes[1];
    bool registered = false;
    while (!result && now_ns() < until) {
        if (!l->comms[0]) {
            result = plugin_connect(&world->plugin, world->contexts[0], world->options->device,
                                    l->handle, &l->comms[0]);
        } else if (!registered) {
            result = plugin_register(&world->plugin, l->comms[0], bytes, sizeof(bytes),
                                     NCCL_PTR_HOST, &memory);
            registered = true;
        } else if (!request) {
            result = plugin_send(&world->plugin, l->comms[0], bytes, sizeof(bytes), 0, memory,
                                 profiler_parent(), &request);
        } else {
            result = plugin_test(&world->plugin, request, &done, sizes);
            request = done ? NULL : request;
        }
    }
    if (!result)
        fail("no error %.1f s after a listener was closed that this end connects to",
             world->options->bound_s);
    if (registered)
        expect(world, plugin_deregister(&world->plugin, l->comms[0], memory), "deregMr");
    if (l->comms[0])
        expect(world, plugin_close_send(&world->plugin, l->comms[0]), "closeSend");
}

static void end_listeners(struct world *world)
{
    struct listening l = {.world = world};
    world_open(world, 1);
    if (world->rank == 0) {
        step("listen, and accept though nobody connects");
        on_service(world, listen_only, &l);
        on_service(world, accept_nobody, &l);
        meet_send(world->meet, l.handle, sizeof(l.handle));
        meet_barrier(world->meet);
        step("closeListen without an accept");
        on_service(world, unlisten_late, &l);
        meet_barrier(world->meet);
        meet_barrier(world->meet);
    } else {
        meet_receive(world->meet, l.handle, sizeof(l.handle));
        step("connect to a listener that does not accept");
        on_service(world, connect_some, &l);
        meet_barrier(world->meet);
        meet_barrier(world->meet);
        step("connect to a listener that was closed");
        on_service(world, connect_until_error, &l);
        meet_barrier(world->meet);
    }
    run_once(world, 2, 0);
    world_close(world);
}

/* ---- The other end is gone ---- */

enum { BUSY_LINKS = 4, ALL_LINKS = 6 };

/* Four links under load; on the last two nothing is ever sent, and a receive waits. */
static void load_links(struct world *world, struct link *links, struct run *run)
{
    world->unfinished = true;
    world_open(world, 1);
    links_open(world, links, ALL_LINKS, 0);
    *run = (struct run){.world = world, .count = 0};
    for (int i = 0; i < ALL_LINKS; i++) {
        struct plan plan = {
            .seed = 5, .groups = UINT64_MAX >> 8, .receives = 1, .depth = 8, .largest = 128 << 10};
        link_register(&links[i], flow_bytes(&plan));
        if (i < BUSY_LINKS || !links[i].sending)
            run->flows[run->count++] = flow_make(&links[i], &plan);
    }
}

static void survive_peer(struct world *world, struct link *links, struct run *run, const char *how)
{
    char byte;
    run->until_errors = 1;
    worker_start(&world->progress[0], run_flows, run);
    meet_receive(world->meet, &byte, 1);
    uint64_t since = now_ns();
    step("rank 1 %s; wait for errors", how);
    if (!worker_wait(&world->progress[0], world->options->bound_s)) {
        int silent = 0;
        for (int i = 0; i < run->count; i++)
            silent += run->flows[i] != NULL;
        fail("rank 1 %s, and %.1f s later %d of %d comms have given no error", how,
             world->options->bound_s, silent, run->count);
    }
    if (run->error != NCCL_REMOTE_ERROR)
        fail("rank 1 %s, and the error is %s, not ncclRemoteError", how, result_name(run->error));
    step("all errors came %.1f s after it", (double)(now_ns() - since) * 1e-9);
    links_close(world, links, ALL_LINKS);
    world_close(world);
}

static void die_by_signal(struct world *world, int signal_number, const char *how)
{
    struct link links[ALL_LINKS];
    struct run run;
    load_links(world, links, &run);
    if (world->rank == 0) {
        survive_peer(world, links, &run, how);
        return;
    }
    run.until_done = 40;
    worker_start(&world->progress[0], run_flows, &run);
    worker_wait(&world->progress[0], 1e6);
    meet_send(world->meet, "x", 1);
    kill(getpid(), signal_number);
    fail("rank 1 is still there");
}

static void die_killed(struct world *world)
{
    die_by_signal(world, SIGKILL, "was killed");
}
static void die_frozen(struct world *world)
{
    die_by_signal(world, SIGSTOP, "was frozen");
}

/* Rank 1 gives up: it closes everything, with requests in flight. */
static void abort_in_flight(struct world *world)
{
    struct link links[ALL_LINKS];
    struct run run;
    load_links(world, links, &run);
    if (world->rank == 0) {
        survive_peer(world, links, &run, "closed its comms");
        return;
    }
    run.until_done = 40;
    worker_start(&world->progress[0], run_flows, &run);
    worker_wait(&world->progress[0], 1e6);
    links_close(world, links, ALL_LINKS);
    for (int i = 0; i < run.count; i++)
        flow_free(run.flows[i]);
    meet_send(world->meet, "x", 1);
    world_close(world);
}

const struct scenario scenarios_ends[] = {
    {"in-flight", "close with requests in flight", in_flight, .since = 0},
    {"reload", "dlclose after finalize, and load it again", reload_plugin, .since = 0},
    {"communicators", "two at once, one finalised first", end_communicators,
     .since = PLUGIN_CONTEXTS},
    {"listeners", "listeners that never accept", end_listeners, .since = 0},
    {"abort", "the other end closes with requests in flight", abort_in_flight, .since = 0},
    {0},
};

const struct scenario scenarios_deaths[] = {
    {"killed", "the other process is killed", die_killed, .mortal = true},
    {"frozen", "the other process is stopped", die_frozen, .mortal = true},
    {0},
};
