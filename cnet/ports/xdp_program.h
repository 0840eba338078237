/* The XDP program that takes HARP's datagrams from a network card, and its maps.
 *
 *     packet --> Ethernet, IPv4 or IPv6, UDP? --> to an address and port in `ports`?
 *                        | no                         | no        | yes: queue
 *                        v                            v           v
 *                     kernel <---------------------- kernel    this interface, and that queue?
 *                        ^                                        | no       | yes
 *                        +----------------------------------------+          v
 *                        ^------ nobody is bound to the queue ------ socket in `sockets`
 *
 * Everything that is not HARP's goes on to the kernel: the host keeps ssh. Frames that the program
 * does not understand are not HARP's either: IP options and extension headers, fragments (a UDP
 * port is in the first one only), VLAN tags. Only the priority tag, VLAN 0, is seen through: it
 * belongs to the interface itself, and switches that sort traffic into classes add it. A virtual
 * interface may hand the program down to others (netvsc to its virtual function); a socket takes
 * nothing of theirs, and what was led to it would be lost.
 *
 * Just before a packet, in what XDP calls metadata, the program writes when it came: 8 bytes,
 * CLOCK_MONOTONIC. Some drivers have no room for it; then something else stands there.
 *
 * The program is some 80 instructions, assembled here at run time. Compiling it beforehand would
 * need a compiler for BPF to build, and libbpf and libelf to load; this needs bpf(2).
 */
#ifndef HARP_XDP_PROGRAM_H
#define HARP_XDP_PROGRAM_H

#include "base/address.h"

/* The name that the kernel knows it by. Programs with another number have other maps. */
#define HARP_XDP_PROGRAM_NAME "harp_xdp_1"
#define HARP_XDP_PROGRAM_STEM "harp_xdp_"

enum { HARP_XDP_PORTS_MAX = 8192 }; /* entries of `ports` on one interface */

/* Key of `ports`, in network order; the value is a queue, uint32_t. */
struct harp_xdp_port_key {
    uint8_t ip[16]; /* as struct harp_address */
    uint16_t port;
    uint16_t zero;
};

/* Descriptors of a program and its maps. */
struct harp_xdp_program {
    int program;
    int ports;
    int sockets; /* an XSKMAP: by queue */
};

struct harp_xdp_port_key harp_xdp_port_key(const struct harp_address *address);

/* Make the maps, for `queues` queues, and load the program for the interface with that index.
 * Returns 0, or -errno and one sentence in `why` (HARP_WHY_BYTES). */
int harp_xdp_program_load(struct harp_xdp_program *program, uint32_t interface, uint32_t queues,
                          char *why);

/* The program with that id, if it is HARP's. -ENOENT if it is gone by now; else -errno and one
 * sentence in `why`, which names the interface. */
int harp_xdp_program_find(struct harp_xdp_program *program, uint32_t id, const char *interface,
                          char *why);

/* Whether these are the program with that id and its own two maps, under HARP's name. */
bool harp_xdp_program_is(const struct harp_xdp_program *program, uint32_t id);

void harp_xdp_program_close(struct harp_xdp_program *program);

#endif
