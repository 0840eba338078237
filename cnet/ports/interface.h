/* The interface of a port that the kernel's sockets carry, and its own address there. */
#ifndef HARP_INTERFACE_H
#define HARP_INTERFACE_H

#include "ports/port.h"

struct harp_interface {
    char name[16];
    unsigned index;
    int family; /* AF_INET or AF_INET6, of the address that was found */
    uint32_t mtu;
    bool offloads_sums; /* the card makes and checks the sums of TCP and UDP */
};

/* The interface that `config` names, or that has its address; the address goes to `local`, which
 * has the configured port. `kind` is the port's, for the sentence. Returns 0, or -errno and one
 * sentence in `why` (HARP_WHY_BYTES). */
int harp_interface_find(struct harp_interface *found, const char *kind,
                        const struct harp_port_config *config, struct harp_address *local,
                        char *why);

#endif
