#include "port.h"

#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/sequence.h"
#include "side.h"
#include "wire/crc32c.h"

#define HEADROOM 128
#define HEALED_NS (5 * DST_US) /* longest time until a completion when faults are over */
#define BURST (2 * HARP_BATCH)

struct hop {
    bool used;
    uint8_t path;
};

/* A datagram that was written, and then is on its way. */
struct busy {
    uint8_t *slot; /* or: */
    uint32_t frame, offset;
    uint32_t bytes;
    uint32_t crc; /* of the frame when it left */
    uint8_t path;
    uint64_t done_ns;
};

struct dst_port {
    struct harp_port port;
    struct dst_side *side;
    struct dst_card card;
    struct harp_frames *frames;
    struct harp_address locals[DST_PATHS];
    struct hop hops[DST_HOPS];
    struct dst_flight *queue[DST_QUEUE];
    uint32_t queue_n;
    uint32_t *fill;
    uint32_t fill_n;
    struct busy written[DST_BUSY], busy[DST_BUSY];
    uint32_t written_n, busy_n;
    /* the last burst */
    struct dst_flight *burst[BURST];
    struct harp_address from[BURST];
    uint32_t burst_n;
    bool forged;
    uint64_t state;
    bool unreachable;
    struct harp_address about;
};

static struct dst_side *next_side;

struct harp_address dst_address(uint8_t side, uint8_t path, uint32_t from)
{
    struct harp_address address = {.family = HARP_INET,
                                   .port = (uint16_t)(DST_PORT_BASE + path),
                                   .ip = {[10] = 0xff, [11] = 0xff, [12] = 10, [15] = side + 1}};
    if (from) {
        address.ip[12] = 11;
        address.ip[13] = (uint8_t)(from >> 16);
        address.ip[14] = (uint8_t)(from >> 8);
        address.ip[15] = (uint8_t)from;
    }
    return address;
}

static uint64_t now_of(const struct dst_port *port)
{
    return *port->side->true_ns;
}

/* The card is done with a datagram: what it read is what was to be sent. */
static void complete_send(struct dst_port *port, struct busy *busy)
{
    free(busy->slot);
    if (busy->slot || busy->frame == HARP_NO_FRAME)
        return;
    const uint8_t *at = harp_frame_at(port->frames, busy->frame) + busy->offset;
    DST_CHECK(harp_crc32c(at, busy->bytes) == busy->crc, "a frame changed while it was sent",
              busy->frame, port->frames->state[busy->frame]);
    bool kept = port->frames->state[busy->frame] == HARP_FRAME_SENDING;
    harp_frames_move(port->frames, busy->frame, kept ? HARP_FRAME_SENDING : HARP_FRAME_LEAVING,
                     kept ? HARP_FRAME_KEPT : HARP_FRAME_FREE);
}

static void complete_due(struct dst_port *port, uint64_t now_ns)
{
    uint32_t left = 0;
    for (uint32_t i = 0; i < port->busy_n; i++)
        if (port->busy[i].done_ns <= now_ns)
            complete_send(port, &port->busy[i]);
        else
            port->busy[left++] = port->busy[i];
    port->busy_n = left;
}

static void top_up(struct dst_port *port)
{
    if (port->card.pool)
        port->fill_n += harp_frames_take(port->frames, HARP_FRAME_FILL, port->fill + port->fill_n,
                                         port->card.fill - port->fill_n);
}

/* In ---------------------------------------------------------------------------------------- */

static bool brings_one_frame(const struct dst_flight *flight)
{
    return harp_wire_first_frame(flight->bytes, flight->bytes_n) == flight->bytes_n;
}

void dst_port_arrive(struct dst_port *port, struct dst_flight *flight)
{
    if (port->queue_n >= port->card.queue) {
        port->side->link->destroyed_data += flight->bytes_n > 1 && flight->bytes[1] == HARP_DATA;
        free(flight);
        return;
    }
    port->queue[port->queue_n++] = flight;
}

bool dst_port_waits(const struct dst_port *port)
{
    return port->queue_n > 0;
}

