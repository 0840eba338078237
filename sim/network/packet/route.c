/* Routes: links in order, or a draw at each switch among the shortest paths. */
#include <assert.h>

#include "world.h"

static void append_hop(struct packet_world *w, uint32_t hop)
{
    GROW_ARRAY(w->fabric.hops);
    w->fabric.hops[w->fabric.hops_n++] = hop;
}

static int32_t begin_route(struct packet_world *w)
{
    GROW_ARRAY(w->fabric.routes);
    w->fabric.routes[w->fabric.routes_n] = (uint32_t)w->fabric.hops_n;
    return (int32_t)w->fabric.routes_n++;
}

int32_t packet_add_route(packet_world *w, int32_t n, const int32_t *link)
{
    int32_t route = begin_route(w);
    for (int32_t i = 0; i < n; i++)
        append_hop(w, (uint32_t)link[i]);
    append_hop(w, NO_HOP);
    return route;
}

int32_t packet_add_spray(packet_world *w, int32_t link, int32_t endpoint)
{
    int32_t route = begin_route(w);
    append_hop(w, (uint32_t)link);
    append_hop(w, SPRAY | (uint32_t)endpoint);
    return route;
}

void free_paths(struct shortest_paths *paths)
{
    free(paths->group);
    free(paths->ptr);
    free(paths->links);
    free(paths->down);
}

void packet_set_paths(packet_world *w, int32_t groups, int32_t endpoints, int32_t ports,
                      const int32_t *group, const int32_t *ptr, const int32_t *links,
                      const int32_t *down)
{
    size_t rows = (size_t)groups * (size_t)w->buffers.switches;
    free_paths(&w->fabric.paths);
    w->fabric.paths = (struct shortest_paths){
        .ports = ports,
        .group = copied_array(group, (size_t)endpoints, sizeof *group),
        .ptr = copied_array(ptr, rows + 1, sizeof *ptr),
        .links = copied_array(links, (size_t)ptr[rows], sizeof *links),
        .down = copied_array(down, (size_t)endpoints * (size_t)ports, sizeof *down)};
}

/* A link drawn among the next hops of `at` towards an endpoint, or NO_HOP. */
static uint32_t draw_link(struct packet_world *w, int32_t at, uint32_t endpoint)
{
    const struct shortest_paths *paths = &w->fabric.paths;
    assert(paths->group);
    const int32_t *down = &paths->down[endpoint * (uint32_t)paths->ports];
    int32_t ways[64], ways_n = 0;
    for (int32_t port = 0; port < paths->ports && ways_n < 64; port++)
        if (down[port] >= 0 && w->fabric.links[down[port]].from == at)
            ways[ways_n++] = down[port];
    if (ways_n)
        return (uint32_t)ways[virtual_below(&w->random, (uint64_t)ways_n)];
    int32_t row = paths->group[endpoint] * w->buffers.switches + at;
    int32_t first = paths->ptr[row], n = paths->ptr[row + 1] - first;
    return n ? (uint32_t)paths->links[(uint64_t)first + virtual_below(&w->random, (uint64_t)n)]
             : NO_HOP;
}

enum way choose_next_link(struct packet_world *w, struct packet *packet)
{
    uint32_t next = w->fabric.hops[packet->hop];
    if (next == NO_HOP)
        return WAY_ENDS;
    if (!(next & SPRAY)) {
        packet->hop++;
        packet->link = next;
        return WAY_GOES_ON;
    }
    int32_t at = w->fabric.links[packet->link].to;
    if (at == NOBODY)
        return WAY_ENDS;
    uint32_t link = draw_link(w, at, next & ~SPRAY);
    if (link != NO_HOP)
        packet->link = link;
    return link == NO_HOP ? WAY_IS_LOST : WAY_GOES_ON;
}
