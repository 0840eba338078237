/* Frames of a tcp port out of the stream.
 *
 *     stage  | rest of a frame | whole frame | whole frame | part of one |
 *                                ^ handed out as they lie there
 *
 * A long payload goes to its place in the application's memory as soon as its header is there: the
 * part in the stage is copied, and the next call reads the rest straight to its place, and the next
 * header into the stage. So the kernel's copy is the only one of nearly all payload in bulk.
 *
 * How much a call may read into the stage is a guess of what follows: only a header behind a
 * payload that went to its place, ever more while frames are short (in.ahead).
 */
#define _GNU_SOURCE
#include <errno.h>
#include <string.h>

#include "ports/port_tcp.h"
#include "wire/body.h"

static uint32_t staged_bytes(const struct tcp_flow *flow)
{
    return flow->in.stage_to - flow->in.stage_from;
}

static const uint8_t *staged_header(const struct tcp_flow *flow)
{
    return flow->in.stage + flow->in.stage_from;
}

/* Header of the frame whose payload is received into its place, without staging. */
static uint8_t *placed_header(struct tcp_flow *flow)
{
    return flow->in.headers[flow->in.header_at];
}

/* Frames of this version, and FIRST of any other, which this end answers with its versions. */
static bool is_frame(enum harp_wire_error error, const struct harp_header *header, size_t bytes)
{
    bool other = error == HARP_WIRE_VERSION && header->type == HARP_FIRST;
    return bytes <= HARP_HEADER_BYTES + (other ? HARP_BODY_MAX : TCP_PAYLOAD_MOST) &&
           (other || error == HARP_WIRE_OK);
}

/* Bytes of the frame that begins in the stage; 0: no whole header, or a wrong one. */
static uint32_t frame_bytes_of(struct tcp_flow *flow, bool *broken)
{
    struct harp_header header;
    if (staged_bytes(flow) < HARP_HEADER_BYTES)
        return 0;
    size_t bytes = harp_wire_frame_bytes(staged_header(flow));
    enum harp_wire_error error = harp_header_decode(staged_header(flow), bytes, &header);
    *broken = !is_frame(error, &header, bytes);
    return *broken ? 0 : (uint32_t)bytes;
}

static uint8_t *place_of(const struct tcp_port *tcp, const uint8_t *header)
{
    return tcp->placing.place ? tcp->placing.place(tcp->placing.engine, header) : NULL;
}

/* Have the frame that begins in the stage go to its place, if it is long and has one. A stranger
 * gets no more memory of the stage than a frame of one chunk takes: what is longer goes nowhere. */
static bool begin_placing(const struct tcp_port *tcp, struct tcp_flow *flow, uint32_t bytes)
{
    uint32_t payload = bytes - HARP_HEADER_BYTES;
    uint8_t *place = payload < TCP_DIRECT_LEAST ? NULL : place_of(tcp, staged_header(flow));
    if (!place && (bytes <= TCP_FRAME_MAX || flow->hops))
        return false;
    memcpy(placed_header(flow), staged_header(flow), HARP_HEADER_BYTES);
    flow->in.stage_from += HARP_HEADER_BYTES;
    uint32_t here = staged_bytes(flow) < payload ? staged_bytes(flow) : payload;
    if (place)
        memcpy(place, staged_header(flow), here);
    flow->in.stage_from += here;
    flow->in.place = place;
    flow->in.placed_bytes = here;
    flow->in.placing = true;
    return true;
}

static struct harp_arrival arrival_of(const struct tcp_flow *flow, uint8_t *bytes, uint32_t length)
{
    return (struct harp_arrival){.bytes = bytes,
                                 .length = length,
                                 .frame = HARP_NO_FRAME,
                                 .from = &flow->remote,
                                 .local = flow->local};
}

/* A frame stays in the stage. */
static void read_more_ahead(struct tcp_flow *flow)
{
    if (flow->in.ahead < TCP_AHEAD_LEAST)
        flow->in.ahead = TCP_AHEAD_LEAST;
    else if (flow->in.ahead < TCP_AHEAD_MOST)
        flow->in.ahead *= 2;
}

