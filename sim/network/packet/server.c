/* Servers of hosts, which work on one thing after the other, and chains of them. */
#include "base/sequence.h"
#include "world.h"

int32_t packet_add_bucket(packet_world *w, double ps_per_byte, double burst, uint64_t bytes)
{
    w->servers.free_ps =
        grow_array(w->servers.free_ps, w->servers.n, &w->servers.room, sizeof *w->servers.free_ps);
    w->servers.buckets = grow_array(w->servers.buckets, w->servers.n, &w->servers.buckets_room,
                                    sizeof *w->servers.buckets);
    w->servers.free_ps[w->servers.n] = 0;
    w->servers.buckets[w->servers.n] = (struct bucket){.size = bytes,
                                                       .tokens = bytes,
                                                       .at_ps = w->now_ns * 1000,
                                                       .ps_per_byte_q16 = ps_q16(ps_per_byte),
                                                       .burst_q16 = ps_q16(ps_per_byte * burst)};
    return (int32_t)w->servers.n++;
}

int32_t packet_add_server(packet_world *w)
{
    return packet_add_bucket(w, 0, 0, 0);
}

int32_t packet_add_chain(packet_world *w, int32_t n, const int32_t *server,
                         const double *ps_per_byte)
{
    GROW_ARRAY(w->servers.chains);
    struct chain chain = {.n = (uint32_t)n, .stops = zeroed_array((size_t)n, sizeof *chain.stops)};
    for (int32_t i = 0; i < n; i++)
        chain.stops[i] = (struct stop_on_chain){(uint32_t)server[i], ps_q16(ps_per_byte[i])};
    for (int32_t i = 0; i < n; i++)
        chain.is_policed |= w->servers.buckets[server[i]].polices;
    w->servers.chains[w->servers.chains_n] = chain;
    return (int32_t)w->servers.chains_n++;
}

void packet_set_pace(packet_world *w, int32_t chain, int32_t place, double ps_per_byte)
{
    w->servers.chains[chain].stops[place].ps_per_byte_q16 = ps_q16(ps_per_byte);
}

void refill_bucket(struct bucket *bucket, uint64_t now_ps)
{
    uint64_t passed = now_ps > bucket->at_ps ? now_ps - bucket->at_ps : 0;
    uint64_t came = (passed << 16) / bucket->ps_per_byte_q16;
    if (bucket->tokens + came >= bucket->size) {
        bucket->tokens = bucket->size;
        bucket->at_ps = now_ps;
    } else { /* only whole tokens count; the rest of the time is kept */
        bucket->tokens += came;
        bucket->at_ps += came * bucket->ps_per_byte_q16 >> 16;
    }
}

/* When a server's next `bytes` are done that begin at `start_ps`: they wait for their tokens, and
 * then take the time of a burst. */
static uint64_t take_tokens(struct bucket *bucket, uint64_t start_ps, uint64_t bytes)
{
    refill_bucket(bucket, start_ps);
    if (bucket->tokens < bytes) {
        start_ps = bucket->at_ps + ((bytes - bucket->tokens) * bucket->ps_per_byte_q16 >> 16);
        bucket->tokens = bytes;
        bucket->at_ps = start_ps;
    }
    bucket->tokens -= bytes;
    return start_ps + (bytes * bucket->burst_q16 >> 16);
}

/* All servers of a chain work on the bytes at once, each when it is free: the chain takes as long
 * as the one that is done last, and no server waits idly for another. */
uint64_t pass_chain(struct packet_world *w, uint32_t number, uint64_t bytes)
{
    const struct chain *chain = &w->servers.chains[number];
    uint64_t now_ps = w->now_ns * 1000, end_ps = now_ps;
    for (uint32_t i = 0; i < chain->n; i++) {
        uint32_t server = chain->stops[i].server;
        uint64_t *free_ps = &w->servers.free_ps[server];
        if (w->servers.buckets[server].polices)
            continue;
        w->servers.buckets[server].passed += bytes;
        /* A server that was busy until this very nanosecond goes on without a gap. */
        if (*free_ps + 1000 <= now_ps)
            *free_ps = now_ps;
        if (w->servers.buckets[server].size)
            *free_ps = take_tokens(&w->servers.buckets[server], *free_ps, bytes);
        else
            *free_ps += bytes * chain->stops[i].ps_per_byte_q16 >> 16;
        end_ps = harp_max(end_ps, *free_ps);
    }
    return (end_ps + 999) / 1000;
}

uint64_t handle_message(struct packet_world *w, uint32_t number, uint64_t cost_ns)
{
    struct process *process = &w->hosts.processes[number];
    if (!cost_ns)
        return w->now_ns;
    if (process->thread == NOBODY)
        return process->message_ns = harp_max(w->now_ns, process->message_ns) + cost_ns;
    uint64_t *free_ps = &w->servers.free_ps[process->thread];
    *free_ps = harp_max(*free_ps, w->now_ns * 1000) + cost_ns * 1000;
    return (*free_ps + 999) / 1000;
}
