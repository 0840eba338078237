/* The world of the packet network: making it, and letting time pass. */
#include "base/sequence.h"
#include "world.h"

packet_world *packet_new(const struct packet_config *config)
{
    struct packet_world *w = zeroed_array(1, sizeof *w);
    w->config = *config;
    w->random = config->seed;
    w->pool.idle_packet = NO_PACKET;
    if (!virtual_wheel_open(&w->events))
        checked_memory(NULL);
    w->closed = w->which = NOBODY;
    w->channels.idle_oldest = w->channels.idle_newest = NO_CHANNEL;
    return w;
}

void packet_free(packet_world *w)
{
    packet_end_capture(w);
    for (size_t i = 0; i < w->hosts.ends_n; i++) {
        w->hosts.ends[i].ops->free(w, (uint32_t)i);
        free(w->hosts.ends[i].names);
    }
    for (size_t i = 0; i < w->servers.chains_n; i++)
        free(w->servers.chains[i].stops);
    for (size_t i = 0; i < w->runs.all_n; i++)
        free_run(w->runs.all[i]);
    virtual_wheel_close(&w->events);
    free_paths(&w->fabric.paths);
    void *const arrays[] = {w->pool.packets,
                            w->pool.bodies,
                            w->pool.idle_bodies,
                            w->fabric.links,
                            w->fabric.hops,
                            w->fabric.routes,
                            w->buffers.used,
                            w->pfc.shared,
                            w->pfc.loop,
                            w->servers.free_ps,
                            w->servers.buckets,
                            w->servers.chains,
                            w->hosts.processes,
                            w->hosts.ends,
                            w->hosts.tcp,
                            w->hosts.first_hops,
                            w->channels.all,
                            w->channels.traffic,
                            w->channels.free_traffic,
                            w->channels.pipes,
                            w->runs.all,
                            w->runs.done,
                            w->runs.wants,
                            w->runs.news,
                            w};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++)
        free(arrays[i]);
}

/* ---- time */

static void handle_event(struct packet_world *w, uint64_t what)
{
    uint32_t number = (uint32_t)what;
    switch ((enum event_kind)(what >> KIND_SHIFT)) {
    case LINK_SENDS:
        send_from_link(w, number);
        break;
    case LINK_DELIVERS:
        deliver_from_link(w, number);
        break;
    case PACKET_LATE:
        pass_on_packet(w, number);
        break;
    case LINK_PAUSES:
        pause_link(w, number);
        break;
    case LINK_GOES_ON:
        resume_link(w, number);
        break;
    case LINK_WATCHED:
        watch_link(w, number);
        break;
    case PROCESS_TURNS:
        turn_process(w, number);
        break;
    case PROCESS_SENDS:
        send_from_process(w, number);
        break;
    case PROCESS_TAKES:
        take_at_process(w, number);
        break;
    case END_WAKES:
        wake_end(w, number);
        break;
    case CHANNEL_TAKES:
        take_next_piece(w, number);
        break;
    case CHANNEL_BEGINS:
        begin_piece(w, number);
        break;
    case PIPE_MOVES:
        move_pipe(w, number);
        break;
    }
}

/* Whether somebody outside has something to do first. */
static int32_t find_stop(struct packet_world *w)
{
    if (w->closed != NOBODY) {
        w->which = w->closed;
        return PACKET_CLOSED;
    }
    if (w->pfc.loop_n)
        return PACKET_LOOPED;
    if (w->runs.wants_n) {
        w->which = w->runs.wants[--w->runs.wants_n];
        return PACKET_LOAD;
    }
    if (w->runs.done_n) {
        w->which = w->runs.done[--w->runs.done_n];
        return PACKET_DONE;
    }
    return PACKET_TIME;
}

int32_t packet_advance(packet_world *w, uint64_t until_ns)
{
    const uint64_t last_ns = harp_min(until_ns, VIRTUAL_NEVER - 1);
    int32_t stop;
    while ((stop = find_stop(w)) == PACKET_TIME && virtual_wheel_next_ns(&w->events) <= last_ns) {
        uint64_t what = virtual_wheel_take(&w->events);
        w->now_ns = w->events.now_ns;
        w->counts.events++;
        handle_event(w, what);
        tell_runs(w);
        if (w->channels.idle_n > w->config.idle_connections)
            close_idle_connections(w);
    }
    if (stop == PACKET_TIME && until_ns != UINT64_MAX)
        w->now_ns = harp_max(w->now_ns, until_ns);
    return stop;
}

int32_t packet_which(const packet_world *w)
{
    return w->which;
}

uint64_t packet_now_ns(const packet_world *w)
{
    return w->now_ns;
}

uint64_t packet_next_ns(const packet_world *w)
{
    if (w->runs.wants_n || w->runs.done_n || w->closed != NOBODY)
        return w->now_ns;
    return virtual_wheel_next_ns(&w->events);
}

const char *packet_why(const packet_world *w)
{
    return w->why;
}

void packet_counts(const packet_world *w, struct packet_counts *counts)
{
    *counts = w->counts;
    for (size_t i = 0; i < w->hosts.ends_n; i++)
        counts->again += w->hosts.ends[i].ops->again(w, (uint32_t)i);
}

int32_t packet_links(const packet_world *w)
{
    return (int32_t)w->fabric.links_n;
}

int32_t packet_servers(const packet_world *w)
{
    return (int32_t)w->servers.n;
}

void packet_carried(const packet_world *w, uint64_t *by_link, uint64_t *by_server)
{
    for (size_t i = 0; i < w->fabric.links_n; i++)
        by_link[i] = w->fabric.links[i].counts.bytes;
    for (size_t i = 0; i < w->servers.n; i++)
        by_server[i] = w->servers.buckets[i].passed;
}
