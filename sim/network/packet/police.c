/* Policers: caps that drop what exceeds them, instead of making it wait (RFC 2697 with one rate and
 * two colours).
 *
 * A policer is a server of a chain without a time of its own. Tokens come at its rate, up to its
 * size; a packet takes as many as it has bytes, or is dropped. Packets meet it where they leave
 * their host, after the servers of their chain, or where they arrive at one, before them.
 */
#include "base/sequence.h"
#include "world.h"

int32_t packet_add_policer(packet_world *w, double ps_per_byte, uint64_t bytes)
{
    int32_t server = packet_add_bucket(w, ps_per_byte, 0, bytes);
    w->servers.buckets[server].polices = true;
    return server;
}

static bool take_or_refuse(struct bucket *bucket, uint64_t now_ps, uint64_t bytes)
{
    refill_bucket(bucket, now_ps);
    if (bucket->tokens < bytes)
        return false;
    bucket->tokens -= bytes;
    bucket->passed += bytes;
    return true;
}

bool conforms_to_chain(struct packet_world *w, uint32_t number, uint64_t bytes)
{
    const struct chain *chain = &w->servers.chains[number];
    for (uint32_t i = 0; chain->is_policed && i < chain->n; i++) {
        struct bucket *bucket = &w->servers.buckets[chain->stops[i].server];
        if (bucket->polices && !take_or_refuse(bucket, w->now_ns * 1000, bytes))
            return false;
    }
    return true;
}

void drop_policed(struct packet_world *w, uint32_t number)
{
    w->counts.policed++;
    w->counts.lost++;
    leave_ring(w, &w->pool.packets[number]);
    give_packet_back(w, number);
}
