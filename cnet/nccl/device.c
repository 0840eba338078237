/* Network cards: one NIC a card, also below a bond or a VLAN. */
#define _GNU_SOURCE
#include <dirent.h>
#include <ifaddrs.h>
#include <inttypes.h>
#include <limits.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/sockaddr.h"
#include "plugin.h"
#include "ports/netlink.h"

#define NAMES_BYTES 400
#define STACKED 8           /* interfaces over a card, at most */
#define LOWER_UP (1u << 16) /* IFF_LOWER_UP, carrier. IFF_RUNNING comes up to a second later */

/* ---- What /sys/class/net says ---- */

static void sys_path(char *out, const char *interface, const char *file)
{
    snprintf(out, PLUGIN_PATH_BYTES, "/sys/class/net/%s/%s", interface, file);
}

static long sys_number(const char *interface, const char *file, long otherwise)
{
    char path[PLUGIN_PATH_BYTES];
    sys_path(path, interface, file);
    FILE *from = fopen(path, "re");
    long number = otherwise;
    if (from && fscanf(from, "%ld", &number) != 1)
        number = otherwise;
    if (from)
        fclose(from);
    return number;
}

static bool sys_has(const char *interface, const char *file)
{
    char path[PLUGIN_PATH_BYTES];
    sys_path(path, interface, file);
    return access(path, F_OK) == 0;
}

/* The base of an interface: a bond's first member, a VLAN's card. */
static bool find_lower(const char *interface, char *lower)
{
    char path[PLUGIN_PATH_BYTES], member[256];
    sys_path(path, interface, "bonding/slaves");
    FILE *from = fopen(path, "re");
    bool found = from && fscanf(from, "%255s", member) == 1;
    if (from)
        fclose(from);
    sys_path(path, interface, "");
    DIR *folder = found ? NULL : opendir(path);
    for (struct dirent *at; folder && !found && (at = readdir(folder));)
        found = sscanf(at->d_name, "lower_%255s", member) == 1;
    if (folder)
        closedir(folder);
    if (found)
        snprintf(lower, IF_NAMESIZE, "%.15s", member);
    return found;
}

/* Bonds and VLANs lie where their card does. */
static void find_card(const char *interface, char *card)
{
    char lower[IF_NAMESIZE];
    snprintf(card, IF_NAMESIZE, "%s", interface);
    for (int depth = 0; depth < STACKED && !sys_has(card, "device") && find_lower(card, lower);
         depth++)
        memcpy(card, lower, sizeof lower);
}

static uint64_t read_mac(const char *interface)
{
    char path[PLUGIN_PATH_BYTES];
    unsigned mac[6] = {0};
    uint64_t all = 0;
    sys_path(path, interface, "address");
    FILE *from = fopen(path, "re");
    if (from && fscanf(from, "%x:%x:%x:%x:%x:%x", &mac[0], &mac[1], &mac[2], &mac[3], &mac[4],
                       &mac[5]) == 6)
        for (int i = 0; i < 6; i++)
            all = all << 8 | (mac[i] & 0xff);
    if (from)
        fclose(from);
    return all;
}

static uint32_t count_receive_queues(const char *interface)
{
    char path[PLUGIN_PATH_BYTES];
    uint32_t n = 0;
    sys_path(path, interface, "queues");
    DIR *folder = opendir(path);
    for (struct dirent *at; folder && (at = readdir(folder));)
        n += strncmp(at->d_name, "rx-", 3) == 0;
    if (folder)
        closedir(folder);
    return n;
}

static uint32_t read_vendor(const char *card)
{
    char path[PLUGIN_PATH_BYTES];
    unsigned vendor = 0;
    sys_path(path, card, "device/vendor");
    FILE *from = fopen(path, "re");
    if (from && fscanf(from, "%x", &vendor) != 1)
        vendor = 0;
    if (from)
        fclose(from);
    return vendor;
}

