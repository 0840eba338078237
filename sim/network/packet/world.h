/* Inside the packet network; for this folder's C only. Files call those below them in this list.
 * The two stacks are called by way of end_ops, and runs hear of pieces when an event is over
 * (note_piece).
 *
 *   packet.c              the world: making it, and letting time pass
 *   run.c                 the pieces of collectives
 *   session_connection.c  the two sessions of a connection
 *   tcp_connection.c      kernel TCP instead of them (tcp.h has the files of the rest)
 *   channel.c             what connections carry, and how they are routed
 *   pipe.c                channels within a host
 *   idle.c                channels that carry nothing, and the memory that they do not need
 *   hop.c                 where packets go that have crossed a link
 *   host.c                what processes send into NICs, and take in
 *   fault.c               links that lose or delay what crosses them
 *   link.c                links: queues, marks, drops
 *   pfc.c                 pauses instead of drops
 *   route.c               which link comes next
 *   capture.c             what crosses a link, as a file
 *   police.c              caps that drop
 *   server.c              servers and chains of them
 *   process.c             processes: turns, wake-ups, and rings of frames in the NIC
 *   packets.c             packets, bodies of frames, and rows of packets
 */
#ifndef SIM_PACKET_WORLD_H
#define SIM_PACKET_WORLD_H

#include <stdbool.h>

#include "event_wheel.h"
#include "memory.h"
#include "packet.h"
#include "session/session.h"
#include "virtual/random.h"

#define ETHERNET_LEAST 84 /* bytes on the wire of the shortest frame, preamble and gap included */
#define NO_PACKET UINT32_MAX
#define NO_HOP UINT32_MAX
#define NO_TRAFFIC UINT32_MAX
#define NO_CHANNEL UINT32_MAX
#define NOBODY (-1)

/* Kinds of events; the rest of event.what is a number of this kind. */
enum event_kind {
    LINK_SENDS,     /* a link is free, and something waits there */
    LINK_DELIVERS,  /* the first packet in flight on a link arrives */
    PACKET_LATE,    /* one that a link kept back arrives */
    LINK_PAUSES,    /* the sender of a link hears that it must pause, */
    LINK_GOES_ON,   /* or that it need not any more */
    LINK_WATCHED,   /* a link that was paused is looked at */
    PROCESS_TURNS,  /* a process drives its sessions */
    PROCESS_SENDS,  /* the first frame on its way to the NIC is there */
    PROCESS_TAKES,  /* the first frame on its way to the process is there */
    END_WAKES,      /* the deadline of a session */
    CHANNEL_TAKES,  /* the first piece that has come is handled by its receiver's thread */
    CHANNEL_BEGINS, /* the stack takes up the first piece that waits for that */
    PIPE_MOVES,     /* the unit on its way has arrived, and the next one may begin */
};
#define KIND_SHIFT 32

/* A row of packets, first in, first out, linked through packet.next. */
struct row {
    uint32_t first, last;
};

enum tcp_segment_kind { TCP_SYN, TCP_SYN_ACK, TCP_DATA, TCP_ACK };

#define TCP_SACKS 3 /* beside timestamps: RFC 2018 */

/* Header of a TCP segment (tcp.h). */
struct tcp_segment {
    uint64_t seq;                /* of its first byte; of an ACK, the first byte that is missing */
    uint32_t window;             /* bytes from there that the receiver takes */
    uint32_t sack[TCP_SACKS][2]; /* from there, too */
    uint8_t kind, sacks;
    bool echo;  /* what it acknowledges was marked */
    bool twice; /* a segment came twice (RFC 2883) */
};

struct packet {
    uint64_t at_ns;   /* when it is where it is going */
    uint64_t came_ns; /* when it arrived at the host */
    uint32_t next;
    uint32_t link;    /* on which it is */
    uint32_t came_by; /* at a switch: the link before that */
    uint32_t hop;     /* where in fabric.hops stands what comes next */
    uint32_t end;     /* to which it goes */
    uint32_t body;    /* of a control frame, or NO_PACKET */
    uint32_t bytes;   /* on a link */
    uint32_t payload; /* of what hosts pay for; 0: a frame of control */
    int32_t process;  /* that has it in its ring, or NOBODY */
    bool marked;
    bool can_mark; /* its sender understands marks (ECT of RFC 3168) */
    uint8_t path;
    uint8_t incarnation; /* of TCP: which of the connections of its channel it is of */
    union {
        struct harp_header header;
        struct tcp_segment tcp;
    };
};