/* Into a frame of the pool, as a card does; false if it has none. */
static bool arrive_in_frame(struct dst_port *port, struct harp_arrival *arrival)
{
    if (!port->fill_n)
        return false;
    uint32_t frame = port->fill[--port->fill_n];
    uint8_t *to = harp_frame_at(port->frames, frame) + HEADROOM;
    memcpy(to, arrival->bytes, arrival->length);
    harp_frames_move(port->frames, frame, HARP_FRAME_FILL, HARP_FRAME_ARRIVED);
    arrival->bytes = to;
    arrival->frame = frame;
    return true;
}

static bool make_arrival(struct dst_port *port, struct dst_flight *flight,
                         struct harp_arrival *arrival)
{
    struct harp_address *from = &port->from[port->burst_n];
    *from = dst_address(!port->side->number, flight->path, flight->from);
    *arrival = (struct harp_arrival){.bytes = flight->bytes,
                                     .length = flight->bytes_n,
                                     .frame = HARP_NO_FRAME,
                                     .from = from,
                                     .local = port->side->number ? 0 : flight->path};
    port->burst[port->burst_n++] = flight;
    return !port->card.pool || arrive_in_frame(port, arrival);
}

static size_t port_receive(struct harp_port *harp, uint64_t now_ns, struct harp_arrival *arrivals,
                           size_t room)
{
    struct dst_port *port = (struct dst_port *)harp;
    (void)now_ns;
    complete_due(port, now_of(port));
    size_t n = 0;
    uint32_t taken = 0;
    port->burst_n = 0;
    port->forged = false;
    while (taken < port->queue_n && n < room && !port->forged) {
        struct dst_flight *flight = port->queue[taken];
        /* Of several frames in a spoilt datagram the others hold, and may change something. */
        bool forged = flight->forged && brings_one_frame(flight);
        if (forged && n)
            break;
        if (forged) {
            port->forged = true;
            port->state = dst_side_state(port->side);
        } else {
            port->side->heard_bytes[flight->from != 0] += flight->bytes_n;
        }
        n += make_arrival(port, flight, &arrivals[n]);
        taken++;
    }
    port->queue_n -= taken;
    memmove(port->queue, port->queue + taken, port->queue_n * sizeof *port->queue);
    if (!n)
        for (uint32_t i = 0; i < port->burst_n; i++)
            free(port->burst[i]);
    return n;
}

static void port_release(struct harp_port *harp, struct harp_arrival *arrivals, size_t count)
{
    struct dst_port *port = (struct dst_port *)harp;
    DST_CHECK(!port->forged || port->state == dst_side_state(port->side),
              "a forged frame changed the state", arrivals[0].bytes[1], arrivals[0].length);
    for (size_t i = 0; i < count; i++)
        if (arrivals[i].frame != HARP_NO_FRAME && !arrivals[i].kept) {
            harp_frames_move(port->frames, arrivals[i].frame, HARP_FRAME_ARRIVED, HARP_FRAME_FILL);
            port->fill[port->fill_n++] = arrivals[i].frame;
        }
    for (uint32_t i = 0; i < port->burst_n; i++)
        free(port->burst[i]);
    top_up(port);
}

/* Out --------------------------------------------------------------------------------------- */

static size_t port_room(struct harp_port *harp, int hop)
{
    struct dst_port *port = (struct dst_port *)harp;
    uint64_t now_ns = now_of(port);
    DST_CHECK(hop >= 0 && hop < DST_HOPS && port->hops[hop].used, "no such hop", hop, 0);
    bool full = now_ns >= port->card.full_from_ns && now_ns < port->card.full_to_ns;
    return full ? 0 : port->card.ring - port->busy_n - port->written_n;
}

static struct busy *write_datagram(struct dst_port *port, int hop, uint32_t bytes)
{
    if (!port_room(&port->port, hop))
        return NULL;
    DST_CHECK(bytes <= port->port.payload_max, "a datagram longer than its port takes", bytes, hop);
    struct busy *busy = &port->written[port->written_n++];
    *busy = (struct busy){.bytes = bytes, .path = port->hops[hop].path, .frame = HARP_NO_FRAME};
    return busy;
}

