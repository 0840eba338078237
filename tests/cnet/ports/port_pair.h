/* Helpers for tests of ports: two ports, perhaps in two network namespaces, and datagrams between
 * them. */
#ifndef PORT_PAIR_H
#define PORT_PAIR_H

#ifndef _GNU_SOURCE
#error "port_pair.h needs _GNU_SOURCE before the first header"
#endif
#include <assert.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "ports/port.h"

struct end {
    const char *ip, *space; /* file of its network namespace, or "-" for where we are */
    struct harp_port *port;
};

static inline uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

/* From here on this thread is in the end's namespace. */
static inline void enter_namespace(const struct end *end)
{
    if (strcmp(end->space, "-") == 0)
        return;
    int fd = open(end->space, O_RDONLY | O_CLOEXEC);
    assert(fd >= 0 && setns(fd, CLONE_NEWNET) == 0);
    close(fd);
}

static inline void open_end(struct end *end, uint16_t locals)
{
    char why[HARP_WHY_BYTES] = "";
    struct harp_port_config config = {.locals = locals};
    enter_namespace(end);
    assert(harp_address_parse(end->ip, &config.local));
    int error = harp_port_udp_open(&end->port, &config, why);
    if (error)
        fprintf(stderr, "%s\n", why);
    assert(!error && end->port->locals_n == locals);
}

static inline int hop_to(const struct end *end, const struct harp_address *to, uint16_t local)
{
    char why[HARP_WHY_BYTES] = "";
    enter_namespace(end);
    int hop = end->port->ops->hop(end->port, to, local, why);
    if (hop < 0)
        fprintf(stderr, "%s\n", why);
    assert(hop >= 0);
    return hop;
}

/* Bytes that depend on the datagram's number and on their place. */
static inline uint8_t byte_of(uint64_t number, uint32_t at)
{
    return (uint8_t)((number * 2654435761u + at * 40503u) >> 7 ^ at);
}

static inline void fill_datagram(uint8_t *bytes, uint32_t length, uint64_t number)
{
    for (uint32_t i = 0; i < length; i++)
        bytes[i] = byte_of(number, i);
}

static inline void check_datagram(const uint8_t *bytes, uint32_t length, uint64_t number)
{
    for (uint32_t i = 0; i < length; i++)
        assert(bytes[i] == byte_of(number, i));
}

static inline bool put_datagram(struct harp_port *port, int hop, uint32_t length, uint64_t number)
{
    uint8_t *slot = port->ops->slot(port, hop, length);
    if (slot)
        fill_datagram(slot, length, number);
    return slot != NULL;
}

/* The same, and the datagram says its number: for paths that lose some. */
static inline bool put_numbered(struct harp_port *port, int hop, uint32_t length, uint64_t number)
{
    uint8_t *slot = port->ops->slot(port, hop, length);
    if (!slot)
        return false;
    memcpy(slot, &number, sizeof number);
    fill_datagram(slot + sizeof number, length - sizeof number, number);
    return true;
}

static inline uint64_t check_numbered(const uint8_t *bytes, uint32_t length)
{
    uint64_t number;
    memcpy(&number, bytes, sizeof number);
    check_datagram(bytes + sizeof number, length - sizeof number, number);
    return number;
}

#define PATIENCE_NS UINT64_C(50000000000)

/* The next arrivals, however long they take; a failed assertion when none come at all. */
static inline size_t wait_for(struct harp_port *port, struct harp_arrival *arrivals, size_t room)
{
    uint64_t end_ns = now_ns() + PATIENCE_NS;
    for (;;) {
        size_t n = port->ops->receive(port, now_ns(), arrivals, room);
        if (n)
            return n;
        assert(now_ns() < end_ns);
    }
}

#endif