struct link {
    uint64_t free_ps;
    uint64_t ps_per_byte_q16; /* 0: down */
    uint64_t latency_ns;
    uint64_t mark_bytes, waiting_bytes;
    struct row urgent, waiting, propagating;
    struct packet_link_counts counts;
    struct packet_link_faults faults;
    int32_t from, to; /* switches, or NOBODY */
    /* pfc.c, where the link leads to a switch: what came by it and waits there, and what of that
     * came after it asked for a pause. */
    uint64_t held_bytes, headroom_used, headroom_bytes;
    uint64_t paused_ns; /* since when, if it is */
    bool asks_pause, is_paused, is_watched;
};

struct pfc {
    bool is_on;
    uint64_t xoff_bytes; /* 0: alpha times what is free of `shared` */
    uint64_t xon_offset_bytes;
    uint64_t *shared; /* of each switch's buffer, what is no link's headroom */
    int32_t *loop;    /* links that pause one another, the last one first */
    size_t loop_n, loop_room;
};

/* Where an entry of fabric.hops names no link but an endpoint, to which switches spray. */
#define SPRAY (UINT32_C(1) << 31)

/* packet_set_paths. */
struct shortest_paths {
    int32_t ports;
    int32_t *group, *ptr, *links, *down;
};

/* Token bucket of a server; `size` 0: without a limit. */
struct bucket {
    uint64_t passed;       /* bytes that its server has worked on */
    uint64_t size, tokens; /* bytes */
    uint64_t at_ps;        /* as of then */
    uint64_t ps_per_byte_q16;
    uint64_t burst_q16; /* its time a byte while it has tokens */
    bool polices;       /* what finds no tokens is dropped (police.c) */
};

struct stop_on_chain {
    uint32_t server;
    uint64_t ps_per_byte_q16;
};

struct chain {
    uint32_t n;
    bool is_policed; /* by one of them at least */
    struct stop_on_chain *stops;
};

struct process {
    uint64_t turn_ns;           /* of the valid event; HARP_NEVER: none */
    uint64_t busy_ns;           /* until then its last frames keep it */
    uint64_t sent_ns, taken_ns; /* when the last frames of the two rows are where they go */
    int32_t thread;             /* the server that handles messages, or NOBODY: */
    uint64_t message_ns;        /* it is busy with them until then */
    struct row sending, taking;
    uint32_t in_ring, ring_frames;
    uint32_t ready_first, ready_last; /* ends that want to be driven, or NO_PACKET */
};

/* Addresses and ports of a path as one end sends on it. */
struct path_name {
    uint32_t from_ip, to_ip;
    uint16_t from_port, to_port;
};

struct capture {
    FILE *file; /* or NULL */
    uint64_t left;
    uint32_t link;
    bool cut; /* there was no room for all */
};

struct packet_world;

#define UDP_PROTOCOL 17
#define TCP_PROTOCOL 6

/* Actions of a stack at an end of a connection; session_connection.c has the one of HARP. */
struct end_ops {
    /* Let it send up to `room` frames, or a few more that belong together. Returns whether it wants
     * another turn. The process is busy with them until *busy_ns at least. */
    bool (*drive)(struct packet_world *w, uint32_t end, uint32_t room, uint64_t *busy_ns);
    /* A packet for it has come; it gives it back. */
    void (*take)(struct packet_world *w, uint32_t packet);
    /* Its deadline has come (wake_at); NULL: it wants to be driven. */
    void (*wake)(struct packet_world *w, uint32_t end);
    /* A packet with payload that it sent has left the NIC, or was lost there; or NULL. */
    void (*left)(struct packet_world *w, const struct packet *packet);
    /* The sender's stack takes up a piece. */
    void (*take_up)(struct packet_world *w, uint32_t channel, uint32_t bytes);
    /* The receiver has channel.posted free slots more. */
    void (*post)(struct packet_world *w, uint32_t channel);
    /* Both ends of a channel that is closed open it; the sender says when it is open_channel'ed. */
    void (*connect)(struct packet_world *w, uint32_t channel);
    /* Both ends of an idle channel give back what a new connection can do without. Their
     * counted is kept in channel.fresh and packet_world.counts. */
    void (*disconnect)(struct packet_world *w, uint32_t channel);
    uint64_t (*again)(const struct packet_world *w, uint32_t end); /* frames sent again */
    uint64_t (*fresh)(const struct packet_world *w, uint32_t end); /* taken, with new payload */
    void (*free)(struct packet_world *w, uint32_t end);
    uint8_t protocol; /* over IP, for captures */
};

