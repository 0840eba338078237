#define _GNU_SOURCE
#include "ports/interface.h"

#include <errno.h>
#include <ifaddrs.h>
#include <linux/ethtool.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/sockaddr.h"

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

static bool has_feature(int control, struct ifreq *request, uint32_t command)
{
    struct ethtool_value value = {.cmd = command};
    request->ifr_data = (void *)&value;
    return ioctl(control, SIOCETHTOOL, request) == 0 && value.data;
}

static void ask_interface(struct harp_interface *found)
{
    struct ifreq request = {0};
    memcpy(request.ifr_name, found->name, strnlen(found->name, sizeof request.ifr_name - 1));
    int control = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (control < 0)
        return;
    if (ioctl(control, SIOCGIFMTU, &request) == 0)
        found->mtu = (uint32_t)request.ifr_mtu;
    found->offloads_sums = has_feature(control, &request, ETHTOOL_GTXCSUM) &&
                           has_feature(control, &request, ETHTOOL_GRXCSUM);
    close(control);
}

int harp_interface_find(struct harp_interface *found, const char *kind,
                        const struct harp_port_config *config, struct harp_address *local,
                        char *why)
{
    static const int families[] = {AF_INET, AF_INET6};
    struct ifaddrs *list, *entry = NULL;
    if (!config->interface && !config->local.family) {
        snprintf(why, HARP_WHY_BYTES, "a %s port needs an interface or an address of this host",
                 kind);
        return -EINVAL;
    }
    if (config->local.family && config->local.family != HARP_INET) {
        snprintf(why, HARP_WHY_BYTES, "a %s port's own address must be IPv4 or IPv6", kind);
        return -EINVAL;
    }
    if (getifaddrs(&list) < 0) {
        snprintf(why, HARP_WHY_BYTES, "the list of interfaces could not be read: %s",
                 strerror(errno));
        return -errno;
    }
    for (int i = 0; i < 2 && !entry; i++) {
        found->family = families[i];
        for (entry = list; entry && !is_wanted(entry, config, families[i], local);)
            entry = entry->ifa_next;
    }
    if (!entry) {
        freeifaddrs(list);
        return nothing_found(config, why);
    }
    snprintf(found->name, sizeof found->name, "%s", entry->ifa_name);
    freeifaddrs(list);
    found->index = if_nametoindex(found->name);
    ask_interface(found);
    if (config->mtu > found->mtu) {
        snprintf(why, HARP_WHY_BYTES,
                 "an MTU of %u is asked for, but %s has %u; ip link set dev %s"
                 " mtu %u raises it",
                 config->mtu, found->name, found->mtu, found->name, config->mtu);
        return -EINVAL;
    }
    if (config->mtu)
        found->mtu = config->mtu;
    local->port = config->local.port;
    return 0;
}
