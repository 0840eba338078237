/* The tcp port among strangers: connections that bring nothing; what a look at several flows costs;
 * flows that are given up; and memory that the application takes back before the kernel has all of
 * it. */
#define _GNU_SOURCE
#include <errno.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "base/descriptors.h"
#include "port_pair.h"
#include "ports/port_tcp.h"

enum { STRANGERS = TCP_STRANGERS_MAX + 200, GATHERED = TCP_PAYLOAD_MOST };

static int connect_to(const struct harp_address *address)
{
    union harp_sockaddr to;
    socklen_t bytes = harp_sockaddr_write(address, 0, &to);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert(fd >= 0 && connect(fd, &to.any, bytes) == 0);
    return fd;
}

/* A frame that any peer may send. */
static void send_probe(int peer)
{
    struct harp_header header = {
        .version = HARP_VERSION, .type = HARP_PROBE, .connection = 0x1234, .epoch = 1};
    uint8_t frame[HARP_HEADER_BYTES] = {0};
    assert(harp_header_check(&header) == HARP_WIRE_OK);
    harp_header_encode(&header, frame);
    assert(send(peer, frame, sizeof frame, 0) == sizeof frame);
}

/* One look of the port; *calls: of the kernel that it made. */
static size_t look_once(struct harp_port *port, uint64_t *calls)
{
    struct harp_arrival in[HARP_BATCH];
    uint64_t before = port->counters.receive_calls;
    size_t n = port->ops->receive(port, now_ns(), in, HARP_BATCH);
    port->ops->release(port, in, n);
    *calls = port->counters.receive_calls - before;
    return n;
}

/* One call says that no flow has anything, and one more for each flow that has brings it. */
static void test_a_look_asks_no_flow_that_has_nothing(struct harp_port *port)
{
    enum { PEERS = 2, LOOKS = 100 };
    int peers[PEERS];
    uint64_t calls = 0;
    for (int p = 0; p < PEERS; p++)
        peers[p] = connect_to(&port->locals[0]);
    port->ops->tend(port, now_ns());
    for (int p = 0; p <= PEERS; p++) {
        assert(look_once(port, &calls) == 0); /* the first look after news asks each of a few */
        for (int look = 0; look < LOOKS; look++)
            assert(look_once(port, &calls) == 0 && calls == 1);
        if (p == PEERS)
            break;
        send_probe(peers[p]);
        while (!look_once(port, &calls))
            assert(calls == 1);
        assert(calls == 2);
    }
    for (int p = 0; p < PEERS; p++)
        close(peers[p]);
}

/* More strangers come between two looks of the port than it keeps; a peer was there before them. */
static void test_a_peer_is_heard_before_strangers_take_its_place(struct harp_port *port)
{
    static int fds[STRANGERS];
    struct harp_arrival in[HARP_BATCH];
    int peer = connect_to(&port->locals[0]);
    send_probe(peer);
    for (int i = 0; i < STRANGERS; i++)
        fds[i] = connect_to(&port->locals[0]);
    port->ops->tend(port, now_ns()); /* looks whether anybody has come */
    assert(wait_for(port, in, HARP_BATCH) == 1 && in[0].length == HARP_HEADER_BYTES);
    assert(harp_wire_connection(in[0].bytes) == 0x1234);
    port->ops->release(port, in, 1);
    for (int i = 0; i < STRANGERS; i++)
        close(fds[i]);
    close(peer);
}

static int listen_on_loopback(struct harp_address *address)
{
    union harp_sockaddr own;
    socklen_t bytes = sizeof own;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert(harp_address_parse("127.0.0.1", address));
    bytes = harp_sockaddr_write(address, 0, &own);
    assert(fd >= 0 && bind(fd, &own.any, bytes) == 0 && listen(fd, 1) == 0);
    assert(getsockname(fd, &own.any, &bytes) == 0);
    harp_sockaddr_read(&own.any, address);
    address->family = HARP_TCP;
    return fd;
}

/* Frames until neither the peer, which reads nothing, nor the kernel takes more. */
static void fill_flow(struct harp_port *port, int hop)
{
    for (port->ops->tend(port, now_ns()); port->ops->room(port, hop);) {
        uint8_t *frame = port->ops->slot(port, hop, TCP_FRAME_MAX);
        assert(frame);
        memset(frame, 0, TCP_FRAME_MAX);
        port->ops->flush(port, now_ns());
    }
}

