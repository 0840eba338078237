/* The two sessions of a connection: frames out and in, pieces as messages. */
#include <assert.h>

#include "base/sequence.h"
#include "world.h"

#define BURST_MOST 64
#define LISTENER 99
#define HEADERS_LEAST 66 /* of overhead: IPv4, UDP, Ethernet with its FCS, preamble and gap */

static uint64_t draw_id(struct packet_world *w)
{
    uint64_t id;
    do {
        id = virtual_draw(&w->random);
    } while (!id || id == LISTENER);
    return id;
}

/* The least power of two that is not below `wanted`, within bounds. */
static uint16_t power_of_two(uint32_t wanted, uint16_t least, uint16_t most)
{
    uint16_t power = least;
    while (power < wanted && power < most)
        power *= 2;
    return power;
}

/* As much memory as a channel's pieces need, which go one way: whoever receives sends no message
 * and keeps no packet but a few PROBEs. */
static void configure_session(struct packet_world *w, struct harp_session_config *config,
                              const struct end *end, bool sends)
{
    uint32_t chunks = w->config.piece_bytes / w->config.segment + 1;
    harp_session_defaults(config, (uint16_t)w->config.segment, end->paths);
    config->messages = power_of_two(w->config.slots, 2, HARP_MESSAGES);
    config->chunks = power_of_two(chunks, 64, HARP_CHUNK_WINDOW);
    config->packets = power_of_two(sends ? w->config.slots * chunks : 16, 16, HARP_SENT_SLOTS);
    config->connection = end->id;
    config->listener = LISTENER;
    config->seed = virtual_draw(&w->random);
    config->first = (uint32_t)virtual_draw(&w->random);
    config->epoch = 1;
}

/* The session of an end: the one that connects, or that answers `first`. */
static void make_session(struct packet_world *w, struct end *end,
                         const struct harp_parameters *first, uint8_t path)
{
    struct harp_session_config config;
    end->id = draw_id(w);
    configure_session(w, &config, end, !first);
    size_t bytes = (harp_session_size(&config) + 63) / 64 * 64;
    void *memory = checked_memory(aligned_alloc(64, bytes));
    end->session = first ? harp_session_accept(memory, &config, w->now_ns, first, path)
                         : harp_session_connect(memory, &config, w->now_ns);
}

/* ---- frames out */

static uint32_t bytes_on_link(const struct packet_world *w, const struct harp_header *header)
{
    uint32_t bytes = w->config.overhead + HARP_HEADER_BYTES + header->length;
    return (uint32_t)harp_max(bytes, ETHERNET_LEAST + w->config.overhead - HEADERS_LEAST);
}

/* The frame leaves its session; returns when it is at the NIC. */
static uint64_t send_frame(struct packet_world *w, uint32_t number, const struct harp_frame *frame)
{
    uint32_t taken = take_packet(w);
    const struct end *end = &w->hosts.ends[number];
    struct packet *packet = &w->pool.packets[taken];
    packet->header = frame->header;
    packet->path = frame->path;
    packet->marked = false;
    packet->can_mark = true;
    packet->end = number ^ 1;
    packet->hop = w->hosts.first_hops[end->routes + frame->path] + 1;
    packet->link = w->fabric.hops[packet->hop - 1];
    packet->bytes = bytes_on_link(w, &frame->header);
    packet->payload = frame->header.type == HARP_DATA ? frame->header.length : 0;
    packet->process = end->process;
    packet->body = NO_PACKET;
    uint64_t at_ns = w->now_ns;
    if (packet->payload) {
        at_ns = pass_chain(w, (uint32_t)end->send_chain, packet->payload);
    } else if (frame->header.type != HARP_PROBE && frame->header.length) {
        packet->body = take_body(w);
        memcpy(w->pool.bodies[packet->body], frame->body, frame->header.length);
    }
    leave_process(w, taken, at_ns);
    return at_ns;
}

static void poll_end(struct packet_world *w, uint32_t number)
{
    const struct end *end = &w->hosts.ends[number];
    struct harp_event event;
    for (;;) {
        harp_session_poll(end->session, &event);
        switch (event.type) {
        case HARP_EVENT_NONE:
            return;
        case HARP_EVENT_CONNECTED:
            if (number & 1)
                post_slots(w, end->channel);
            else
                open_channel(w, end->channel);
            break;
        case HARP_EVENT_SENT:
            note_piece(w, end->channel, false);
            break;
        case HARP_EVENT_RECEIVED:
            take_in_piece(w, end->channel);
            break;
        case HARP_EVENT_CLOSED:
            harp_reason_explain(&event, w->why, sizeof w->why);
            w->closed = (int32_t)end->channel;
            return;
        }
    }
}

static bool drive_session(struct packet_world *w, uint32_t number, uint32_t room, uint64_t *busy_ns)
{
    struct harp_frame frames[BURST_MOST];
    assert(room <= BURST_MOST);
    if (!w->hosts.ends[number].session)
        return false;
    size_t n = harp_session_send(w->hosts.ends[number].session, w->now_ns, frames, room);
    for (size_t i = 0; i < n; i++)
        *busy_ns = harp_max(*busy_ns, send_frame(w, number, &frames[i]));
    poll_end(w, number);
    if (n < room)
        wake_at(w, number, harp_session_deadline_ns(w->hosts.ends[number].session));
    return n == room;
}

