/* Frames of a tcp port out of a stream that comes in any pieces: short ones, long ones and runs,
 * with and without a place for their payload, which some lose while they come. */
#define _GNU_SOURCE
#include <netinet/in.h>
#include <sys/socket.h>

#include "port_pair.h"
#include "ports/port_tcp.h"
#include "virtual/random.h"

enum { FRAMES = 80, PIECE_MOST = 150000, LOST = 0xee };

struct frame {
    uint8_t header[HARP_HEADER_BYTES];
    uint32_t payload; /* bytes */
    uint8_t *place;   /* NULL: it has none */
    bool lost;
};

static struct frame frames[FRAMES];
static uint64_t chance;
static uint32_t places_given;

static uint32_t draw_below(uint32_t n)
{
    return (uint32_t)virtual_below(&chance, n);
}

static uint8_t *find_place(void *engine, const uint8_t *bytes)
{
    struct harp_header header;
    assert(harp_header_decode(bytes, harp_wire_frame_bytes(bytes), &header) == HARP_WIRE_OK);
    struct frame *frame = &frames[header.message];
    (void)engine;
    places_given += !frame->lost && frame->place;
    return frame->lost ? NULL : frame->place;
}

/* The frame that comes has no place any more. */
static void lose_place(struct frame *frame)
{
    if (frame->place)
        memset(frame->place, LOST, frame->payload);
    frame->lost = frame->place;
}

static void draw_frame(uint32_t number)
{
    struct frame *frame = &frames[number];
    struct harp_header header = {.version = HARP_VERSION, .type = HARP_DATA, .message = number};
    uint32_t kind = draw_below(4), most = draw_below(4) ? 30000 : TCP_SEGMENT;
    uint32_t last = kind ? 1 + draw_below(most) : draw_below(300);
    *frame = (struct frame){.payload = last};
    header.length = (uint16_t)last;
    if (kind == 3) { /* a run, whose last chunk is the shorter one */
        uint32_t chunks = 2 + draw_below(HARP_RUN_MOST - 1);
        header.length =
            (uint16_t)((last + HARP_CHUNK_ALIGN - 1) / HARP_CHUNK_ALIGN * HARP_CHUNK_ALIGN);
        header.flags = (uint8_t)(HARP_RUN + chunks);
        frame->payload += (chunks - 1) * header.length;
    }
    header.size = frame->payload;
    assert(harp_header_check(&header) == HARP_WIRE_OK);
    harp_header_encode(&header, frame->header);
    if (draw_below(3) && frame->payload)
        frame->place = malloc(frame->payload);
}

/* All frames one behind the other; returns how many bytes they are. */
static size_t draw_stream(uint8_t **stream)
{
    size_t bytes = 0, at = 0;
    for (uint32_t i = 0; i < FRAMES; i++) {
        draw_frame(i);
        bytes += HARP_HEADER_BYTES + frames[i].payload;
    }
    *stream = malloc(bytes);
    for (uint32_t i = 0; i < FRAMES; i++) {
        memcpy(*stream + at, frames[i].header, HARP_HEADER_BYTES);
        fill_datagram(*stream + at + HARP_HEADER_BYTES, frames[i].payload, i);
        at += HARP_HEADER_BYTES + frames[i].payload;
    }
    return bytes;
}

static void check_arrival(const struct harp_arrival *arrival, uint32_t number, bool known)
{
    const struct frame *frame = &frames[number];
    assert(arrival->length == HARP_HEADER_BYTES + frame->payload);
    assert(memcmp(arrival->bytes, frame->header, HARP_HEADER_BYTES) == 0);
    bool nowhere = !known && !frame->place && arrival->length > TCP_FRAME_MAX;
    assert(!nowhere || arrival->payload);
    if (!arrival->payload)
        check_datagram(arrival->bytes + HARP_HEADER_BYTES, frame->payload, number);
    else if (arrival->payload == frame->place)
        check_datagram(frame->place, frame->payload, number);
    else
        assert(frame->lost || nowhere);
    for (uint32_t i = 0; frame->lost && i < frame->payload; i++)
        assert(frame->place[i] == LOST);
}

static uint32_t take_arrivals(struct harp_port *port, uint32_t seen, bool known)
{
    struct harp_arrival in[HARP_BATCH];
    uint32_t before = places_given;
    size_t n = port->ops->receive(port, now_ns(), in, 1 + draw_below(HARP_BATCH));
    assert(places_given - before <= n + 1); /* a frame's is asked for once */
    for (size_t i = 0; i < n; i++)
        check_arrival(&in[i], seen++, known);
    port->ops->release(port, in, n);
    return seen;
}

static int connect_to(const struct harp_address *address, struct harp_address *own)
{
    union harp_sockaddr name;
    socklen_t bytes = harp_sockaddr_write(address, 0, &name);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert(fd >= 0 && connect(fd, &name.any, bytes) == 0);
    bytes = sizeof name;
    assert(getsockname(fd, &name.any, &bytes) == 0);
    harp_sockaddr_read(&name.any, own);
    own->family = HARP_TCP;
    return fd;
}

/* `known`: a path of ours uses the flow, so that its peer is no stranger. */
static void test_any_pieces_are_the_same_frames(struct harp_port *port, bool known)
{
    char why[HARP_WHY_BYTES] = "";
    struct harp_address from;
    uint8_t *stream;
    size_t bytes = draw_stream(&stream), at = 0;
    uint32_t seen = 0;
    int fd = connect_to(&port->locals[0], &from), hop = -1;
    port->ops->tend(port, now_ns());
    if (known)
        hop = port->ops->hop(port, &from, 0, why);
    assert(!known || hop >= 0);
    while (at < bytes) {
        size_t piece = 1 + draw_below(draw_below(2) ? 200 : PIECE_MOST);
        piece = piece < bytes - at ? piece : bytes - at;
        ssize_t sent = send(fd, stream + at, piece, MSG_DONTWAIT);
        at += sent > 0 ? (size_t)sent : 0;
        for (uint32_t looks = draw_below(4); looks; looks--)
            seen = take_arrivals(port, seen, known);
        if (seen < FRAMES && !frames[seen].lost && draw_below(20) == 0)
            lose_place(&frames[seen]);
    }
    for (uint64_t end_ns = now_ns() + PATIENCE_NS; seen < FRAMES; assert(now_ns() < end_ns))
        seen = take_arrivals(port, seen, known);
    if (known)
        port->ops->unhop(port, hop);
    close(fd);
    free(stream);
    for (uint32_t i = 0; i < FRAMES; i++)
        free(frames[i].place);
}

int main(void)
{
    char why[HARP_WHY_BYTES] = "";
    struct harp_port_config config = {.locals = 1, .placing.place = find_place};
    struct harp_port *port;
    assert(harp_address_parse("127.0.0.1", &config.local));
    assert(harp_port_tcp_open(&port, &config, why) == 0);
    for (uint64_t seed = 0; seed < 16; seed++) {
        chance = seed;
        test_any_pieces_are_the_same_frames(port, seed % 2);
    }
    port->ops->close(port);
    return 0;
}