struct end {
    const struct end_ops *ops;
    union {
        struct harp_session *session; /* NULL: it listens, or the connection is closed */
        struct tcp_connection *tcp;   /* NULL: the connection is closed */
    };
    uint64_t id;      /* of the session, drawn for each */
    uint64_t wake_ns; /* of the valid event; HARP_NEVER: none */
    uint32_t next_ready;
    uint32_t channel;
    int32_t process, send_chain, receive_chain;
    uint32_t routes; /* where the first hops of its paths stand in hosts.first_hops */
    uint8_t paths;
    bool ready;
    uint32_t settings;       /* of kernel TCP, in hosts.tcp */
    struct path_name *names; /* of each path, or NULL */
};

/* Identity of the next piece on a channel. */
struct expected {
    int32_t run, stage, edge;
};

struct waiting_piece {
    uint64_t at_ns;
    uint32_t bytes;
};

/* Pieces that a channel holds at each end, at most. */
#define SLOTS_MAX 64

/* State of a channel that is not idle. */
struct traffic {
    struct waiting_piece piece[SLOTS_MAX]; /* handed over, and not taken up by the stack */
    uint32_t pieces_first, pieces_n;
    struct expected expected[SLOTS_MAX]; /* in the order of arrival */
    uint64_t cost_ns[SLOTS_MAX];         /* of either process's thread for each of them */
    uint32_t expected_first, expected_n;
};

struct channel {
    int32_t connection; /* its ends are 2 * connection and the next one; or NOBODY */
    int32_t pipe;
    uint64_t delay_ns, message_ns;
    uint64_t fresh;                  /* frames that earlier connections took in */
    uint32_t traffic;                /* or NO_TRAFFIC: it is idle */
    uint32_t idle_older, idle_newer; /* in the list of idle connections, */
    bool is_listed;                  /* if it stands there */
    bool is_open;                    /* its ends have what they need */
    bool connected;                  /* the sender can send */
    uint8_t held;                    /* pieces in the sender's slots */
    uint8_t coming;                  /* pieces that have come, unknown to their run as yet */
    uint8_t taken;                   /* the receiver's slots with pieces that were not passed on */
    uint8_t posted;                  /* slots of the receiver that the session does not know yet */
    uint8_t incarnation;             /* counts its connections of TCP, which follow one another */
    struct expected sender;          /* the edge that sends on it now */
};

/* Progress of a piece. */
struct piece_news {
    uint32_t channel;
    bool arrived; /* at its receiver; else it has left its sender's slot */
};

struct pipe {
    uint32_t channel, chain;
    bool is_moving;
    uint32_t queue[SLOTS_MAX]; /* bytes of the pieces */
    uint32_t first, n;
    uint32_t credit; /* free slots of the receiver */
    uint32_t moved;  /* bytes of the first piece that have moved */
    uint32_t moving; /* and that are on their way */
};

struct run;

/* Packets and bodies of frames: those in use, and those given back (packets.c). */
struct packet_pool {
    struct packet *packets;
    size_t packets_n, packets_room;
    uint32_t idle_packet; /* the first one that nobody uses, or NO_PACKET */
    uint8_t (*bodies)[HARP_BODY_MAX];
    size_t bodies_n, bodies_room;
    uint32_t *idle_bodies;
    size_t idle_bodies_n, idle_bodies_room;
};

/* Links between hosts and switches, and the routes over them. */
struct fabric {
    struct link *links;
    size_t links_n, links_room;
    bool acks_first; /* at ports of switches */
    uint32_t *hops;  /* links of all routes, each ended by NO_HOP */
    size_t hops_n, hops_room;
    uint32_t *routes; /* where each begins in `hops` */
    size_t routes_n, routes_room;
    struct shortest_paths paths;
};