static uint8_t *port_slot(struct harp_port *harp, int hop, uint32_t bytes)
{
    struct busy *busy = write_datagram((struct dst_port *)harp, hop, bytes);
    return busy ? busy->slot = malloc(bytes > HARP_JOINED_BYTES ? bytes : HARP_JOINED_BYTES) : NULL;
}

static uint8_t *port_lengthen(struct harp_port *harp, int hop, uint32_t bytes, uint32_t most)
{
    struct dst_port *port = (struct dst_port *)harp;
    struct busy *last = port->written_n ? &port->written[port->written_n - 1] : NULL;
    most = (uint32_t)harp_min(most, harp->payload_max);
    if (!last || !last->slot || last->path != port->hops[hop].path || last->bytes % 4 ||
        last->bytes + bytes > most)
        return NULL;
    last->bytes += bytes;
    return last->slot + last->bytes - bytes;
}

static bool port_send_frame(struct harp_port *harp, int hop, uint32_t frame, uint32_t offset,
                            uint32_t bytes)
{
    struct dst_port *port = (struct dst_port *)harp;
    enum harp_frame_state state = port->frames->state[frame];
    DST_CHECK(state == HARP_FRAME_SENDING || state == HARP_FRAME_LEAVING, "sent from a state",
              frame, state);
    struct busy *busy = write_datagram(port, hop, bytes);
    if (!busy)
        return false;
    busy->frame = frame;
    busy->offset = offset;
    return true;
}

static void send_to_link(struct dst_port *port, struct busy *busy)
{
    struct dst_side *side = port->side;
    uint8_t bytes[DST_FRAME_MAX];
    const uint8_t *from =
        busy->slot ? busy->slot : harp_frame_at(port->frames, busy->frame) + busy->offset;
    memcpy(bytes, from, busy->bytes);
    busy->crc = harp_crc32c(bytes, busy->bytes);
    bool healed = now_of(port) >= side->link->heal_ns;
    uint64_t most_ns =
        healed ? harp_min(port->card.complete_ns, HEALED_NS) : port->card.complete_ns;
    busy->done_ns = now_of(port) + virtual_below(&side->random, most_ns + 1);
    if (!busy->slot && !healed && virtual_chance(&side->random, port->card.missing) &&
        port->busy_n < port->card.ring / DST_RING_MISSING)
        busy->done_ns = HARP_NEVER;
    if (busy->path == DST_NOWHERE || (side->number == 1 && !dst_side_established(side))) {
        bool stranger = busy->path == DST_NOWHERE;
        side->answered_bytes[stranger] += busy->bytes;
        DST_CHECK(side->answered_bytes[stranger] <= side->heard_bytes[stranger] || !side->trusts,
                  "answers outweigh requests", side->answered_bytes[stranger],
                  side->heard_bytes[stranger]);
    }
    if (busy->path == DST_NOWHERE)
        return;
    dst_side_spoil(side, bytes, busy->bytes);
    dst_link_send(side->link, now_of(port), !side->number, busy->path % DST_PATHS, bytes,
                  busy->bytes);
}

static void port_flush(struct harp_port *harp, uint64_t now_ns)
{
    struct dst_port *port = (struct dst_port *)harp;
    (void)now_ns;
    for (uint32_t i = 0; i < port->written_n; i++) {
        send_to_link(port, &port->written[i]);
        port->busy[port->busy_n++] = port->written[i];
    }
    port->written_n = 0;
    complete_due(port, now_of(port));
}

/* The rest ---------------------------------------------------------------------------------- */

static void port_tend(struct harp_port *harp, uint64_t now_ns)
{
    (void)now_ns;
    top_up((struct dst_port *)harp);
}

void dst_port_unreachable(struct dst_port *port, uint8_t path)
{
    port->unreachable = true;
    port->about = dst_address(!port->side->number, port->side->number ? path : 0, 0);
}

static bool port_notice(struct harp_port *harp, struct harp_notice *notice)
{
    struct dst_port *port = (struct dst_port *)harp;
    *notice = (struct harp_notice){.type = HARP_NOTICE_UNREACHABLE, .about = port->about};
    bool any = port->unreachable;
    port->unreachable = false;
    return any;
}

