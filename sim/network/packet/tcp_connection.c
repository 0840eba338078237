/* Connections of kernel TCP: the sockets of one, and the pieces that cross it.
 *
 * NCCL's socket transport cuts a piece into parts of as many bytes as it has sockets for, 64 KiB at
 * least, and gives them to the sockets in turn (MIN_CHUNKSIZE and ncclNetSocketTest of
 * src/transport/net_socket.cc). */
#include <assert.h>

#include "base/sequence.h"
#include "tcp.h"

#define PART_LEAST 65536

static struct tcp_connection *open_connection(const struct packet_world *w, uint32_t channel)
{
    return w->hosts.ends[2 * w->channels.all[channel].connection].tcp;
}

/* Connection of a segment; NULL: it was closed, or it and another one was opened since. */
static struct tcp_connection *connection_of(const struct packet_world *w,
                                            const struct packet *packet)
{
    struct tcp_connection *of = w->hosts.ends[packet->end].tcp;
    return of && of->incarnation == packet->incarnation ? of : NULL;
}

static uint32_t channel_of(const struct packet_world *w, const struct tcp_connection *of)
{
    return w->hosts.ends[of->end].channel;
}

/* ---- pieces out */

/* Slots of the sender are free again in order, but no more pieces are under way than a channel
 * keeps track of. */
static void free_slots(struct packet_world *w, struct tcp_connection *of)
{
    uint32_t number = channel_of(w, of);
    while (of->written != of->given && !of->piece[of->written % SLOTS_MAX].to_write)
        of->written++;
    while (of->left != of->written && of->left - of->read <= SLOTS_MAX - 2 * w->config.slots) {
        of->left++;
        note_piece(w, number, false);
    }
}

static uint64_t send_buffer(const struct tcp_socket *socket)
{
    uint64_t window = harp_max(socket->s.cc.window, TCP_FIRST_WINDOW);
    return harp_min(2 * window * socket->of->mss, TCP_SEND_BUFFER); /* tcp_sndbuf_expand */
}

/* Fill a send buffer with what the application has. */
static void write_parts(struct packet_world *w, struct tcp_socket *socket)
{
    struct tcp_sender *s = &socket->s;
    uint64_t end = s->una + send_buffer(socket);
    bool any = false;
    while (socket->write_n && s->written < end) {
        struct tcp_part *part = &socket->write[socket->write_first];
        uint32_t bytes = (uint32_t)harp_min(part->bytes, end - s->written);
        s->written += bytes;
        part->bytes -= bytes;
        socket->of->piece[part->piece % SLOTS_MAX].to_write -= bytes;
        any = true;
        if (part->bytes)
            break;
        socket->write_first = (socket->write_first + 1) % SLOTS_MAX;
        socket->write_n--;
    }
    if (any)
        free_slots(w, socket->of);
}

static void give_part(struct packet_world *w, struct tcp_connection *of, uint32_t piece,
                      uint32_t bytes)
{
    struct tcp_socket *socket = &of->socket[of->next_socket];
    const struct tcp_part part = {piece, bytes};
    of->next_socket = (of->next_socket + 1) % of->sockets;
    assert(socket->write_n < SLOTS_MAX && socket->take_n < SLOTS_MAX);
    socket->write[(socket->write_first + socket->write_n++) % SLOTS_MAX] = part;
    socket->take[(socket->take_first + socket->take_n++) % SLOTS_MAX] = part;
    tcp_drive_soon(w, socket);
}

static void send_piece(struct packet_world *w, uint32_t number, uint32_t bytes)
{
    struct tcp_connection *of = open_connection(w, number);
    uint32_t piece = of->given++;
    uint32_t most = (uint32_t)harp_max((bytes + of->sockets - 1) / of->sockets, PART_LEAST);
    assert(piece - of->read < SLOTS_MAX);
    of->piece[piece % SLOTS_MAX].to_write = of->piece[piece % SLOTS_MAX].to_read = bytes;
    for (uint32_t done = 0; done < bytes; done += most)
        give_part(w, of, piece, (uint32_t)harp_min(most, bytes - done));
}