/* Buffers of switches, which their ports share (packet_share_buffers). */
struct shared_buffers {
    int32_t switches;
    uint64_t *used; /* bytes that wait in each switch, or NULL */
    uint64_t bytes, alpha_q8;
};

/* Servers of hosts, each with a token bucket, and the chains of them that frames pass. */
struct servers {
    uint64_t *free_ps;
    struct bucket *buckets; /* one a server */
    size_t n, room, buckets_room;
    struct chain *chains;
    size_t chains_n, chains_room;
};

/* Processes of hosts, and their ends of connections. */
struct hosts {
    struct process *processes;
    size_t processes_n, processes_room;
    struct end *ends;
    size_t ends_n, ends_room;
    struct packet_tcp *tcp; /* all settings that connections have */
    size_t tcp_n, tcp_room;
    uint32_t *first_hops; /* of the paths of all ends */
    size_t first_hops_n, first_hops_room;
};

/* Channels between processes, what keeps the pieces of busy ones, and the list of idle ones. */
struct channels {
    struct channel *all;
    size_t all_n, all_room;
    struct traffic *traffic;
    size_t traffic_n, traffic_room;
    uint32_t *free_traffic;
    size_t free_traffic_n, free_traffic_room;
    uint32_t idle_oldest, idle_newest, idle_n;
    struct pipe *pipes;
    size_t pipes_n, pipes_room;
};

/* Runs of collectives, and what they and the caller have to hear. */
struct runs {
    struct run **all;
    size_t all_n, all_room;
    int32_t *done, *wants; /* runs that are done, and that want a stage */
    size_t done_n, done_room, wants_n, wants_room;
    struct piece_news *news; /* of this event */
    size_t news_n, news_room;
};

struct packet_world {
    struct packet_config config;
    struct virtual_wheel events;
    uint64_t now_ns, random;
    struct packet_counts counts;
    struct packet_pool pool;
    struct fabric fabric;
    struct shared_buffers buffers;
    struct pfc pfc;
    struct capture capture;
    struct servers servers;
    struct hosts hosts;
    struct channels channels;
    struct runs runs;
    int32_t which;
    int32_t closed; /* a channel whose connection ended, or NOBODY */
    char why[256];
};

static inline void push_event(struct packet_world *w, uint64_t at_ns, enum event_kind kind,
                              size_t number)
{
    if (!virtual_wheel_push(&w->events, at_ns, (uint64_t)kind << KIND_SHIFT | number))
        checked_memory(NULL);
}

/* A piece of a channel has arrived, or has left its sender's slot; its run hears of it when the
 * event is over, so that no stack is called while it is at work. */
static inline void note_piece(struct packet_world *w, uint32_t channel, bool arrived)
{
    w->channels.all[channel].coming += arrived;
    GROW_ARRAY(w->runs.news);
    w->runs.news[w->runs.news_n++] = (struct piece_news){channel, arrived};
}

static inline uint64_t ps_q16(double ps_per_byte)
{
    return (uint64_t)(ps_per_byte * 65536 + 0.5);
}

/* ---- packets.c */
uint32_t take_packet(struct packet_world *w);
void give_packet_back(struct packet_world *w, uint32_t number);
uint32_t take_body(struct packet_world *w);
void append_packet(struct packet_world *w, struct row *row, uint32_t number);
uint32_t remove_first_packet(struct packet_world *w, struct row *row);
/* The same for a row whose first packet has an event, at its at_ns. */
void append_due_packet(struct packet_world *w, struct row *row, uint32_t number,
                       enum event_kind kind, size_t of);
uint32_t remove_due_packet(struct packet_world *w, struct row *row, enum event_kind kind,
                           size_t of);

/* ---- route.c */
enum way { WAY_ENDS, WAY_GOES_ON, WAY_IS_LOST };
/* Where a packet goes that has crossed its link: packet->link becomes the next one. */
enum way choose_next_link(struct packet_world *w, struct packet *packet);
void free_paths(struct shortest_paths *paths);

/* ---- link.c */
void put_on_link(struct packet_world *w, uint32_t number);
void send_from_link(struct packet_world *w, uint32_t link);
void drop_packet(struct packet_world *w, struct link *link, uint32_t packet);

/* ---- hop.c */
void deliver_from_link(struct packet_world *w, uint32_t link);
void pass_on_packet(struct packet_world *w, uint32_t packet);

