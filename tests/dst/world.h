/* A run: one seed, two ends, one network, in virtual time, until all is through or ought to be.
 *
 * The seed draws the kind of run, both scripts and all faults. Each end has a clock of its own,
 * which was never set by the other's and runs apart from it by 200 ppm at the most, in every run.
 *
 * - PLAIN: no faults, one path: as thin as it gets.
 * - FAULTS: loss, bursts, delay, spikes, paths that get longer, reordering, doubles, flipped bits,
 *   cut frames, replayed, forged and stale ones, paths that are or become narrow, black paths and
 *   partitions of one or both directions, stalled applications, full rings, clocks that jump once
 *   or more, wrong times of arrival. All heal, and then all messages must come through in bounded
 *   time.
 * - RESTART: the listening end vanishes in the middle. The other must say so in bounded time, and a
 *   new connection with new ids must work while the old one's frames are replayed.
 * - SILENCE: nothing comes through, from the beginning or from some time on. Both must say so.
 * - CHEAT: one end acknowledges what never came. The other notices or comes to no harm.
 * - MALICE: one end, or who holds its keys, changes any field under a tag that holds. The other
 *   drops, closes or goes on, and touches no memory but its own.
 * - FLOOD: thousands of FIRSTs from spoofed addresses, with tags that hold and that do not, while
 *   the connection is made. No state is kept for them, no answer outweighs them, and the connection
 *   works.
 * - FIELD: no faults but one changed field; not drawn, but counted through (fields.c).
 * - BREAK: one end closes in the middle, or posts too short a buffer, or speaks another version, or
 *   no path takes frames of MIN_PLPMTU. Both say why, in time.
 */
#ifndef DST_WORLD_H
#define DST_WORLD_H

#include "end.h"

#define DST_DEAD_NS DST_S
#define DST_RECOVERY_NS (4 * DST_S)
#define DST_PROBES_IN_VAIN 4

enum dst_kind {
    DST_PLAIN,
    DST_FAULTS,
    DST_RESTART,
    DST_SILENCE,
    DST_CHEAT,
    DST_MALICE,
    DST_FLOOD,
    DST_BREAK,
    DST_FIELD,
};

/* Why a connection of the kind BREAK ends. */
enum dst_break { DST_BY_CLOSE, DST_BY_SHORT_BUFFER, DST_BY_VERSION, DST_BY_MTU };

struct dst_result {
    enum dst_kind kind;
    uint64_t trace;      /* hash of all frames and times */
    uint64_t frames;     /* delivered */
    uint64_t now_ns;     /* virtual time at the end */
    uint64_t data_again; /* retransmitted chunks */
    uint64_t spurious;
    uint64_t paths_died;
    uint64_t pmtu_shrunk, pmtu_grown;
    uint64_t disturbed; /* the most that may be sent again */
};

struct dst_world {
    uint64_t random;
    uint64_t now_ns;
    enum dst_kind kind;
    enum dst_break breaks;
    struct dst_link link;
    struct dst_end ends[2];
    struct dst_script scripts[2];
    uint16_t base_bytes, least_bytes; /* BASE_PLPMTU and MIN_PLPMTU of both ends */
    bool small;                       /* sessions with little memory */
    uint64_t jump_ns;                 /* when a clock jumps */
    int64_t jump_by_ns;
    uint64_t skip_ns; /* when very many packets pass at once */
    uint64_t prod_ns; /* when an end hears of a path again: off its queue, unreachable, and so on */
    uint64_t flood_ns; /* when the next FIRST of a flood comes */
    uint32_t flood_n;  /* how many are still to come */
    struct dst_result result;
};

/* Draw scripts, network and ends of one life, and start it (draw.c). */
void dst_begin(struct dst_world *world, uint16_t epoch);

/* The run of the lower 32 bits of `seed`, with sessions that have little memory. */
#define DST_SMALL (UINT64_C(1) << 32)

/* Run `seed`; dst_fail is called for whatever breaks. */
struct dst_result dst_run(uint64_t seed, bool payloads);

/* One change of one field, first by who has no key, then by who has (fields.c). `which` counts
 * changes of all fields of all types of frames; false if there are fewer. */
bool dst_run_field(uint64_t which);

/* One step of virtual time, to `stop_ns` at the latest. */
void dst_step(struct dst_world *world, uint64_t stop_ns);

/* A world in which nothing has begun. */
struct dst_world *dst_world_new(uint64_t seed, enum dst_kind kind, bool payloads);
void dst_world_free(struct dst_world *world);

#endif