/* Bytes until the flow ends; why it does, in errno, is 0 where the other end closed it. */
static uint64_t read_to_the_end(int fd)
{
    static uint8_t bytes[1 << 16];
    uint64_t all = 0;
    ssize_t got;
    while ((got = recv(fd, bytes, sizeof bytes, 0)) > 0)
        all += (uint64_t)got;
    errno = got == 0 ? 0 : errno;
    return all;
}

/* What a path has left behind on its old flow would be sent a second time. */
static void test_what_is_given_up_does_not_leave(struct harp_port *port, bool shared)
{
    struct harp_address to;
    char why[HARP_WHY_BYTES] = "";
    int listener = listen_on_loopback(&to);
    uint64_t before = port->counters.sent_bytes;
    int hop = port->ops->hop(port, &to, 0, why);
    assert(hop >= 0 && (!shared || port->ops->hop(port, &to, 0, why) == hop));
    int peer = accept(listener, NULL, NULL);
    fill_flow(port, hop);
    port->ops->give_up(port, hop);
    port->ops->unhop(port, hop);
    if (shared)
        port->ops->unhop(port, hop);
    uint64_t got = read_to_the_end(peer);
    assert(errno == (shared ? 0 : ECONNRESET));
    assert(shared || got < port->counters.sent_bytes - before);
    close(peer);
    close(listener);
}

static uint8_t byte_at(uint64_t at)
{
    return (uint8_t)(at * 2654435761u >> 13);
}

/* Frames whose payload lies in `memory`, until the kernel takes no more of them. Returns how many.
 */
static uint64_t gather_frames(struct harp_port *port, int hop, const uint8_t *memory)
{
    uint64_t frames = 0;
    for (port->ops->tend(port, now_ns()); port->ops->room(port, hop); frames++) {
        uint8_t *header = port->ops->gather(port, hop, memory, GATHERED);
        assert(header);
        memset(header, 0xff, HARP_HEADER_BYTES);
        port->ops->flush(port, now_ns());
    }
    return frames;
}

/* The stream up to its end, where this many bytes have come. */
static uint64_t check_frames(struct harp_port *port, int peer, uint64_t bytes)
{
    static uint8_t part[1 << 16];
    uint64_t frame = HARP_HEADER_BYTES + GATHERED, at = 0;
    while (at < bytes) {
        port->ops->tend(port, now_ns());
        port->ops->flush(port, now_ns());
        ssize_t got = recv(peer, part, sizeof part, MSG_DONTWAIT);
        for (ssize_t i = 0; i < got; i++, at++) {
            uint64_t within = at % frame;
            uint8_t wanted =
                within < HARP_HEADER_BYTES ? 0xff : byte_at(within - HARP_HEADER_BYTES);
            assert(part[i] == wanted);
        }
    }
    return at;
}

/* The kernel has taken a part of the last frame. Memory elsewhere may change without a copy. */
static void test_memory_that_is_let_go_may_change(struct harp_port *port)
{
    static uint8_t memory[GATHERED], elsewhere[1 << 16];
    struct harp_address to;
    char why[HARP_WHY_BYTES] = "";
    int listener = listen_on_loopback(&to), hop = port->ops->hop(port, &to, 0, why);
    int peer = accept(listener, NULL, NULL);
    assert(hop >= 0 && peer >= 0);
    for (uint64_t i = 0; i < sizeof memory; i++)
        memory[i] = byte_at(i);
    uint64_t frames = gather_frames(port, hop, memory);
    const struct tcp_flow *flow = ((struct tcp_port *)port)->flows[hop];
    const struct iovec *last = &flow->out.pieces[flow->out.pieces_n - 1];
    const uint8_t *end = memory + sizeof memory;
    port->ops->let_go(port, hop, elsewhere, sizeof elsewhere);
    assert((uint8_t *)last->iov_base + last->iov_len == end); /* no copy was made */
    port->ops->let_go(port, hop, end - 1, 1);
    memset(memory, 0, sizeof memory);
    check_frames(port, peer, frames * (HARP_HEADER_BYTES + GATHERED));
    port->ops->unhop(port, hop);
    close(peer);
    close(listener);
}

int main(void)
{
    char why[HARP_WHY_BYTES] = "";
    struct harp_port_config config = {.locals = 1};
    struct harp_port *port;
    harp_descriptors_raise();
    assert(harp_address_parse("127.0.0.1", &config.local));
    assert(harp_port_tcp_open(&port, &config, why) == 0);
    test_a_look_asks_no_flow_that_has_nothing(port);
    test_a_peer_is_heard_before_strangers_take_its_place(port);
    test_what_is_given_up_does_not_leave(port, false);
    test_what_is_given_up_does_not_leave(port, true);
    test_memory_that_is_let_go_may_change(port);
    port->ops->close(port);
    return 0;
}
