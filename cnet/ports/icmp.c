#define _GNU_SOURCE
#include "ports/icmp.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <time.h>

#include <linux/errqueue.h>

#include "base/sockaddr.h"

union control {
    char bytes[256];
    struct cmsghdr align;
};

void harp_icmp_ask_for(int fd, bool v4, bool on)
{
    int value = on;
    (void)setsockopt(fd, v4 ? IPPROTO_IP : IPPROTO_IPV6, v4 ? IP_RECVERR : IPV6_RECVERR, &value,
                     sizeof value);
}

/* Contents of a control message, if it came by ICMP. */
static bool read_item(const struct cmsghdr *item, struct harp_icmp_error *error)
{
    struct sock_extended_err said;
    bool v4 = item->cmsg_level == IPPROTO_IP && item->cmsg_type == IP_RECVERR;
    bool v6 = item->cmsg_level == IPPROTO_IPV6 && item->cmsg_type == IPV6_RECVERR;
    if (!v4 && !v6)
        return false;
    memcpy(&said, CMSG_DATA(item), sizeof said);
    error->error = (int)said.ee_errno;
    error->mtu = said.ee_info;
    error->ours = said.ee_origin == SO_EE_ORIGIN_LOCAL;
    return error->ours || said.ee_origin == SO_EE_ORIGIN_ICMP ||
           said.ee_origin == SO_EE_ORIGIN_ICMP6;
}

bool harp_icmp_next(int fd, struct harp_icmp_error *error)
{
    for (int most = HARP_ICMP_AT_ONCE; most > 0; most--) {
        union control control;
        union harp_sockaddr to;
        struct iovec part = {error->quote, sizeof error->quote};
        struct msghdr header = {.msg_name = &to,
                                .msg_namelen = sizeof to,
                                .msg_iov = &part,
                                .msg_iovlen = 1,
                                .msg_control = control.bytes,
                                .msg_controllen = sizeof control.bytes};
        ssize_t quoted = recvmsg(fd, &header, MSG_ERRQUEUE | MSG_DONTWAIT);
        if (quoted < 0)
            return false;
        error->quoted = (size_t)quoted;
        harp_sockaddr_read(&to.any, &error->to);
        for (struct cmsghdr *at = CMSG_FIRSTHDR(&header); at; at = CMSG_NXTHDR(&header, at))
            if (read_item(at, error))
                return true;
    }
    return false;
}

bool harp_icmp_flood(struct harp_icmp *icmp, const int *fds, uint32_t count, uint64_t now_ns)
{
    bool goes_on = icmp->deaf_ns && now_ns - icmp->until_ns < icmp->deaf_ns;
    uint64_t twice_ns = 2 * icmp->deaf_ns;
    icmp->deaf_ns = !goes_on                            ? HARP_ICMP_DEAF_NS
                    : twice_ns < HARP_ICMP_DEAF_MOST_NS ? twice_ns
                                                        : HARP_ICMP_DEAF_MOST_NS;
    icmp->until_ns = now_ns + icmp->deaf_ns;
    icmp->deaf = true;
    for (uint32_t i = 0; i < count; i++)
        harp_icmp_ask_for(fds[i], icmp->v4, false);
    return !goes_on;
}

void harp_icmp_tend(struct harp_icmp *icmp, const int *fds, uint32_t count, uint64_t now_ns)
{
    if (!icmp->deaf || now_ns < icmp->until_ns)
        return;
    icmp->deaf = false;
    for (uint32_t i = 0; i < count; i++)
        harp_icmp_ask_for(fds[i], icmp->v4, true);
}
