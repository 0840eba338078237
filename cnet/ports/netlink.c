#define _GNU_SOURCE
#include "ports/netlink.h"

#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <linux/if_arp.h>
#include <linux/if_link.h>
#include <linux/neighbour.h>
#include <linux/rtnetlink.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

enum { ANSWER_BYTES = 32768, WAIT_S = 1, MONITOR_BYTES = 1 << 20 };

/* A question: header, its fixed struct, and room for attributes. */
struct request {
    struct nlmsghdr head;
    uint8_t rest[188];
};

/* A message of an answer, seen through its attributes. */
struct attributes {
    const struct rtattr *of[64]; /* by type; NULL if absent */
};

static void *begin_request(struct request *request, uint16_t type, uint16_t flags,
                           size_t fixed_bytes)
{
    memset(request, 0, sizeof *request);
    request->head.nlmsg_len = (uint32_t)NLMSG_LENGTH(fixed_bytes);
    request->head.nlmsg_type = type;
    request->head.nlmsg_flags = NLM_F_REQUEST | flags;
    return NLMSG_DATA(&request->head);
}

static void add_attribute(struct request *request, uint16_t type, const void *bytes, size_t count)
{
    size_t at = NLMSG_ALIGN(request->head.nlmsg_len);
    assert(at + RTA_SPACE(count) <= sizeof *request);
    struct rtattr *attribute = (struct rtattr *)((uint8_t *)request + at);
    attribute->rta_type = type;
    attribute->rta_len = (uint16_t)RTA_LENGTH(count);
    memcpy(RTA_DATA(attribute), bytes, count);
    request->head.nlmsg_len = (uint32_t)(at + RTA_LENGTH(count));
}

static void add_address(struct request *request, uint16_t type, const struct harp_address *address)
{
    if (harp_address_is_ipv4(address))
        add_attribute(request, type, address->ip + 12, 4);
    else
        add_attribute(request, type, address->ip, 16);
}

static uint8_t family_of(const struct harp_address *address)
{
    return harp_address_is_ipv4(address) ? AF_INET : AF_INET6;
}

static void parse_attributes(struct attributes *found, const struct rtattr *first, size_t bytes)
{
    memset(found, 0, sizeof *found);
    int left = (int)bytes;
    for (const struct rtattr *at = first; RTA_OK(at, left); at = RTA_NEXT(at, left)) {
        unsigned type = at->rta_type & NLA_TYPE_MASK;
        if (type < sizeof found->of / sizeof found->of[0])
            found->of[type] = at;
    }
}

static bool get_u32(const struct rtattr *attribute, uint32_t *value)
{
    if (!attribute || RTA_PAYLOAD(attribute) < sizeof *value)
        return false;
    memcpy(value, RTA_DATA(attribute), sizeof *value);
    return true;
}

static bool get_address(const struct rtattr *attribute, struct harp_address *address)
{
    struct harp_address read = {.family = HARP_INET};
    if (attribute && RTA_PAYLOAD(attribute) == 16) {
        memcpy(read.ip, RTA_DATA(attribute), 16);
    } else if (attribute && RTA_PAYLOAD(attribute) == 4) {
        read.ip[10] = read.ip[11] = 0xff;
        memcpy(read.ip + 12, RTA_DATA(attribute), 4);
    } else {
        return false;
    }
    *address = read;
    return true;
}

/* Handler of each message of an answer; true ends the search. */
typedef bool (*look)(const struct nlmsghdr *message, void *context);

/* Send a question and look through the answer. -ENOENT if `look` liked none of it. */
static int send_request(struct harp_netlink *netlink, struct request *request, look like,
                        void *context)
{
    _Alignas(8) uint8_t answer[ANSWER_BYTES];
    request->head.nlmsg_seq = ++netlink->sequence;
    bool many = request->head.nlmsg_flags & NLM_F_ROOT, liked = false;
    if (send(netlink->request, request, request->head.nlmsg_len, 0) < 0)
        return -errno;
    for (;;) {
        ssize_t got = recv(netlink->request, answer, sizeof answer, 0);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return errno == EAGAIN ? -ETIMEDOUT : -errno;
        uint32_t left = (uint32_t)got;
        for (struct nlmsghdr *at = (struct nlmsghdr *)answer; NLMSG_OK(at, left);
             at = NLMSG_NEXT(at, left)) {
            if (at->nlmsg_seq != netlink->sequence)
                continue; /* a late answer to a question that timed out */
            if (at->nlmsg_type == NLMSG_DONE)
                return liked ? 0 : -ENOENT;
            if (at->nlmsg_type == NLMSG_ERROR) {
                const struct nlmsgerr *error = NLMSG_DATA(at);
                return error->error;
            }
            liked = liked || like(at, context);
            if (!many)
                return liked ? 0 : -ENOENT;
        }
    }
}

