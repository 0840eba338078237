/* Choice of the ports that carry a device's connections, and of how many paths these have.
 *
 *      HARP_PORT                                ports of each NIC
 *      xdp, udp, tcp, mem                       that one
 *      xdp,tcp and udp,tcp                      both
 *      auto   xdp has zero copy                 xdp and tcp
 *             a setting asks for what only
 *             HARP's own packets can do         udp
 *             else                              tcp: with a copy the kernel's own is the fastest
 *
 * Where both ends have packets of HARP's own and tcp, a trial decides (trial.h). Else a connection
 * goes by the first kind of the connecting end's ports that the listener has, too.
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

static bool asks_for_trial(const struct settings *settings)
{
    return settings->port == PORT_XDP_OR_TCP || settings->port == PORT_UDP_OR_TCP;
}

/* A setting that a device with tcp ports cannot follow; NULL: none. HARP_CC and what is about xdp
 * hold in a trial, of the other port. */
static const char *find_unfit(const struct settings *settings)
{
    struct settings but_plan = *settings; /* a plan may be one of TCP's ports */
    *but_plan.plan = 0;
    if (settings->port == PORT_TCP)
        return asks_for_packets(&but_plan);
    if (!asks_for_trial(settings))
        return NULL;
    return *settings->plan ? "HARP_PLAN" : *settings->faults ? "HARP_FAULTS" : NULL;
}

bool port_choice_fits(const struct settings *settings, char *why, size_t room)
{
    const char *name = find_unfit(settings);
    if (name)
        snprintf(why, room,
                 "HARP_PORT is \"%s\", and %s is for HARP's own packets: unset one of them, or "
                 "set HARP_PORT=udp",
                 settings_ports[settings->port], name);
    return !name;
}

bool port_choice_has_tcp(const struct settings *settings)
{
    return settings->port == PORT_TCP || asks_for_trial(settings) ||
           (settings->port == PORT_AUTO && !asks_for_packets(settings));
}

enum settings_port port_choice_first(const struct settings *settings)
{
    return settings->port == PORT_XDP_OR_TCP   ? PORT_XDP
           : settings->port == PORT_UDP_OR_TCP ? PORT_UDP
           : settings->port != PORT_AUTO       ? (enum settings_port)settings->port
           : port_choice_has_tcp(settings)     ? PORT_TCP
                                               : PORT_UDP;
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
    bool fixed = settings->paths > 1 || *settings->plan; /* a plan is of a number of paths */
    uint32_t n = settings->sockets           ? (uint32_t)settings->sockets
                 : fixed                     ? (uint32_t)settings->paths
                 : threads || each           ? (threads ? threads : 1) * (each ? each : 1)
                 : nic->vendor == PCI_AWS    ? FLOWS_AWS
                 : nic->vendor == PCI_GOOGLE ? FLOWS_GOOGLE
                                             : 1;
    *why = settings->sockets           ? "HARP_SOCKETS"
           : fixed                     ? "HARP_PATHS"
           : threads || each           ? "NCCL_SOCKET_NTHREADS times NCCL_NSOCKS_PERTHREAD"
           : nic->vendor == PCI_AWS    ? "AWS bounds a flow's rate"
           : nic->vendor == PCI_GOOGLE ? "Google Cloud bounds a flow's rate"
                                       : "as NCCL has by default";
    return n < HARP_PATHS_MAX ? n : HARP_PATHS_MAX;
}

uint16_t port_choice_paths(const struct device *device, enum settings_port kind)
{
    const char *why;
    uint64_t paths = 0;
    for (uint32_t i = 0; i < device->nics_n; i++)
        paths +=
            kind == PORT_TCP ? port_choice_flows(device->nics[i], &why) : plugin.settings.paths;
    return (uint16_t)(paths < HARP_PATHS_MAX ? paths : HARP_PATHS_MAX);
}

const char *port_choice_name(enum settings_port kind)
{
    return kind == PORT_TCP ? "kernel TCP" : settings_ports[kind];
}
