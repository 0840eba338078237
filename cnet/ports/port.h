/* A port sends and receives an engine's frames: bursts of datagrams, behind one small table.
 *
 *     name   what carries the datagrams                        memory that arrivals lie in
 *     mem    rings in memory that two processes share          the ring's
 *     udp    UDP sockets with segmentation offload             the port's buffers
 *     xdp    AF_XDP                                            frames of the engine's pool
 *     tcp    TCP connections, one frame behind the other       the port's, or the application's
 *     chaos  another port, with seeded faults                  the other port's
 *
 *        arrivals <-- receive          slot --> memory to write a datagram into
 *            |                           |
 *     engine looks at them          engine writes header and payload (one copy, CRC on the way)
 *            |                           |
 *         release                      flush --> all that was written leaves
 *
 * - **A hop** is a destination as this port needs it: a socket address, or Ethernet, IP and UDP
 *   headers that are ready to be copied, or the ring to another process. It is made when a path is
 *   made and dropped with it; the data path names it by number.
 * - **Locals.** A port has one or more addresses of its own that differ in the UDP port: paths that
 *   differ in them take different routes through the network. Every arrival says at which it came.
 * - **Lossy.** A port may lose, double and reorder, as networks do. Bytes in `slot` are gone.
 * - **Off the fast way.** An `xdp` port's datagram that reaches another queue than the port's comes
 *   through the kernel's socket: late, but not lost. It is marked `stray`.
 *
 * Owner: one engine; receive, release, slot, send_frame, flush and room are its data path: no lock,
 * no allocation, no system call but those that carry the datagrams. The others are control plane.
 */
#ifndef HARP_PORT_H
#define HARP_PORT_H

#include "base/address.h"
#include "base/arena.h"
#include "base/frames.h"

#define HARP_NO_FRAME UINT32_MAX
/* Of the traffic class (the IPv4 header's TOS byte) the low two bits are ECN's: this transport
 * reacts to marks and says so by ECT(0) (RFC 3168); the others are the DSCP (RFC 2474). */
#define HARP_ECN_MASK 3
#define HARP_ECT0 2
/* cdef: begin */
#define HARP_WHY_BYTES 256 /* room for one sentence about what went wrong */
/* Bytes that the kernel is to hold for a socket of port_udp, each way. */
#define HARP_SOCKET_BYTES 8388608
/* cdef: end */
/* Datagrams that an engine writes for a connection before it is others' turn; it asks for twice as
 * many arrivals. About three super-packets at an MTU of 1500. */
#define HARP_BATCH 128

/* A datagram that came. */
struct harp_arrival {
    uint8_t *bytes; /* of the UDP payload */
    uint32_t length;
    const uint8_t *payload;          /* NULL: behind the header; else it lies there */
    uint32_t frame;                  /* of the engine's pool, ARRIVED; or HARP_NO_FRAME */
    const struct harp_address *from; /* valid until release */
    uint32_t waited_ns;              /* since it came to this host; 0 if that is unknown */
    uint16_t local;                  /* at which of the port's own addresses */
    bool marked;                     /* by a switch that is congested (ECN) */
    bool stray;                      /* it did not come to the queue that the port owns */
    bool kept;   /* set by the engine: the frame is LENT now, and release passes over it */
    bool shared; /* set by the engine: several of HARP's frames lie in it */
};

/* News that a port has besides datagrams. Anybody can write ICMP, but only a host that saw a
 * datagram of ours on its way can quote it. */
#define HARP_QUOTE_BYTES 12 /* of a header, up to the end of the connection's id */
enum harp_notice_type {
    HARP_NOTICE_NONE,
    HARP_NOTICE_UNREACHABLE, /* ICMP says so, or routing */
    HARP_NOTICE_REFUSED,     /* ICMP says that no process has this port, and quotes what we sent */
    HARP_NOTICE_GONE,        /* the process behind a mem or tcp port is */
    HARP_NOTICE_BROKEN,      /* tcp: the flow of `hop` is, and what it carried is lost */
    HARP_NOTICE_MTU,         /* the way to `about` takes `payload_max` bytes only */
    HARP_NOTICE_TROUBLE,     /* `trouble` began; the port goes on as well as it can, and tries again
                                by itself */
};

enum harp_trouble {
    HARP_TROUBLE_NONE,
    HARP_TROUBLE_SENDING,      /* the card takes nothing: `error` */
    HARP_TROUBLE_SEGMENTATION, /* UDP_SEGMENT is refused on the way to `about`: `error` */
    HARP_TROUBLE_ICMP,         /* more ICMP errors than can be meant; none are heard for a while */
};

