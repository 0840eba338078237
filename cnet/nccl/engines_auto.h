/* The number of engines of a device, where HARP_ENGINES does not say.
 *
 *     as many as the NIC's rate asks for       one for each ENGINES_AUTO_MBPS, both ways at once
 *     but no more than there are CPUs for      of the rank, without those of NCCL's own threads
 *     and, by xdp, queues                      each engine owns one
 *
 * And whether it has a thread, where HARP_PROGRESS does not say: a thread that polls and NCCL's,
 * which polls, too, halve each other's time where they share a CPU, so only if there is one free.
 */
#ifndef HARP_NCCL_ENGINES_AUTO_H
#define HARP_NCCL_ENGINES_AUTO_H

#include <stdbool.h>
#include <stdint.h>

/* Number of the host's CPUs that this rank may count on. */
struct cores {
    uint32_t cpus; /* that this process may use: its affinity, and the quota of its control group */
    uint32_t ranks; /* of this host that share them, as the launcher's environment says */
    bool bound;     /* the launcher has bound this rank to CPUs of its own: nobody shares them */
};

/* Read affinity, control groups and the launcher's environment. */
void cores_find(struct cores *cores);

/* CPUs of this rank alone; 1 at least. */
uint32_t cores_of_rank(const struct cores *cores);

/* The rate that one engine sends and receives at once: rings use both directions, and one core
 * moves about 50 Gb/s of them together over udp (docs/results/speed.md, docs/use/nccl.md). */
#define ENGINES_AUTO_MBPS 25000
/* CPUs of a rank that are not for engines: its main thread, and NCCL's, which polls. */
#define ENGINES_AUTO_NCCL_CPUS 2
#define ENGINES_AUTO_WHY_BYTES 160

struct engines_host {
    uint32_t speed_mbps;  /* of the device; 0: unknown */
    uint32_t cpus;        /* of the rank (cores_of_rank) */
    uint32_t engine_cpus; /* CPUs that HARP_CPUS names for engines; 0: it does not */
    uint32_t devices;     /* of the rank, which share the CPUs */
    uint32_t queues;      /* of the device, one for each engine; 0: any number does */
    bool drives_inline;   /* NCCL's one thread drives all engines in turn: more gain nothing */
};

/* Whether there is a CPU for a thread of each device's engine. `why`: which CPUs were counted. */
bool engines_auto_threads(const struct engines_host *host, char why[ENGINES_AUTO_WHY_BYTES]);

/* From 1 to `most`. `why` is one clause for the log: what decided. */
uint32_t engines_auto(const struct engines_host *host, uint32_t most,
                      char why[ENGINES_AUTO_WHY_BYTES]);

#endif
