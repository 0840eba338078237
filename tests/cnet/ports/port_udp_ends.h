/* The two ends of a test of the udp port, and the choice of the test. */
#ifndef PORT_UDP_ENDS_H
#define PORT_UDP_ENDS_H

#include <poll.h>

#include "port_pair.h"

static struct end a, b;

/* Until a first datagram comes through: the neighbour's address may have to be asked for, and what
 * waits for the answer may be lost. Then until no more of them come. */
static inline void warm_up(int hop)
{
    struct harp_arrival in[HARP_BATCH];
    size_t n = 0;
    uint64_t sent = 0, came = 0, end_ns = now_ns() + PATIENCE_NS;
    struct pollfd readable = {.fd = b.port->ops->fd(b.port), .events = POLLIN};
    while (came < sent || sent == 0) {
        if (n == 0 && came == 0) {
            put_datagram(a.port, hop, 9, 0);
            a.port->ops->flush(a.port, now_ns());
            sent++;
        }
        poll(&readable, 1, 10);
        n = b.port->ops->receive(b.port, now_ns(), in, HARP_BATCH);
        for (size_t i = 0; i < n; i++)
            assert(in[i].length == 9);
        came += n;
        b.port->ops->release(b.port, in, n);
        assert(now_ns() < end_ns);
    }
    memset(&a.port->counters, 0, sizeof a.port->counters);
    memset(&b.port->counters, 0, sizeof b.port->counters);
}

struct named_test {
    const char *name;
    void (*run)(void);
};

/* Run the test that words[1] names between the ends that the other words tell. */
static inline int run_named_test(const struct named_test *tests, size_t tests_n, int count,
                                 char **words)
{
    assert(count == 6);
    a = (struct end){.ip = words[2], .space = words[3]};
    b = (struct end){.ip = words[4], .space = words[5]};
    for (size_t i = 0; i < tests_n; i++) {
        if (strcmp(tests[i].name, words[1]) != 0)
            continue;
        tests[i].run();
        if (a.port)
            a.port->ops->close(a.port);
        if (b.port)
            b.port->ops->close(b.port);
        return 0;
    }
    return 2;
}

#endif
