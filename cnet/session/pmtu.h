/* MTU of one path in one direction: datagram PLPMTUD (RFC 8899).
 *
 * Data can use few sizes only, those of a chunk in 1, 2, 3 … fragments (fragment.h). So what RFC
 * 8899 calls PLPMTU is here `fragments`: the more, the smaller the frames. Whole chunks are sent
 * until it shows that they do not pass, for mostly they do: the interface's MTU is known.
 *
 *                it arrived                  no size is left to try
 *     CONFIRMING ----------> SEARCHING ---------------------------------> COMPLETE
 *      |  ^   ^                  ^                                        |  |  |
 *      |  |   |                  +---- after 1 s, 2 s, ... 32 s ----------+  |  |
 *      |  |   |                        (PMTU_RAISE_TIMER)                    |  |
 *      |  |   +-- ICMP, or many lost in a row: are frames too long? ---------+  |
 *      |  +------ black hole: BASE_PLPMTU now ----------------------------------+
 *      | 3 probes lost: BASE_PLPMTU now; if it was that, MIN_PLPMTU; if that
 *      v
 *     ERROR: no data; probed ever more rarely until one arrives, then SEARCHING
 *
 * RFC 8899 raises after 600 s. Here a size that is too large costs one frame of a path of Gb/s, and
 * a backup route may be gone within seconds.
 *
 * Sizes are UDP payloads. No clock is read, and no frame is sent here: the caller asks for the next
 * probe, and says what became of it.
 *
 * Owner: the session's path.
 */
#ifndef HARP_PMTU_H
#define HARP_PMTU_H

#include "session/fragment.h"

#define HARP_PMTU_BASE 1200 /* BASE_PLPMTU (RFC 8899, section 5.1.2): UDP payload */
/* MIN_PLPMTU (the same section): UDP payload of an IPv4 packet of 552 bytes, below which Linux
 * takes nobody's word for a route's MTU (net.ipv4.route.min_pmtu; net/ipv4/route.c). */
#define HARP_PMTU_LEAST 524
#define HARP_PMTU_PROBES 3 /* MAX_PROBES (the same section) */

enum harp_pmtu_state {
    HARP_PMTU_CONFIRMING,
    HARP_PMTU_SEARCHING,
    HARP_PMTU_COMPLETE,
    HARP_PMTU_ERROR,
};

struct harp_pmtu {
    enum harp_pmtu_state state;
    uint16_t segment;
    uint8_t base;      /* fragments at BASE_PLPMTU */
    uint8_t most;      /* fragments at MIN_PLPMTU */
    uint8_t fragments; /* of a whole chunk, now */
    uint8_t too_few;   /* fragments whose frames are too long; 0: none known */
    uint8_t hint;      /* fragments that ICMP suggests; 0: none */
    uint8_t losses;    /* of probes of this size, in a row */
    uint64_t next_ns;  /* when to probe again; HARP_NEVER: not before something happens */
    uint64_t raise_ns; /* pause until the next search */
};

/* A new path, with frames of BASE_PLPMTU `base_bytes` long, and of MIN_PLPMTU `least_bytes`. */
void harp_pmtu_init(struct harp_pmtu *pmtu, uint16_t segment, uint16_t base_bytes,
                    uint16_t least_bytes);

/* The size in use. */
static inline uint16_t harp_pmtu_frame_bytes(const struct harp_pmtu *pmtu)
{
    return harp_fragment_frame_bytes(pmtu->segment, pmtu->fragments);
}

/* The size to be probed now, by a frame and a small one behind it; 0 if none is. */
uint16_t harp_pmtu_probe_bytes(struct harp_pmtu *pmtu, uint64_t now_ns);

/* A frame of this size has arrived. */
void harp_pmtu_arrived(struct harp_pmtu *pmtu, uint16_t frame_bytes, uint64_t now_ns);

/* A probe of this size is lost. `overtaken`: by what was sent after it, so that it is likely that
 * the size is why. */
void harp_pmtu_lost(struct harp_pmtu *pmtu, uint16_t frame_bytes, bool overtaken, uint64_t now_ns,
                    uint64_t rto_ns, uint64_t most_ns);

/* Frames of the size in use may be too long, as ICMP says, which can be forged, or as losses look
 * like, which may be congestion: they have to be shown to pass. `hint_bytes`: what may pass
 * instead; 0 if nobody said. */
void harp_pmtu_confirm_again(struct harp_pmtu *pmtu, uint64_t now_ns, uint32_t hint_bytes);

/* A black hole (RFC 8899, section 4.3): frames of the size in use were lost where small ones
 * passed. BASE_PLPMTU at once, or MIN_PLPMTU if they were no longer than that; whole chunks are the
 * first to be tried again. */
void harp_pmtu_black_hole(struct harp_pmtu *pmtu, uint64_t now_ns);

#endif
