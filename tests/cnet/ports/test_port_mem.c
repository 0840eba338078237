/* The mem port: datagrams between threads and processes, whole and in order; and how they end.
 *
 * usage: test_port_mem [threads]   with "threads", only what ThreadSanitizer is to see
 */
#define _GNU_SOURCE
#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "port_mem_end.h"
#include "ports/port_mem.h"
#include "ports/port_mem_ring.h"

/* Length of the i-th datagram: all kinds of sizes, and the largest now and then. */
static uint32_t length_of(uint64_t i, uint32_t most)
{
    uint64_t mixed = i * UINT64_C(0x9e3779b97f4a7c15);
    uint32_t length = (uint32_t)(mixed >> (32 + mixed % 16)) % (most - 8) + 8;
    return i % 97 == 0 ? most : length;
}

static void fill_datagram(uint8_t *bytes, uint32_t length, uint64_t i)
{
    memset(bytes, (int)(i * 31 + 7), length);
    memcpy(bytes, &i, sizeof i);
}

static bool is_filled(const uint8_t *bytes, uint32_t length, uint64_t i)
{
    uint64_t got;
    memcpy(&got, bytes, sizeof got);
    if (got != i)
        return false;
    for (uint32_t at = sizeof got; at < length; at++)
        if (bytes[at] != (uint8_t)(i * 31 + 7))
            return false;
    return true;
}

/* Write datagrams i.. up to `count` while there is room; returns the next. */
static uint64_t send_some(struct harp_port *port, int hop, uint64_t i, uint64_t count,
                          uint32_t most)
{
    for (int n = 0; n < 64 && i < count && port->ops->room(port, hop) > 0; n++, i++) {
        uint32_t length = length_of(i, most);
        uint8_t *bytes = port->ops->slot(port, hop, length);
        assert(bytes && ((uintptr_t)bytes + HARP_HEADER_BYTES) % 64 == 0);
        fill_datagram(bytes, length, i);
    }
    port->ops->flush(port, now_ns());
    return i;
}

static uint64_t receive_some(struct harp_port *port, uint64_t i, uint32_t most,
                             struct harp_address *from)
{
    struct harp_arrival arrivals[32];
    size_t count = port->ops->receive(port, now_ns(), arrivals, 32);
    for (size_t k = 0; k < count; k++, i++) {
        assert(arrivals[k].length == length_of(i, most) && arrivals[k].frame == HARP_NO_FRAME);
        assert(is_filled(arrivals[k].bytes, arrivals[k].length, i));
        if (from)
            *from = *arrivals[k].from;
    }
    if (count)
        port->ops->release(port, arrivals, count);
    return i;
}

/* Wait in the kernel until something may have come. */
static void wait_for(struct harp_port *port)
{
    tend_port(port);
    if (!port->ops->sleep(port))
        return;
    struct pollfd fd = {.fd = port->ops->fd(port), .events = POLLIN};
    int ready = poll(&fd, 1, 30000);
    assert(ready == 1);
}

static void wait_unreachable(struct harp_port *port, const struct harp_address *about)
{
    struct harp_notice notice;
    struct harp_arrival arrivals[8];
    for (;;) {
        size_t count = port->ops->receive(port, now_ns(), arrivals, 8);
        if (count)
            port->ops->release(port, arrivals, count);
        wait_for(port);
        tend_port(port);
        if (port->ops->notice(port, &notice))
            break;
    }
    assert(notice.type == HARP_NOTICE_GONE && harp_address_same(&notice.about, about));
    assert(!port->ops->notice(port, &notice));
}

/* ---- One thread ---- */