struct harp_notice {
    enum harp_notice_type type;
    struct harp_address about;
    uint32_t payload_max;
    enum harp_trouble trouble;
    int error;                       /* errno; BROKEN: 0 if the other end closed it */
    int hop;                         /* BROKEN */
    uint8_t quote[HARP_QUOTE_BYTES]; /* REFUSED: how the datagram that was refused began */
};

/* cdef: begin */
struct harp_port_counters {
    uint64_t sent, sent_bytes; /* datagrams; their UDP payload */
    uint64_t received, received_bytes;
    uint64_t sent_copied;     /* datagrams that the port or the kernel had to copy to send */
    uint64_t received_copied; /* that lay elsewhere before they came to `bytes` */
    uint64_t send_calls, receive_calls; /* system calls */
    uint64_t dropped;                   /* given up before they left: no room, no route */
    uint64_t strays;
};
/* cdef: end */

struct harp_port {
    const struct harp_port_ops *ops;
    const struct harp_address *locals;
    uint16_t locals_n;
    uint32_t payload_max; /* largest UDP payload that its interface takes */
    uint32_t headroom;    /* bytes before a frame's datagram that send_frame writes headers into */
    uint32_t holds_bytes; /* of arrivals, in payload, until they are received; 0: as many as are in
                             flight, or nobody knows */
    bool holds_back;      /* nothing is lost on its way and `room` says how much the far end takes:
                             no congestion control is needed */
    bool calls_kernel;    /* a frame alone costs a call of the kernel: ACKs had better go along */
    bool offloads_sums;   /* tcp: the card makes and checks TCP's sums */
    bool nontemporal;     /* the last slot is read by a core with which we share no cache: write
                     long payloads past the caches */
    struct harp_port_counters counters;
    char line[200]; /* one line for a log: interface, mode, what could be better and how */
};

struct harp_port_ops {
    const char *name;

    /* Up to `room` datagrams that have come. */
    size_t (*receive)(struct harp_port *port, uint64_t now_ns, struct harp_arrival *arrivals,
                      size_t room);

    /* The engine is done with these arrivals, all of the last receive. */
    void (*release)(struct harp_port *port, struct harp_arrival *arrivals, size_t count);

    /* How many datagrams of payload_max bytes `slot` or `send_frame` will surely take to this hop
     * until the next flush. */
    size_t (*room)(struct harp_port *port, int hop);

    /* Memory for a datagram of `bytes` to a hop, to be written before the next flush, with which it
     * leaves and not before. Equal sizes to one hop in a row are cheapest. NULL if there is no room
     * until then. Aligned to 4; where it can be, so that the payload behind the header is to 64. */
    uint8_t *(*slot)(struct harp_port *port, int hop, uint32_t bytes);

    /* Memory for a frame's header, behind which `bytes` of payload leave from where they lie. They
     * must stay so until they have left, or until `let_go`. NULL as for `slot`; NULL for ports that
     * copy anyway. */
    uint8_t *(*gather)(struct harp_port *port, int hop, const uint8_t *payload, uint32_t bytes);

    /* These bytes will change: of gathered payload that lies there and has not left, the port makes
     * a copy. NULL: of all that this hop has; `unhop` does that, too. NULL for ports without
     * `gather`. */
    void (*let_go)(struct harp_port *port, int hop, const uint8_t *bytes, size_t size);

    /* Memory for `bytes` more right behind the last slot, whose datagram becomes that much longer.
     * NULL if it would then have more than `most`, if it goes to another address than this hop, if
     * it is not the last datagram or has left, or if what follows would not be aligned to 4. NULL
     * for ports that send no datagram sooner for this. */
    uint8_t *(*lengthen)(struct harp_port *port, int hop, uint32_t bytes, uint32_t most);

    /* Send a datagram that lies in a frame of the engine's pool, which is SENDING or LEAVING
     * already: `bytes` from `offset` on; the port's headers are written before it. At completion
     * SENDING becomes KEPT and LEAVING FREE. False if there is no room: then nothing changed. NULL
     * for ports that cannot. */
    bool (*send_frame)(struct harp_port *port, int hop, uint32_t frame, uint32_t offset,
                       uint32_t bytes);

    /* All that was written leaves. */
    void (*flush)(struct harp_port *port, uint64_t now_ns);

