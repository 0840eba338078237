/* The two sessions of a connection: frames out and in, pieces as messages. */
#include <assert.h>

#include "base/sequence.h"
#include "world.h"

#define BURST_MOST 64
#define LISTENER 99
#define ETHERNET_LEAST 84 /* bytes on the wire of the shortest frame, preamble and gap included */
#define HEADERS_LEAST 66  /* of overhead: IPv4, UDP, Ethernet with its FCS, preamble and gap */

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

static void add_end(struct packet_world *w, const struct packet_end *from, int32_t paths,
                    const int32_t *routes)
{
    w->ends = grow_array(w->ends, w->ends_n, &w->ends_room, sizeof *w->ends);
    struct end *end = &w->ends[w->ends_n++];
    *end = (struct end){.wake_ns = HARP_NEVER,
                        .process = from->process,
                        .send_chain = from->send_chain,
                        .receive_chain = from->receive_chain};
    harp_session_defaults(&end->config, (uint16_t)w->config.segment, (uint16_t)paths);
    end->config.messages = power_of_two(w->config.slots, 2, HARP_MESSAGES);
    end->config.chunks =
        power_of_two(w->config.piece_bytes / w->config.segment + 1, 64, HARP_CHUNK_WINDOW);
    end->config.connection = draw_id(w);
    end->config.listener = LISTENER;
    end->config.seed = virtual_draw(&w->random);
    end->config.first = (uint32_t)virtual_draw(&w->random);
    end->config.epoch = 1;
    for (int32_t path = 0; path < paths; path++)
        end->routes[path] = w->routes[routes[path]];
}

static struct harp_session *make_session(struct packet_world *w, struct end *end,
                                         const struct harp_parameters *first, uint8_t path)
{
    size_t bytes = (harp_session_size(&end->config) + 63) / 64 * 64;
    void *memory = checked_memory(aligned_alloc(64, bytes));
    return first ? harp_session_accept(memory, &end->config, w->now_ns, first, path)
                 : harp_session_connect(memory, &end->config, w->now_ns);
}

int32_t packet_add_connection(packet_world *w, const struct packet_end *from,
                              const struct packet_end *to, int32_t paths, const int32_t *there,
                              const int32_t *back, uint64_t delay_ns, uint64_t message_ns)
{
    uint32_t sender = (uint32_t)w->ends_n;
    add_end(w, from, paths, there);
    add_end(w, to, paths, back);
    w->channels = grow_array(w->channels, w->channels_n, &w->channels_room, sizeof *w->channels);
    w->channels[w->channels_n] = (struct channel){.connection = (int32_t)(sender / 2),
                                                  .pipe = NOBODY,
                                                  .delay_ns = delay_ns,
                                                  .message_ns = message_ns,
                                                  .posted = w->config.slots,
                                                  .sender = {NOBODY, NOBODY, NOBODY}};
    w->ends[sender].session = make_session(w, &w->ends[sender], NULL, 0);
    w->ends[sender].channel = w->ends[sender + 1].channel = (uint32_t)w->channels_n;
    drive_soon(w, sender);
    return (int32_t)w->channels_n++;
}

void packet_set_routes(packet_world *w, int32_t channel, const int32_t *there, const int32_t *back)
{
    struct end *ends = &w->ends[2 * w->channels[channel].connection];
    for (uint32_t path = 0; path < ends->config.paths; path++) {
        ends[0].routes[path] = w->routes[there[path]];
        ends[1].routes[path] = w->routes[back[path]];
    }
}

uint64_t packet_channel_frames(const packet_world *w, int32_t channel)
{
    const struct end *receiver = &w->ends[2 * w->channels[channel].connection + 1];
    return receiver->session ? harp_session_count(receiver->session)->placed : 0;
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
    const struct end *end = &w->ends[number];
    struct process *process = &w->processes[end->process];
    struct packet *packet = &w->packets[taken];
    packet->header = frame->header;
    packet->path = frame->path;
    packet->marked = false;
    packet->end = number ^ 1;
    packet->hop = end->routes[frame->path] + 1;
    packet->link = w->hops[packet->hop - 1];
    packet->bytes = bytes_on_link(w, &frame->header);
    packet->process = end->process;
    packet->body = NO_PACKET;
    process->in_ring++;
    uint64_t at_ns = w->now_ns;
    if (frame->header.type == HARP_DATA) {
        at_ns = pass_chain(w, (uint32_t)end->send_chain, frame->header.length);
    } else if (frame->header.type != HARP_PROBE && frame->header.length) {
        packet->body = take_body(w);
        memcpy(w->bodies[packet->body], frame->body, frame->header.length);
    }
    if (at_ns <= w->now_ns && process->sending.first == NO_PACKET) {
        put_on_link(w, taken);
        return at_ns;
    }
    process->sent_ns = packet->at_ns = harp_max(at_ns, process->sent_ns);
    if (process->sending.first == NO_PACKET)
        push_event(w, packet->at_ns, PROCESS_SENDS, (size_t)end->process);
    append_packet(w, &process->sending, taken);
    return at_ns;
}

