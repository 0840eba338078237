/* Choice of the transport of a device's comms: HARP's session over one of its ports, or kernel TCP.
 *
 *      HARP_PORT                       transport
 *      xdp, udp, mem                   session
 *      tcp                             TCP; of NICs that NCCL fuses a session over udp
 *      auto   by xdp, zero copy        session: nothing is copied, and the kernel is not in the way
 *             several NICs, or what
 *             only a session can do    session
 *             else                     TCP: with a copy at either end the kernel's is the faster
 *
 * A listener offers all that its rank may take, and says in the handle which it prefers; so ranks
 * that choose differently still connect (transport_choice_meet).
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>

#include "base/sequence.h"
#include "plugin.h"

/* NCCL's own defaults by the maker of the NIC (src/transport/net_socket.cc of 2.30: threads times
 * sockets a thread), whose networks bound what one flow gets. */
#define PCI_AWS 0x1d0f
#define PCI_GOOGLE 0x1ae0
#define SOCKETS_AWS (2 * 8)
#define SOCKETS_GOOGLE (4 * 1)

/* NCCL's buffers of each protocol (computeBuffSizes, src/init.cc of 2.30), of NCCL_STEPS steps. */
#define SIMPLE_BYTES (UINT64_C(1) << 22)
#define LL_BYTES (UINT64_C(8) * 512 * STEPS * 16)
#define LL128_BYTES (UINT64_C(120) * 640 * STEPS * 8)
#define STEPS 8

/* The first setting that asks for what a session alone can do; NULL: none. */
static const char *asks_for_session(const struct settings *settings)
{
    return settings->paths > 1                      ? "HARP_PATHS"
           : *settings->rails                       ? "HARP_RAILS"
           : *settings->plan                        ? "HARP_PLAN"
           : *settings->faults                      ? "HARP_FAULTS"
           : *settings->dump                        ? "HARP_DUMP"
           : settings->engines                      ? "HARP_ENGINES"
           : settings->cpus.n                       ? "HARP_CPUS"
           : settings->progress == PROGRESS_THREADS ? "HARP_PROGRESS"
           : settings->cc                           ? "HARP_CC"
           : settings->xdp != XDP_BEST              ? "HARP_XDP"
           : settings->busy_poll_us                 ? "HARP_BUSY_POLL"
                                                    : NULL;
}

bool transport_choice_fits(const struct settings *settings, char *why, size_t room)
{
    const char *name = asks_for_session(settings);
    if (settings->port != PORT_TCP || !name)
        return true;
    snprintf(why, room,
             "HARP_PORT is \"tcp\", and %s is for HARP's own transport: unset one of them, or set "
             "HARP_PORT=udp",
             name);
    return false;
}

static bool is_tcp_alone(const struct device *device)
{
    return plugin.settings.port == PORT_TCP && device->nics_n == 1;
}

static enum transport choose_transport(const struct device *device, char *why)
{
    const char *name = asks_for_session(&plugin.settings);
    if (plugin.settings.port != PORT_AUTO) {
        snprintf(why, HARP_WHY_BYTES, "HARP_PORT");
        return is_tcp_alone(device) ? TRANSPORT_TCP : TRANSPORT_SESSION;
    }
    if (device->zero_copy)
        snprintf(why, HARP_WHY_BYTES, "zero copy");
    else if (device->nics_n > 1)
        snprintf(why, HARP_WHY_BYTES, "it has several NICs");
    else if (name)
        snprintf(why, HARP_WHY_BYTES, "%s asks for it", name);
    else
        snprintf(why, HARP_WHY_BYTES, "no zero copy on one path: the kernel's copy is the faster");
    return device->zero_copy || device->nics_n > 1 || name ? TRANSPORT_SESSION : TRANSPORT_TCP;
}

/* A count that the user gave NCCL's own sockets; 0: none. */
static uint32_t count_of_nccl(const char *name)
{
    const char *text = getenv(name);
    long n = text ? strtol(text, NULL, 10) : 0;
    return n > 0 && n <= TCP_SOCKETS_MAX ? (uint32_t)n : 0;
}

/* The size that the user, or else NCCL, gives a protocol's buffers. */
static uint64_t bytes_of_buffer(const char *name, uint64_t bytes)
{
    const char *text = getenv(name);
    return text ? strtoull(text, NULL, 0) : bytes;
}