/* ---- pieces in */

static void read_parts(struct tcp_socket *socket)
{
    struct tcp_receiver *r = &socket->r;
    struct tcp_connection *of = socket->of;
    while (socket->take_n && r->read < r->next) {
        struct tcp_part *part = &socket->take[socket->take_first];
        if ((int32_t)(part->piece - of->granted) >= 0)
            return;
        uint32_t bytes = (uint32_t)harp_min(part->bytes, r->next - r->read);
        r->read += bytes;
        part->bytes -= bytes;
        of->piece[part->piece % SLOTS_MAX].to_read -= bytes;
        if (part->bytes)
            return;
        socket->take_first = (socket->take_first + 1) % SLOTS_MAX;
        socket->take_n--;
    }
}

/* Take what is in order and has a slot out of a receive buffer. */
static void read_pieces(struct packet_world *w, struct tcp_socket *socket)
{
    struct tcp_connection *of = socket->of;
    uint32_t channel = channel_of(w, of);
    bool any = false;
    read_parts(socket);
    while (of->read != of->given && !of->piece[of->read % SLOTS_MAX].to_read) {
        of->read++;
        any = true;
        take_in_piece(w, channel);
    }
    if (any)
        free_slots(w, of);
    tcp_tell_window(w, socket);
}

static void grant_slots(struct packet_world *w, uint32_t number)
{
    struct channel *channel = &w->channels.all[number];
    struct tcp_connection *of = open_connection(w, number);
    of->granted += channel->posted;
    channel->posted = 0;
    for (uint32_t i = 0; i < of->sockets; i++)
        if (of->socket[i].r.read < of->socket[i].r.next)
            drive_soon(w, of->end + 1);
}

/* ---- ends */

static void open_socket(struct packet_world *w, struct tcp_socket *socket)
{
    struct tcp_sender *s = &socket->s;
    tcp_send_control(w, socket, socket->of->end, &(struct tcp_segment){.kind = TCP_SYN});
    s->usage.last_sent_ns = w->now_ns;
    tcp_arm_timeout(s, w->now_ns);
}

/* A burst, if there is one, of the next socket that is ready. */
static bool drive_sender(struct packet_world *w, struct tcp_connection *of, uint64_t *busy_ns)
{
    while (of->ready) {
        of->drive_next = (of->drive_next + 1) % of->sockets;
        uint64_t bit = UINT64_C(1) << of->drive_next;
        if (!(of->ready & bit))
            continue;
        struct tcp_socket *socket = &of->socket[of->drive_next];
        if (socket->s.state == TCP_CLOSED) {
            of->ready &= ~bit;
            continue;
        }
        write_parts(w, socket);
        if (tcp_send(w, socket, busy_ns))
            return true;
        of->ready &= ~bit;
        wake_at(w, of->end, tcp_deadline_ns(&socket->s));
    }
    return false;
}

static bool drive_end(struct packet_world *w, uint32_t number, uint32_t room, uint64_t *busy_ns)
{
    struct tcp_connection *of = w->hosts.ends[number].tcp;
    (void)room; /* a burst goes whole */
    if (!of)
        return false;
    if (number == of->end)
        return drive_sender(w, of, busy_ns);
    for (uint32_t i = 0; i < of->sockets; i++)
        read_pieces(w, &of->socket[i]);
    return false;
}

