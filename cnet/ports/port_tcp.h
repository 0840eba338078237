/* The tcp port: an engine's frames over kernel TCP, for cards and networks where it is faster than
 * UDP and AF_XDP.
 *
 *     port A                                                      port B
 *     flow 0  --- header | payload | header | payload ... ------>  accepted by the listener
 *             <-------------------- header | payload ------------
 *     flow 1  --- ...                                              the same, by another source port
 *
 * In this order: a file calls functions of those below it, and of none above.
 *
 *   port_tcp.c          open, close, hops, waiting
 *   port_tcp_receive.c  frames out of the stream, payload straight into the application's memory
 *   port_tcp_send.c     frames into the stream, payload straight out of the application's memory
 *   port_tcp_flow.c     sockets: connect, accept, events, ends
 *
 * - **A flow** is a TCP connection between two ports. A pair of an own address and a remote one has
 *   one, which all connections of the engine share, so that a plan's source port is used once; a
 *   further own address is a further flow, by another source port. The listening end answers on the
 *   flow that carried the question.
 * - **Nothing is lost or reordered** while a flow lives, so the session does no loss recovery and
 *   no congestion control (port.h: holds_back). A frame has a chunk of up to 64 KiB, or a run of up
 *   to 16: its header says how long it is, and nothing else stands in the stream.
 * - **No staging.** `gather` has the kernel copy payload from where it lies. Bytes that the kernel
 *   does not take at once stay there; they are copied only if the application gets its memory back
 *   first, since it closes, or since another flow has carried them.
 *   Payload that comes goes by recvmsg to where the engine says (struct harp_placing);
 *   the port asks again before each further part, and a piece without a place goes nowhere.
 * - **A flow breaks** when the other process ends, a host or a router says so, or nothing that we
 *   sent is acknowledged for TCP_UNACKED_MS. Frames on their way are lost then; the session sends
 *   them on other flows. The connecting end connects anew at once, by another source port if that
 *   is not planned, which may take a way that works; if the other end's host refuses, nobody has
 *   the port any more.
 * - **A flow that a plan's revision leaves** ends at once, and the kernel forgets what it has taken
 *   for it: it would send that for seconds, where routes are new, by links that nobody planned.
 * - **A black hole.** Where an MTU shrinks and routers send no ICMP, the route swallows long
 *   segments alone (RFC 2923): flows open, and break when data goes. A flow that breaks soon after
 *   it opened is made anew with segments that any route takes, in both directions. Where ICMP
 *   reports the MTU, the kernel shortens segments by itself.
 *
 *     state       socket  next
 *     CONNECTING  yes     OPEN BROKEN
 *     OPEN        yes     BROKEN (gone)
 *     BROKEN              CONNECTING (gone)    the listening end waits for the other to connect
 */
#ifndef HARP_PORT_TCP_H
#define HARP_PORT_TCP_H

#include <sys/socket.h>
#include <sys/uio.h>

#include "base/sockaddr.h"
#include "ports/interface.h"
#include "ports/port.h"
#include "wire/wire.h"

/* The longest frame that may come: of the longest segment that a session knows. Ours fill one
 * packet of the kernel's (tcp_frame_bytes). */
#define TCP_SEGMENT (UINT16_MAX / HARP_CHUNK_ALIGN * HARP_CHUNK_ALIGN)
#define TCP_FRAME_MAX (HARP_HEADER_BYTES + TCP_SEGMENT)
#define TCP_PAYLOAD_MOST (HARP_RUN_MOST * TCP_SEGMENT) /* of a run */
#define TCP_PACKET_MOST 65215u /* bytes of payload that the kernel cuts into segments at once */
#define TCP_IPV4_HEADERS 52u   /* of IP and TCP, with timestamps */
#define TCP_IPV6_HEADERS 72u
#define TCP_FRAMES_AT_ONCE 16u /* of the longest, a flow and flush */
#define TCP_OUT_BYTES (TCP_FRAMES_AT_ONCE * (TCP_FRAME_MAX + 64u))
#define TCP_STAGE_BYTES ((HARP_HEADER_BYTES + TCP_PAYLOAD_MOST + TCP_AHEAD_MOST + 63) / 64 * 64)
#define TCP_AHEAD_LEAST 16384u /* bytes to read into the stage behind a short frame, */
#define TCP_AHEAD_MOST 131072u /* and behind many */
#define TCP_PIECES 128u
#define TCP_DIRECT_LEAST 8192u /* a shorter payload is copied sooner than a call is made for it */
/* Payload of a flow that goes to its places in a turn: the driver of the engine may yield the CPU
 * after each turn, as NCCL's threads do. */
