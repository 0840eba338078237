/* The mem port: datagrams through memory that two processes share.
 *
 *     port A                                                        port B
 *     name: 16 random bytes                           listens under its name (below)
 *       |  connect, hello + memfd (SCM_RIGHTS) ------------------------>  |
 *       |  ring 0 =====================================================>  |
 *       |  <===================================================== ring 1  |
 *       |  <---- a byte on the socket: "wake up"; its end: "gone" ----->  |
 *
 * - **One link per pair of ports**, whoever connected first, for both directions; it lives until
 *   either port closes. (If both connect at the same moment there are two, and each sends on its
 *   own.) A port may be linked to itself.
 * - **Partners.** Processes of one user that share /dev/shm. Memory vanishes with them.
 * - **A link ends** when the socket does or when the other side breaks the ring's rules: a notice
 *   says that the address is gone, once what lay in the ring has been received. Frames
 *   written for it then are dropped, as they are for a reader that stands still with a full ring.
 * - **Near and far.** Between some cores the receiver finds lines in the other's cache sooner than
 *   in memory; between others it is the reverse, by a factor of two to three, and a virtual
 *   machine's cores change from one to the other within seconds. How long a line takes does not
 *   tell: one of 140 ns is better written near on some machines and far on others. So a link tries
 *   both ways from time to time, and keeps to the faster one (port.h: `far`).
 * - **No system call** while both sides are awake: newcomers and ends are looked after in `tend`.
 *
 *     state      socket  memory  next
 *     FREE                       GREETING LINKED
 *     GREETING   yes             LINKED FREE        accepted, the hello is not here yet
 *     LINKED     yes     yes     ENDED
 *     ENDED              yes     DEAD               what is in the ring may still be received
 *     DEAD                       FREE               until the notice is taken and no hop is left
 */
#ifndef HARP_PORT_MEM_H
#define HARP_PORT_MEM_H

#include <sys/un.h>

#include "ports/port.h"
#include "ports/port_mem_ring.h"

enum { MEM_LINKS_MAX = 64 };
#define MEM_LISTENER UINT32_MAX /* instead of a link's number, in epoll */

enum mem_state { MEM_FREE, MEM_GREETING, MEM_LINKED, MEM_ENDED, MEM_DEAD };

struct mem_link {
    enum mem_state state;
    bool corrupt; /* nothing in its ring is to be received any more */
    bool noticed; /* DEAD: the engine knows */
    bool stalled; /* its ring has been full for long: what does not fit is dropped */
    int socket;
    uint32_t hops; /* that the engine holds */
    uint64_t full_since_ns;
    bool nontemporal;
    struct mem_trial {
        uint32_t n;       /* trials that are done */
        uint64_t from;    /* position in the ring at which this one began, */
        uint64_t from_ns; /* and when */
        uint64_t best[2]; /* bytes a microsecond, near and far */
    } trial;
    struct harp_address peer;
    struct mem_out out;
    struct mem_in in;
    uint8_t *base; /* of all mappings */
    size_t mapped_bytes;
};

struct mem_port {
    struct harp_port port;
    struct harp_address name;
    int owner, listener, epoll;
    uint32_t links_n; /* numbers ever used */
    uint32_t turn;    /* which link is asked first */
    bool asleep;      /* `sleep` said yes since the last receive */
    uint64_t ring_bytes;
    uint64_t now_ns;
    struct mem_link links[MEM_LINKS_MAX];
};

/* How mem ports find each other: sockets in the folder that processes share memory through.
 *
 *     /dev/shm/harp-mem-<16 random bytes, in hex>
 *
 * - **Visibility.** A port sees the ports of processes that share /dev/shm, as for NCCL's own
 * shared memory: all of a host or of a container, also from different network namespaces. Only the
 * file's user may connect.
 * - **Nothing stays.** A port that closes takes its name away. A killed process cannot; the next
 *   port that opens does. Such a name leads to no socket, which a connection of the wrong type
 *   tells apart without disturbing those that live.
 */

/* Where the port of that address listens. */
struct sockaddr_un mem_name(const struct harp_address *address);

/* A listening socket under the name. Returns it, or -errno. */
int mem_name_listen(const struct harp_address *address);

/* The name leads nowhere any more. */
void mem_name_remove(const struct harp_address *address);

/* Listen under the port's name. Returns 0 or -errno. */
int mem_listen(struct mem_port *port);

/* Make a link to the port of that name. Returns its number, or -errno and a sentence. */
int mem_connect(struct mem_port *port, const struct harp_address *to, char *why);

/* Take newcomers in, learn of ends, and take wake-ups off the sockets. */
void mem_look(struct mem_port *port);

/* Back from sleep: nobody need wake this port, and whatever came on sockets is looked after. */
void mem_wake_up(struct mem_port *port);

/* The other side broke the ring's rules: nothing of it is received any more. */
void mem_give_up(struct mem_port *port, struct mem_link *link);

/* LINKED becomes ENDED. */
void mem_end(struct mem_port *port, struct mem_link *link);

/* Give a link's socket and memory back. */
void mem_free(struct mem_port *port, struct mem_link *link);

#endif
