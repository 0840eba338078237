/* Channels: what a stack takes up, when, and the routes of what it sends. */
#include <assert.h>

#include "base/sequence.h"
#include "world.h"

static struct end *ends_of(const struct packet_world *w, const struct channel *channel)
{
    return &w->ends[2 * channel->connection];
}

static void add_end(struct packet_world *w, const struct end_ops *ops, uint32_t settings,
                    const struct packet_end *from, int32_t paths, uint32_t channel)
{
    w->ends = grow_array(w->ends, w->ends_n, &w->ends_room, sizeof *w->ends);
    w->ends[w->ends_n++] = (struct end){.ops = ops,
                                        .wake_ns = HARP_NEVER,
                                        .process = from->process,
                                        .send_chain = from->send_chain,
                                        .receive_chain = from->receive_chain,
                                        .channel = channel,
                                        .routes = (uint32_t)w->first_hops_n,
                                        .paths = (uint8_t)paths,
                                        .settings = settings};
    for (int32_t path = 0; path < paths; path++) {
        w->first_hops =
            grow_array(w->first_hops, w->first_hops_n, &w->first_hops_room, sizeof *w->first_hops);
        w->first_hops_n++;
    }
}

int32_t add_connection(struct packet_world *w, const struct end_ops *ops, uint32_t settings,
                       const struct packet_end *from, const struct packet_end *to, int32_t paths,
                       const int32_t *there, const int32_t *back, uint64_t delay_ns,
                       uint64_t message_ns)
{
    uint32_t number = add_channel(w);
    struct channel *channel = &w->channels[number];
    channel->connection = (int32_t)(w->ends_n / 2);
    channel->delay_ns = delay_ns;
    channel->message_ns = message_ns;
    channel->is_open = true;
    add_end(w, ops, settings, from, paths, number);
    add_end(w, ops, settings, to, paths, number);
    packet_set_routes(w, (int32_t)number, there, back);
    ops->connect(w, number);
    return (int32_t)number;
}

/* The stack takes up the next piece when it is time to. */
static void await_piece(struct packet_world *w, uint32_t number)
{
    const struct traffic *traffic = traffic_of(w, &w->channels[number]);
    uint64_t at_ns = traffic->piece[traffic->pieces_first].at_ns;
    push_event(w, harp_max(w->now_ns, at_ns), CHANNEL_BEGINS, number);
}

void open_channel(struct packet_world *w, uint32_t number)
{
    struct channel *channel = &w->channels[number];
    if (channel->traffic != NO_TRAFFIC && traffic_of(w, channel)->pieces_n)
        await_piece(w, number);
    channel->connected = true;
}

void post_slots(struct packet_world *w, uint32_t number)
{
    ends_of(w, &w->channels[number])->ops->post(w, number);
}

void begin_piece(struct packet_world *w, uint32_t number)
{
    const struct channel *channel = &w->channels[number];
    struct traffic *traffic = traffic_of(w, channel);
    assert(channel->connected && traffic->pieces_n);
    const struct waiting_piece piece = traffic->piece[traffic->pieces_first];
    assert(piece.at_ns <= w->now_ns);
    traffic->pieces_first = (traffic->pieces_first + 1) % SLOTS_MAX;
    if (--traffic->pieces_n)
        await_piece(w, number);
    if (channel->connection == NOBODY)
        give_to_pipe(w, (uint32_t)channel->pipe, piece.bytes);
    else
        ends_of(w, channel)->ops->take_up(w, number, piece.bytes);
}

void take_in_piece(struct packet_world *w, uint32_t number)
{
    struct channel *channel = &w->channels[number];
    uint32_t process = (uint32_t)ends_of(w, channel)[1].process;
    const struct traffic *traffic = traffic_of(w, channel);
    uint32_t which = (traffic->expected_first + channel->coming) % SLOTS_MAX;
    uint64_t at_ns = handle_message(w, process, traffic->cost_ns[which]);
    if (at_ns <= w->now_ns && !channel->coming) {
        note_piece(w, number, true);
        return;
    }
    channel->coming++;
    push_event(w, at_ns, CHANNEL_TAKES, number);
}

void take_next_piece(struct packet_world *w, uint32_t number)
{
    w->channels[number].coming--;
    note_piece(w, number, true);
}

void packet_set_routes(packet_world *w, int32_t channel, const int32_t *there, const int32_t *back)
{
    struct end *ends = &w->ends[2 * w->channels[channel].connection];
    for (uint32_t path = 0; path < ends->paths; path++) {
        w->first_hops[ends[0].routes + path] = w->routes[there[path]];
        w->first_hops[ends[1].routes + path] = w->routes[back[path]];
    }
}

uint64_t packet_channel_frames(const packet_world *w, int32_t number)
{
    uint32_t receiver = 2 * (uint32_t)w->channels[number].connection + 1;
    return w->channels[number].fresh + w->ends[receiver].ops->fresh(w, receiver);
}