#define TCP_PLACED_BYTES (16u * TCP_SEGMENT)
#define TCP_PLACED_MOST (TCP_PLACED_BYTES / TCP_DIRECT_LEAST + 1) /* the same in short frames */
#define TCP_LOCALS_MAX 256u
#define TCP_ASKED_FLOWS 2u      /* of more epoll always says which have something */
#define TCP_STRANGERS_MAX 1024u /* accepted flows that no path of ours uses */
/* Accepted in one look, so that each is heard before those behind it can take its place. */
#define TCP_NEWCOMERS_AT_ONCE (TCP_STRANGERS_MAX / 4)
#define TCP_UNACKED_MS 10000 /* TCP_USER_TIMEOUT; the kernel alone would try for 15 minutes */
/* A flow that breaks by then after it opened is narrow from then on: time for the end that sends to
 * give up, and for the other one to hear of it. */
#define TCP_SOON_NS UINT64_C(20000000000)
/* Segments of a narrow flow: of an IPv4 packet of 552 bytes, as MIN_PLPMTU of session/pmtu.h, and
 * of an IPv6 packet of 1,280, which every link takes (RFC 8200, section 5). */
#define TCP_NARROW_IPV4 512
#define TCP_NARROW_IPV6 1220
/* An idle flow is asked whether the other end is there, and asked again, TCP_KEEPIDLE and
 * TCP_KEEPINTVL: else a listening end would keep a flow for ever whose other end is gone. */
#define TCP_IDLE_S 10
#define TCP_ASK_AGAIN_S 5
#define TCP_RETRY_LEAST_NS UINT64_C(100000000) /* between two attempts to connect, ever longer */
#define TCP_RETRY_MOST_NS UINT64_C(3200000000)
#define TCP_RETRY_ACCEPT_NS UINT64_C(10000000) /* no descriptor was left */

enum tcp_flow_state { TCP_NEW, TCP_CONNECTING, TCP_OPEN, TCP_BROKEN };

struct tcp_flow {
    enum tcp_flow_state state;
    int fd;               /* -1: none */
    bool accepted;        /* by our listener; else we connected */
    bool listed;          /* in the port's `ready` */
    bool ending;          /* the kernel says that the end will come: read until it does */
    bool narrow_segments; /* a route may swallow longer ones */
    bool given_up;        /* what the kernel has taken goes nowhere when the flow ends */
    bool full;            /* the kernel took no more when last asked */
    bool dirty;           /* in the port's `dirty` */
    /* News for the engine; port_tcp_flow.c writes them. */
    struct {
        bool broken; /* BROKEN is to be noticed, */
        bool gone;   /* or GONE */
        int error;   /* why it broke; 0: the other end closed it */
    } notice;
    uint8_t traffic_class;
    uint16_t local;
    uint32_t hops; /* that the engine holds */
    struct harp_address remote, own;
    /* BROKEN: when to connect again, and the pause after that. */
    struct {
        uint64_t at_ns, wait_ns;
    } retry;
    uint64_t age; /* accepted flows in their order */
    uint64_t opened_ns;

    /* Pieces that leave with the next flush (port_tcp_send.c); they lie in `memory` or in the
     * application's. */
    struct {
        uint8_t *memory;
        uint32_t bytes;
        uint32_t gathered_bytes;
        bool corked; /* the kernel waits for more before it sends the last part of a packet */
        bool kept;   /* the kernel did not take these pieces: data waits until they have left */
        uint32_t pieces_n;
        struct iovec pieces[TCP_PIECES];
    } out;

