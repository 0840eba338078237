/* Channels that nothing moves on, and the memory that they do not need.
 *
 * A channel is idle while no slot of its sender or receiver has a piece. Then it gives back what
 * keeps its pieces. Few idle connections stay open (packet_config): an all-to-all of
 * 1,024 ranks has a million, and some ten thousand of them move something at a time. The one that
 * has been idle longest is closed and forgets what it has learned of its path; the next piece opens
 * it again, by a new handshake. Linux forgets a window as well while nothing moves, after a timeout
 * of 200 ms (RFC 2861), and keeps what it knows of round trips.
 */
#include "world.h"

uint32_t add_channel(struct packet_world *w)
{
    GROW_ARRAY(w->channels.all);
    w->channels.all[w->channels.all_n] = (struct channel){.connection = NOBODY,
                                                          .pipe = NOBODY,
                                                          .traffic = NO_TRAFFIC,
                                                          .posted = (uint8_t)w->config.slots,
                                                          .sender = {NOBODY, NOBODY, NOBODY}};
    return (uint32_t)w->channels.all_n++;
}

struct traffic *traffic_of(struct packet_world *w, const struct channel *channel)
{
    return &w->channels.traffic[channel->traffic];
}

static uint32_t take_traffic(struct packet_world *w)
{
    if (w->channels.free_traffic_n)
        return w->channels.free_traffic[--w->channels.free_traffic_n];
    GROW_ARRAY(w->channels.traffic);
    w->channels.traffic[w->channels.traffic_n] = (struct traffic){.pieces_n = 0};
    return (uint32_t)w->channels.traffic_n++;
}

static void give_traffic_back(struct packet_world *w, uint32_t number)
{
    GROW_ARRAY(w->channels.free_traffic);
    w->channels.free_traffic[w->channels.free_traffic_n++] = number;
}

static void append_idle(struct packet_world *w, uint32_t number)
{
    struct channel *channel = &w->channels.all[number];
    channel->idle_older = w->channels.idle_newest;
    channel->idle_newer = NO_CHANNEL;
    if (w->channels.idle_newest == NO_CHANNEL)
        w->channels.idle_oldest = number;
    else
        w->channels.all[w->channels.idle_newest].idle_newer = number;
    w->channels.idle_newest = number;
    w->channels.idle_n++;
    channel->is_listed = true;
}

static void remove_idle(struct packet_world *w, uint32_t number)
{
    struct channel *channel = &w->channels.all[number];
    if (channel->idle_older == NO_CHANNEL)
        w->channels.idle_oldest = channel->idle_newer;
    else
        w->channels.all[channel->idle_older].idle_newer = channel->idle_newer;
    if (channel->idle_newer == NO_CHANNEL)
        w->channels.idle_newest = channel->idle_older;
    else
        w->channels.all[channel->idle_newer].idle_older = channel->idle_older;
    w->channels.idle_n--;
    channel->is_listed = false;
}

void occupy_channel(struct packet_world *w, uint32_t number)
{
    struct channel *channel = &w->channels.all[number];
    if (channel->traffic != NO_TRAFFIC)
        return;
    channel->traffic = take_traffic(w);
    if (channel->is_listed)
        remove_idle(w, number);
    if (!channel->is_open) {
        channel->is_open = true;
        w->hosts.ends[2 * channel->connection].ops->connect(w, number);
    }
}

void release_channel(struct packet_world *w, uint32_t number)
{
    struct channel *channel = &w->channels.all[number];
    if (channel->traffic == NO_TRAFFIC || channel->held || channel->taken ||
        traffic_of(w, channel)->expected_n)
        return;
    give_traffic_back(w, channel->traffic);
    channel->traffic = NO_TRAFFIC;
    if (channel->connection != NOBODY)
        append_idle(w, number);
}

void packet_close(packet_world *w, int32_t number)
{
    struct channel *channel = &w->channels.all[number];
    if (!channel->is_listed)
        return;
    w->hosts.ends[2 * channel->connection].ops->disconnect(w, (uint32_t)number);
    channel->is_open = channel->connected = false;
    remove_idle(w, (uint32_t)number);
}

void close_idle_connections(struct packet_world *w)
{
    while (w->channels.idle_n > w->config.idle_connections)
        packet_close(w, (int32_t)w->channels.idle_oldest);
}
