/* ICMP errors about datagrams that UDP sockets sent, from their error queues.
 *
 * Anybody who can guess a socket's ports can forge it. The error queue shares the socket's memory
 * with what arrives, and each error that waits makes one call fail that would have sent or
 * received; so a flood of them would crowd out data. More than HARP_ICMP_AT_ONCE between two looks
 * is taken for a flood: what is queued is thrown away, and the port takes no errors for
 * HARP_ICMP_DEAF_NS, twice as long each time it goes on. Meanwhile timers find out.
 *
 * Owner: one port; not on the data path.
 */
#ifndef HARP_ICMP_H
#define HARP_ICMP_H

#include "ports/port.h"

enum { HARP_ICMP_AT_ONCE = 64 };
#define HARP_ICMP_DEAF_NS UINT64_C(100000000)
#define HARP_ICMP_DEAF_MOST_NS UINT64_C(10000000000)

struct harp_icmp {
    bool v4;
    bool deaf;
    uint64_t deaf_ns, until_ns; /* how long, the last time; and until when */
};

struct harp_icmp_error {
    struct harp_address to; /* of the datagram */
    int error;              /* as errno; EMSGSIZE: `mtu` is what the way takes */
    uint32_t mtu;
    bool ours;     /* this host says so itself, and said so to the call that sent the datagram */
    size_t quoted; /* bytes of the datagram */
    uint8_t quote[HARP_QUOTE_BYTES];
};

/* Have the socket collect what ICMP says, or not; then what it has collected is gone. */
void harp_icmp_ask_for(int fd, bool v4, bool on);

/* The next error; false if there is none. */
bool harp_icmp_next(int fd, struct harp_icmp_error *error);

/* More errors than may be: take none from all these sockets for some time. True at the beginning of
 * a flood, to be reported once. */
bool harp_icmp_flood(struct harp_icmp *icmp, const int *fds, uint32_t count, uint64_t now_ns);

/* Take errors again when the time has come. */
void harp_icmp_tend(struct harp_icmp *icmp, const int *fds, uint32_t count, uint64_t now_ns);

#endif
