/* CPUs of a NUMA node, for threads that copy what a card there brings.
 *
 * An engine's memory lies on its card's node (arena.h). Its thread would inherit the CPUs of the
 * thread that made it, in NCCL's case those of a GPU's node; half of all copies would then cross
 * between sockets.
 */
#ifndef HARP_NODE_CPUS_H
#define HARP_NODE_CPUS_H

#include <sched.h>
#include <stdbool.h>

#define HARP_NODES_FOLDER "/sys/devices/system/node" /* ABI/stable/sysfs-devices-node */

/* CPUs as the kernel lists them, "0-3,8", below CPU_SETSIZE. False if it is no such list. */
bool harp_cpus_parse(const char *list, cpu_set_t *cpus);

/* The CPUs of `node` that the process may use, as its first thread may: a thread that a library has
 * bound says nothing about the others. False if there are none, or if nothing is known. */
bool harp_node_cpus(const char *folder, int node, cpu_set_t *cpus);

/* Whether the host has several nodes. */
bool harp_nodes_are_several(const char *folder);

#endif
