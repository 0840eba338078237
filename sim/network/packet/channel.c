/* Channels: what a stack takes up, when, and the routes of what it sends. */
#include <assert.h>

#include "base/sequence.h"
#include "world.h"

static struct end *ends_of(const struct packet_world *w, const struct channel *channel)
{
    return &w->hosts.ends[2 * channel->connection];
}

static void add_end(struct packet_world *w, const struct end_ops *ops, uint32_t settings,
                    const struct packet_end *from, int32_t paths, uint32_t channel)
{
    GROW_ARRAY(w->hosts.ends);
    w->hosts.ends[w->hosts.ends_n++] = (struct end){.ops = ops,
                                                    .wake_ns = HARP_NEVER,
                                                    .process = from->process,
                                                    .send_chain = from->send_chain,
                                                    .receive_chain = from->receive_chain,
                                                    .channel = channel,
                                                    .routes = (uint32_t)w->hosts.first_hops_n,
                                                    .paths = (uint8_t)paths,
                                                    .settings = settings};
    for (int32_t path = 0; path < paths; path++) {
        GROW_ARRAY(w->hosts.first_hops);
        w->hosts.first_hops_n++;
    }
}

int32_t add_connection(struct packet_world *w, const struct end_ops *ops, uint32_t settings,
                       const struct packet_end *from, const struct packet_end *to, int32_t paths,
                       const int32_t *there, const int32_t *back, uint64_t delay_ns,
                       uint64_t message_ns)
{
    uint32_t number = add_channel(w);
    struct channel *channel = &w->channels.all[number];
    channel->connection = (int32_t)(w->hosts.ends_n / 2);
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
    const struct traffic *traffic = traffic_of(w, &w->channels.all[number]);
    uint64_t at_ns = traffic->piece[traffic->pieces_first].at_ns;
    push_event(w, harp_max(w->now_ns, at_ns), CHANNEL_BEGINS, number);
}

void open_channel(struct packet_world *w, uint32_t number)
{
    struct channel *channel = &w->channels.all[number];
    if (channel->traffic != NO_TRAFFIC && traffic_of(w, channel)->pieces_n)
        await_piece(w, number);
    channel->connected = true;
}

void post_slots(struct packet_world *w, uint32_t number)
{
    ends_of(w, &w->channels.all[number])->ops->post(w, number);
}

void begin_piece(struct packet_world *w, uint32_t number)
{
    const struct channel *channel = &w->channels.all[number];
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
    struct channel *channel = &w->channels.all[number];
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
    w->channels.all[number].coming--;
    note_piece(w, number, true);
}

void packet_set_routes(packet_world *w, int32_t channel, const int32_t *there, const int32_t *back)
{
    struct end *ends = &w->hosts.ends[2 * w->channels.all[channel].connection];
    for (uint32_t path = 0; path < ends->paths; path++) {
        w->hosts.first_hops[ends[0].routes + path] = w->fabric.routes[there[path]];
        w->hosts.first_hops[ends[1].routes + path] = w->fabric.routes[back[path]];
    }
}

uint64_t packet_channel_frames(const packet_world *w, int32_t number)
{
    uint32_t receiver = 2 * (uint32_t)w->channels.all[number].connection + 1;
    return w->channels.all[number].fresh + w->hosts.ends[receiver].ops->fresh(w, receiver);
}
