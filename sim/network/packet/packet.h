/* A packet-level network in virtual time whose ends are HARP sessions.
 *
 * Every packet crosses every link. A link sends one packet after the other at its rate, delivers
 * it a latency later, and queues what must wait; a switch's ports drop at the tail and mark for
 * ECN. Hosts have servers (threads, cores, memory, PCIe, caps) that a packet passes on its way from
 * session to NIC and back; a chain names the servers of one GPU in one direction. A GPU's process
 * drives its sessions, and its ring to the NIC holds a limited number of frames.
 *
 *     process --chain--> NIC link --> switch link --> ... --> chain --> process
 *        |                                                                 |
 *     session  (cnet/session/session.h, unchanged)                      session
 *
 * Above that, a run moves the pieces of a collective's stages over channels, which are connections
 * between hosts or pipes within one; run.c has the rules.
 *
 * Time is in nanoseconds, and all arithmetic in integers: the same calls give the same answers on
 * any machine. One thread at a time. Functions that make something return its number, or -1 when
 * there is no memory. Numbers count from 0 for each kind.
 */
#ifndef SIM_PACKET_H
#define SIM_PACKET_H

#include <stdint.h>

/* cdef: begin */
typedef struct packet_world packet_world;

struct packet_config {
    uint64_t seed;
    uint32_t segment;     /* payload of a full frame, a multiple of 128 */
    uint32_t overhead;    /* bytes that a link carries with each frame beside its UDP payload */
    uint32_t slots;       /* pieces that a channel holds, at each end */
    uint32_t piece_bytes; /* of the longest piece */
    uint32_t unit_bytes;  /* in which pipes move pieces */
    /* Connections that nothing moves on and that stay open; beyond them the one that has been idle
     * longest is closed, and opened again when it is needed. */
    uint32_t idle_connections;
};

packet_world *packet_new(const struct packet_config *config);
void packet_free(packet_world *w);

/* A directed link from one switch to another, by number; -1: a NIC. A packet that comes while
 * more than `mark_bytes` wait is marked; 0: none is. */
int32_t packet_add_link(packet_world *w, int32_t from, int32_t to, double bits_per_s,
                        uint64_t latency_ns, uint64_t mark_bytes);
/* The ports of switches have `bytes` together, each of them at most `alpha` times what is free
 * (Choudhury and Hahne, "Dynamic queue length thresholds", IEEE/ACM ToN 1998). Without, nothing is
 * ever dropped. Switches are numbered from 0 to `switches` - 1. */
void packet_share_buffers(packet_world *w, int32_t switches, uint64_t bytes, double alpha);
/* Ports of switches let frames without payload go first, as those of NICs do. */
void packet_put_acks_first(packet_world *w);
/* Let switches pause the links towards them (IEEE 802.1Qbb), above `xoff_bytes` that came by a link
 * and wait (0: alpha times what is free), until it is `xon_offset_bytes` less. Each link that leads
 * to a switch has headroom of its own in the shared buffer. After all links and
 * packet_share_buffers.
 */
void packet_set_pfc(packet_world *w, const uint64_t *headroom_bytes, uint64_t xoff_bytes,
                    uint64_t xon_offset_bytes);
/* Change a link's rate; 0 loses what waits there and what comes. */
void packet_set_rate(packet_world *w, int32_t link, double bits_per_s);

/* Faults of packets that have crossed a link; of shares, parts per million. */
struct packet_link_faults {
    uint32_t drop_ppm;
    uint32_t late_ppm; /* they come `late_ns` later, so that others overtake them */
    uint64_t late_ns;
    uint32_t longest_bytes; /* what is longer, with all headers, is dropped; 0: nothing is */
};
void packet_set_faults(packet_world *w, int32_t link, const struct packet_link_faults *faults);

/* A server that works at `burst` of its time a byte while it has tokens, of `bytes` at most, which
 * come at one a byte's time (a token bucket: RFC 2697). */
