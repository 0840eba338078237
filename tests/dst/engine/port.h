/* A port of the simulated network, with the troubles of a card.
 *
 *   slot, send_frame -> written -- flush --> link        busy until completion: at once, late,
 * never link -> queue (full: dropped) -- receive --> arrivals in frames of the pool, or elsewhere
 *
 * A frame of the pool that is being sent is looked at again when it completes: no byte of it may
 * have changed. A frame that nobody sealed comes alone in its burst, and what it could change is
 * compared before and after.
 */
#ifndef DST_ENGINE_PORT_H
#define DST_ENGINE_PORT_H

#include "engine/engine.h"
#include "link.h"

#define DST_QUEUE 512
#define DST_BUSY 512
#define DST_CONNECTIONS 600 /* of an engine, at most */
/* Each connection has one beside those of its paths; one that is being made has its paths'. */
#define DST_HOPS (DST_CONNECTIONS * (DST_PATHS + 1) + DST_PATHS)
#define DST_NOWHERE 255 /* the path to a stranger */
#define DST_PORT_BASE 5000

enum { DST_RING_MISSING = 4 }; /* at most one in this many of the ring is missing */

struct dst_card {
    bool pool;            /* receives into frames of the pool, and sends frames */
    uint32_t payload_max; /* UDP payload */
    uint32_t fill;        /* frames that it holds to receive into */
    uint32_t queue;       /* arrivals that wait, at most */
    uint32_t ring;        /* datagrams on their way out, at most */
    uint64_t complete_ns; /* longest time until a completion */
    uint32_t missing;     /* permille of frames whose completion does not come before the close */
    uint64_t full_from_ns, full_to_ns; /* no room to send */
};

struct dst_side;

struct dst_port;

/* The port that the next harp_engine_open with dst_port_open makes belongs to this side. */
void dst_port_next(struct dst_side *side);

int dst_port_open(struct harp_port **port, const struct harp_port_config *config, char *why);

/* A frame comes; the port owns it now. */
void dst_port_arrive(struct dst_port *port, struct dst_flight *flight);

/* Whether there is something to receive. */
bool dst_port_waits(const struct dst_port *port);

/* How many hops there are. */
uint32_t dst_port_hops(const struct dst_port *port);

/* Report to the engine that one of the peer's addresses is unreachable. */
void dst_port_unreachable(struct dst_port *port, uint8_t path);

/* The address of an end on a path, or of a stranger. */
struct harp_address dst_address(uint8_t side, uint8_t path, uint32_t from);

#endif
