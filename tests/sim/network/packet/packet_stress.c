/* The packet network under random loads: stages of random messages between random hosts, over links
 * that are short of buffers, go down and come back, with sprayed and fixed routes, buckets,
 * pipes and kernel TCP. Everything must arrive, all memory be sound, and the same seed give the
 * same run.
 *
 *     packet_stress SEED CAPTURE-FILE
 */
#include <assert.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "packet.h"
#include "virtual/random.h"

#define HOSTS 6
#define SWITCHES 4 /* two leaves of three hosts, two spines */
#define STAGES 4
#define EDGES 12

struct net {
    packet_world *world;
    int32_t up[HOSTS], down[HOSTS];
    struct packet_end end[HOSTS];
    int32_t pipe_chain;
};

static int32_t add_fabric(struct net *net, uint64_t *random, int32_t ladder[2][2][2])
{
    packet_world *w = net->world;
    uint64_t mark = virtual_below(random, 2) ? 20000 : 0;
    for (int32_t h = 0; h < HOSTS; h++) {
        net->up[h] = packet_add_link(w, -1, h / 3, 10e9, 500, 0);
        net->down[h] = packet_add_link(w, h / 3, -1, 10e9, 500, mark);
    }
    for (int32_t leaf = 0; leaf < 2; leaf++)
        for (int32_t spine = 0; spine < 2; spine++) {
            ladder[leaf][spine][0] = packet_add_link(w, leaf, 2 + spine, 10e9, 500, mark);
            ladder[leaf][spine][1] = packet_add_link(w, 2 + spine, leaf, 10e9, 500, mark);
        }
    packet_share_buffers(w, SWITCHES, 100000 + virtual_below(random, 1000000), 1.0);
    uint64_t headroom[2 * HOSTS + 8];
    for (int32_t i = 0; i < 2 * HOSTS + 8; i++)
        headroom[i] = 10000;
    if (virtual_below(random, 2))
        packet_set_pfc(w, headroom, virtual_below(random, 2) * 8000, 3000);
    return ladder[0][0][0];
}

/* Endpoints of leaf g are group g. */
static void set_paths(struct net *net, int32_t ladder[2][2][2])
{
    int32_t group[HOSTS], ptr[2 * SWITCHES + 1], links[2 * SWITCHES], n = 0;
    for (int32_t h = 0; h < HOSTS; h++)
        group[h] = h / 3;
    for (int32_t g = 0; g < 2; g++)
        for (int32_t s = 0; s < SWITCHES; s++) {
            ptr[g * SWITCHES + s] = n;
            if (s < 2 && s != g)
                for (int32_t spine = 0; spine < 2; spine++)
                    links[n++] = ladder[s][spine][0];
            if (s >= 2)
                links[n++] = ladder[g][s - 2][1];
        }
    ptr[2 * SWITCHES] = n;
    packet_set_paths(net->world, 2, HOSTS, 1, group, ptr, links, net->down);
}

static int32_t add_route(struct net *net, uint64_t *random, int32_t ladder[2][2][2], int32_t a,
                         int32_t b)
{
    if (virtual_below(random, 2))
        return packet_add_spray(net->world, net->up[a], b);
    int32_t spine = (int32_t)virtual_below(random, 2);
    int32_t links[4] = {net->up[a], ladder[a / 3][spine][0], ladder[b / 3][spine][1], net->down[b]};
    if (a / 3 == b / 3)
        links[1] = net->down[b];
    return packet_add_route(net->world, a / 3 == b / 3 ? 2 : 4, links);
}

static int32_t add_channel(struct net *net, uint64_t *random, int32_t ladder[2][2][2], int32_t a,
                           int32_t b)
{
    if (!virtual_below(random, 4))
        return packet_add_pipe(net->world, net->pipe_chain, virtual_below(random, 3000));
    int32_t there[2], back[2], paths = 1 + (int32_t)virtual_below(random, 2);
    for (int32_t p = 0; p < paths; p++) {
        there[p] = add_route(net, random, ladder, a, b);
        back[p] = add_route(net, random, ladder, b, a);
    }
    if (virtual_below(random, 2))
        return packet_add_connection(net->world, &net->end[a], &net->end[b], paths, there, back,
                                     virtual_below(random, 5000), virtual_below(random, 500));
    const struct packet_tcp tcp = {.congestion = (int32_t)virtual_below(random, 3),
                                   .sockets = paths,
                                   .mss = 1448,
                                   .headers = 90};
    return packet_add_tcp(net->world, &net->end[a], &net->end[b], &tcp, there, back,
                          virtual_below(random, 5000), virtual_below(random, 500));
}

