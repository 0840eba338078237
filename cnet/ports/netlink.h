/* The kernel's links, addresses, routes and neighbours, by rtnetlink.
 *
 *     request socket:  question -> answer, one at a time      open, new routes, routes that changed
 *     monitor socket:  links, routes and neighbours that change, as they do
 *
 * Rtnetlink (rtnetlink(7)) spoken directly: four questions, each a fixed struct and a few
 * attributes long. A netlink library would be larger than what it replaces, and the core of HARP
 * needs no library but libc wherever it runs.
 *
 * The kernel answers a request before send returns, so that nothing here waits for the network; a
 * lost answer is -ETIMEDOUT after a second. But some requests wait for the kernel's lock of all
 * links (rtnl), which somebody may hold for long: those about links always, those about neighbours
 * before Linux 6.17. An engine that runs must not ask these. A notice of a change says how things
 * are now.
 *
 * Owner: one engine. Control plane: every call but harp_netlink_change costs two system calls.
 */
#ifndef HARP_NETLINK_H
#define HARP_NETLINK_H

#include <net/if.h>

#include "base/address.h"

struct harp_netlink {
    int request;
    int monitor; /* readable when something changed */
    uint32_t sequence;
    uint32_t read_bytes, next; /* of `events`: how much holds messages, where the next one begins */
    _Alignas(8) uint8_t events[8192];
};

struct harp_link {
    char name[IF_NAMESIZE];
    char kind[16]; /* what the kernel calls it, as "veth" or "bond"; "": hardware, or loopback */
    uint32_t index;
    uint32_t mtu;
    uint32_t queues;      /* the most that it can have, of the larger kind */
    uint32_t xdp_program; /* id of the XDP program that is attached, 0 if none */
    bool ethernet, up;
    uint8_t mac[6];
};

struct harp_route {
    uint32_t interface;
    struct harp_address next; /* the gateway, or the destination itself; port 0 */
    uint32_t mtu;             /* of the route, as far as it is known; 0: the interface's */
    bool to_self;             /* the destination is this host */
};

enum harp_change_type {
    HARP_CHANGE_LINK,
    HARP_CHANGE_ROUTE,
    HARP_CHANGE_NEIGHBOUR,
    HARP_CHANGE_LOST, /* too many: some were lost, and anything may have changed */
};

struct harp_change {
    enum harp_change_type type;
    uint32_t interface;          /* of links and neighbours */
    struct harp_link link;       /* LINK: as it is now; not up if it is gone */
    struct harp_address address; /* NEIGHBOUR: of this one; port 0 */
    bool known, stale;           /* and whether its Ethernet address is known: `mac` */
    uint8_t mac[6];
};

/* All return 0 or -errno. */
int harp_netlink_open(struct harp_netlink *netlink);
void harp_netlink_close(struct harp_netlink *netlink);

/* The link named so, or with that index if `name` is NULL. */
int harp_netlink_link(struct harp_netlink *netlink, const char *name, uint32_t index,
                      struct harp_link *link);

/* An interface's first address that other hosts can reach, IPv4 before IPv6, with port 0; -ENOENT
 * if it has none. */
int harp_netlink_address(struct harp_netlink *netlink, uint32_t index,
                         struct harp_address *address);

/* Find the route of UDP datagrams from one address to another; ports count where the kernel hashes
 * over several next hops. -ENETUNREACH, -EHOSTUNREACH and the like if there is none. */
int harp_netlink_route(struct harp_netlink *netlink, const struct harp_address *from,
                       const struct harp_address *to, struct harp_route *route);

/* A neighbour's Ethernet address; -ENOENT while the kernel does not know it. `stale`: the kernel
 * has not heard from it for some time and believes it is where it was. */
int harp_netlink_neighbour(struct harp_netlink *netlink, uint32_t index,
                           const struct harp_address *address, uint8_t mac[6], bool *stale);

/* The next thing that changed; false if nothing did. One system call a handful of changes. */
bool harp_netlink_change(struct harp_netlink *netlink, struct harp_change *change);

#endif
