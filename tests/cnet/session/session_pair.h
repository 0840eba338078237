/* Two sessions and a network of fixed delay between them, in virtual time; for unit tests.
 *
 * Frames are handed over as structs: no keys, no CRC. Payload is copied where HARP_PLACE says;
 * streamed payload lands in `lent`, in order of arrival. `passes` decides about every frame.
 */
#ifndef SESSION_PAIR_H
#define SESSION_PAIR_H

#include "base/sequence.h"
#include "session/reassembly.h"
#include "session/session.h"
#include "virtual/event_heap.h"

#define US UINT64_C(1000)
#define MS (1000 * US)
#define S (1000 * MS)
#define PAIR_FLIGHTS 8192
#define PAIR_LENT 8192
#define PAIR_SEGMENT 1408

struct pair_flight {
    uint8_t to;
    struct harp_frame frame;
};

struct pair_lent {
    struct harp_header header;
    uint8_t first, last; /* bytes of the payload */
};

struct pair {
    struct harp_session_config config[2];
    struct harp_session *end[2]; /* 0 connects */
    uint64_t now_ns;
    uint64_t delay_ns;
    bool (*passes)(struct pair *pair, uint8_t to, const struct harp_frame *frame);
    bool stopped[2]; /* nobody drives this end */
    /* what happened, by end */
    bool connected[2];
    struct harp_event closed[2];
    uint32_t sent[2], received[2];
    struct harp_event last_sent[2], last_received[2];
    struct pair_lent lent[2][PAIR_LENT];
    uint32_t lent_n[2];
    uint64_t frames[2][9]; /* frames that left towards an end, by type */
    /* inside */
    uint8_t eager[2][HARP_EAGER][PAIR_SEGMENT];
    uint8_t assembling[2][HARP_REASSEMBLIES][PAIR_SEGMENT]; /* streamed chunks in fragments */
    struct virtual_events events;                           /* which flight arrives when */
    struct pair_flight flights[PAIR_FLIGHTS];
    uint32_t flights_n; /* sent until now; each takes the place of the one long before it */
};

/* Two configurations with `paths` paths and no sessions yet: change them, then pair_begin. */
struct pair *pair_make(uint16_t paths);
void pair_begin(struct pair *pair);
void pair_free(struct pair *pair);

/* Let `for_ns` pass; or stop as soon as `until` holds, and say whether it does. */
void pair_pass(struct pair *pair, uint64_t for_ns);
bool pair_until(struct pair *pair, uint64_t for_ns, bool (*until)(const struct pair *pair));

/* Both ends have reported CONNECTED and all is quiet. */
void pair_connect(struct pair *pair);

/* A frame that was recorded arrives again; its tag is checked as an engine does. */
void pair_deliver(struct pair *pair, uint8_t to, const struct harp_frame *frame);

/* Give a frame to an end now, as if it had arrived. */
enum harp_verdict pair_inject(struct pair *pair, uint8_t to, const struct harp_header *header);

#endif