static void describe_nic(struct nic *nic)
{
    char path[PLUGIN_PATH_BYTES], real[PATH_MAX];
    sys_path(path, nic->card, "device");
    if (realpath(path, real))
        snprintf(nic->pci, sizeof nic->pci, "%s", real);
    long node = sys_number(nic->card, "device/numa_node", -1);
    nic->node = node >= 0 ? (int)node : HARP_ARENA_LOCAL;
    long speed = sys_number(nic->name, "speed", 0);
    nic->speed_mbps =
        speed > 0 && speed < INT_MAX ? (uint32_t)speed : (uint32_t)plugin.settings.speed_mbps;
    nic->queues = count_receive_queues(nic->card);
    nic->vendor = read_vendor(nic->card);
    nic->guid = read_mac(nic->name) << 16 | (if_nametoindex(nic->name) & 0xffff);
}

/* ---- Which interfaces ---- */

static bool read_address(const struct sockaddr *from, struct harp_address *address)
{
    harp_sockaddr_read(from, address);
    return !harp_address_is_link_local(address);
}

static bool is_known_card(const char *card)
{
    for (int i = 0; i < plugin.nics_n; i++)
        if (strcmp(plugin.nics[i].card, card) == 0)
            return true;
    return false;
}

/* The default choice of interfaces: all of the first kind that the host has. */
enum resort {
    RESORT_CARD,    /* and what lies on cards: bonds, VLANs, macvlan */
    RESORT_HOST,    /* an address of the host's own, on lo, announced to its routers */
    RESORT_PAIR,    /* a container's end of a pair */
    RESORT_VIRTUAL, /* bridges, tunnels and what else leads to no other host by itself */
    RESORT_LOOPBACK,
    RESORTS
};

/* rtnetlink's names (IFLA_INFO_KIND; the kernel's drivers/net, net/ipv4 and net/ipv6). */
static const char *const virtual_kinds[] = {
    "bareudp",   "bridge", "dummy",     "erspan", "geneve",    "gre",         "gretap",
    "ip6erspan", "ip6gre", "ip6gretap", "ip6tnl", "ipip",      "openvswitch", "sit",
    "tun",       "vti",    "vti6",      "vxlan",  "wireguard", "xfrm"};

static bool is_virtual(const char *kind)
{
    for (size_t i = 0; i < sizeof virtual_kinds / sizeof virtual_kinds[0]; i++)
        if (strcmp(kind, virtual_kinds[i]) == 0)
            return true;
    return false;
}

static bool is_loopback(const struct sockaddr *address)
{
    if (address->sa_family == AF_INET)
        return ntohl(((const struct sockaddr_in *)address)->sin_addr.s_addr) >> 24 == 127;
    return IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)address)->sin6_addr);
}

/* `kernel` NULL: it reports no kinds, as in some sandboxes, and all count as cards. */
static enum resort resort_of(struct harp_netlink *kernel, const char *name,
                             const struct ifaddrs *at)
{
    struct harp_link link;
    if (at->ifa_flags & IFF_LOOPBACK)
        return is_loopback(at->ifa_addr) ? RESORT_LOOPBACK : RESORT_HOST;
    if (!kernel || harp_netlink_link(kernel, name, 0, &link) != 0)
        return RESORT_CARD;
    return strcmp(link.kind, "veth") == 0 ? RESORT_PAIR
           : is_virtual(link.kind)        ? RESORT_VIRTUAL
                                          : RESORT_CARD;
}

/* Why an interface cannot be a device; "" if it can. */
static const char *why_unfit(const char *interface, unsigned flags)
{
    return !(flags & IFF_UP)                      ? " (down)"
           : !(flags & LOWER_UP)                  ? " (no carrier)"
           : sys_has(interface, "master/bonding") ? " (in a bond)"
                                                  : "";
}

/* An address may have a label, as eth0:1, which getifaddrs gives for the interface's name. */
static bool read_name(const struct ifaddrs *from, char *name)
{
    size_t length = strcspn(from->ifa_name, ":");
    if (length >= IF_NAMESIZE)
        return false;
    snprintf(name, IF_NAMESIZE, "%.*s", (int)length, from->ifa_name);
    return true;
}

/* Add the interfaces of one kind that are fit and have an address of this family, one for each
 * card: the first, or what an earlier call found. */