static void sleep_end(struct packet_world *w, uint32_t number)
{
    struct end *end = &w->ends[number];
    uint64_t at_ns = harp_max(harp_session_deadline_ns(end->session), w->now_ns);
    if (at_ns == HARP_NEVER || at_ns >= end->wake_ns)
        return;
    end->wake_ns = at_ns;
    push_event(w, at_ns, END_WAKES, number);
}

void wake_end(struct packet_world *w, uint32_t number)
{
    if (w->ends[number].wake_ns != w->now_ns)
        return;
    w->ends[number].wake_ns = HARP_NEVER;
    drive_soon(w, number);
}

static void poll_end(struct packet_world *w, uint32_t number)
{
    struct end *end = &w->ends[number];
    struct channel *channel = &w->channels[end->channel];
    struct harp_event event;
    for (;;) {
        harp_session_poll(end->session, &event);
        switch (event.type) {
        case HARP_EVENT_NONE:
            return;
        case HARP_EVENT_CONNECTED:
            if (number & 1)
                post_slots(w, end->channel);
            else if (channel->pieces_n)
                push_event(w, harp_max(w->now_ns, channel->piece[channel->pieces_first].at_ns),
                           CHANNEL_BEGINS, end->channel);
            channel->connected |= !(number & 1);
            break;
        case HARP_EVENT_SENT:
            piece_left(w, end->channel);
            break;
        case HARP_EVENT_RECEIVED:
            piece_arrived(w, end->channel);
            break;
        case HARP_EVENT_CLOSED:
            harp_reason_explain(&event, w->why, sizeof w->why);
            w->closed = (int32_t)end->channel;
            return;
        }
        end = &w->ends[number];
        channel = &w->channels[end->channel];
    }
}

uint32_t drive_end(struct packet_world *w, uint32_t number, uint32_t room, uint64_t *busy_ns)
{
    struct harp_frame frames[BURST_MOST];
    assert(room <= BURST_MOST);
    size_t n = harp_session_send(w->ends[number].session, w->now_ns, frames, room);
    for (size_t i = 0; i < n; i++)
        *busy_ns = harp_max(*busy_ns, send_frame(w, number, &frames[i]));
    poll_end(w, number);
    if (n < room)
        sleep_end(w, number);
    return (uint32_t)n;
}

/* ---- frames in */

void take_frame(struct packet_world *w, uint32_t taken)
{
    const struct packet *packet = &w->packets[taken];
    const struct harp_header *header = &packet->header;
    uint32_t number = packet->end;
    struct end *end = &w->ends[number];
    static const uint8_t zeros[HARP_BODY_MAX];
    const uint8_t *body = packet->body == NO_PACKET ? zeros : w->bodies[packet->body];
    struct harp_place place;
    if (!end->session) {
        struct harp_parameters first;
        if (header->type == HARP_FIRST &&
            harp_parameters_decode(body, header->length, &first) == HARP_WIRE_OK)
            end->session = make_session(w, end, &first, packet->path);
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

void post_slots(struct packet_world *w, uint32_t number)
{
    struct channel *channel = &w->channels[number];
    uint32_t receiver = 2 * (uint32_t)channel->connection + 1;
    struct harp_session *session = w->ends[receiver].session;
    uint32_t before = channel->posted;
    int eager;
    while (channel->posted && session &&
           harp_session_post(session, NULL, HARP_MESSAGE_MAX, 0, &eager))
        channel->posted--;
    if (channel->posted != before)
        drive_soon(w, receiver);
}

/* The stack takes up a piece that was handed over. */
static void take_up_piece(struct packet_world *w, const struct channel *channel, uint32_t bytes)
{
    if (channel->connection == NOBODY) {
        give_to_pipe(w, (uint32_t)channel->pipe, bytes);
        return;
    }
    uint32_t sender = 2 * (uint32_t)channel->connection;
    bool taken = harp_session_message(w->ends[sender].session, NULL, bytes, 0);
    assert(taken);
    (void)taken;
    drive_soon(w, sender);
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
    take_up_piece(w, channel, piece.bytes);
}
