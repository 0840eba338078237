/* The tcp port among strangers: connections that bring nothing. */
#define _GNU_SOURCE
#include <netinet/in.h>
#include <sys/socket.h>

#include "base/descriptors.h"
#include "port_pair.h"
#include "ports/port_tcp.h"

enum { STRANGERS = TCP_STRANGERS_MAX + 200 };

static int connect_to(const struct harp_address *address)
{
    union harp_sockaddr to;
    socklen_t bytes = harp_sockaddr_write(address, 0, &to);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert(fd >= 0 && connect(fd, &to.any, bytes) == 0);
    return fd;
}

/* More strangers come between two looks of the port than it keeps; a peer was there before them. */
static void test_a_peer_is_heard_before_strangers_take_its_place(struct harp_port *port)
{
    static int fds[STRANGERS];
    struct harp_arrival in[HARP_BATCH];
    struct harp_header header = {
        .version = HARP_VERSION, .type = HARP_PROBE, .connection = 0x1234, .epoch = 1};
    uint8_t frame[HARP_HEADER_BYTES] = {0};
    assert(harp_header_check(&header) == HARP_WIRE_OK);
    harp_header_encode(&header, frame);
    int peer = connect_to(&port->locals[0]);
    assert(send(peer, frame, sizeof frame, 0) == sizeof frame);
    for (int i = 0; i < STRANGERS; i++)
        fds[i] = connect_to(&port->locals[0]);
    port->ops->tend(port, now_ns()); /* looks whether anybody has come */
    assert(wait_for(port, in, HARP_BATCH) == 1 && in[0].length == sizeof frame);
    assert(memcmp(in[0].bytes, frame, sizeof frame) == 0);
    port->ops->release(port, in, 1);
    for (int i = 0; i < STRANGERS; i++)
        close(fds[i]);
    close(peer);
}

int main(void)
{
    char why[HARP_WHY_BYTES] = "";
    struct harp_port_config config = {.locals = 1};
    struct harp_port *port;
    harp_descriptors_raise();
    assert(harp_address_parse("127.0.0.1", &config.local));
    assert(harp_port_tcp_open(&port, &config, why) == 0);
    test_a_peer_is_heard_before_strangers_take_its_place(port);
    port->ops->close(port);
    return 0;
}
