/* A mover's wait: it polls for as long as polling has paid off lately, then sleeps.
 *
 * As KVM polls for a halted guest (Linux, halt-polling.rst): the time of looking doubles while
 * waits are shorter than the most, and halves with each longer one. A look that finds nothing
 * offers the CPU to others: where ranks share one, that costs less than a sleep and its end.
 *
 * The most is what looking is worth. Ranks of a host are soon there, and have the CPU meanwhile.
 * Messages from the network come at the network's pace: to look for longer than a sleep and its
 * end take only costs CPU, in a ring over 400 Mb/s twice as much.
 */
#ifndef HARP_LIGHTCC_WAITING_H
#define HARP_LIGHTCC_WAITING_H

#include "direct.h"
#include "engine/engine.h"

#define WAITING_MOST_NS UINT64_C(200000)        /* for ranks of this host */
#define WAITING_NETWORK_MOST_NS UINT64_C(20000) /* for others */

struct waiting {
    uint64_t most_ns; /* of looking; the caller sets it before each look */
    uint64_t spin_ns;
    uint64_t moved_ns; /* when something last moved */
    uint64_t from_ns;  /* 0: it does not wait */
    bool slept;        /* in this wait */
};

/* Returns the time. */
uint64_t waiting_begin(struct waiting *waiting);

/* After a look that found nothing: look again, or sleep until an engine has something or a message
 * comes, until `end_ns`, or for `most_ns`. False after `end_ns`. */
bool waiting_look_or_sleep(struct waiting *waiting, struct harp_engine *const *engines,
                           uint32_t engines_n, struct harp_direct *direct, uint64_t end_ns,
                           uint64_t most_ns);

/* Something has moved. */
void waiting_end(struct waiting *waiting);

#endif