int harp_netlink_open(struct harp_netlink *netlink)
{
    *netlink = (struct harp_netlink){.request = -1, .monitor = -1};
    struct sockaddr_nl all = {.nl_family = AF_NETLINK,
                              .nl_groups = RTMGRP_LINK | RTMGRP_NEIGH | RTMGRP_IPV4_ROUTE |
                                           RTMGRP_IPV6_ROUTE};
    struct timeval wait = {.tv_sec = WAIT_S};
    int type = SOCK_RAW | SOCK_CLOEXEC, bytes = MONITOR_BYTES;
    netlink->request = socket(AF_NETLINK, type, NETLINK_ROUTE);
    netlink->monitor = socket(AF_NETLINK, type | SOCK_NONBLOCK, NETLINK_ROUTE);
    if (netlink->request < 0 || netlink->monitor < 0 ||
        setsockopt(netlink->request, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof wait) < 0 ||
        bind(netlink->monitor, (struct sockaddr *)&all, sizeof all) < 0) {
        int error = errno;
        harp_netlink_close(netlink);
        return -error;
    }
    /* A router's table that is loaded at once should not be "lost"; it may be all the same. */
    (void)setsockopt(netlink->monitor, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes);
    return 0;
}

void harp_netlink_close(struct harp_netlink *netlink)
{
    if (netlink->request >= 0)
        close(netlink->request);
    if (netlink->monitor >= 0)
        close(netlink->monitor);
    netlink->request = netlink->monitor = -1;
}

/* Read the attached XDP program from an IFLA_XDP; the driver's, if there are two. */
static void read_xdp(const struct rtattr *nest, struct harp_link *link)
{
    struct attributes in;
    if (!nest)
        return;
    parse_attributes(&in, RTA_DATA(nest), RTA_PAYLOAD(nest));
    if (!get_u32(in.of[IFLA_XDP_DRV_PROG_ID], &link->xdp_program) &&
        !get_u32(in.of[IFLA_XDP_SKB_PROG_ID], &link->xdp_program))
        get_u32(in.of[IFLA_XDP_PROG_ID], &link->xdp_program);
}

static void read_kind(const struct rtattr *nest, struct harp_link *link)
{
    struct attributes in;
    if (!nest)
        return;
    parse_attributes(&in, RTA_DATA(nest), RTA_PAYLOAD(nest));
    if (in.of[IFLA_INFO_KIND])
        snprintf(link->kind, sizeof link->kind, "%.*s", (int)RTA_PAYLOAD(in.of[IFLA_INFO_KIND]),
                 (const char *)RTA_DATA(in.of[IFLA_INFO_KIND]));
}

static bool read_link(const struct nlmsghdr *message, void *context)
{
    struct harp_link *link = context;
    const struct ifinfomsg *info = NLMSG_DATA(message);
    struct attributes with;
    if (message->nlmsg_type != RTM_NEWLINK)
        return false;
    parse_attributes(&with, IFLA_RTA(info), IFLA_PAYLOAD(message));
    *link = (struct harp_link){.index = (uint32_t)info->ifi_index,
                               .up = info->ifi_flags & IFF_UP,
                               .ethernet = info->ifi_type == ARPHRD_ETHER};
    read_xdp(with.of[IFLA_XDP], link);
    read_kind(with.of[IFLA_LINKINFO], link);
    uint32_t out = 0;
    get_u32(with.of[IFLA_MTU], &link->mtu);
    get_u32(with.of[IFLA_NUM_RX_QUEUES], &link->queues);
    get_u32(with.of[IFLA_NUM_TX_QUEUES], &out);
    link->queues = out > link->queues ? out : link->queues;
    const struct rtattr *name = with.of[IFLA_IFNAME], *mac = with.of[IFLA_ADDRESS];
    if (name)
        strncpy(link->name, RTA_DATA(name), sizeof link->name - 1);
    if (mac && RTA_PAYLOAD(mac) == sizeof link->mac)
        memcpy(link->mac, RTA_DATA(mac), sizeof link->mac);
    return true;
}

