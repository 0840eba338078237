/* A network card that several processes share: one XDP program, one owner a queue.
 *
 *      process 1      process 2      process 3        descriptors of the same link, program, maps
 *          \              |             /
 *           link --- program --- ports: address, port -> queue
 *                        \------ sockets: queue -> AF_XDP socket
 *
 * - **Nobody owns the program.** The first process attaches it by a BPF link; each other one opens
 *   that link by its id, or has it handed over by one that has it (xdp_handover.h). The kernel
 * detaches the program when the last descriptor of the link is closed, however its process ends.
 * Nothing is pinned, nothing needs cleaning up.
 * - **A queue belongs to the process that has bound a socket to it**; the kernel lets no other
 * bind. A socket's entry in `sockets` goes with the socket.
 * - **An entry of `ports` belongs to the owner of the queue that it names.** What a process that
 *   was killed left behind passes to the kernel while the queue has no owner, and the queue's next
 *   owner removes it first.
 *
 * Owner: one port; control plane only.
 */
#ifndef HARP_XDP_NIC_H
#define HARP_XDP_NIC_H

#include "ports/netlink.h"
#include "ports/xdp_program.h"

struct harp_xdp_nic {
    struct harp_xdp_program program;
    int link;
    int listener; /* readable when a process asks for the descriptors; -1 if none can ask */
    bool first;   /* this process attached it */
};

/* Attach the program to the driver of `interface`, or join those who have. Returns 0, or -errno and
 * one sentence in `why` (HARP_WHY_BYTES). */
int harp_xdp_nic_join(struct harp_xdp_nic *nic, struct harp_netlink *netlink,
                      const struct harp_link *interface, char *why);

/* Take possession of a queue that an AF_XDP socket of this process was just bound to: what a
 * former owner left is removed, and arrivals go to the socket from now on. 0 or -errno. */
int harp_xdp_nic_claim(struct harp_xdp_nic *nic, uint32_t queue, int socket);

/* Send datagrams to `address` to the socket of `queue`, if that is where they arrive. 0 or -errno.
 */
int harp_xdp_nic_steer(struct harp_xdp_nic *nic, const struct harp_address *address,
                       uint32_t queue);

void harp_xdp_nic_unsteer(struct harp_xdp_nic *nic, const struct harp_address *address);

/* Hand the descriptors to processes that ask at `listener`; never waits. */
void harp_xdp_nic_share(const struct harp_xdp_nic *nic);

/* Close the descriptors. The last process to do so detaches the program. */
void harp_xdp_nic_leave(struct harp_xdp_nic *nic);

#endif