    /* Work that is not urgent: neighbours, routes, errors, newcomers. Called about once a
     * millisecond while the engine is busy, and before it sleeps. */
    void (*tend)(struct harp_port *port, uint64_t now_ns);

    /* The next notice; false if there is none. */
    bool (*notice)(struct harp_port *port, struct harp_notice *notice);

    /* Make a hop from local address `local` to `to`. Returns its number, or -errno and one sentence
     * in `why` (HARP_WHY_BYTES). A destination that merely does not answer is not an error. */
    int (*hop)(struct harp_port *port, const struct harp_address *to, uint16_t local, char *why);
    void (*unhop)(struct harp_port *port, int hop);

    /* Before unhop: what was given to this hop and has not left need not leave any more, since the
     * session sends it elsewhere. Datagrams of others on the same hop still leave. NULL: nothing is
     * kept. */
    void (*give_up)(struct harp_port *port, int hop);

    /* Datagrams to this hop bear this traffic class, 0 at first; its ECN bits stay the port's.
     * NULL: they have no IP header. */
    void (*set_traffic_class)(struct harp_port *port, int hop, uint8_t traffic_class);

    /* Open one more local address, another UDP port of the first one's address: this one, or any
     * if it is 0. Returns its number, or -errno and one sentence in `why`. NULL for ports that
     * cannot. */
    int (*add_local)(struct harp_port *port, uint16_t udp_port, char *why);

    /* The own address that it leaves from, where that is another than its local's. NULL: it never
     * is. */
    const struct harp_address *(*hop_local)(const struct harp_port *port, int hop);

    /* The largest UDP payload that goes there, as far as it is known. */
    uint32_t (*hop_payload_max)(const struct harp_port *port, int hop);

    /* Becomes readable when something arrives after `sleep` said yes. */
    int (*fd)(const struct harp_port *port);

    /* Before waiting: false if there is something to receive, complete or send already. */
    bool (*sleep)(struct harp_port *port);

    /* When it must be driven though nothing arrives (UINT64_MAX: never). NULL: never. */
    uint64_t (*deadline_ns)(const struct harp_port *port);

    /* Give everything back; all pending sends end, frames that the port held become FREE. In a
     * child of fork it closes the child's copies of descriptors and mappings, so that the parent's
     * death frees the card, and touches neither frames (the arena is not there) nor the kernel's
     * state that the parent uses. The engine calls it in the child at once (pthread_atfork). */
    void (*close)(struct harp_port *port);
};

/* cdef: begin */
/* The place of payload, for a port that reads it out of a stream: where the payload of the frame
 * with this header (HARP_HEADER_BYTES) is to go as it comes, or NULL if it may go there only when
 * the frame is whole. The answer holds until the port returns to its caller. */
struct harp_placing {
    uint8_t *(*place)(void *engine, const uint8_t *header);
    void *engine;
};

/* Options of ports. Unset fields are zero. */
struct harp_port_config {
    const char *interface;      /* NIC; NULL: udp and tcp find it by `local` */
    struct harp_address local;  /* own address; family 0: the interface's first, IPv4 before IPv6 */
    uint16_t locals;            /* own addresses (UDP ports; source ports of tcp) to open, at least
                                   1; the first has local.port if that is set, the rest any */
    uint32_t mtu;               /* 0: the interface's */
    int queue;                  /* xdp: -1 any free one */
    bool copy_only;             /* xdp: do not try zero copy */
    bool zero_copy_only;        /* xdp: an error where there is no zero copy */
    uint32_t ring_bytes;        /* mem: of each direction; 0: a default */
    uint32_t busy_poll_us;      /* xdp: the engine's thread does the driver's work when it has
                                   nothing to receive, for so long at most; 0: interrupts do */
    uint32_t frames_max;        /* xdp: frames of the pool that it may hold to receive into */
    struct harp_frames *frames; /* the engine's pool and arena; memory that a card may access */
    struct harp_arena *arena;
    struct harp_placing placing; /* tcp */
};

/* Each returns 0, or -errno and one sentence in `why` (HARP_WHY_BYTES), and then nothing is left
 * behind. */
int harp_port_mem_open(struct harp_port **port, const struct harp_port_config *config, char *why);
int harp_port_udp_open(struct harp_port **port, const struct harp_port_config *config, char *why);
int harp_port_tcp_open(struct harp_port **port, const struct harp_port_config *config, char *why);
int harp_port_xdp_open(struct harp_port **port, const struct harp_port_config *config, char *why);
/* cdef: end */

#endif
