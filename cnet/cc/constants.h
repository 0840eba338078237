/* All constants of harp_cc_swift: what each is, its unit, and what sets it.
 *
 * T is config.target_ns; "part n" means one n-th. The laws stand at the top of the file that uses
 * the constant. Scenes are those of test_swift_bottleneck, by their names on its command line:
 *
 *   fails NAME   the scene misses its demand with twice or half of the value (seed 3)
 *   moves NAME   its figures change, its demand holds
 *   chosen ...   no scene of that kind changes at seed 3; the value stems from the runs named,
 *                mostly beside TCP between namespaces (docs/inside/session.md) and in the table of
 *                docs/inside/packet.md
 */
#ifndef HARP_CC_CONSTANTS_H
#define HARP_CC_CONSTANTS_H

#include <stdint.h>

/* ---- windows (swift_window.c) ---- */

/* Windows are in 1/1024 byte, so that growth below a byte a round trip counts. */
#define SWIFT_SCALE 1024
/* Upper bound of the target queue, in units of T: 2 ms. Fails longer, robbed; moves tiny. */
#define SWIFT_QUEUE_TARGETS_MAX 80
/* Longest pause between two segments, ns: a delay that stays longer is not ours. Moves tiny. */
#define SWIFT_PAUSE_MAX_NS UINT64_C(4000000)

/* ---- delay (swift.c) ---- */

/* The target is raised by this many jitters. Fails noisy. */
#define SWIFT_JITTER_FACTOR 6
/* Upper bound of that, in units of T: 16 ms, a path that is served in turns. Moves turns. */
#define SWIFT_JITTER_TARGETS_MAX 640
/* Part of the window that leaves at once (session_send.c): jitter of our own. Moves busy. */
#define SWIFT_BURST_PART 4
/* Samples in a row above the target that end doubling: one may be a host's. Moves late, noisy. */
#define SWIFT_SAMPLES_ABOVE 4
/* Part of each sample in the smoothed queue that ACKs meet; 2 and 8 swing. Moves both. */
#define SWIFT_REVERSE_PART 4
/* Part of the distance to the target that counts where that queue is long. Fails robbed. */
#define SWIFT_ACKS_PART 4

/* ---- marks (swift_marks.c) ---- */

/* Doublings of the price where every packet is marked: 2^4. Fails marks. */
#define SWIFT_MARK_DOUBLINGS 4
/* Rounds over which the share is smoothed; DCTCP's 16 times 4, as the aim moves 2.8 times as
 * far (RFC 8257, section 4.2). Moves marks. */
#define SWIFT_MARK_ROUNDS 64
/* Marks arrive: this share or more, smoothed; one marked round. Chosen for 64 flows at a
 * marking port. */
#define SWIFT_MARKS_ARRIVE_X65536 (65536 / 64)

/* ---- drains (swift_drain.c) ---- */

/* Round trips from one drain to the next, at least: costs 1/16 of the rate. Fails late; moves
 * use. */
#define SWIFT_PATIENCE_ROUNDS_MIN 8
/* The same once nothing new is learned. Moves use. */
#define SWIFT_PATIENCE_ROUNDS_MAX 64
/* A queue of ACKs moves if it gets shorter by this part ... Fails robbed. */
#define SWIFT_ACKS_MOVE_PART 4
/* ... of the longest of late, which fades by this part a sample. Moves robbed. */
#define SWIFT_ACKS_LONGEST_FADES 1024

/* ---- the base and others' queues (swift_base.c) ---- */

/* Drains in a row that miss the base before anything is concluded. Chosen beside TCP. */
#define SWIFT_MISSED_DRAINS_MIN 3
/* Time over which they must end at the same delay to prove a longer path, ns. Fails longer. */
#define SWIFT_LONGER_PATH_NS UINT64_C(150000000)
/* The same while competing: plateaus of CUBIC are flat for as long. Chosen beside CUBIC. */
#define SWIFT_LONGER_PATH_COMPETING_NS (4 * SWIFT_LONGER_PATH_NS)
/* And then a drain must take this away, in units of T; others would not leave it. Chosen beside
 * CUBIC. */
#define SWIFT_DRAINED_TARGETS_MIN 4
/* Above the base by more than this, in units of T, is not near it. Chosen beside TCP that was
 * there first. */
#define SWIFT_NEAR_TARGETS_MAX 2
/* Delays are the same if they differ by less than this part of the queue. Chosen beside CUBIC. */
#define SWIFT_SAME_FLOOR_PART 32
/* Score of a drain that left three quarters of the queue; of another one: 1. Chosen beside
 * CUBIC. */