/* ---- frames in */

static void take_frame(struct packet_world *w, uint32_t taken)
{
    const struct packet *packet = &w->pool.packets[taken];
    const struct harp_header *header = &packet->header;
    uint32_t number = packet->end;
    struct end *end = &w->hosts.ends[number];
    static const uint8_t zeros[HARP_BODY_MAX];
    const uint8_t *body = packet->body == NO_PACKET ? zeros : w->pool.bodies[packet->body];
    struct harp_place place;
    if (!end->session) {
        struct harp_parameters first;
        const struct end *sender = &w->hosts.ends[number ^ 1];
        if (header->type == HARP_FIRST && sender->session &&
            harp_parameters_decode(body, header->length, &first) == HARP_WIRE_OK &&
            first.connection == sender->id)
            make_session(w, end, &first, packet->path);
    } else if (harp_session_receive(end->session, w->now_ns, w->now_ns - packet->came_ns, header,
                                    body, packet->marked, &place) == HARP_PLACE) {
        harp_session_placed(end->session, true);
    }
    give_packet_back(w, taken);
    if (!end->session)
        return;
    poll_end(w, number);
    drive_soon(w, number);
}

/* ---- pieces */

static void post_messages(struct packet_world *w, uint32_t number)
{
    struct channel *channel = &w->channels.all[number];
    uint32_t receiver = 2 * (uint32_t)channel->connection + 1;
    struct harp_session *session = w->hosts.ends[receiver].session;
    uint8_t before = channel->posted;
    int eager;
    while (channel->posted && session &&
           harp_session_post(session, NULL, HARP_MESSAGE_MAX, 0, &eager))
        channel->posted--;
    if (channel->posted != before)
        drive_soon(w, receiver);
}

static void send_message(struct packet_world *w, uint32_t number, uint32_t bytes)
{
    uint32_t sender = 2 * (uint32_t)w->channels.all[number].connection;
    bool taken = harp_session_message(w->hosts.ends[sender].session, NULL, bytes, 0);
    assert(taken);
    (void)taken;
    drive_soon(w, sender);
}

static uint64_t count_again(const struct packet_world *w, uint32_t number)
{
    const struct harp_session *session = w->hosts.ends[number].session;
    return session ? harp_session_count(session)->data_again : 0;
}

static uint64_t count_fresh(const struct packet_world *w, uint32_t number)
{
    const struct harp_session *session = w->hosts.ends[number].session;
    return session ? harp_session_count(session)->placed : 0;
}

static void connect_sessions(struct packet_world *w, uint32_t number)
{
    uint32_t sender = 2 * (uint32_t)w->channels.all[number].connection;
    make_session(w, &w->hosts.ends[sender], NULL, 0);
    drive_soon(w, sender);
}

/* Frames that are still on their way will find nobody. */
static void disconnect_sessions(struct packet_world *w, uint32_t number)
{
    struct channel *channel = &w->channels.all[number];
    uint32_t sender = 2 * (uint32_t)channel->connection;
    channel->fresh += count_fresh(w, sender + 1);
    channel->posted = (uint8_t)w->config.slots;
    for (uint32_t end = sender; end < sender + 2; end++) {
        w->counts.again += count_again(w, end);
        free(w->hosts.ends[end].session);
        w->hosts.ends[end].session = NULL;
        w->hosts.ends[end].wake_ns = HARP_NEVER;
    }
}

static void free_session(struct packet_world *w, uint32_t number)
{
    free(w->hosts.ends[number].session);
}

static const struct end_ops session_ops = {.drive = drive_session,
                                           .take = take_frame,
                                           .take_up = send_message,
                                           .post = post_messages,
                                           .connect = connect_sessions,
                                           .disconnect = disconnect_sessions,
                                           .again = count_again,
                                           .fresh = count_fresh,
                                           .free = free_session,
                                           .protocol = UDP_PROTOCOL};

/* ---- calls */

int32_t packet_add_connection(packet_world *w, const struct packet_end *from,
                              const struct packet_end *to, int32_t paths, const int32_t *there,
                              const int32_t *back, uint64_t delay_ns, uint64_t message_ns)
{
    return add_connection(w, &session_ops, 0, from, to, paths, there, back, delay_ns, message_ns);
}

int32_t packet_path(const packet_world *w, int32_t channel, int32_t end, int32_t path,
                    struct packet_path_counts *counts)
{
    const struct end *one = &w->hosts.ends[2 * w->channels.all[channel].connection + end];
    struct harp_path_info info;
    if (one->ops != &session_ops || !one->session ||
        !harp_session_path_info(one->session, (uint8_t)path, &info))
        return false;
    *counts = (struct packet_path_counts){
        .alive = info.alive,
        .mtu_fails = info.mtu_fails,
        .fragments = info.fragments,
        .frame_bytes = info.frame_bytes,
        .window_bytes = info.window_bytes,
        .bytes_in_flight = info.bytes_in_flight,
        .smoothed_ns = info.smoothed_ns,
        .sent = info.sent,
        .lost = info.lost,
        .spurious = info.spurious,
        .died = info.died,
        .due = info.due,
        .arrived = info.arrived,
        .bad_payloads = info.bad_payloads,
        .starved_ns = harp_session_count(one->session)->starved_ns,
    };
    return true;
}
