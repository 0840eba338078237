#define _GNU_SOURCE
#include "ports/port_udp.h"

#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/udp.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/descriptors.h"
#include "ports/headers.h"

uint32_t udp_payload_of_mtu(const struct udp_port *udp, uint32_t mtu)
{
    uint32_t headers = udp->family == AF_INET ? IP4_UDP_BYTES : IP6_UDP_BYTES;
    uint32_t payload = mtu > headers ? mtu - headers : 0;
    return payload < UDP_GSO_BYTES ? payload : UDP_GSO_BYTES;
}

/* Whether an address of the interface list is the one that we look for. */
static bool is_wanted(const struct ifaddrs *entry, const struct harp_port_config *config,
                      int family, struct harp_address *address)
{
    if (!entry->ifa_addr || entry->ifa_addr->sa_family != family)
        return false;
    if (config->interface && strcmp(entry->ifa_name, config->interface) != 0)
        return false;
    harp_sockaddr_read(entry->ifa_addr, address);
    address->port = 0;
    if (config->local.family)
        return memcmp(address->ip, config->local.ip, sizeof address->ip) == 0;
    return !harp_address_is_link_local(address);
}

static int nothing_found(const struct harp_port_config *config, char *why)
{
    char local[64];
    if (config->interface && if_nametoindex(config->interface) == 0) {
        snprintf(why, HARP_WHY_BYTES, "there is no interface %.20s here; ip -br link lists them",
                 config->interface);
        return -ENODEV;
    }
    if (config->local.family) {
        harp_address_format(&config->local, local, sizeof local);
        snprintf(why, HARP_WHY_BYTES, "%s%.20s has no address %s; ip -br address lists those here",
                 config->interface ? "interface " : "this host",
                 config->interface ? config->interface : "", local);
    } else {
        snprintf(why, HARP_WHY_BYTES,
                 "interface %.20s has no IP address yet; ip address add gives it one",
                 config->interface);
    }
    return -EADDRNOTAVAIL;
}

static uint32_t interface_mtu(const char *name)
{
    struct ifreq request = {0};
    uint32_t mtu = 0;
    memcpy(request.ifr_name, name, strnlen(name, sizeof request.ifr_name - 1));
    int control = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (control < 0)
        return 0;
    if (ioctl(control, SIOCGIFMTU, &request) == 0)
        mtu = (uint32_t)request.ifr_mtu;
    close(control);
    return mtu;
}

int udp_interface_find(struct udp_port *udp, const struct harp_port_config *config,
                       struct harp_address *local, char *why)
{
    static const int families[] = {AF_INET, AF_INET6};
    struct ifaddrs *list, *entry = NULL;
    if (!config->interface && !config->local.family) {
        snprintf(why, HARP_WHY_BYTES, "a udp port needs an interface or an address of this host");
        return -EINVAL;
    }
    if (config->local.family && config->local.family != HARP_INET) {
        snprintf(why, HARP_WHY_BYTES, "a udp port's own address must be IPv4 or IPv6");
        return -EINVAL;
    }
    if (getifaddrs(&list) < 0) {
        snprintf(why, HARP_WHY_BYTES, "the list of interfaces could not be read: %s",
                 strerror(errno));
        return -errno;
    }
    for (int i = 0; i < 2 && !entry; i++) {
        udp->family = families[i];
        for (entry = list; entry && !is_wanted(entry, config, families[i], local);)
            entry = entry->ifa_next;
    }
    if (!entry) {
        freeifaddrs(list);
        return nothing_found(config, why);
    }
    snprintf(udp->name, sizeof udp->name, "%s", entry->ifa_name);
    freeifaddrs(list);
    udp->interface = if_nametoindex(udp->name);
    udp->mtu = interface_mtu(udp->name);
    if (config->mtu > udp->mtu) {
        snprintf(why, HARP_WHY_BYTES,
                 "an MTU of %u is asked for, but %s has %u; ip link set dev %s"
                 " mtu %u raises it",
                 config->mtu, udp->name, udp->mtu, udp->name, config->mtu);
        return -EINVAL;
    }
    if (config->mtu)
        udp->mtu = config->mtu;
    local->port = config->local.port;
    return 0;
}

/* Large buffers; the kernel's limit does not bind those who may administer the network. */
static void set_buffers(struct udp_port *udp, int fd)
{
    static const int options[2][2] = {{SO_RCVBUFFORCE, SO_RCVBUF}, {SO_SNDBUFFORCE, SO_SNDBUF}};
    for (int i = 0; i < 2; i++) {
        int bytes = HARP_SOCKET_BYTES, got = 0;
        socklen_t length = sizeof got;
        if (setsockopt(fd, SOL_SOCKET, options[i][0], &bytes, sizeof bytes) < 0)
            setsockopt(fd, SOL_SOCKET, options[i][1], &bytes, sizeof bytes);
        getsockopt(fd, SOL_SOCKET, options[i][1], &got, &length);
        udp->kernel_bytes[i] = (uint32_t)got / 2; /* it doubles what it is asked for */
    }
}

static int set_option(int fd, int level, int option, int value)
{
    return setsockopt(fd, level, option, &value, sizeof value);
}