uint32_t transport_choice_staged_most(void)
{
    uint64_t ll = bytes_of_buffer("NCCL_LL_BUFFSIZE", LL_BYTES);
    uint64_t ll128 = bytes_of_buffer("NCCL_LL128_BUFFSIZE", LL128_BYTES);
    return (uint32_t)harp_min(harp_max(harp_max(ll, ll128) / STEPS, TCP_STAGED_MOST),
                              HARP_MESSAGE_MAX);
}

/* NCCL registers the buffer of each protocol by itself (src/transport/net.cc of 2.12 to 2.30), and
 * Simple's by its size is not LL's: nobody reads that one before the message is there. All other
 * memory may be. */
bool transport_choice_watched(size_t bytes)
{
    return bytes != bytes_of_buffer("NCCL_BUFFSIZE", SIMPLE_BYTES) ||
           bytes == bytes_of_buffer("NCCL_LL_BUFFSIZE", LL_BYTES) ||
           bytes == bytes_of_buffer("NCCL_LL128_BUFFSIZE", LL128_BYTES);
}

static uint32_t count_sockets(const struct device *device, const char **why)
{
    uint32_t vendor = device->nics[0]->vendor;
    uint32_t threads = count_of_nccl("NCCL_SOCKET_NTHREADS");
    uint32_t each = count_of_nccl("NCCL_NSOCKS_PERTHREAD");
    uint32_t n = plugin.settings.sockets ? (uint32_t)plugin.settings.sockets
                 : threads || each       ? (threads ? threads : 1) * (each ? each : 1)
                 : vendor == PCI_AWS     ? SOCKETS_AWS
                 : vendor == PCI_GOOGLE  ? SOCKETS_GOOGLE
                                         : 1;
    *why = plugin.settings.sockets ? "HARP_SOCKETS"
           : threads || each       ? "NCCL_SOCKET_NTHREADS times NCCL_NSOCKS_PERTHREAD"
           : vendor == PCI_AWS     ? "AWS bounds a flow's rate"
           : vendor == PCI_GOOGLE  ? "Google Cloud bounds a flow's rate"
                                   : "as NCCL has by default";
    return n < TCP_SOCKETS_MAX ? n : TCP_SOCKETS_MAX;
}

static void log_transport(const struct device *device, const char *sockets_why)
{
    if (device->transport == TRANSPORT_SESSION)
        return; /* the engine's line does */
    plugin_info("%s: tcp: kernel TCP, %u data socket%s a connection (%s), driven by NCCL's thread "
                "(%s%s)",
                device->name, device->sockets, device->sockets > 1 ? "s" : "", sockets_why,
                device->transport_reason,
                plugin.settings.port == PORT_AUTO
                    ? "; HARP_PORT=udp takes HARP's own transport, with paths and healing"
                    : "");
}

enum nccl_result transport_choice_open(struct device *device)
{
    const char *sockets_why;
    enum nccl_result result = is_tcp_alone(device) ? NCCL_SUCCESS : engines_open(device);
    if (result != NCCL_SUCCESS || device->transport != TRANSPORT_UNDECIDED)
        return result;
    engines_watch_forks();
    device->transport = choose_transport(device, device->transport_reason);
    device->sockets = count_sockets(device, &sockets_why);
    log_transport(device, sockets_why);
    return NCCL_SUCCESS;
}

bool transport_choice_offers_tcp(const struct device *device)
{
    return plugin.settings.port == PORT_TCP ||
           (plugin.settings.port == PORT_AUTO && device->nics_n == 1);
}

/* Asked for by name. A fused device under HARP_PORT=tcp has what it can. */
static bool is_asked_for(const struct device *device)
{
    return plugin.settings.port != PORT_AUTO &&
           (plugin.settings.port != PORT_TCP || device->transport == TRANSPORT_TCP);
}

uint8_t transport_choice_flags(const struct device *device)
{
    return (uint8_t)((device->transport == TRANSPORT_TCP ? TRANSPORT_FLAG_TCP : 0) |
                     (is_asked_for(device) ? TRANSPORT_FLAG_ASKED : 0));
}

enum transport transport_choice_meet(const struct device *device, uint8_t flags)
{
    enum transport theirs = flags & TRANSPORT_FLAG_TCP ? TRANSPORT_TCP : TRANSPORT_SESSION;
    if (theirs == device->transport)
        return theirs;
    if (is_asked_for(device))
        return flags & TRANSPORT_FLAG_ASKED ? TRANSPORT_UNDECIDED : device->transport;
    return flags & TRANSPORT_FLAG_ASKED ? theirs : TRANSPORT_SESSION;
}