int32_t packet_add_bucket(packet_world *w, double ps_per_byte, double burst, uint64_t bytes);

/* A policer: a server that takes no time, and drops a packet that finds too few tokens in a bucket
 * of `bytes`. One token, for a byte, comes each `ps_per_byte`. */
int32_t packet_add_policer(packet_world *w, double ps_per_byte, uint64_t bytes);

/* A server, and a chain of `n` of them with what each takes for a byte of payload, in ps. */
int32_t packet_add_server(packet_world *w);
int32_t packet_add_chain(packet_world *w, int32_t n, const int32_t *server,
                         const double *ps_per_byte);
/* Change what the server that stands at this place of a chain takes for a byte. */
void packet_set_pace(packet_world *w, int32_t chain, int32_t place, double ps_per_byte);

/* A route: `n` links in order. */
int32_t packet_add_route(packet_world *w, int32_t n, const int32_t *link);

/* A route whose switches pass each packet on by a link drawn among all shortest paths to an
 * endpoint, after the NIC's own link. */
int32_t packet_add_spray(packet_world *w, int32_t link, int32_t endpoint);
/* The shortest paths, for such routes: those from switch s to the endpoints of group g are
 * links[ptr[g * switches + s]] to links[ptr[g * switches + s + 1] - 1], and endpoint e is reached
 * by the links down[e * ports] on, -1 where there are fewer. The arrays are copied. */
void packet_set_paths(packet_world *w, int32_t groups, int32_t endpoints, int32_t ports,
                      const int32_t *group, const int32_t *ptr, const int32_t *links,
                      const int32_t *down);

/* A process that drives sessions, and its ring, a number of frames in the NIC at once. Its thread
 * handles messages one after the other, on server `thread`, or beside all servers (-1) where others
 * move the bytes. */
int32_t packet_add_process(packet_world *w, uint32_t ring_frames, int32_t thread);

struct packet_end {
    int32_t process;
    int32_t send_chain, receive_chain;
};

/* A channel from one GPU to another, over a connection with `paths` paths: data takes route
 * there[p] and what answers it back[p]. `delay_ns` passes between the hand-over of a piece and the
 * stack's taking it up. A message costs `message_ns` of the thread of either process. */
int32_t packet_add_connection(packet_world *w, const struct packet_end *from,
                              const struct packet_end *to, int32_t paths, const int32_t *there,
                              const int32_t *back, uint64_t delay_ns, uint64_t message_ns);
enum packet_congestion { PACKET_CUBIC, PACKET_DCTCP, PACKET_BBR };

struct packet_tcp {
    int32_t congestion; /* enum packet_congestion */
    int32_t sockets;    /* of a connection, 64 at most */
    uint32_t mss;       /* payload of a full segment */
    uint32_t headers;   /* bytes that a link carries with it beside */
};

/* The same over kernel TCP: socket i takes route there[i], and its ACKs back[i]. */
int32_t packet_add_tcp(packet_world *w, const struct packet_end *from, const struct packet_end *to,
                       const struct packet_tcp *tcp, const int32_t *there, const int32_t *back,
                       uint64_t delay_ns, uint64_t message_ns);
/* Close a connection that has nothing to carry: what it sends next goes by a new one. */
void packet_close(packet_world *w, int32_t channel);
/* A channel within a host; `chain` has the servers of its way. */
int32_t packet_add_pipe(packet_world *w, int32_t chain, uint64_t delay_ns);
/* Other routes for a connection. */
void packet_set_routes(packet_world *w, int32_t channel, const int32_t *there, const int32_t *back);

/* A collective of `stages` stages over `ranks` ranks, which begins now. */
int32_t packet_add_run(packet_world *w, int32_t ranks, int32_t stages);
/* Its next stage: edge i carries bytes[i] from rank src[i] to dst[i] on channel[i], in pieces[i]
 * pieces, each of them `messages` messages for both processes. from[j] feeds to[j] (edges),
 * which waits for the piece that is `lag` earlier. The arrays are copied. */
