/* A run of engines: one seed, two production engines with their frames, a simulated port each, one
 * network, in virtual time.
 *
 *   PLAIN    no faults
 *   FAULTS   those of the network (../world.h), and those of a card and its host: full rings, late
 *            and missing completions, few frames, stalled applications, clocks that jump; all heal,
 *            and then all messages must come through in bounded time
 *   RESTART  the listening end is killed in the middle and comes again at the same address, with a
 *            new listener: the old connection ends in bounded time, a new one works
 *   LET_GO   an application lets go of its connection in the middle: from then on the engine
 *            touches nothing of it, and the other end hears of it
 *   MALICE   one end changes any field of its frames under tags that hold
 *   CROWD    dozens to hundreds of connections between the two, data both ways on each; some are
 *            let go of in the middle, by either end, and at times the listening end is killed
 *   FLOOD    FIRSTs from spoofed addresses: half-open connections stay few and pass, answers are
 *            lighter than requests, and the connection works
 *
 * The first four also run over the product's own tcp ports, on a kernel in virtual time
 * (tcp_kernel.h): flows are reset, late, dark for a while, or for ever beside others that are not.
 *
 * At the end no frame is anybody's but the port's, there is no hop and no flow, and everything is
 * given back.
 */
#ifndef DST_ENGINE_WORLD_H
#define DST_ENGINE_WORLD_H

#include "crowd.h"

enum dst_kind { DST_PLAIN, DST_FAULTS, DST_RESTART, DST_LET_GO, DST_MALICE, DST_FLOOD, DST_CROWD };

/* Run `seed`; dst_fail is called for whatever breaks. Returns how many frames were delivered, or
 * how many bytes over tcp. */
uint64_t dst_run_engines(uint64_t seed, bool over_tcp);

#endif