static void load_stage(struct net *net, int32_t run, uint64_t *random, int32_t ladder[2][2][2])
{
    int32_t src[EDGES], dst[EDGES], channel[EDGES], pieces[EDGES];
    int64_t bytes[EDGES];
    for (int32_t i = 0; i < EDGES; i++) {
        src[i] = (int32_t)virtual_below(random, HOSTS);
        dst[i] = (src[i] + 1 + (int32_t)virtual_below(random, HOSTS - 1)) % HOSTS;
        channel[i] = add_channel(net, random, ladder, src[i], dst[i]);
        bytes[i] = 1 + (int64_t)virtual_below(random, 300000);
        pieces[i] = 1 + (int32_t)virtual_below(random, 12);
    }
    packet_load(net->world, run, EDGES, src, dst, channel, bytes, pieces, 2, 0, 0, NULL, NULL);
}

static void add_hosts(struct net *net, uint64_t *random)
{
    packet_world *w = net->world;
    int32_t servers[2] = {packet_add_server(w), packet_add_bucket(w, 400, 0.25, 500000)};
    double costs[2] = {100, 400};
    net->pipe_chain = packet_add_chain(w, 2, servers, costs);
    int32_t none = packet_add_chain(w, 0, NULL, NULL);
    for (int32_t h = 0; h < HOSTS; h++) {
        int32_t chain = virtual_below(random, 2) ? none : net->pipe_chain;
        net->end[h] = (struct packet_end){
            packet_add_process(w, 4 + (uint32_t)virtual_below(random, 60), servers[0]), chain,
            none};
    }
}

/* Run to the end, with a link that goes down for a while; returns when that is. */
static uint64_t run_world(uint64_t seed, const char *file, struct packet_counts *counts)
{
    uint64_t random = seed;
    int32_t ladder[2][2][2];
    const struct packet_config config = {.seed = seed,
                                         .segment = 1408,
                                         .overhead = 66,
                                         .slots = 1 + (uint32_t)virtual_below(&random, 8),
                                         .piece_bytes = 300000,
                                         .unit_bytes = 10000,
                                         .idle_connections = (uint32_t)virtual_below(&random, 8)};
    struct net net = {.world = packet_new(&config)};
    int32_t trunk = add_fabric(&net, &random, ladder);
    set_paths(&net, ladder);
    add_hosts(&net, &random);
    assert(packet_capture(net.world, trunk, file, 1 << 20) == 0);
    int32_t run = packet_add_run(net.world, HOSTS, STAGES), stop;
    uint64_t down_ns = 100000 + virtual_below(&random, 1000000), until_ns = down_ns;
    bool is_down = false;
    while ((stop = packet_advance(net.world, until_ns)) != PACKET_DONE) {
        assert(stop != PACKET_CLOSED);
        if (stop == PACKET_LOAD) {
            load_stage(&net, run, &random, ladder);
            continue;
        }
        packet_set_rate(net.world, trunk, is_down || until_ns > down_ns ? 10e9 : 0);
        is_down = until_ns == down_ns;
        until_ns = is_down ? down_ns + 2000000 : UINT64_MAX;
    }
    packet_counts(net.world, counts);
    uint64_t end_ns = packet_now_ns(net.world);
    assert(packet_end_capture(net.world) >= 0);
    packet_free(net.world);
    return end_ns;
}

int main(int argc, char **argv)
{
    assert(argc == 3);
    uint64_t seed = strtoull(argv[1], NULL, 10);
    struct packet_counts first, second;
    uint64_t end_ns = run_world(seed, argv[2], &first);
    assert(first.data > 0);
    assert(end_ns == run_world(seed, argv[2], &second));
    assert(!memcmp(&first, &second, sizeof first));
    printf("%" PRIu64 " ns, %" PRIu64 " events, %" PRIu64 " lost\n", end_ns, first.events,
           first.lost);
    return 0;
}
