/* Helpers for tests of the mem port. */
#ifndef PORT_MEM_END_H
#define PORT_MEM_END_H

#include <assert.h>
#include <stdio.h>
#include <time.h>

#include "ports/port.h"

static char why[HARP_WHY_BYTES];

static inline uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

static inline struct harp_port *open_port(uint32_t ring_bytes)
{
    struct harp_port *port = NULL;
    struct harp_port_config config = {.locals = 1, .ring_bytes = ring_bytes};
    int failed = harp_port_mem_open(&port, &config, why);
    assert(!failed && port->locals_n == 1 && port->locals[0].family == HARP_MEM);
    return port;
}

static inline int hop_to(struct harp_port *from, const struct harp_address *to)
{
    int hop = from->ops->hop(from, to, 0, why);
    if (hop < 0)
        fprintf(stderr, "%s\n", why);
    return hop;
}

static inline void tend_port(struct harp_port *port)
{
    port->ops->tend(port, now_ns());
}

#endif