    /* Bytes that have come (port_tcp_receive.c): of frames that are not handed out yet, or that lie
     * between receive and release. */
    struct {
        uint8_t *stage;
        uint32_t stage_from, stage_to;
        bool dry;       /* the kernel had less than was asked for */
        uint32_t ahead; /* bytes to read into the stage if no payload goes to its place: a header's
                           if the next frame is likely to be long */
        bool placing;   /* the frame of headers[header_at] goes to its place; those of earlier ones
                           may lie between receive and release */
        uint8_t headers[TCP_PLACED_MOST + 1][HARP_HEADER_BYTES];
        uint32_t header_at;
        uint8_t *place; /* NULL: it has lost it */
        uint32_t placed_bytes;
    } in;
};

struct tcp_port {
    struct harp_port port; /* first: the two are cast into one another */
    struct harp_interface nic;
    struct harp_placing placing;
    struct harp_address
        locals[TCP_LOCALS_MAX]; /* the first listens; of others a port of 0 is any */
    int listener, epoll;
    int owner; /* process that opened it: a child of fork must not disturb the flows */
    uint32_t mtu;
    bool asleep;       /* `sleep` said yes since the last receive */
    bool quiet;        /* the last receive brought nothing */
    bool more_wait;    /* newcomers: no descriptor was left, or these were enough for a look */
    uint64_t now_ns;   /* of the last call that brought a time */
    uint64_t accepted; /* so far */
    /* How many flows are in each state; each change of a flow's state writes it. */
    struct {
        uint32_t strangers, connecting, full, broken, to_tell;
    } counts;
    struct tcp_flow **flows; /* by hop number; NULL: free */
    uint32_t flows_n, flows_room, used_n;
    uint32_t *ready, ready_n; /* flows that may have something to read */
    uint32_t *dirty, dirty_n; /* flows with pieces */
    uint8_t *spare;           /* TCP_OUT_BYTES, for copies of what the kernel did not take */
    uint8_t *nowhere;         /* TCP_PAYLOAD_MOST, for payload that has lost its place */
};

/* port_tcp_receive.c */
size_t tcp_port_receive(struct harp_port *port, uint64_t now_ns, struct harp_arrival *arrivals,
                        size_t room);

/* port_tcp_send.c */
size_t tcp_port_room(struct harp_port *port, int hop);
uint8_t *tcp_port_slot(struct harp_port *port, int hop, uint32_t bytes);
uint8_t *tcp_port_gather(struct harp_port *port, int hop, const uint8_t *payload, uint32_t bytes);
void tcp_port_let_go(struct harp_port *port, int hop, const uint8_t *bytes, size_t size);
void tcp_port_flush(struct harp_port *port, uint64_t now_ns);

/* port_tcp_flow.c */
int tcp_listen_at(struct tcp_port *tcp, const struct harp_address *local, char *why);
/* A free number of a flow, which has memory then; -ENOMEM. */
int tcp_flow_new(struct tcp_port *tcp);
void tcp_flow_free(struct tcp_port *tcp, uint32_t number);
/* Begin to connect a new or broken flow. If that fails for now it is broken, and will be tried
 * again. Returns 0, or -errno of a source port or a way there that cannot be had. */
int tcp_flow_connect(struct tcp_port *tcp, uint32_t number);
/* It breaks, for that reason; 0: the other end closed it. */
void tcp_flow_break(struct tcp_port *tcp, uint32_t number, int error);
void tcp_flow_mark(struct tcp_port *tcp, const struct tcp_flow *flow);
void tcp_flow_list(struct tcp_port *tcp, uint32_t number); /* it may have something to read */
/* Handle epoll's events, new connections, and flows that are due to connect again. */
void tcp_look(struct tcp_port *tcp);
void tcp_connect_again(struct tcp_port *tcp);
/* Whether a source port can be had for a flow: -errno if not. */
int tcp_try_source(const struct tcp_port *tcp, uint16_t source);

#endif