static void add_interfaces(struct harp_netlink *kernel, const struct ifaddrs *all, int family,
                           const char *names, enum resort resort)
{
    for (const struct ifaddrs *at = all; at; at = at->ifa_next) {
        struct nic new = {.node = HARP_ARENA_LOCAL};
        if (!at->ifa_addr || at->ifa_addr->sa_family != family || !read_name(at, new.name) ||
            !(*names ? settings_match(names, new.name)
                     : resort_of(kernel, new.name, at) == resort) ||
            *why_unfit(new.name, at->ifa_flags) || !read_address(at->ifa_addr, &new.address))
            continue;
        find_card(new.name, new.card);
        if (is_known_card(new.card) || plugin.nics_n == PLUGIN_DEVICES)
            continue;
        describe_nic(&new);
        plugin.nics[plugin.nics_n++] = new;
    }
}

static enum nccl_result none_found(const struct ifaddrs *all)
{
    char names[NAMES_BYTES] = "";
    size_t used = 0;
    for (const struct ifaddrs *at = all; at; at = at->ifa_next) {
        char name[IF_NAMESIZE];
        if (at->ifa_addr && at->ifa_addr->sa_family == AF_INET && used + 40 < sizeof names &&
            read_name(at, name))
            used += (size_t)snprintf(names + used, sizeof names - used, " %s%s", name,
                                     why_unfit(name, at->ifa_flags));
    }
    return plugin_fail(NCCL_SYSTEM_ERROR,
                       "no interface that has carrier and an address fits HARP_IFNAME \"%.100s\"; "
                       "with an IPv4 address there are:%s",
                       plugin.settings.interfaces, *names ? names : " none");
}

/* Of the network namespace that this process is in; /sys may show another one's. */
static uint64_t mtu_of(const char *interface)
{
    struct ifreq request = {0};
    int any = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    snprintf(request.ifr_name, sizeof request.ifr_name, "%s", interface);
    bool known = any >= 0 && ioctl(any, SIOCGIFMTU, &request) == 0;
    if (any >= 0)
        close(any);
    return known ? (uint64_t)request.ifr_mtu : UINT64_MAX;
}

static enum nccl_result check_mtu(void)
{
    uint64_t asked = plugin.settings.mtu;
    for (int i = 0; i < plugin.nics_n; i++) {
        const char *name = plugin.nics[i].name;
        uint64_t most = mtu_of(name);
        if (asked > most)
            return plugin_fail(NCCL_INVALID_USAGE,
                               "HARP_MTU is \"%" PRIu64 "\": possible is 576 to %" PRIu64
                               " on %s; ip link set dev %s mtu %" PRIu64
                               " raises it, where the network takes it",
                               asked, most, name, name, asked);
    }
    return NCCL_SUCCESS;
}

/* NCCL_SOCKET_FAMILY restricts the addresses of NCCL's own sockets; HARP follows it. */
static bool may_have_family(int family)
{
    const char *asked = getenv("NCCL_SOCKET_FAMILY");
    return !asked || strcmp(asked, family == AF_INET ? "AF_INET6" : "AF_INET") != 0;
}

enum nccl_result devices_find(void)
{
    struct ifaddrs *all = NULL;
    const char *names = plugin.settings.interfaces;
    plugin.nics_n = 0;
    if (plugin.settings.port == PORT_MEM) { /* needs no card */
        plugin.nics[plugin.nics_n++] = (struct nic){
            .name = "harp-mem", .node = HARP_ARENA_LOCAL, .guid = 1, .speed_mbps = 100000};
        return devices_offer();
    }
    if (getifaddrs(&all) != 0)
        return plugin_fail(NCCL_SYSTEM_ERROR, "the kernel does not list its interfaces");
    struct harp_netlink netlink, *kernel = harp_netlink_open(&netlink) == 0 ? &netlink : NULL;
    for (enum resort resort = 0; plugin.nics_n == 0 && resort < RESORTS; resort++) {
        if (may_have_family(AF_INET))
            add_interfaces(kernel, all, AF_INET, names, resort);
        if (may_have_family(AF_INET6))
            add_interfaces(kernel, all, AF_INET6, names, resort);
    }
    if (kernel)
        harp_netlink_close(kernel);
    enum nccl_result result = plugin.nics_n ? check_mtu() : none_found(all);
    freeifaddrs(all);
    return result == NCCL_SUCCESS ? devices_offer() : result;
}