/* Hand out frames that the stage has whole; a long one begins to go to its place. */
static size_t take_staged(struct tcp_port *tcp, uint32_t number, struct harp_arrival *arrivals,
                          size_t room)
{
    struct tcp_flow *flow = tcp->flows[number];
    size_t n = 0;
    uint32_t bytes;
    bool broken = false;
    while (n < room && !flow->in.placing && (bytes = frame_bytes_of(flow, &broken)) != 0) {
        if (staged_bytes(flow) < bytes && begin_placing(tcp, flow, bytes))
            break;
        read_more_ahead(flow);
        if (staged_bytes(flow) < bytes)
            break;
        arrivals[n++] = arrival_of(flow, flow->in.stage + flow->in.stage_from, bytes);
        flow->in.stage_from += bytes;
    }
    if (broken)
        tcp_flow_break(tcp, number, EPROTO);
    return n;
}

/* Read once. False if nothing came. */
static bool read_flow(struct tcp_port *tcp, uint32_t number)
{
    struct tcp_flow *flow = tcp->flows[number];
    uint32_t payload = 0, ahead = TCP_STAGE_BYTES - flow->in.stage_to, pieces_n = 0;
    uint32_t wanted = flow->in.placing ? HARP_HEADER_BYTES : flow->in.ahead;
    struct iovec pieces[2];
    if (flow->in.placing) {
        payload = (uint32_t)harp_wire_frame_bytes(placed_header(flow)) - HARP_HEADER_BYTES -
                  flow->in.placed_bytes;
        uint8_t *to = (flow->in.place ? flow->in.place : tcp->nowhere) + flow->in.placed_bytes;
        pieces[pieces_n++] = (struct iovec){to, payload};
    }
    ahead = ahead < wanted ? ahead : wanted;
    pieces[pieces_n++] = (struct iovec){flow->in.stage + flow->in.stage_to, ahead};
    struct msghdr message = {.msg_iov = pieces, .msg_iovlen = pieces_n};
    tcp->port.counters.receive_calls++;
    ssize_t got = recvmsg(flow->fd, &message, MSG_DONTWAIT);
    if (got <= 0) {
        if (got == 0 || (errno != EAGAIN && errno != EINTR))
            tcp_flow_break(tcp, number, got == 0 ? 0 : errno);
        return false;
    }
    flow->in.dry = (size_t)got < (size_t)payload + ahead;
    uint32_t placed = (uint32_t)got < payload ? (uint32_t)got : payload;
    flow->in.placed_bytes += placed;
    flow->in.stage_to += (uint32_t)got - placed;
    return true;
}

/* The frame that went to its place, if that is whole now. Payload that has lost its place counts as
 * damaged where anybody should ask for it. */
static size_t take_placed(const struct tcp_port *tcp, struct tcp_flow *flow,
                          struct harp_arrival *arrival)
{
    uint8_t *header = placed_header(flow);
    uint32_t bytes = (uint32_t)harp_wire_frame_bytes(header);
    if (!flow->in.placing || flow->in.placed_bytes < bytes - HARP_HEADER_BYTES)
        return 0;
    *arrival = arrival_of(flow, header, bytes);
    arrival->payload = flow->in.place ? flow->in.place : tcp->nowhere;
    flow->in.header_at = (flow->in.header_at + 1) % (TCP_PLACED_MOST + 1);
    flow->in.placing = false;
    flow->in.ahead = HARP_HEADER_BYTES;
    return 1;
}

/* The rest of a frame goes on to its place only if the frame still has that. */
static void check_place(const struct tcp_port *tcp, struct tcp_flow *flow)
{
    if (flow->in.placing && flow->in.place && place_of(tcp, placed_header(flow)) != flow->in.place)
        flow->in.place = NULL;
}