/* Timers run by themselves: what they send waits for no process. */
static void wake_sockets(struct packet_world *w, uint32_t number)
{
    struct tcp_connection *of = w->hosts.ends[number].tcp;
    for (uint32_t i = 0; of && i < of->sockets; i++) {
        struct tcp_socket *socket = &of->socket[i];
        if (number == of->end) {
            if (tcp_deadline_ns(&socket->s) <= w->now_ns) {
                tcp_run_timers(w, socket);
                tcp_drive_soon(w, socket);
            }
            wake_at(w, number, tcp_deadline_ns(&socket->s));
        } else {
            if (socket->r.ack_at_ns <= w->now_ns)
                tcp_send_ack(w, socket);
            wake_at(w, number, socket->r.ack_at_ns);
        }
    }
}

static void take_syn_ack(struct packet_world *w, struct tcp_socket *socket, uint32_t window)
{
    struct tcp_sender *s = &socket->s;
    if (s->state != TCP_CLOSED)
        return;
    if (!s->rtt.backoff)
        tcp_sample_rtt(s, w->now_ns - s->usage.last_sent_ns);
    s->state = TCP_OPEN;
    s->rtt.backoff = 0;
    s->usage.last_sent_ns = 0;
    s->timers.rto_at_ns = HARP_NEVER;
    s->window_end = window;
    if (++socket->of->open_n == socket->of->sockets)
        open_channel(w, channel_of(w, socket->of));
    tcp_drive_soon(w, socket);
}

static void take_segment(struct packet_world *w, uint32_t taken)
{
    const struct packet packet = w->pool.packets[taken];
    struct tcp_connection *of = connection_of(w, &packet);
    give_packet_back(w, taken);
    if (!of)
        return;
    struct tcp_socket *socket = &of->socket[packet.path];
    switch (packet.tcp.kind) {
    case TCP_SYN:
        tcp_send_control(w, socket, of->end + 1,
                         &(struct tcp_segment){.kind = TCP_SYN_ACK, .window = TCP_RECEIVE_WINDOW});
        break;
    case TCP_SYN_ACK:
        take_syn_ack(w, socket, packet.tcp.window);
        break;
    case TCP_DATA:
        if (tcp_take_data(w, socket, &packet))
            read_pieces(w, socket);
        break;
    case TCP_ACK:
        tcp_take_ack(w, socket, &packet.tcp);
        break;
    }
}

static void leave_queue(struct packet_world *w, const struct packet *packet)
{
    struct tcp_connection *of = connection_of(w, packet);
    if (!of)
        return;
    struct tcp_socket *socket = &of->socket[packet->path];
    socket->s.queued_bytes -= packet->payload;
    if (socket->s.is_throttled)
        tcp_drive_soon(w, socket);
}

static uint64_t count_again(const struct packet_world *w, uint32_t number)
{
    const struct tcp_connection *of = w->hosts.ends[number].tcp;
    uint64_t again = 0;
    for (uint32_t i = 0; of && number == of->end && i < of->sockets; i++)
        again += of->socket[i].s.again;
    return again;
}

static uint64_t count_fresh(const struct packet_world *w, uint32_t number)
{
    const struct tcp_connection *of = w->hosts.ends[number].tcp;
    uint64_t fresh = 0;
    for (uint32_t i = 0; of && i < of->sockets; i++)
        fresh += of->socket[i].r.fresh;
    return fresh;
}

/* ---- connecting */

static void init_socket(struct packet_world *w, struct tcp_connection *of, uint32_t number)
{
    struct tcp_socket *socket = &of->socket[number];
    struct tcp_sender *s = &socket->s;
    socket->of = of;
    socket->number = (uint8_t)number;
    tcp_cc_begin(&s->cc, of->congestion, of->mss, w->now_ns, virtual_draw(&w->random));
    s->rtt.rto_ns = TCP_FIRST_TIMEOUT_NS;
    s->rtt.min_ns = HARP_NEVER;
    s->rack.steps = 1;
    s->recovery.undo_left = -1;
    s->timers.rto_at_ns = s->timers.probe_at_ns = s->timers.reorder_at_ns = s->timers.pace_at_ns =
        HARP_NEVER;
    socket->r.ack_at_ns = HARP_NEVER;
    socket->r.edge = TCP_RECEIVE_WINDOW;
    socket->r.quick = TCP_QUICK_ACKS;
}

