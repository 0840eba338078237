/* The xdp port, as its own files share it. Its interface is port.h, its page docs/inside/xdp.md.
 *
 *   port_xdp.c      opening, closing, waiting
 *   xdp_receive.c   descriptors to arrivals, fill ring
 *   xdp_hops.c      where datagrams go (the kernel's tables: netlink.h)
 *   xdp_send.c      slots, headers, completions
 *   xdp_kernel.c    UDP sockets beside the AF_XDP one
 *   xdp_nic.c       sharing a network card
 *   xdp_handover.c  what other processes with the card get of it
 *   xdp_program.c   the program, its maps (bpf.h)
 *   xdp_socket.c    rings, binding
 *
 * In this order calls point one way: a file calls only those below it
 * (tests/system/test_c_layers.py).
 *
 * Frames. `holds` says for each frame of the pool what this port has it for:
 *
 *     XDP_FILL  state FILL: in the fill ring, or in the card's hands
 *     XDP_SENT  state SENDING or LEAVING: handed over by send_frame, not completed
 *     XDP_SLOT  state DRAFT from opening to closing: memory that `slot` gives out, which is free,
 *               written, or sent and not completed
 */
#ifndef HARP_XDP_PORT_H
#define HARP_XDP_PORT_H

#include "ports/gro_buffers.h"
#include "ports/headers.h"
#include "ports/icmp.h"
#include "ports/netlink.h"
#include "ports/port.h"
#include "ports/xdp_nic.h"
#include "ports/xdp_socket.h"

enum {
    XDP_SLOT_OFFSET = 84, /* of the datagram in its slot: its payload at 128, headers before it */
    XDP_HEADERS_MAX = ETHERNET_BYTES + IP6_UDP_BYTES,
    XDP_HEADERS4 = ETHERNET_BYTES + IP4_UDP_BYTES,
    XDP_LOCALS_MAX = 256,
    XDP_BATCH = 64, /* datagrams for which it must have memory, each way */
    XDP_ARRIVALS = 2 * HARP_BATCH,
    XDP_NOTICES = 32,
    XDP_NOTHING = 0, /* values of `holds` */
    XDP_FILL,
    XDP_SENT,
    XDP_SLOT,
    XDP_SLOTS_MAX = 512,
    XDP_EVENTS = 16,            /* of epoll, at once */
    XDP_EVENT_SOCKET = 1 << 16, /* numbers below are those of locals */
};

/* A destination. `direct`: headers are ready; else its datagrams go by the kernel's socket. */
struct harp_xdp_hop {
    struct harp_address to;
    uint16_t local;
    uint8_t traffic_class;
    bool used, direct;
    bool near;    /* the neighbour is at the port's own link */
    bool stale;   /* the kernel would like to hear from the neighbour: the next datagram is its */
    bool changed; /* something on its way changed: look again */
    struct harp_address next;
    uint32_t payload_max;
    uint32_t sum; /* of what the checksum covers and does not depend on the datagram */
    uint8_t header[64];
};

struct harp_xdp_pending {
    uint32_t frame, offset, bytes;
    int hop;
};

/* One thread at a time uses the port, so the engine's driver writes all of it. */
struct harp_xdp {
    struct harp_port port;
    struct harp_xdp_socket socket;
    struct harp_frames *frames;
    uint8_t *holds; /* by frame */
    /* Frames to receive into: now, and at most. */
    struct {
        uint32_t held, most;
    } fill;
    /* Frames that xdp_send.c sends from, and those that the card has. */
    struct {
        uint32_t *slots_free; /* stack of frames */
        uint32_t slots_free_n;
        struct harp_xdp_pending *pending;
        uint32_t pending_n;
        uint32_t outstanding; /* descriptors given out or sent, and not completed */
        uint32_t outstanding_most;
        bool unsent;        /* some in tx await a call, */
        uint64_t pause_ns;  /* which failed: pause so long before the next; 0: it did not, */
        uint64_t resume_ns; /* until then */
    } send;

    struct harp_xdp_hop *hops;
    uint32_t hops_n;  /* that have been used so far */
    uint32_t hops_at; /* how far looking after them has come */

