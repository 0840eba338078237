/* Choice of the ports that carry a device's connections, and of how many paths these have.
 *
 *      HARP_PORT                                ports of each NIC
 *      xdp, udp, tcp, mem                       that one
 *      auto   xdp has zero copy                 xdp, and tcp for ranks that have no xdp
 *             a setting asks for what only
 *             HARP's own packets can do         udp
 *             else                              tcp: with a copy the kernel's own is the fastest
 *
 * A connection goes by the first kind of the connecting end's ports that the listener has, too.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>

#include "plugin.h"

/* NCCL's own defaults by the maker of the NIC (src/transport/net_socket.cc of 2.30: threads times
 * sockets a thread), whose networks bound what one flow gets. */
#define PCI_AWS 0x1d0f
#define PCI_GOOGLE 0x1ae0
#define FLOWS_AWS (2 * 8)
#define FLOWS_GOOGLE (4 * 1)

/* The first setting that asks for what HARP's own packets alone can do; NULL: none. */
static const char *asks_for_packets(const struct settings *settings)
{
    return *settings->plan             ? "HARP_PLAN"
           : *settings->faults         ? "HARP_FAULTS"
           : settings->cc              ? "HARP_CC"
           : settings->xdp != XDP_BEST ? "HARP_XDP"
           : settings->busy_poll_us    ? "HARP_BUSY_POLL"
                                       : NULL;
}

bool port_choice_fits(const struct settings *settings, char *why, size_t room)
{
    const char *name = asks_for_packets(settings);
    if (settings->port != PORT_TCP || !name)
        return true;
    snprintf(why, room,
             "HARP_PORT is \"tcp\", and %s is for HARP's own packets: unset one of them, or set "
             "HARP_PORT=udp",
             name);
    return false;
}

bool port_choice_has_tcp(const struct settings *settings)
{
    return settings->port == PORT_TCP ||
           (settings->port == PORT_AUTO && !asks_for_packets(settings));
}

/* A count that the user gave NCCL's own sockets; 0: none. */
static uint32_t count_of_nccl(const char *name)
{
    const char *text = getenv(name);
    long n = text ? strtol(text, NULL, 10) : 0;
    return n > 0 && n <= HARP_PATHS_MAX ? (uint32_t)n : 0;
}

uint32_t port_choice_flows(const struct nic *nic, const char **why)
{
    uint32_t threads = count_of_nccl("NCCL_SOCKET_NTHREADS");
    uint32_t each = count_of_nccl("NCCL_NSOCKS_PERTHREAD");
    const struct settings *settings = &plugin.settings;
    uint32_t n = settings->sockets           ? (uint32_t)settings->sockets
                 : settings->paths > 1       ? (uint32_t)settings->paths
                 : threads || each           ? (threads ? threads : 1) * (each ? each : 1)
                 : nic->vendor == PCI_AWS    ? FLOWS_AWS
                 : nic->vendor == PCI_GOOGLE ? FLOWS_GOOGLE
                                             : 1;
    *why = settings->sockets           ? "HARP_SOCKETS"
           : settings->paths > 1       ? "HARP_PATHS"
           : threads || each           ? "NCCL_SOCKET_NTHREADS times NCCL_NSOCKS_PERTHREAD"
           : nic->vendor == PCI_AWS    ? "AWS bounds a flow's rate"
           : nic->vendor == PCI_GOOGLE ? "Google Cloud bounds a flow's rate"
                                       : "as NCCL has by default";
    return n < HARP_PATHS_MAX ? n : HARP_PATHS_MAX;
}