int harp_netlink_link(struct harp_netlink *netlink, const char *name, uint32_t index,
                      struct harp_link *link)
{
    struct request request;
    struct ifinfomsg *info = begin_request(&request, RTM_GETLINK, 0, sizeof *info);
    if (name) {
        size_t bytes = strlen(name) + 1;
        if (bytes > IF_NAMESIZE)
            return -ENODEV;
        add_attribute(&request, IFLA_IFNAME, name, bytes);
    } else {
        info->ifi_index = (int)index;
    }
    return send_request(netlink, &request, read_link, link);
}

struct address_search {
    uint32_t index;
    struct harp_address found;
};

static bool read_address(const struct nlmsghdr *message, void *context)
{
    struct address_search *search = context;
    const struct ifaddrmsg *info = NLMSG_DATA(message);
    struct attributes with;
    if (message->nlmsg_type != RTM_NEWADDR || info->ifa_index != search->index ||
        info->ifa_scope >= RT_SCOPE_LINK || info->ifa_flags & (IFA_F_TENTATIVE | IFA_F_DADFAILED))
        return false;
    parse_attributes(&with, IFA_RTA(info), IFA_PAYLOAD(message));
    const struct rtattr *local = with.of[IFA_LOCAL] ? with.of[IFA_LOCAL] : with.of[IFA_ADDRESS];
    return get_address(local, &search->found);
}

int harp_netlink_address(struct harp_netlink *netlink, uint32_t index, struct harp_address *address)
{
    static const uint8_t families[] = {AF_INET, AF_INET6};
    struct address_search search = {.index = index};
    int error = -ENOENT;
    for (size_t i = 0; i < sizeof families && error == -ENOENT; i++) {
        struct request request;
        struct ifaddrmsg *info = begin_request(&request, RTM_GETADDR, NLM_F_DUMP, sizeof *info);
        info->ifa_family = families[i];
        error = send_request(netlink, &request, read_address, &search);
    }
    if (error == 0)
        *address = search.found;
    return error;
}

static bool read_route(const struct nlmsghdr *message, void *context)
{
    struct harp_route *route = context;
    const struct rtmsg *info = NLMSG_DATA(message);
    struct attributes with, metrics;
    if (message->nlmsg_type != RTM_NEWROUTE)
        return false;
    parse_attributes(&with, RTM_RTA(info), RTM_PAYLOAD(message));
    route->to_self = info->rtm_type == RTN_LOCAL;
    get_u32(with.of[RTA_OIF], &route->interface);
    get_address(with.of[RTA_GATEWAY], &route->next);
    const struct rtattr *via = with.of[RTA_VIA]; /* an IPv4 route by an IPv6 gateway */
    if (via && RTA_PAYLOAD(via) == sizeof(struct rtvia) + 16) {
        route->next = (struct harp_address){.family = HARP_INET};
        memcpy(route->next.ip, ((const struct rtvia *)RTA_DATA(via))->rtvia_addr, 16);
    }
    if (with.of[RTA_METRICS]) {
        parse_attributes(&metrics, RTA_DATA(with.of[RTA_METRICS]),
                         RTA_PAYLOAD(with.of[RTA_METRICS]));
        get_u32(metrics.of[RTAX_MTU], &route->mtu);
    }
    return true;
}

int harp_netlink_route(struct harp_netlink *netlink, const struct harp_address *from,
                       const struct harp_address *to, struct harp_route *route)
{
    struct request request;
    struct rtmsg *info = begin_request(&request, RTM_GETROUTE, 0, sizeof *info);
    uint8_t protocol = IPPROTO_UDP;
    uint16_t from_port = htons(from->port), to_port = htons(to->port);
    info->rtm_family = family_of(to);
    info->rtm_dst_len = info->rtm_src_len = info->rtm_family == AF_INET ? 32 : 128;
    add_address(&request, RTA_DST, to);
    add_address(&request, RTA_SRC, from);
    add_attribute(&request, RTA_IP_PROTO, &protocol, sizeof protocol);
    if (from_port)
        add_attribute(&request, RTA_SPORT, &from_port, sizeof from_port);
    if (to_port)
        add_attribute(&request, RTA_DPORT, &to_port, sizeof to_port);
    *route = (struct harp_route){.next = *to};
    route->next.port = 0;
    return send_request(netlink, &request, read_route, route);
}