#define SWIFT_HARDLY_DRAINED_SCORE 2
/* Score at which others hold the queue ... Chosen beside TCP. */
#define SWIFT_HELD_SCORE_MAX 24
/* ... after this time, ns: newcomers need up to 50 ms for their share. Chosen beside TCP. */
#define SWIFT_HELD_NS UINT64_C(250000000)
/* Or this many missed drains in a row ... Fails tiny, cubic. */
#define SWIFT_MISSED_DRAINS_MAX 64
/* ... after this time, ns. Chosen beside TCP. */
#define SWIFT_MISSED_NS UINT64_C(500000000)
/* Segments in flight below which others' drains weigh more than our own. Fails tiny. */
#define SWIFT_FEW_SEGMENTS 4
/* Drains in a row that must reach the base before competing ends. Chosen beside TCP that was
 * there first. */
#define SWIFT_REACHED_DRAINS_MIN 4
/* A queue up to this, in units of T, may be that of flows like us over two links in a row.
 * Chosen for two links in a row, docs/inside/packet.md. */
#define SWIFT_TWO_LINKS_TARGETS_MAX 16
/* One of this many drains then shows that it was. Chosen for two links in a row,
 * docs/inside/packet.md. */
#define SWIFT_DOUBTED_DRAINS 15
/* By leaving less than this part of it. Chosen for two links in a row, docs/inside/packet.md. */
#define SWIFT_GIVEN_WAY_PART 12
/* Signs of others must last at most this many times as long after such mistakes. Chosen for two
 * links in a row, docs/inside/packet.md. */
#define SWIFT_DOUBT_FACTOR_MAX 16
/* More than this part lost is not chance. Chosen beside TCP. */
#define SWIFT_CHANCE_LOSS_PART 64
/* Flows like us let ACKs through without a queue this often, ns. Moves shapers. */
#define SWIFT_ACKS_PASS_NS UINT64_C(50000000)
/* And any queue gets shorter this often, ns. Fails robbed. */
#define SWIFT_ACKS_MOVE_NS SWIFT_ACKS_PASS_NS
/* Rounds in a row with a queue above 80 T that prove it without a drain. Moves cubic. */
#define SWIFT_STANDING_ROUNDS 32
/* Times such a queue was empty and then long again: somebody fills it. Moves pausing. */
#define SWIFT_REFILLS 4

/* ---- loss (swift_loss.c) ---- */

/* Part that may be lost without a reduction: clouds drop at random. Moves loss. */
#define SWIFT_TOLERATED_LOSS_PART 32
/* Round trips over which loss is judged, at least ... Fails policer; moves loss. */
#define SWIFT_JUDGED_ROUNDS 4
/* ... and segments. Fails loss; moves policer. */
#define SWIFT_JUDGED_SEGMENTS 128
/* Growth until the next judgement, in 1/1024 of the window: the least, after a reduction (1/64)
 * ... Fails policer. */
#define SWIFT_STEP_MIN_X1024 (SWIFT_SCALE / 64)
/* ... and the most. Moves policer. */
#define SWIFT_STEP_MAX_X1024 (SWIFT_SCALE / 4)
/* A trial that loses lasts this many times as many segments: 512. Moves loss, policer. */
#define SWIFT_TRIAL_LOSSY_FACTOR 4
/* Reductions without a queue from one trial to the next, at least. Fails loss, policer. */
#define SWIFT_TRIAL_CUTS_MIN 4
/* And at most: trials cost 0.5 % of a policed rate, and 6 % without this. Moves policer. */
#define SWIFT_TRIAL_CUTS_MAX 64
/* Upper bound of the share taken for chance; a path that loses more is of no use. */
#define SWIFT_CHANCE_MAX_X65536 (65536 / 8)

/* ---- depth of the buffer (swift_depth.c) ---- */

/* Part of the depth that a loss takes away; larger steps part the flows. Fails shallow; moves
 * incast. */
#define SWIFT_DEPTH_CUT_PART 12
/* Shortest time from one cut to the next, in units of T. Moves shallow, incast. */
#define SWIFT_DEPTH_CUT_TARGETS 8
/* Delays of the queue in which the depth grows from nothing to the whole. Moves shallow,
 * incast. */
#define SWIFT_DEPTH_QUEUES 86016
/* It grows this many times as fast where losses are chance. Moves loss. */
#define SWIFT_DEPTH_CHANCE_FACTOR 4
/* Losses, in segments, that measure chance: 32 or 128 for 64 once in 10^5. Fails loss. */
#define SWIFT_COUNTED_SEGMENTS 64
/* Chance is never more than this part. Fails loss. */
#define SWIFT_DEPTH_CHANCE_PART 16

/* ---- beside flows that fill the buffer (swift_compete.c); CUBIC's C and beta: RFC 9438 ---- */

/* A flow that has to compete again within this, ns, ... Chosen beside BBR. */
#define SWIFT_COMPETE_AGAIN_NS UINT64_C(1000000000)
/* ... must see up to this many times as many drains reach the base. Chosen beside BBR. */
#define SWIFT_STAY_FACTOR_MAX 64
/* More than this part lost is congestion, whatever the queue. Chosen beside TCP. */
#define SWIFT_HEAVY_LOSS_PART 16

#endif
