/* The udp port, as its own files share it.
 *
 *     port_udp.c         open, close, hops, waiting
 *     port_udp_socket.c  addresses, sockets, what the kernel offers
 *     port_udp_send.c    staging, flush
 *     port_udp_receive.c arrivals, errors that ICMP brings
 *
 * Sending: datagrams of equal size to one hop lie back to back and leave as one super-packet, which
 * the kernel or the card cuts (UDP_SEGMENT); the last may be shorter.
 *
 *     staging  | A A A A A a | B B B | C | ... free ...         equal ones, and a shorter one
 *              <- one packet -> <-----> <->
 *
 * Connections to one peer have hops of their own that lead to the same address, and share packets.
 * So a small message and an ACK of another connection that goes along leave as one, the longer
 * before the shorter: a way through the kernel costs more than these bytes do.
 *
 * Receiving: gro_buffers.h.
 */
#ifndef HARP_PORT_UDP_H
#define HARP_PORT_UDP_H

#include <sys/socket.h>

#include "base/sockaddr.h"
#include "ports/gro_buffers.h"
#include "ports/headers.h"
#include "ports/icmp.h"
#include "ports/interface.h"
#include "ports/port.h"

#define UDP_GSO_BYTES 65507u /* largest UDP payload over IPv4, and the kernel's limit here */
#define UDP_GSO_SEGMENTS 64u /* the kernel's limit before 6.9; 128 since */
#define UDP_STAGED 64u       /* datagrams of any size that may wait to leave */
#define UDP_STAGING_LEAST (272u << 10) /* four full super-packets, that the cache still holds */
#define UDP_GSO_PACKETS 256u           /* super-packets staged at most */
#define UDP_SEND_AT_ONCE 32u           /* super-packets a system call */
#define UDP_RECEIVE_AT_ONCE 4u         /* the same; their buffers stay in the cache */
#define UDP_RECEIVE_MOST 32u           /* datagrams, where the kernel joins none */
#define UDP_ALIGN 64u
#define UDP_NOTICES 32u
#define UDP_LOCALS_MAX 256u
/* The kernel counts the memory behind a packet, up to twice what SO_RCVBUF says (socket(7)): a card
 * that puts each packet of 1500 bytes into a page of 4 KiB fills it with a third of payload. */
#define UDP_PAGE_SHARE 3u
#define UDP_MTU_LEAST 552u   /* no network takes less; ICMP that says so is forged */
#define UDP_RETRY_NS 200000u /* after the kernel would take no more */
/* A queue before a card moves on in less. A packet that is dropped for longer is dropped for what
 * it is, as by a veth where it exceeds the other side's MTU. */
#define UDP_REFUSED_NS UINT64_C(50000000)
#define UDP_SINGLE_NS UINT64_C(1000000000) /* after it refused to cut; twice as long each time */
#define UDP_SINGLE_MOST_NS UINT64_C(60000000000)

struct udp_hop {
    union harp_sockaddr to;
    uint32_t payload_max;
    uint16_t local;
    uint8_t traffic_class;
    bool used;
    uint64_t refused_ns; /* since when the kernel drops what goes there; 0: it does not */
    uint64_t single_ns;  /* segmentation was refused: for so long its datagrams go one by one, */
    uint64_t single_until_ns; /* until then */
};

struct udp_gso_packet {
    union harp_sockaddr to;
    uint32_t at; /* in the staging area */
    uint32_t bytes;
    uint16_t segment; /* bytes of its datagrams */
    uint16_t segments;
    uint16_t local;
    uint8_t traffic_class;
    int hop;
    uint32_t tail_at;    /* its second datagram does not lie behind the first, but here; */
    uint32_t tail_bytes; /* 0: it does */
    bool ended;          /* its last datagram is shorter */
    bool gone;
};

/* One thread at a time uses the port, so the engine's driver writes all of it. */
struct udp_port {
    struct harp_port port; /* first: the two are cast into one another */
    struct harp_arena arena;
    struct harp_interface nic;
    bool gso, gro;
    /* Its sockets, one for each local (port_udp_socket.c). */
    struct {
        int *fds;
        uint16_t n;
        struct harp_address *locals;
        uint32_t kernel_bytes[2]; /* what it holds for each: received, sent */
        int epoll;                /* of all; of a single one only while somebody sleeps */
        bool watching;            /* that it is */
        uint16_t ready_n;
        uint16_t ready[UDP_LOCALS_MAX]; /* those that had something to say when last asked */
    } sockets;

    struct udp_hop *hops;
    int hops_n;

    /* Packets that the next flush hands to the kernel (port_udp_send.c). */
    struct {
        uint8_t *memory;
        uint32_t bytes;
        uint32_t used; /* of them */
        uint32_t packets_n;
        int last_hop; /* of the youngest packet, if it may grow; else -1 */
        struct udp_gso_packet packets[UDP_GSO_PACKETS];
    } staged;
    uint64_t now_ns, retry_ns;
    struct harp_icmp icmp;

    struct harp_gro_buffers inbound;
    /* Notices that the engine has yet to read: a ring. */
    struct {
        struct harp_notice ring[UDP_NOTICES];
        uint32_t first, n;
    } notices;
};

/* port_udp_socket.c */
int udp_sockets_open(struct udp_port *udp, const struct harp_address *local, uint16_t locals,
                     char *why);
int udp_add_local(struct harp_port *port, uint16_t udp_port, char *why);
uint32_t udp_payload_of_mtu(const struct udp_port *udp, uint32_t mtu);
/* MTU of a route, as a UDP payload; -errno if there is no route. */
int udp_route_payload(const struct udp_port *udp, const union harp_sockaddr *to);

/* Whether epoll watches the sockets. A watcher costs the kernel two locks a packet; several
 * sockets need it to say which of them to ask, a single one only if nobody asks. */
int udp_watch(struct udp_port *udp, bool on);

/* port_udp_send.c */
size_t udp_room(struct harp_port *port, int hop);
uint8_t *udp_slot(struct harp_port *port, int hop, uint32_t bytes);
void udp_flush(struct harp_port *port, uint64_t now_ns);

/* port_udp_receive.c */
size_t udp_receive(struct harp_port *port, uint64_t now_ns, struct harp_arrival *arrivals,
                   size_t room);
void udp_tend(struct harp_port *port, uint64_t now_ns);
/* The way to `to` takes less than was thought. */
void udp_narrow(struct udp_port *udp, const union harp_sockaddr *to, uint32_t payload_max);
void udp_unreachable(struct udp_port *udp, const union harp_sockaddr *to);
void udp_notify(struct udp_port *udp, const struct harp_notice *notice);

#endif