/* Strangers' addresses lead nowhere, but how many bytes went there counts. */
static int port_hop(struct harp_port *harp, const struct harp_address *to, uint16_t local,
                    char *why)
{
    struct dst_port *port = (struct dst_port *)harp;
    (void)why;
    for (int i = 0; i < DST_HOPS; i++)
        if (!port->hops[i].used) {
            uint8_t path = (uint8_t)(port->side->number ? to->port - DST_PORT_BASE : local);
            port->hops[i] =
                (struct hop){.used = true, .path = to->ip[12] == 11 ? DST_NOWHERE : path};
            return i;
        }
    dst_fail("more hops than paths", to->port, local);
}

static void port_unhop(struct harp_port *harp, int hop)
{
    struct dst_port *port = (struct dst_port *)harp;
    DST_CHECK(hop >= 0 && hop < DST_HOPS && port->hops[hop].used, "no such hop", hop, 1);
    port->hops[hop].used = false;
}

uint32_t dst_port_hops(const struct dst_port *port)
{
    uint32_t n = 0;
    for (int i = 0; i < DST_HOPS; i++)
        n += port->hops[i].used;
    return n;
}

static uint32_t port_hop_payload_max(const struct harp_port *harp, int hop)
{
    (void)hop;
    return harp->payload_max;
}

static int port_fd(const struct harp_port *harp)
{
    (void)harp;
    return -1;
}

static bool port_sleep(struct harp_port *harp)
{
    return !dst_port_waits((struct dst_port *)harp);
}

/* By the engine's clock. */
static uint64_t port_deadline_ns(const struct harp_port *harp)
{
    const struct dst_port *port = (const struct dst_port *)harp;
    uint64_t at_ns = port->queue_n ? now_of(port) : HARP_NEVER;
    for (uint32_t i = 0; i < port->busy_n; i++)
        at_ns = harp_min(at_ns, port->busy[i].done_ns);
    return at_ns == HARP_NEVER ? at_ns : at_ns + (uint64_t)port->side->clock_off_ns;
}

static void port_close(struct harp_port *harp)
{
    struct dst_port *port = (struct dst_port *)harp;
    for (uint32_t i = 0; i < port->busy_n; i++)
        complete_send(port, &port->busy[i]);
    for (uint32_t i = 0; i < port->written_n; i++)
        free(port->written[i].slot);
    for (uint32_t i = 0; i < port->queue_n; i++)
        free(port->queue[i]);
    for (uint32_t i = 0; i < port->fill_n; i++)
        harp_frames_move(port->frames, port->fill[i], HARP_FRAME_FILL, HARP_FRAME_FREE);
    free(port->fill);
    free(port);
}

static const struct harp_port_ops with_frames = {
    .name = "dst",
    .receive = port_receive,
    .release = port_release,
    .room = port_room,
    .slot = port_slot,
    .lengthen = port_lengthen,
    .send_frame = port_send_frame,
    .flush = port_flush,
    .tend = port_tend,
    .notice = port_notice,
    .hop = port_hop,
    .unhop = port_unhop,
    .hop_payload_max = port_hop_payload_max,
    .fd = port_fd,
    .sleep = port_sleep,
    .deadline_ns = port_deadline_ns,
    .close = port_close,
};

void dst_port_next(struct dst_side *side)
{
    next_side = side;
}

int dst_port_open(struct harp_port **out, const struct harp_port_config *config, char *why)
{
    static struct harp_port_ops own_memory;
    (void)why;
    own_memory = with_frames;
    own_memory.send_frame = NULL;
    struct dst_port *port = calloc(1, sizeof *port);
    port->side = next_side;
    port->card = next_side->card;
    port->frames = config->frames;
    for (uint8_t p = 0; p < DST_PATHS; p++)
        port->locals[p] = dst_address(next_side->number, p, 0);
    port->port.ops = port->card.pool ? &with_frames : &own_memory;
    port->port.locals = port->locals;
    port->port.locals_n = next_side->number ? 1 : DST_PATHS;
    port->port.payload_max = port->card.payload_max;
    port->port.headroom = HEADROOM;
    port->fill = calloc(port->card.fill + BURST + 1, sizeof *port->fill);
    top_up(port);
    next_side->port = port;
    *out = &port->port;
    return 0;
}
