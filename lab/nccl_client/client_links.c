#define _GNU_SOURCE
#include "client.h"

#include <sched.h>
#include <string.h>

struct step_of {
    struct world *world;
    struct link *links;
    int count;
};

static void listen_all(void *of)
{
    struct step_of *s = of;
    for (int i = 0; i < s->count; i++) {
        struct link *link = &s->links[i];
        if (link->sending)
            continue;
        memset(link->handle, PLUGIN_POISON, sizeof(link->handle));
        expect(s->world,
               plugin_listen(&s->world->plugin, s->world->contexts[link->communicator],
                             s->world->options->device, link->handle, &link->listening),
               "listen");
        if (!link->listening)
            fail("listen said success and gave no comm");
    }
}

static void try_to_connect(struct link *link)
{
    struct world *world = link->world;
    expect(world,
           plugin_connect(&world->plugin, world->contexts[link->communicator],
                          world->options->device, link->handle, &link->comm),
           "connect");
}

static void try_to_accept(struct link *link)
{
    struct world *world = link->world;
    expect(world, plugin_accept(&world->plugin, link->listening, &link->comm), "accept");
    if (!link->comm)
        return;
    expect(world, plugin_close_listen(&world->plugin, link->listening), "closeListen");
    link->listening = NULL;
}

/* One call for each link that is not there yet; returns how many are missing. */
static int try_all(struct step_of *s)
{
    int missing = 0;
    for (int i = 0; i < s->count; i++) {
        struct link *link = &s->links[i];
        if (!link->comm && link->sending)
            try_to_connect(link);
        else if (!link->comm)
            try_to_accept(link);
        missing += !link->comm;
    }
    return missing;
}

static void connect_once(void *of)
{
    struct step_of *s = of;
    for (int i = 0; i < s->count; i++)
        if (s->links[i].sending)
            try_to_connect(&s->links[i]);
}

static void connect_all(void *of)
{
    while (try_all(of))
        sched_yield();
}

static void swap_handles(struct world *world, struct link *links, int count)
{
    for (int i = 0; i < count; i++)
        if (!links[i].sending)
            meet_send(world->meet, links[i].handle, sizeof(links[i].handle));
    for (int i = 0; i < count; i++)
        if (links[i].sending)
            meet_receive(world->meet, links[i].handle, sizeof(links[i].handle));
}

void links_open(struct world *world, struct link *links, int count, int communicator)
{
    struct step_of s = {world, links, count};
    for (int i = 0; i < count; i++)
        links[i] = (struct link){.world = world,
                                 .number = i,
                                 .communicator = communicator,
                                 .sending = i % 2 == world->rank};
    step("listen");
    on_service(world, listen_all, &s);
    swap_handles(world, links, count);
    /* Nobody accepts yet at the other end: a connect that waited for that would wait for ever. */
    step("connect, while the other end does not accept yet");
    on_service(world, connect_once, &s);
    meet_barrier(world->meet);
    step("connect and accept");
    on_service(world, connect_all, &s);
}

struct register_of {
    struct link *link;
    size_t size;
};

static void do_register(void *of)
{
    struct register_of *r = of;
    struct link *link = r->link;
    struct world *world = link->world;
    link->region = region_make(r->size);
    expect(world,
           plugin_register(&world->plugin, link->comm, link->region.bytes, link->region.size,
                           NCCL_PTR_HOST, &link->region.memory),
           "regMr");
}

void link_register(struct link *link, size_t size)
{
    struct register_of r = {link, size};
    on_service(link->world, do_register, &r);
}

static void do_deregister(void *of)
{
    struct link *link = of;
    if (!link->region.bytes)
        return;
    expect(link->world, plugin_deregister(&link->world->plugin, link->comm, link->region.memory),
           "deregMr");
    region_retire(&link->region);
}

void link_deregister(struct link *link)
{
    on_service(link->world, do_deregister, link);
}

static void close_all(void *of)
{
    struct step_of *s = of;
    for (int i = 0; i < s->count; i++)
        do_deregister(&s->links[i]);
    for (int i = 0; i < s->count; i++) {
        struct link *link = &s->links[i];
        expect(s->world,
               link->sending ? plugin_close_send(&s->world->plugin, link->comm)
                             : plugin_close_receive(&s->world->plugin, link->comm),
               link->sending ? "closeSend" : "closeRecv");
        link->comm = NULL;
    }
}

void links_close(struct world *world, struct link *links, int count)
{
    struct step_of s = {world, links, count};
    step("deregister and close");
    on_service(world, close_all, &s);
}
