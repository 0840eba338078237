/* Channels: what a stack takes up, when, and the routes of what it sends. */
#include <assert.h>

#include "base/sequence.h"
#include "world.h"

static struct end *ends_of(const struct packet_world *w, const struct channel *channel)
{
    return &w->ends[2 * channel->connection];
}

void open_channel(struct packet_world *w, uint32_t number)
{
    struct channel *channel = &w->channels[number];
    if (channel->pieces_n)
        push_event(w, harp_max(w->now_ns, channel->piece[channel->pieces_first].at_ns),
                   CHANNEL_BEGINS, number);
    channel->connected = true;
}

void post_slots(struct packet_world *w, uint32_t number)
{
    ends_of(w, &w->channels[number])->ops->post(w, number);
}

void begin_piece(struct packet_world *w, uint32_t number)
{
    struct channel *channel = &w->channels[number];
    assert(channel->connected && channel->pieces_n);
    const struct waiting_piece piece = channel->piece[channel->pieces_first];
    assert(piece.at_ns <= w->now_ns);
    channel->pieces_first = (channel->pieces_first + 1) % SLOTS_MAX;
    if (--channel->pieces_n)
        push_event(w, harp_max(w->now_ns, channel->piece[channel->pieces_first].at_ns),
                   CHANNEL_BEGINS, number);
    if (channel->connection == NOBODY)
        give_to_pipe(w, (uint32_t)channel->pipe, piece.bytes);
    else
        ends_of(w, channel)->ops->take_up(w, number, piece.bytes);
}

void packet_set_routes(packet_world *w, int32_t channel, const int32_t *there, const int32_t *back)
{
    struct end *ends = &w->ends[2 * w->channels[channel].connection];
    for (uint32_t path = 0; path < ends->config.paths; path++) {
        ends[0].routes[path] = w->routes[there[path]];
        ends[1].routes[path] = w->routes[back[path]];
    }
}

uint64_t packet_channel_frames(const packet_world *w, int32_t number)
{
    uint32_t receiver = 2 * (uint32_t)w->channels[number].connection + 1;
    return w->ends[receiver].ops->fresh(w, receiver);
}