struct neighbour {
    uint8_t *mac;
    bool *stale;
};

static bool read_neighbour(const struct nlmsghdr *message, void *context)
{
    const struct neighbour *out = context;
    const struct ndmsg *info = NLMSG_DATA(message);
    const unsigned usable =
        NUD_PERMANENT | NUD_NOARP | NUD_REACHABLE | NUD_PROBE | NUD_STALE | NUD_DELAY;
    struct attributes with;
    if (message->nlmsg_type != RTM_NEWNEIGH || !(info->ndm_state & usable))
        return false;
    parse_attributes(&with,
                     (const struct rtattr *)((const uint8_t *)info + NLMSG_ALIGN(sizeof *info)),
                     NLMSG_PAYLOAD(message, sizeof *info));
    if (!with.of[NDA_LLADDR] || RTA_PAYLOAD(with.of[NDA_LLADDR]) != 6)
        return false;
    memcpy(out->mac, RTA_DATA(with.of[NDA_LLADDR]), 6);
    *out->stale = info->ndm_state & NUD_STALE;
    return true;
}

int harp_netlink_neighbour(struct harp_netlink *netlink, uint32_t index,
                           const struct harp_address *address, uint8_t mac[6], bool *stale)
{
    struct request request;
    struct neighbour out = {mac, stale};
    struct ndmsg *info = begin_request(&request, RTM_GETNEIGH, 0, sizeof *info);
    info->ndm_family = family_of(address);
    info->ndm_ifindex = (int)index;
    add_address(&request, NDA_DST, address);
    return send_request(netlink, &request, read_neighbour, &out);
}

static bool read_link_change(const struct nlmsghdr *message, struct harp_change *change)
{
    const struct ifinfomsg *info = NLMSG_DATA(message);
    if (info->ifi_family != AF_UNSPEC) /* a bridge's or IPv6's view of the link */
        return false;
    change->type = HARP_CHANGE_LINK;
    change->interface = (uint32_t)info->ifi_index;
    return message->nlmsg_type == RTM_DELLINK || read_link(message, &change->link);
}

static bool read_neighbour_change(const struct nlmsghdr *message, struct harp_change *change)
{
    const struct ndmsg *info = NLMSG_DATA(message);
    struct neighbour found = {change->mac, &change->stale};
    struct attributes with;
    parse_attributes(&with,
                     (const struct rtattr *)((const uint8_t *)info + NLMSG_ALIGN(sizeof *info)),
                     NLMSG_PAYLOAD(message, sizeof *info));
    change->type = HARP_CHANGE_NEIGHBOUR;
    change->interface = (uint32_t)info->ndm_ifindex;
    change->known = read_neighbour(message, &found);
    return get_address(with.of[NDA_DST], &change->address);
}

static bool read_change(const struct nlmsghdr *message, struct harp_change *change)
{
    *change = (struct harp_change){0};
    switch (message->nlmsg_type) {
    case RTM_NEWLINK:
    case RTM_DELLINK:
        return read_link_change(message, change);
    case RTM_NEWROUTE:
    case RTM_DELROUTE:
        change->type = HARP_CHANGE_ROUTE;
        return true;
    case RTM_NEWNEIGH:
    case RTM_DELNEIGH:
        return read_neighbour_change(message, change);
    default:
        return false;
    }
}

bool harp_netlink_change(struct harp_netlink *netlink, struct harp_change *change)
{
    for (;;) {
        while (netlink->next < netlink->read_bytes) {
            struct nlmsghdr *at = (struct nlmsghdr *)(netlink->events + netlink->next);
            uint32_t left = netlink->read_bytes - netlink->next;
            if (!NLMSG_OK(at, left))
                break;
            netlink->next += NLMSG_ALIGN(at->nlmsg_len);
            if (read_change(at, change))
                return true;
        }
        ssize_t got = recv(netlink->monitor, netlink->events, sizeof netlink->events, MSG_TRUNC);
        netlink->next = netlink->read_bytes = 0;
        if (got > (ssize_t)sizeof netlink->events || (got < 0 && errno == ENOBUFS)) {
            *change = (struct harp_change){.type = HARP_CHANGE_LOST};
            return true;
        }
        if (got <= 0)
            return false;
        netlink->read_bytes = (uint32_t)got;
    }
}