static void set_options(struct udp_port *udp, int fd)
{
    if (udp->family == AF_INET) {
        set_option(fd, IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_PROBE);
        set_option(fd, IPPROTO_IP, IP_TOS, HARP_ECT0);
    } else {
        set_option(fd, IPPROTO_IPV6, IPV6_V6ONLY, 1);
        set_option(fd, IPPROTO_IPV6, IPV6_MTU_DISCOVER, IPV6_PMTUDISC_PROBE);
        set_option(fd, IPPROTO_IPV6, IPV6_TCLASS, HARP_ECT0);
    }
    harp_icmp_ask_for(fd, udp->family == AF_INET, true);
    udp->gso = set_option(fd, IPPROTO_UDP, UDP_SEGMENT, 0) == 0;
    udp->gro = harp_gro_ask_for(fd, udp->family == AF_INET);
    set_buffers(udp, fd);
}

static int socket_open(struct udp_port *udp, uint16_t i, const struct harp_address *local,
                       char *why)
{
    union harp_sockaddr own;
    char text[64];
    harp_address_format(local, text, sizeof text);
    int fd = socket(udp->family, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) {
        snprintf(why, HARP_WHY_BYTES, "a UDP socket could not be opened: %s", strerror(errno));
        return -errno;
    }
    udp->sockets[udp->sockets_n++] = fd;
    set_options(udp, fd);
    socklen_t length = harp_sockaddr_write(local, udp->interface, &own);
    if (bind(fd, &own.any, length) < 0) {
        snprintf(why, HARP_WHY_BYTES, "UDP address %s cannot be had: %s", text, strerror(errno));
        return -errno;
    }
    if (getsockname(fd, &own.any, &length) < 0) {
        snprintf(why, HARP_WHY_BYTES, "UDP socket at %s: %s", text, strerror(errno));
        return -errno;
    }
    harp_sockaddr_read(&own.any, &udp->locals[i]);
    return 0;
}

int udp_watch(struct udp_port *udp, bool on)
{
    for (uint16_t i = 0; i < udp->sockets_n && udp->watching != on; i++) {
        struct epoll_event event = {.events = EPOLLIN, .data.u32 = i};
        if (epoll_ctl(udp->epoll, on ? EPOLL_CTL_ADD : EPOLL_CTL_DEL, udp->sockets[i], &event) < 0)
            return -errno;
    }
    udp->watching = on;
    return 0;
}

int udp_sockets_open(struct udp_port *udp, const struct harp_address *local, uint16_t locals,
                     char *why)
{
    struct harp_address own = *local;
    udp->epoll = epoll_create1(EPOLL_CLOEXEC);
    if (udp->epoll < 0) {
        snprintf(why, HARP_WHY_BYTES, "no epoll descriptor: %s", strerror(errno));
        return -errno;
    }
    for (uint16_t i = 0; i < locals; i++) {
        int error = socket_open(udp, i, &own, why);
        if (error)
            return error;
        own.port = 0;
    }
    int error = locals > 1 ? udp_watch(udp, true) : 0;
    if (error)
        snprintf(why, HARP_WHY_BYTES, "epoll takes no UDP socket: %s", strerror(-error));
    return error;
}

int udp_add_local(struct harp_port *port, uint16_t udp_port, char *why)
{
    struct udp_port *udp = (struct udp_port *)port;
    struct harp_address own = udp->locals[0];
    uint16_t i = udp->sockets_n;
    struct epoll_event event = {.events = EPOLLIN, .data.u32 = i};
    if (i == UDP_LOCALS_MAX) {
        snprintf(why, HARP_WHY_BYTES, "a udp port has %u own addresses at most", UDP_LOCALS_MAX);
        return -ENOSPC;
    }
    own.port = udp_port;
    snprintf(why, HARP_WHY_BYTES, "no descriptor is left for a further UDP socket");
    int error = udp_watch(udp, true); /* a single one was watched only in sleep */
    if (!error)
        error = socket_open(udp, i, &own, why);
    if (!error && !harp_descriptor_leaves_half(udp->sockets[i]))
        error = -EMFILE;
    if (!error && epoll_ctl(udp->epoll, EPOLL_CTL_ADD, udp->sockets[i], &event) < 0)
        error = -errno;
    if (error) {
        while (udp->sockets_n > i)
            close(udp->sockets[--udp->sockets_n]);
        return error;
    }
    port->locals_n = udp->sockets_n;
    return i;
}

int udp_route_payload(const struct udp_port *udp, const union harp_sockaddr *to)
{
    union harp_sockaddr own;
    struct harp_address local = udp->locals[0];
    int mtu = 0;
    local.port = 0;
    socklen_t length = harp_sockaddr_write(&local, udp->interface, &own), mtu_length = sizeof mtu;
    bool v4 = udp->family == AF_INET;
    int fd = socket(udp->family, SOCK_DGRAM | SOCK_CLOEXEC, 0), error = 0;
    if (fd < 0)
        return -errno;
    if (bind(fd, &own.any, length) < 0 || connect(fd, &to->any, length) < 0 ||
        getsockopt(fd, v4 ? IPPROTO_IP : IPPROTO_IPV6, v4 ? IP_MTU : IPV6_MTU, &mtu, &mtu_length) <
            0)
        error = -errno;
    close(fd);
    return error ? error : (int)udp_payload_of_mtu(udp, (uint32_t)mtu);
}
