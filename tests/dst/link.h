/* A simulated network between two ends, in virtual time.
 *
 * Frames are the bytes that a port would carry, sealed under the real keys. Every path and
 * direction has faults of its own, which end at `heal_ns`; and off the path sits an attacker who
 * has seen frames but knows no key.
 *
 *   end -> rate, queue -> lost? burst? black? -> delay, jitter, spike -> doubled? flipped? cut? ->
 * end
 *                             |
 *                             +-> memory of old frames -> sent again as they are, or forged
 *
 * Ghost knowledge goes with each frame, for the checks only: whether its header is one that
 * an end sealed (`forged` if not) and whether its payload is what was sent (`spoilt` if not).
 */
#ifndef DST_LINK_H
#define DST_LINK_H

#include <stddef.h>

#include "common.h"
#include "faults.h"
#include "session/session.h"

#define DST_PATHS 4
#define DST_MEMORY 64
#define DST_FRAME_MAX (HARP_HEADER_BYTES + 2048)

struct dst_flight {
    uint64_t at_ns;
    uint32_t from; /* address: 0 is the other end's, others are anybody's */
    uint16_t bytes_n;
    uint8_t to; /* 0 or 1 */
    uint8_t path;
    bool forged; /* or of so long ago that it must be taken for that */
    bool spoilt;
    _Alignas(8) uint8_t bytes[];
};

/* One direction of a path, and what the attacker does to it; permille of frames. */
struct dst_way {
    struct dst_faulty_link link;
    uint32_t replay, forge;
};

struct dst_link {
    uint64_t random;
    uint64_t heal_ns;
    /* Frames that faults kept from arriving, or made late. */
    uint64_t destroyed_data, destroyed_acks, late_data, late_acks;
    uint64_t trace; /* hash of all frames sent and when */
    bool payloads;
    struct dst_way ways[2][DST_PATHS]; /* towards end 0, towards end 1 */
    struct dst_flight *memory[2][DST_MEMORY];
    struct virtual_events events; /* flights that arrive */
};

/* Kinds to draw: no faults; faults; also partitions; nothing comes through from some time on. */
enum dst_weather { DST_CALM, DST_ROUGH, DST_STORM, DST_DARK };

#define DST_FAULTS_NS (400 * DST_MS)

void dst_network_draw(struct dst_link *link, uint64_t *random, uint64_t now_ns,
                      enum dst_weather weather);

/* Some paths take no frame that is longer than something, at least `least_bytes`; others for a
 * while, and then of any length that an ACK has. */
void dst_network_draw_mtu(struct dst_link *link, uint64_t *random, uint64_t now_ns,
                          size_t least_bytes, size_t whole_bytes);

/* A frame of `bytes_n` bytes leaves for end `to` on `path` at `now_ns`. */
void dst_link_send(struct dst_link *link, uint64_t now_ns, uint8_t to, uint8_t path,
                   const uint8_t *bytes, size_t bytes_n);

/* A frame arrives on `path` at `at_ns`, past all faults. */
void dst_link_inject(struct dst_link *link, uint64_t at_ns, uint8_t to, uint8_t path, uint32_t from,
                     const uint8_t *bytes, size_t bytes_n, bool forged);

/* An old frame on its way to `to`, or NULL. */
const struct dst_flight *dst_link_recall(struct dst_link *link, uint8_t to);

/* More than 2^31 packets pass on every path: what has been sent until now belongs to the past. */
void dst_link_age(struct dst_link *link);

/* When the next frame arrives; HARP_NEVER if none is on its way. */
uint64_t dst_link_next_ns(const struct dst_link *link);

/* That frame; the caller frees it. */
struct dst_flight *dst_link_take(struct dst_link *link);

void dst_link_free(struct dst_link *link);

#endif