static void test_every_size_and_wrap(void)
{
    struct harp_port *a = open_port(1), *b = open_port(1);
    struct harp_address from = {0};
    int hop = hop_to(a, &b->locals[0]);
    assert(hop >= 0 && hop_to(a, &b->locals[0]) == hop);
    tend_port(b);
    uint32_t most = a->payload_max;
    assert(a->ops->hop_payload_max(a, hop) == most && most == HARP_HEADER_BYTES + 65408);
    for (uint64_t sent = 0, got = 0; got < 5000;) {
        sent = send_some(a, hop, sent, 5000, most);
        got = receive_some(b, got, most, &from);
    }
    assert(harp_address_same(&from, &a->locals[0]));
    /* The same link leads back. */
    int back = hop_to(b, &from);
    for (uint64_t sent = 0, got = 0; got < 500;) {
        sent = send_some(b, back, sent, 500, most);
        got = receive_some(a, got, most, &from);
    }
    assert(a->counters.sent == 5000 && b->counters.received == 5000 && a->counters.dropped == 0);
    struct harp_address gone = b->locals[0];
    b->ops->close(b);
    wait_unreachable(a, &gone);
    assert(a->ops->room(a, hop) > 0 && !a->ops->slot(a, hop, 100));
    a->ops->unhop(a, hop);
    a->ops->unhop(a, hop);
    assert(a->ops->hop(a, &gone, 0, why) == -ECONNREFUSED && strstr(why, "mem:"));
    a->ops->close(a);
}

static void test_full_ring_keeps_what_it_has(void)
{
    struct harp_port *a = open_port(1), *b = open_port(1);
    int hop = hop_to(a, &b->locals[0]);
    uint64_t sent = 0, got = 0, before;
    tend_port(b);
    do {
        before = sent;
        sent = send_some(a, hop, sent, UINT64_MAX, 1000);
    } while (sent > before);
    assert(a->ops->room(a, hop) == 0 && a->ops->deadline_ns(a) != UINT64_MAX);
    while (a->ops->slot(a, hop, 60000))
        ;
    uint64_t dropped = a->counters.dropped;
    assert(dropped == 1);
    /* A reader that stands still is no reason to hold back for ever. */
    a->ops->tend(a, now_ns() + UINT64_C(1000000000));
    assert(a->ops->room(a, hop) > 0 && !a->ops->slot(a, hop, 60000));
    while (got < sent)
        got = receive_some(b, got, 1000, NULL);
    a->ops->tend(a, now_ns() + UINT64_C(1000000000));
    assert(a->ops->slot(a, hop, 60000) && a->ops->deadline_ns(a) == UINT64_MAX);
    a->ops->close(a);
    b->ops->close(b);
}

static void test_a_port_reaches_itself(void)
{
    struct harp_port *port = open_port(1);
    int hop = hop_to(port, &port->locals[0]);
    struct harp_address from = {0};
    tend_port(port);
    for (uint64_t sent = 0, got = 0; got < 1000;) {
        sent = send_some(port, hop, sent, 1000, 5000);
        got = receive_some(port, got, 5000, &from);
    }
    assert(harp_address_same(&from, &port->locals[0]));
    port->ops->close(port);
}

static void test_wrong_addresses(void)
{
    struct harp_port *port = open_port(0);
    struct harp_address address;
    assert(harp_address_parse("10.0.0.1:7000", &address));
    assert(port->ops->hop(port, &address, 0, why) == -EAFNOSUPPORT && strstr(why, "10.0.0.1"));
    port->ops->close(port);
    struct harp_port_config config = {.locals = 1, .ring_bytes = UINT32_MAX};
    assert(harp_port_mem_open(&port, &config, why) == -EINVAL && strstr(why, "ring_bytes"));
}

/* ---- Two threads ---- */

enum { DATAGRAMS = 60000, PINGS = 3000, MOST = 4000 };

static void *receive_all(void *argument)
{
    struct harp_port *port = argument;
    for (uint64_t got = 0, before = 0; got < DATAGRAMS; before = got) {
        got = receive_some(port, got, MOST, NULL);
        if (got == before)
            wait_for(port);
    }
    return NULL;
}

static void *echo_all(void *argument)
{
    struct harp_port *port = argument;
    int back = -1;
    for (uint64_t got = 0; got < PINGS;) {
        struct harp_address from;
        uint64_t next = receive_some(port, got, MOST, &from);
        if (next == got) {
            wait_for(port);
            continue;
        }
        if (back < 0)
            back = hop_to(port, &from);
        send_some(port, back, got, next, MOST);
        got = next;
    }
    return NULL;
}

