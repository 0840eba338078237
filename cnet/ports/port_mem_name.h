/* How mem ports find each other: sockets in the folder that processes share memory through.
 *
 *     /dev/shm/harp-mem-<16 random bytes, in hex>
 *
 * - **Who sees whom.** Processes that share /dev/shm, as for NCCL's own shared memory: all of a
 *   host or of a container, also from different network namespaces. Only the file's user may
 *   connect.
 * - **Nothing stays.** A port that closes takes its name away. A killed process cannot; the next
 *   port that opens does. Such a name leads to no socket, which a connection of the wrong type
 *   tells apart without disturbing those that live.
 */
#ifndef HARP_PORT_MEM_NAME_H
#define HARP_PORT_MEM_NAME_H

#include <sys/un.h>

#include "base/address.h"

/* Where the port of that address listens. */
struct sockaddr_un mem_name(const struct harp_address *address);

/* A listening socket under the name. Returns it, or -errno. */
int mem_name_listen(const struct harp_address *address);

/* The name leads nowhere any more. */
void mem_name_remove(const struct harp_address *address);

#endif
