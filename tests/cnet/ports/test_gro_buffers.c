/* Datagrams that the kernel has joined, over a socket of this host: whole, in order, with their
 * marks. */
#define _GNU_SOURCE
#include "ports/gro_buffers.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/udp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/sockaddr.h"
#include "check.h"

enum { LEAST = 4, MOST = 16, SEGMENT = 1000, LAST = 300, CONGESTED = 3 };

static int from = -1, to = -1;
static struct sockaddr_in from_name;
static struct harp_gro_buffers gro;
static struct harp_port port;
static bool joins;

static int open_socket(struct sockaddr_in *name)
{
    socklen_t bytes = sizeof *name;
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    *name = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    CHECK(fd >= 0 && bind(fd, (struct sockaddr *)name, bytes) == 0, "no socket");
    CHECK(getsockname(fd, (struct sockaddr *)name, &bytes) == 0, "no name");
    return fd;
}

static void open_sockets(void)
{
    struct sockaddr_in to_name;
    to = open_socket(&to_name);
    from = open_socket(&from_name);
    CHECK(connect(from, (struct sockaddr *)&to_name, sizeof to_name) == 0, "connect");
    joins = harp_gro_ask_for(to, true);
    gro = (struct harp_gro_buffers){.least = LEAST, .most = MOST, .at_once = LEAST};
    gro.buffers = malloc((size_t)MOST * HARP_GRO_BUFFER_BYTES);
    CHECK(gro.buffers, "no memory");
}

/* Datagrams of one size but the last, in one call; byte i of all is i modulo 251. */
static void send_joined(uint32_t bytes, uint32_t segment, int traffic_class)
{
    static uint8_t payload[65000];
    for (uint32_t i = 0; i < bytes; i++)
        payload[i] = (uint8_t)(i % 251);
    int cut = (int)segment;
    CHECK(setsockopt(from, IPPROTO_UDP, UDP_SEGMENT, &cut, sizeof cut) == 0, "no UDP_SEGMENT");
    CHECK(setsockopt(from, IPPROTO_IP, IP_TOS, &traffic_class, sizeof traffic_class) == 0, "mark");
    CHECK(send(from, payload, bytes, 0) == (ssize_t)bytes, "send");
}

/* Take all that comes, `room` arrivals at a time, and compare it with what was sent. */
static void check_arrivals(uint32_t bytes, uint32_t segment, bool marked, size_t room)
{
    struct harp_arrival in[8];
    uint64_t before = port.counters.received, before_bytes = port.counters.received_bytes;
    uint32_t at = 0, n = 0;
    while (at < bytes) {
        if (!harp_gro_any(&gro))
            harp_gro_read(&gro, to, 5);
        size_t count = harp_gro_arrive(&gro, &port, in, room);
        CHECK(count > 0 && count <= room, "%zu arrivals", count);
        for (size_t i = 0; i < count; i++, n++) {
            uint32_t wanted = bytes - at < segment ? bytes - at : segment;
            CHECK(in[i].length == wanted && in[i].local == 5, "%u bytes, not %u", in[i].length,
                  wanted);
            for (uint32_t k = 0; k < wanted; k++)
                CHECK(in[i].bytes[k] == (at + k) % 251, "byte %u", at + k);
            CHECK(in[i].marked == marked && in[i].from->port == ntohs(from_name.sin_port),
                  "mark or sender");
            at += wanted;
        }
    }
    CHECK(!harp_gro_any(&gro) && harp_gro_read(&gro, to, 5) && !harp_gro_any(&gro), "more came");
    CHECK(port.counters.received - before == n, "%u were counted", n);
    CHECK(port.counters.received_bytes - before_bytes == bytes, "bytes");
}

/* The kernel joins what is sent to itself, as it came; without GRO each comes alone. */
static void test_joined_datagrams_arrive_one_by_one(void)
{
    for (size_t room = 1; room <= 8; room += 3) {
        send_joined(9 * SEGMENT + LAST, SEGMENT, 0);
        check_arrivals(9 * SEGMENT + LAST, SEGMENT, false, room);
    }
    send_joined(SEGMENT, SEGMENT, 0);
    check_arrivals(SEGMENT, SEGMENT, false, 8);
}

static void test_a_mark_of_congestion_is_seen(void)
{
    send_joined(3 * SEGMENT, SEGMENT, CONGESTED);
    check_arrivals(3 * SEGMENT, SEGMENT, true, 8);
    send_joined(3 * SEGMENT, SEGMENT, 2); /* ECT(0): it might have been marked */
    check_arrivals(3 * SEGMENT, SEGMENT, false, 8);
}

/* Where nothing is joined, each call brings more: up to the most, and fewer again afterwards. */
static void test_more_are_asked_for_while_nothing_is_joined(void)
{
    struct harp_arrival in[8];
    int single = 0;
    CHECK(setsockopt(from, IPPROTO_UDP, UDP_SEGMENT, &single, sizeof single) == 0, "option");
    for (uint32_t i = 0; i < 100; i++)
        CHECK(send(from, &i, sizeof i, 0) == sizeof i, "send");
    uint32_t n = 0, widest = 0;
    while (n < 100) {
        if (!harp_gro_any(&gro))
            harp_gro_read(&gro, to, 5);
        widest = gro.n > widest ? gro.n : widest;
        size_t count = harp_gro_arrive(&gro, &port, in, 8);
        CHECK(count > 0, "one was lost");
        for (size_t i = 0; i < count; i++, n++)
            CHECK(memcmp(in[i].bytes, &n, sizeof n) == 0, "number %u", n);
    }
    CHECK(widest == MOST, "at most %u in a call", widest);
    if (!joins)
        return;
    send_joined(3 * SEGMENT, SEGMENT, 0);
    check_arrivals(3 * SEGMENT, SEGMENT, false, 8);
    CHECK(gro.at_once == LEAST, "%u are asked for", gro.at_once);
}

int main(void)
{
    open_sockets();
    CHECK(harp_gro_read(&gro, to, 5) && !harp_gro_any(&gro), "nothing was sent");
    test_joined_datagrams_arrive_one_by_one();
    test_a_mark_of_congestion_is_seen();
    test_more_are_asked_for_while_nothing_is_joined();
    close(from);
    close(to);
    free(gro.buffers);
    return 0;
}
