/* Channels within a host: pieces move in units, one at a time, through the servers of a chain. */
#include <assert.h>

#include "base/sequence.h"
#include "world.h"

int32_t packet_add_pipe(packet_world *w, int32_t chain, uint64_t delay_ns)
{
    uint32_t number = add_channel(w);
    struct channel *channel = &w->channels.all[number];
    channel->pipe = (int32_t)w->channels.pipes_n;
    channel->delay_ns = delay_ns;
    channel->is_open = channel->connected = true;
    GROW_ARRAY(w->channels.pipes);
    w->channels.pipes[w->channels.pipes_n++] =
        (struct pipe){.channel = number, .chain = (uint32_t)chain, .credit = w->config.slots};
    return (int32_t)number;
}

/* The next unit begins, if nothing moves, there is a piece, and its receiver has a slot. */
static void begin_unit(struct packet_world *w, uint32_t number)
{
    struct pipe *pipe = &w->channels.pipes[number];
    if (pipe->is_moving || !pipe->n || (!pipe->moved && !pipe->credit))
        return;
    pipe->credit -= !pipe->moved;
    pipe->moving = (uint32_t)harp_min(w->config.unit_bytes, pipe->queue[pipe->first] - pipe->moved);
    pipe->is_moving = true;
    push_event(w, pass_chain(w, pipe->chain, pipe->moving), PIPE_MOVES, number);
}

void give_to_pipe(struct packet_world *w, uint32_t number, uint32_t bytes)
{
    struct pipe *pipe = &w->channels.pipes[number];
    assert(pipe->n < SLOTS_MAX);
    pipe->queue[(pipe->first + pipe->n++) % SLOTS_MAX] = bytes;
    begin_unit(w, number);
}

void move_pipe(struct packet_world *w, uint32_t number)
{
    struct pipe *pipe = &w->channels.pipes[number];
    uint32_t channel = pipe->channel;
    pipe->is_moving = false;
    pipe->moved += pipe->moving;
    bool whole = pipe->moved == pipe->queue[pipe->first];
    if (whole) {
        pipe->first = (pipe->first + 1) % SLOTS_MAX;
        pipe->n--;
        pipe->moved = 0;
    }
    begin_unit(w, number);
    if (whole) {
        note_piece(w, channel, true);
        note_piece(w, channel, false);
    }
}

void free_pipe_slot(struct packet_world *w, uint32_t number)
{
    w->channels.pipes[number].credit++;
    begin_unit(w, number);
}
