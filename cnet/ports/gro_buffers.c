#define _GNU_SOURCE
#include "ports/gro_buffers.h"

#include <assert.h>
#include <errno.h>
#include <netinet/udp.h>
#include <sys/socket.h>
#include <time.h>

#include "base/sockaddr.h"
#include "ports/headers.h"

enum {
    CONGESTED = 3, /* ECN field: congestion experienced (RFC 3168) */
    TRIES = 3,     /* a call may bring no datagram but what ICMP said about one that was sent */
};

union control {
    char bytes[256];
    struct cmsghdr align;
};

static bool set_option(int fd, int level, int option, int value)
{
    return setsockopt(fd, level, option, &value, sizeof value) == 0;
}

bool harp_gro_ask_for(int fd, bool v4)
{
    if (v4)
        set_option(fd, IPPROTO_IP, IP_RECVTOS, 1);
    else
        set_option(fd, IPPROTO_IPV6, IPV6_RECVTCLASS, 1);
    /* How long a datagram waits for us is no delay of the network. */
    set_option(fd, SOL_SOCKET, SO_TIMESTAMPNS, 1);
    return set_option(fd, IPPROTO_UDP, UDP_GRO, 1);
}

static uint64_t to_nanoseconds(const struct timespec *time)
{
    return (uint64_t)time->tv_sec * 1000000000 + (uint64_t)time->tv_nsec;
}

/* Read what the kernel says beside a super-packet: how long its datagrams are, the IP header's
 * mark, and how long ago the first of them came. */
static void read_control(struct msghdr *header, const struct harp_stamp_clock *clock,
                         struct harp_gro_packet *packet)
{
    int traffic = 0, segment = 0;
    struct timespec came;
    packet->waited_ns = 0;
    for (struct cmsghdr *item = CMSG_FIRSTHDR(header); item; item = CMSG_NXTHDR(header, item)) {
        if (item->cmsg_level == IPPROTO_UDP && item->cmsg_type == UDP_GRO)
            memcpy(&segment, CMSG_DATA(item), sizeof segment);
        else if (item->cmsg_level == IPPROTO_IP && item->cmsg_type == IP_TOS)
            traffic = *CMSG_DATA(item);
        else if (item->cmsg_level == IPPROTO_IPV6 && item->cmsg_type == IPV6_TCLASS)
            memcpy(&traffic, CMSG_DATA(item), sizeof traffic);
        else if (item->cmsg_level == SOL_SOCKET && item->cmsg_type == SCM_TIMESTAMPNS) {
            memcpy(&came, CMSG_DATA(item), sizeof came);
            packet->waited_ns = harp_stamp_age_ns(clock, to_nanoseconds(&came));
        }
    }
    packet->segment = segment > 0 ? (uint32_t)segment : packet->length;
    packet->marked = (traffic & CONGESTED) == CONGESTED;
}

/* How many to ask for next: few super-packets, so that they stay in the cache, and more datagrams
 * where the kernel joins nothing (no GRO), since each call then brings that little. */
static void choose_batch(struct harp_gro_buffers *gro)
{
    bool joined = false;
    for (uint32_t i = 0; i < gro->n; i++)
        joined |= gro->of[i].length > gro->of[i].segment;
    if (joined)
        gro->at_once = gro->least;
    else if (gro->n == gro->at_once && gro->at_once * 2 <= gro->most)
        gro->at_once *= 2;
    else if (gro->n < gro->at_once / 4 && gro->at_once / 2 >= gro->least)
        gro->at_once /= 2;
}

/* Both are the vDSO's: no system call. */
static void read_clocks(struct harp_stamp_clock *clock)
{
    struct timespec steady, real;
    clock_gettime(CLOCK_MONOTONIC, &steady);
    clock_gettime(CLOCK_REALTIME, &real);
    harp_stamp_clock_read(clock, to_nanoseconds(&steady), to_nanoseconds(&real));
}

bool harp_gro_read(struct harp_gro_buffers *gro, int fd, uint16_t local)
{
    struct mmsghdr messages[HARP_GRO_AT_ONCE];
    struct iovec parts[HARP_GRO_AT_ONCE];
    union control controls[HARP_GRO_AT_ONCE];
    union harp_sockaddr from[HARP_GRO_AT_ONCE];
    assert(!harp_gro_any(gro) && gro->at_once <= HARP_GRO_AT_ONCE);
    for (uint32_t i = 0; i < gro->at_once; i++) {
        parts[i] =
            (struct iovec){gro->buffers + (size_t)i * HARP_GRO_BUFFER_BYTES + HARP_DATAGRAM_AT,
                           HARP_GRO_BUFFER_BYTES - HARP_DATAGRAM_AT};
        messages[i].msg_hdr = (struct msghdr){.msg_name = &from[i],
                                              .msg_namelen = sizeof from[i],
                                              .msg_iov = &parts[i],
                                              .msg_iovlen = 1,
                                              .msg_control = controls[i].bytes,
                                              .msg_controllen = sizeof controls[i].bytes};
    }
    int got = -1;
    for (int i = 0; i < TRIES && got < 0; i++) {
        got = recvmmsg(fd, messages, gro->at_once, MSG_DONTWAIT, NULL);
        if (got < 0 && errno == EAGAIN)
            break;
    }
    gro->local = local;
    gro->next = gro->at = 0;
    gro->n = got > 0 ? (uint32_t)got : 0;
    if (got > 0)
        read_clocks(&gro->clock);
    for (uint32_t i = 0; i < gro->n; i++) {
        struct harp_gro_packet *packet = &gro->of[i];
        packet->bytes = parts[i].iov_base;
        packet->length = messages[i].msg_len;
        harp_sockaddr_read(&from[i].any, &packet->from);
        read_control(&messages[i].msg_hdr, &gro->clock, packet);
    }
    bool empty = gro->n < gro->at_once;
    choose_batch(gro);
    return empty;
}

size_t harp_gro_arrive(struct harp_gro_buffers *gro, struct harp_port *port,
                       struct harp_arrival *arrivals, size_t room)
{
    size_t count = 0;
    while (count < room && harp_gro_any(gro)) {
        const struct harp_gro_packet *packet = &gro->of[gro->next];
        uint32_t rest = packet->length - gro->at;
        uint32_t bytes = rest < packet->segment ? rest : packet->segment;
        arrivals[count++] = (struct harp_arrival){
            .bytes = (uint8_t *)packet->bytes + gro->at,
            .length = bytes,
            .frame = HARP_NO_FRAME,
            .from = &packet->from,
            .local = gro->local,
            .marked = packet->marked,
            .waited_ns = packet->waited_ns,
        };
        port->counters.received_bytes += bytes;
        gro->at += bytes;
        if (gro->at == packet->length) {
            gro->next++;
            gro->at = 0;
        }
    }
    port->counters.received += count;
    port->counters.received_copied += count;
    return count;
}
