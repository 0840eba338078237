/* A run: one seed, two ends, one network, in virtual time, until all is through or ought to be.
 *
 * The seed draws the kind of run, both scripts and all faults.
 *
 *   PLAIN    no faults, one path: as thin as it gets
 *   FAULTS   loss, bursts, delay, spikes, reordering, doubles, flipped bits, replays, stale epochs,
 *            black paths and partitions of one or both directions, stalled applications, clock
 * jumps; all heal, and then all messages must come through in bounded time RESTART  the listening
 * end vanishes in the middle; the other must say so in bounded time, and a new connection with new
 * ids must work while the old one's frames are still replayed SILENCE  nothing comes through, from
 * the beginning or from some time on: both ends must say so CHEAT    one end acknowledges what
 * never came: the other must notice or come to no harm
 */
#ifndef DST_WORLD_H
#define DST_WORLD_H

#include "end.h"

enum dst_kind { DST_PLAIN, DST_FAULTS, DST_RESTART, DST_SILENCE, DST_CHEAT };

struct dst_result {
    enum dst_kind kind;
    uint64_t trace;      /* hash of all frames and times */
    uint64_t frames;     /* delivered */
    uint64_t now_ns;     /* virtual time at the end */
    uint64_t data_again; /* retransmitted chunks */
    uint64_t spurious;
    uint64_t paths_died;
};

/* Run `seed`; dst_fail is called for whatever breaks. */
struct dst_result dst_run(uint64_t seed, bool payloads);

#endif