static void test_two_threads(void)
{
    struct harp_port *a = open_port(1 << 20), *b = open_port(1);
    int hop = hop_to(a, &b->locals[0]);
    pthread_t thread;
    pthread_create(&thread, NULL, receive_all, b);
    for (uint64_t sent = 0, before = 0; sent < DATAGRAMS; before = sent) {
        sent = send_some(a, hop, sent, DATAGRAMS, MOST);
        if (sent == before)
            sched_yield();
    }
    pthread_join(thread, NULL);
    assert(b->counters.received == DATAGRAMS);
    /* Both sleep between one datagram and the next: no wake-up may be lost. */
    pthread_create(&thread, NULL, echo_all, b);
    for (uint64_t i = 0; i < PINGS; i++) {
        send_some(a, hop, i, i + 1, MOST);
        while (receive_some(a, i, MOST, NULL) == i)
            wait_for(a);
    }
    pthread_join(thread, NULL);
    a->ops->close(a);
    b->ops->close(b);
}

/* ---- Two processes ---- */

static void child_sends(const struct harp_address *to, bool closes, uint64_t count)
{
    struct harp_port *port = open_port(1 << 20);
    int hop = hop_to(port, to);
    for (uint64_t sent = 0; sent < count;)
        sent = send_some(port, hop, sent, count, MOST);
    if (closes)
        port->ops->close(port);
    else
        raise(SIGKILL);
    _exit(0);
}

static void test_a_peer_that_ends(bool closes)
{
    enum { COUNT = 300 }; /* they fit into the ring, so that all are there when it ends */
    struct harp_port *port = open_port(0);
    struct harp_address from = {0};
    pid_t child = fork();
    if (child == 0) {
        struct harp_address name = port->locals[0];
        port->ops->close(port);
        child_sends(&name, closes, COUNT);
    }
    int status;
    waitpid(child, &status, 0);
    assert(closes ? status == 0 : WTERMSIG(status) == SIGKILL);
    uint64_t got = 0;
    while (got < COUNT) {
        uint64_t before = got;
        got = receive_some(port, got, MOST, &from);
        if (got == before)
            wait_for(port);
    }
    wait_unreachable(port, &from);
    assert(port->ops->hop(port, &from, 0, why) < 0);
    port->ops->close(port);
}

static bool has_name(const struct harp_address *address)
{
    return access(mem_name(address).sun_path, F_OK) == 0;
}

static void test_names_of_the_dead_go(void)
{
    struct harp_port *port = open_port(0), *other = open_port(0);
    struct harp_address gone = other->locals[0],
                        *left = mmap(NULL, sizeof *left, PROT_READ | PROT_WRITE,
                                     MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert(left != MAP_FAILED && has_name(&gone));
    other->ops->close(other);
    assert(!has_name(&gone));
    if (fork() == 0) {
        *left = open_port(0)->locals[0];
        raise(SIGKILL);
    }
    wait(NULL);
    other = open_port(0); /* takes the dead one's name away, and nobody else's */
    assert(!has_name(left) && has_name(&port->locals[0]) && has_name(&other->locals[0]));
    assert(hop_to(other, &port->locals[0]) >= 0);
    port->ops->close(port);
    other->ops->close(other);
    munmap(left, sizeof *left);
}

static void test_a_child_of_fork_ends_nothing(void)
{
    struct harp_port *a = open_port(1), *b = open_port(1);
    int hop = hop_to(a, &b->locals[0]), status;
    tend_port(b);
    pid_t child = fork();
    if (child == 0) {
        a->ops->close(a);
        b->ops->close(b);
        _exit(0);
    }
    waitpid(child, &status, 0);
    assert(status == 0);
    send_some(a, hop, 0, 10, MOST);
    assert(receive_some(b, 0, MOST, NULL) == 10);
    a->ops->close(a);
    b->ops->close(b);
}

int main(int count, char **arguments)
{
    test_two_threads();
    if (count > 1 && strcmp(arguments[1], "threads") == 0)
        return 0;
    test_every_size_and_wrap();
    test_full_ring_keeps_what_it_has();
    test_a_port_reaches_itself();
    test_wrong_addresses();
    test_a_peer_that_ends(true);
    test_a_peer_that_ends(false);
    test_names_of_the_dead_go();
    test_a_child_of_fork_ends_nothing();
    return 0;
}