static void move_to_front(struct tcp_flow *flow)
{
    uint32_t bytes = staged_bytes(flow);
    if (flow->in.stage_from)
        memmove(flow->in.stage, flow->in.stage + flow->in.stage_from, bytes);
    flow->in.stage_from = 0;
    flow->in.stage_to = bytes;
}

/* Whether one more call may bring frames: what is handed out of the stage must stay where it lies
 * until release, so then only a frame that goes to its place goes on. */
static bool may_read_on(const struct tcp_flow *flow, size_t n, size_t room)
{
    return n < room && flow->state == TCP_OPEN &&
           (n == 0 || flow->in.placing || flow->in.ahead == HARP_HEADER_BYTES) &&
           TCP_STAGE_BYTES - flow->in.stage_to >= HARP_HEADER_BYTES;
}

/* Frames of one flow: those that are there already, and what comes until the kernel has no more. */
static size_t take_flow(struct tcp_port *tcp, uint32_t number, struct harp_arrival *arrivals,
                        size_t room)
{
    struct tcp_flow *flow = tcp->flows[number];
    move_to_front(flow);
    check_place(tcp, flow);
    size_t n = take_staged(tcp, number, arrivals, room), placed = 0;
    while (placed < TCP_PLACED_BYTES && may_read_on(flow, n, room) && read_flow(tcp, number)) {
        size_t whole = take_placed(tcp, flow, arrivals + n);
        placed += whole ? arrivals[n].length : 0;
        n += whole;
        n += take_staged(tcp, number, arrivals + n, room - n);
        if (flow->in.dry)
            break;
    }
    return n;
}

static void list_all(struct tcp_port *tcp)
{
    for (uint32_t i = 0; i < tcp->flows_n; i++)
        if (tcp->flows[i] && tcp->flows[i]->state == TCP_OPEN)
            tcp_flow_list(tcp, i);
}

/* Whether epoll is to say which flows have something. Where nothing comes it costs one call, and
 * each flow another; where something came the last time, one call more than to ask a few. */
static bool asks_epoll(const struct tcp_port *tcp)
{
    return tcp->used_n > TCP_ASKED_FLOWS || (tcp->used_n > 1 && tcp->quiet);
}

/* A flow stays in the list while it may have more. */
static bool may_have_more(const struct tcp_flow *flow, size_t got)
{
    return flow->state == TCP_OPEN && got && (!flow->in.dry || flow->ending || staged_bytes(flow));
}

size_t tcp_port_receive(struct harp_port *port, uint64_t now_ns, struct harp_arrival *arrivals,
                        size_t room)
{
    struct tcp_port *tcp = (struct tcp_port *)port;
    bool by_epoll = asks_epoll(tcp);
    size_t count = 0;
    tcp->now_ns = now_ns;
    if (tcp->asleep || by_epoll || tcp->counts.connecting || tcp->counts.full)
        tcp_look(tcp);
    tcp->asleep = false;
    if (!by_epoll)
        list_all(tcp);
    uint32_t asked = tcp->ready_n, left = 0, i = 0;
    for (; i < asked && count < room; i++) {
        struct tcp_flow *flow = tcp->flows[tcp->ready[i]];
        size_t n = flow->state == TCP_OPEN
                       ? take_flow(tcp, tcp->ready[i], arrivals + count, room - count)
                       : 0;
        count += n;
        flow->listed = may_have_more(flow, n);
    }
    /* Those that were not asked come first the next time. */
    for (uint32_t rest = i; rest < asked; rest++) {
        uint32_t number = tcp->ready[rest];
        tcp->ready[rest] = tcp->ready[left];
        tcp->ready[left++] = number;
    }
    uint32_t kept = asked - i;
    for (uint32_t j = kept; j < asked; j++)
        if (tcp->flows[tcp->ready[j]]->listed)
            tcp->ready[kept++] = tcp->ready[j];
    tcp->ready_n = kept;
    tcp->quiet = count == 0;
    for (size_t a = 0; a < count; a++)
        port->counters.received_bytes += arrivals[a].length;
    port->counters.received += count;
    return count;
}