    struct harp_address *locals;
    uint16_t *local_of; /* by UDP port in network order: number + 1 */
    struct harp_address from[XDP_ARRIVALS];

    /* The kernel's UDP sockets beside the AF_XDP one, and what they receive (xdp_kernel.c). */
    struct {
        int *sockets; /* by local */
        struct harp_gro_buffers strays;
        uint64_t strays_until_ns;      /* they are looked for each turn until then */
        uint32_t strays_next;          /* local to read next */
        uint8_t ready[XDP_LOCALS_MAX]; /* whether a socket has something, by local */
        uint32_t ready_n;
    } kernel;

    struct harp_icmp icmp;
    /* Notices that the engine has yet to read: a ring. */
    struct {
        struct harp_notice ring[XDP_NOTICES];
        uint32_t first, n;
    } notices;

    int epoll;
    bool slept; /* and epoll watches the socket */
    uint64_t now_ns, tended_ns, woken_ns;
    struct harp_netlink netlink;
    struct harp_link link;
    struct harp_xdp_nic nic;
    int owner; /* process */
};

/* Receiving what is in the ring. */
size_t harp_xdp_receive_ring(struct harp_xdp *xdp, struct harp_arrival *arrivals, size_t room);
void harp_xdp_release(struct harp_port *port, struct harp_arrival *arrivals, size_t count);
void harp_xdp_refill(struct harp_xdp *xdp);

/* Sending. */
int harp_xdp_send_open(struct harp_xdp *xdp, uint32_t slots);
size_t harp_xdp_room(struct harp_port *port, int hop);
uint8_t *harp_xdp_slot(struct harp_port *port, int hop, uint32_t bytes);
uint8_t *harp_xdp_lengthen(struct harp_port *port, int hop, uint32_t bytes, uint32_t most);
bool harp_xdp_send_frame(struct harp_port *port, int hop, uint32_t frame, uint32_t offset,
                         uint32_t bytes);
void harp_xdp_flush(struct harp_port *port, uint64_t now_ns);
void harp_xdp_kick(struct harp_xdp *xdp);
/* Take completions; whether there were any. */
bool harp_xdp_reap(struct harp_xdp *xdp);

/* Hops. */
int harp_xdp_hop_make(struct harp_port *port, const struct harp_address *to, uint16_t local,
                      char *why);
void harp_xdp_hop_drop(struct harp_port *port, int hop);
void harp_xdp_hop_set_traffic_class(struct harp_port *port, int hop, uint8_t traffic_class);
uint32_t harp_xdp_hop_payload_max(const struct harp_port *port, int hop);
/* Look after some hops; false if there may be more to do. */
bool harp_xdp_hops_tend(struct harp_xdp *xdp);
/* Routes or the link are not what they were. */
void harp_xdp_hops_change(struct harp_xdp *xdp);
/* The kernel's entry of a neighbour has changed. */
void harp_xdp_hops_neighbour(struct harp_xdp *xdp, const struct harp_change *change);

/* The kernel's UDP sockets. */
int harp_xdp_kernel_open(struct harp_xdp *xdp, const struct harp_port_config *config, char *why);
void harp_xdp_kernel_close(struct harp_xdp *xdp);
int harp_xdp_add_local(struct harp_port *port, uint16_t udp_port, char *why);
void harp_xdp_kernel_send(struct harp_xdp *xdp, const struct harp_xdp_hop *hop,
                          const uint8_t *bytes, uint32_t count);
/* A local's socket has something to receive. */
void harp_xdp_kernel_ready(struct harp_xdp *xdp, uint32_t local);
size_t harp_xdp_kernel_receive(struct harp_xdp *xdp, struct harp_arrival *arrivals, size_t room);
void harp_xdp_kernel_errors(struct harp_xdp *xdp, uint32_t local);
void harp_xdp_notice_add(struct harp_xdp *xdp, const struct harp_notice *notice);

static inline struct harp_xdp *harp_xdp_of(const struct harp_port *port)
{
    return (struct harp_xdp *)port; /* its first member */
}

#endif
