/* Faults: one direction of a link that loses, delays, doubles and damages frames.
 *
 *   dst_faults_pass --> black? burst? lost? --> queue (drop-tail) --> rate --> narrow?
 *                                                      --> delay, jitter, spike, late --> at_ns
 *
 * The caller (link.h) owns the frames and the clock: it asks for a frame's fate, and pushes frames
 * that arrive on its event heap. A frame may arrive twice (dst_faults_twin_ns), and not as it was
 * sent (dst_faults_spoil).
 *
 * Loss, bursts, doubles, lateness and damage are drawn only while the caller says that there are
 * faults, so that it can let a link heal. Spans (black, narrow, spike), a path that gets longer and
 * the longest frame hold in any case. The same generator and the same calls give the same fates.
 */
#ifndef DST_FAULTS_H
#define DST_FAULTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "virtual/event_heap.h"
#include "virtual/line.h"

struct dst_span {
    uint64_t from_ns, to_ns; /* from the one on and before the other; both 0: never */
};

struct dst_faults {
    uint64_t delay_ns;
    uint64_t jitter_ns;
    uint64_t byte_ps;  /* time that a byte takes, in ps */
    uint64_t queue_ns; /* longest wait in the queue; then the tail is dropped */
    size_t most_bytes; /* longer frames do not pass, for ever; 0: all pass */
    struct dst_span narrow;
    size_t narrow_bytes;   /* longer ones do not pass meanwhile */
    struct dst_span black; /* nothing passes */
    struct dst_span spike;
    uint64_t spike_ns;                     /* what arrives comes so much later */
    uint64_t longer_at_ns, longer_ns;      /* from then on the path is longer, by this */
    uint32_t loss, twice, late, flip, cut; /* permille of frames */
    uint32_t burst, burst_length;          /* permille that begin a burst of losses, and its most */
};

struct dst_faulty_link {
    struct dst_faults faults;
    struct virtual_line line;
    uint32_t burst_left;
};

/* The fate of a frame. */
struct dst_fate {
    uint64_t at_ns; /* when it arrives, or would */
    bool dropped;   /* it does not leave: the queue is full, or it is too long */
    bool lost;      /* on its way */
    bool late;      /* by jitter, a spike, chance or a path that has just become longer: it may seem
                       lost */
};

struct dst_fate dst_faults_pass(struct dst_faulty_link *link, uint64_t *random, uint64_t now_ns,
                                bool faulty, size_t bytes_n);

/* When a second copy of a frame arrives that arrives at `at_ns`; VIRTUAL_NEVER: there is none. */
uint64_t dst_faults_twin_ns(const struct dst_faulty_link *link, uint64_t *random, uint64_t at_ns);

/* Flip a bit of a frame, or cut its end off. Returns how many bytes are left; *spoilt: whether it
 * did either. */
size_t dst_faults_spoil(const struct dst_faulty_link *link, uint64_t *random, uint8_t *bytes,
                        size_t bytes_n, bool *spoilt);

/* Flip one bit: in half of the cases of the header, else of what follows. */
void dst_flip_bit(uint64_t *random, uint8_t *bytes, size_t bytes_n);

#endif