int32_t packet_load(packet_world *w, int32_t run, int32_t n, const int32_t *src, const int32_t *dst,
                    const int32_t *channel, const int64_t *bytes, const int32_t *pieces,
                    double messages, int32_t lag, int32_t feeds, const int32_t *from,
                    const int32_t *to);

enum packet_stop {
    PACKET_TIME,   /* nothing happens before `until_ns`, which is now */
    PACKET_DONE,   /* run packet_which is done */
    PACKET_LOAD,   /* run packet_which wants its next stage */
    PACKET_CLOSED, /* a connection ended by itself; packet_why says why */
    PACKET_LOOPED, /* links pause one another for ever; packet_loop says which */
};

/* Let time pass until something stops it. */
int32_t packet_advance(packet_world *w, uint64_t until_ns);
int32_t packet_which(const packet_world *w);
uint64_t packet_now_ns(const packet_world *w);
/* When something happens next; UINT64_MAX if nothing does. */
uint64_t packet_next_ns(const packet_world *w);
const char *packet_why(const packet_world *w);
/* Links in a loop of pauses, each since what it brings waits for the next one; how many. */
int32_t packet_loop(const packet_world *w, int32_t *links, int32_t room);

/* Write all frames that leave by a link into a file, up to `most_bytes` of them; -1: it cannot be
 * written (errno). */
int32_t packet_capture(packet_world *w, int32_t link, const char *path, uint64_t most_bytes);
/* 1: there were more bytes than that; -1: not all could be written. */
int32_t packet_end_capture(packet_world *w);
/* The addresses and UDP ports that a capture shows of a connection's path. */
void packet_name_path(packet_world *w, int32_t channel, int32_t path, uint32_t from_ip,
                      uint32_t to_ip, uint16_t from_port, uint16_t to_port);

struct packet_link_counts {
    uint64_t packets, bytes;  /* sent, with all headers */
    uint64_t dropped, marked; /* packets */
    uint64_t waiting_bytes;   /* now */
    uint64_t most_bytes;      /* that waited at once */
    uint64_t pauses;          /* that its sender heard of, */
    uint64_t paused_ns;       /* and how long those took that are over */
};
void packet_link_counts(const packet_world *w, int32_t link, struct packet_link_counts *counts);

int32_t packet_links(const packet_world *w);
int32_t packet_servers(const packet_world *w);
/* Bytes that each link has sent, with all headers, and bytes of payload that each server has worked
 * on. */
void packet_carried(const packet_world *w, uint64_t *by_link, uint64_t *by_server);

/* Frames of a connection whose payload was new to its receiver. */
uint64_t packet_channel_frames(const packet_world *w, int32_t channel);

/* A session's counters of a path: of struct harp_path_info, and of its counters. */
struct packet_path_counts {
    uint64_t alive, mtu_fails, fragments, frame_bytes;
    uint64_t window_bytes, bytes_in_flight, smoothed_ns;
    uint64_t sent, lost, spurious, died;
    uint64_t due, arrived, bad_payloads;
    uint64_t starved_ns; /* of the session, not of the path */
};
/* Of the sending end of a connection, 0, or the other, 1; false if it has no session: closed, or of
 * kernel TCP. */
int32_t packet_path(const packet_world *w, int32_t channel, int32_t end, int32_t path,
                    struct packet_path_counts *counts);

struct packet_counts {
    uint64_t events;
    uint64_t data;    /* frames with payload that arrived at hosts */
    uint64_t again;   /* chunks that sessions sent more than once */
    uint64_t lost;    /* packets that links or policers dropped */
    uint64_t policed; /* of these, by policers */
};
void packet_counts(const packet_world *w, struct packet_counts *counts);
/* cdef: end */

#endif