static struct tcp_connection *make_connection(struct packet_world *w, uint32_t number)
{
    struct channel *channel = &w->channels.all[number];
    uint32_t end = 2 * (uint32_t)channel->connection;
    const struct packet_tcp *settings = &w->hosts.tcp[w->hosts.ends[end].settings];
    uint32_t sockets = (uint32_t)settings->sockets;
    struct tcp_connection *of = zeroed_array(1, sizeof *of + sockets * sizeof of->socket[0]);
    of->end = end;
    of->mss = settings->mss;
    of->headers = settings->headers;
    of->congestion = (enum tcp_cc_kind)settings->congestion;
    of->incarnation = ++channel->incarnation;
    of->sockets = sockets;
    for (uint32_t i = 0; i < sockets; i++)
        init_socket(w, of, i);
    return of;
}

static void connect_sockets(struct packet_world *w, uint32_t number)
{
    struct tcp_connection *of = make_connection(w, number);
    w->hosts.ends[of->end].tcp = w->hosts.ends[of->end + 1].tcp = of;
    for (uint32_t i = 0; i < of->sockets; i++)
        open_socket(w, &of->socket[i]);
    wake_at(w, of->end, tcp_deadline_ns(&of->socket[0].s));
    grant_slots(w, number);
}

static void free_connection(struct tcp_connection *of)
{
    for (uint32_t i = 0; i < of->sockets; i++) {
        free(of->socket[i].s.scoreboard.sent);
        free(of->socket[i].r.early);
    }
    free(of);
}

/* Segments that are still on their way will find nobody. */
static void disconnect_sockets(struct packet_world *w, uint32_t number)
{
    struct channel *channel = &w->channels.all[number];
    struct tcp_connection *of = open_connection(w, number);
    channel->fresh += count_fresh(w, of->end + 1);
    channel->posted = (uint8_t)w->config.slots;
    w->counts.again += count_again(w, of->end);
    for (uint32_t end = of->end; end < of->end + 2; end++) {
        w->hosts.ends[end].tcp = NULL;
        w->hosts.ends[end].wake_ns = HARP_NEVER;
    }
    free_connection(of);
}

static void free_sockets(struct packet_world *w, uint32_t number)
{
    struct tcp_connection *of = w->hosts.ends[number].tcp;
    if (of && number != of->end) /* its other end frees what both have */
        free_connection(of);
}

static const struct end_ops tcp_ops = {.drive = drive_end,
                                       .take = take_segment,
                                       .wake = wake_sockets,
                                       .left = leave_queue,
                                       .take_up = send_piece,
                                       .post = grant_slots,
                                       .connect = connect_sockets,
                                       .disconnect = disconnect_sockets,
                                       .again = count_again,
                                       .fresh = count_fresh,
                                       .free = free_sockets,
                                       .protocol = TCP_PROTOCOL};

/* ---- calls */

/* Where settings stand that many connections have. */
static uint32_t find_settings(struct packet_world *w, const struct packet_tcp *wanted)
{
    for (size_t i = w->hosts.tcp_n; i-- > 0;)
        if (memcmp(&w->hosts.tcp[i], wanted, sizeof *wanted) == 0)
            return (uint32_t)i;
    GROW_ARRAY(w->hosts.tcp);
    w->hosts.tcp[w->hosts.tcp_n] = *wanted;
    return (uint32_t)w->hosts.tcp_n++;
}

int32_t packet_add_tcp(packet_world *w, const struct packet_end *from, const struct packet_end *to,
                       const struct packet_tcp *tcp, const int32_t *there, const int32_t *back,
                       uint64_t delay_ns, uint64_t message_ns)
{
    return add_connection(w, &tcp_ops, find_settings(w, tcp), from, to, tcp->sockets, there, back,
                          delay_ns, message_ns);
}