/* ---- fault.c */
/* Whether its link's faults let a packet arrive now; if not, it is dropped or comes later. */
bool arrives_despite_faults(struct packet_world *w, uint32_t packet);

/* ---- pfc.c */
bool fits_with_pauses(const struct packet_world *w, const struct packet *packet);
/* A packet waits at a port of a switch, or does not any more. */
void count_for_pause(struct packet_world *w, const struct packet *packet, bool more);
void pause_link(struct packet_world *w, uint32_t link);
void resume_link(struct packet_world *w, uint32_t link);
void watch_link(struct packet_world *w, uint32_t link);

/* ---- capture.c */
void capture_packet(struct packet_world *w, const struct packet *packet);

/* ---- police.c */
/* Whether the policers of a chain let a packet of `bytes` through now. */
bool conforms_to_chain(struct packet_world *w, uint32_t chain, uint64_t bytes);
void drop_policed(struct packet_world *w, uint32_t packet);

/* ---- server.c */
/* Give a bucket the tokens that came until now. */
void refill_bucket(struct bucket *bucket, uint64_t now_ps);
/* When `bytes` that begin now have passed a chain, ns. */
uint64_t pass_chain(struct packet_world *w, uint32_t chain, uint64_t bytes);
/* When a process's thread is done with a message that it takes up now. */
uint64_t handle_message(struct packet_world *w, uint32_t process, uint64_t cost_ns);

/* ---- process.c */
/* Let a process have its turn at `at_ns`, or when its last frames are out. */
void turn_process_at(struct packet_world *w, uint32_t process, uint64_t at_ns);
/* An end wants to send. */
void append_ready(struct packet_world *w, uint32_t end);
/* The same, soon. */
void drive_soon(struct packet_world *w, uint32_t end);
/* Wake an end at `at_ns`, unless it is woken earlier. */
void wake_at(struct packet_world *w, uint32_t end, uint64_t at_ns);
void wake_end(struct packet_world *w, uint32_t end);
/* A packet has left the NIC, or was dropped there. */
void leave_ring(struct packet_world *w, struct packet *packet);

/* ---- host.c */
/* A packet is through its sender's process, and goes to the NIC, at `at_ns`. */
void leave_process(struct packet_world *w, uint32_t packet, uint64_t at_ns);
void turn_process(struct packet_world *w, uint32_t process);
void send_from_process(struct packet_world *w, uint32_t process);
void arrive_at_host(struct packet_world *w, uint32_t number);
void take_at_process(struct packet_world *w, uint32_t process);

/* ---- channel.c */
/* A channel over a connection whose ends have these calls and settings; it is open. */
int32_t add_connection(struct packet_world *w, const struct end_ops *ops, uint32_t settings,
                       const struct packet_end *from, const struct packet_end *to, int32_t paths,
                       const int32_t *there, const int32_t *back, uint64_t delay_ns,
                       uint64_t message_ns);
void begin_piece(struct packet_world *w, uint32_t channel);
void post_slots(struct packet_world *w, uint32_t channel);
/* A piece has come whole; its receiver's thread handles it. */
void take_in_piece(struct packet_world *w, uint32_t channel);
void take_next_piece(struct packet_world *w, uint32_t channel);
/* The sender of a channel can send. */
void open_channel(struct packet_world *w, uint32_t channel);

/* ---- idle.c */
uint32_t add_channel(struct packet_world *w); /* between nobody yet */
struct traffic *traffic_of(struct packet_world *w, const struct channel *channel);
/* A piece is about to move on a channel. */
void occupy_channel(struct packet_world *w, uint32_t channel);
/* Something has moved on: perhaps nothing is left. */
void release_channel(struct packet_world *w, uint32_t channel);
/* Close the connections that have been idle longest, beyond those that are kept. */
void close_idle_connections(struct packet_world *w);

/* ---- pipe.c */
void give_to_pipe(struct packet_world *w, uint32_t pipe, uint32_t bytes);
void move_pipe(struct packet_world *w, uint32_t pipe);
void free_pipe_slot(struct packet_world *w, uint32_t pipe);

/* ---- run.c */
/* Let runs go on by what pieces have done in this event. */
void tell_runs(struct packet_world *w);
void free_run(struct run *run);

#endif
