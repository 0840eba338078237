/* Results of trials of ports, for the other ranks of this host and for the next job.
 *
 * One file in /dev/shm for each pair of an own address and a peer's, of each user: a line of text
 * for people, whose lock belongs to the rank that tries. It is worth a day, and ends when the host
 * boots; another kernel, driver or HARP is another file.
 */
#ifndef HARP_NCCL_TRIAL_CACHE_H
#define HARP_NCCL_TRIAL_CACHE_H

#include "base/address.h"
#include "trial.h"

enum trial_cache_state {
    TRIAL_CACHED,    /* `result` has it */
    TRIAL_DUE,       /* nobody knows: try, then trial_cache_write */
    TRIAL_ELSEWHERE, /* another rank of this host tries now */
};

/* Look for the result of a pair of addresses (ports do not count) over a card.
 * With TRIAL_DUE *fd is the lock, -1 if there can be none. */
enum trial_cache_state trial_cache_read(const struct harp_address *own,
                                        const struct harp_address *peer, const char *card, int *fd,
                                        struct trial_result *result);

/* Keep it and let go of the lock. `result` and `peer` NULL: none was found. */
void trial_cache_write(int fd, const struct harp_address *own, const struct harp_address *peer,
                       const struct trial_result *result);

#endif
