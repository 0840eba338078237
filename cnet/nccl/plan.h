/* A path plan for this rank: the ports, of UDP or TCP, that it listens on, and those of its
 * connections.
 *
 *     harp plan job.yaml -o plan.json      (docs/use/planned-paths.md has the file's format)
 *     HARP_PLAN=plan.json                  each rank reads of it what is its own
 *
 * A plan is a wish. Where it does not fit (another host, a port that is taken, a peer that listens
 * elsewhere) one line in the log says so, and the paths concerned are hashed as without a plan. The
 * same holds for a plan of UDP where data goes over TCP, or the other way round, since switches
 * hash the protocol, too; and for a stale one as far as a host can see that: a NIC that it no
 * longer has, or that has less than the rate for which the paths were planned. Cables and hashes of
 * switches it cannot see; `harp plan --check` knows those that the job's files describe.
 *
 * While the job runs another revision may take the file's place, as harp plan --replan makes it:
 * connections move to its ports within a quarter of a second (plan_watch.c).
 */
#ifndef HARP_NCCL_PLAN_H
#define HARP_NCCL_PLAN_H

#include "engine/engine.h"

#define PLAN_LISTENS 64     /* addresses that a rank listens on, at most: NICs times engines */
#define PLAN_FINGERPRINT 33 /* of its fabric, as text */

struct plan {
    bool used;
    char fabric[PLAN_FINGERPRINT];
    uint32_t rank;
    struct harp_address listens[PLAN_LISTENS];
    uint32_t listens_n;
    struct harp_planned_flow *flows; /* those that leave from this rank */
    uint32_t *taken;                 /* of each: paths that have gone between its two NICs, counted
                                        at the first of the flows between them */
    uint32_t flows_n;
};

/* Identity of this process in a plan. */
struct plan_place {
    const struct harp_address *addresses; /* of its NICs, their ports left out of account */
    const uint32_t *mbps;                 /* of each; 0: unknown */
    uint32_t addresses_n;
    int64_t rank; /* as the launcher says, or -1 */
    bool tcp;     /* data goes over kernel TCP */
};

/* The rank that the launcher's environment names: RANK (torchrun), and those of Open MPI, PMIx, PMI
 * and Slurm; or -1. */
int64_t plan_rank_of_environment(void);

/* Read what concerns this process. False, and one sentence in `why` (HARP_WHY_BYTES): then the plan
 * is as if there were none. plan_free gives its memory back in any case. */
bool plan_read(struct plan *plan, const char *path, const struct plan_place *place, char *why);
void plan_free(struct plan *plan);

/* Whether `next` is another revision of the same plan: the same flows in the same order, by other
 * source ports; else one sentence in `why`. */
bool plan_is_revision(const struct plan *plan, const struct plan *next, char *why);

/* `plan` is such a `next` from now on, and that is used up. */
void plan_replace(struct plan *plan, struct plan *next);

/* The port on which engine number `engine` listens at this NIC; 0: the plan says none. */
uint16_t plan_listen_port(const struct plan *plan, const struct harp_address *nic, uint32_t engine);

/* Give a connection from one of these NICs, with `paths` of each of them, its flows to the listener
 * of this handle; false: the plan has none. */
bool plan_connection(struct plan *plan, const struct harp_address *nics, uint32_t nics_n,
                     const struct harp_handle *handle, uint32_t paths,
                     struct harp_connection_config *config);

#endif
