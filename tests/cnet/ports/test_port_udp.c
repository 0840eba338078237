/* The udp port between two addresses, on one machine or in two network namespaces.
 *
 * usage: test_port_udp TEST IP-A SPACE-A IP-B SPACE-B     SPACE is a namespace's file or "-"
 */
#define _GNU_SOURCE
#include <errno.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "port_udp_ends.h"

/* All sizes that there are, in runs of equal ones and mixed, over every pair of own addresses. */
static uint32_t length_of(uint64_t number, uint32_t most)
{
    uint64_t run = number / 40;
    if (run % 2 == 0)
        return number % 40 == 39 ? 76 : most < 1452 ? most : 1452;
    return 1 + (uint32_t)(number * 7919 % most);
}

static void test_sizes(void)
{
    enum { LOCALS = 3, COUNT = 6000 };
    int hops[LOCALS];
    open_end(&a, LOCALS);
    open_end(&b, LOCALS);
    for (uint16_t i = 0; i < LOCALS; i++)
        hops[i] = hop_to(&a, &b.port->locals[(i + 1) % LOCALS], i);
    uint32_t most = a.port->ops->hop_payload_max(a.port, hops[0]);
    warm_up(hops[0]);
    uint64_t sent = 0, next[LOCALS];
    for (uint64_t i = 0; i < LOCALS; i++)
        next[i] = i * 40;
    for (uint64_t got = 0; got < COUNT;) {
        for (; sent < COUNT && sent < got + 120; sent++) {
            int hop = hops[sent / 40 % LOCALS];
            assert(a.port->ops->room(a.port, hop) > 0);
            assert(put_datagram(a.port, hop, length_of(sent, most), sent));
        }
        a.port->ops->flush(a.port, now_ns());
        struct harp_arrival in[HARP_BATCH];
        size_t n = wait_for(b.port, in, HARP_BATCH);
        for (size_t i = 0; i < n; i++, got++) {
            /* In order on each way. */
            int from = (in[i].local + LOCALS - 1) % LOCALS;
            uint64_t number = next[from]++;
            if (number % 40 == 39)
                next[from] += 40 * (LOCALS - 1);
            assert(in[i].length == length_of(number, most));
            assert(in[i].frame == HARP_NO_FRAME && !in[i].marked && !in[i].stray);
            assert(harp_address_same(in[i].from, &a.port->locals[from]));
            check_datagram(in[i].bytes, in[i].length, number);
        }
        b.port->ops->release(b.port, in, n);
    }
    const struct harp_port_counters *out = &a.port->counters, *in = &b.port->counters;
    assert(out->sent == COUNT && in->received == COUNT && out->dropped == 0);
    assert(out->sent_bytes == in->received_bytes);
    printf("%s\n%llu %llu\n", a.port->line, (unsigned long long)out->send_calls,
           (unsigned long long)in->receive_calls);
}

/* Equal datagrams leave in one system call, and arrive so. */
static void test_equal_datagrams_leave_together(void)
{
    struct harp_arrival in[HARP_BATCH];
    open_end(&a, 1);
    open_end(&b, 1);
    int hop = hop_to(&a, &b.port->locals[0], 0);
    warm_up(hop);
    for (uint64_t i = 0; i < 60; i++)
        assert(put_datagram(a.port, hop, 1000, i));
    a.port->ops->flush(a.port, now_ns());
    size_t n = wait_for(b.port, in, HARP_BATCH);
    assert(n == 60 && a.port->counters.send_calls == 1);
    for (size_t i = 0; i < n; i++) {
        check_datagram(in[i].bytes, 1000, i);
        /* Parts of one buffer: nobody has copied them apart. */
        assert(in[i].bytes == in[0].bytes + 1000 * i);
    }
}

/* The port's first socket, found by its number in the network. */
static int socket_of(const struct harp_port *port)
{
    for (int fd = 3; fd < 64; fd++) {
        struct sockaddr_in6 own;
        socklen_t length = sizeof own;
        if (getsockname(fd, (struct sockaddr *)&own, &length) == 0 &&
            ntohs(own.sin6_port) == port->locals[0].port) /* where an IPv4 address has it, too */
            return fd;
    }
    return -1;
}

/* The kernel cuts nothing of a socket that makes no checksums. */
static void make_no_checksums(int on)
{
    assert(setsockopt(socket_of(a.port), SOL_SOCKET, SO_NO_CHECK, &on, sizeof on) == 0);
}

/* Whether the datagrams that came, of these lengths and numbers, are parts of one buffer. */
static bool came_as_one(const uint32_t *lengths, const uint64_t *numbers, size_t count)
{
    struct harp_arrival in[HARP_BATCH];
    bool as_one = true;
    uint32_t at = 0;
    for (size_t got = 0, n; got < count; got += n) {
        n = wait_for(b.port, in, HARP_BATCH);
        as_one = as_one && n == count;
        for (size_t i = 0; i < n; at += in[i++].length) {
            assert(got + i < count && in[i].length == lengths[got + i]);
            check_datagram(in[i].bytes, in[i].length, numbers[got + i]);
            as_one = as_one && in[i].bytes == in[0].bytes + at;
        }
        b.port->ops->release(b.port, in, n);
    }
    return as_one;
}

/* Datagrams to one address leave together, by any hops: a longer datagram before a
 * shorter one. Datagrams by one hop keep their order. */
static void test_one_address_leaves_together(void)
{
    open_end(&a, 1);
    open_end(&b, 1);
    int hop = hop_to(&a, &b.port->locals[0], 0), other = hop_to(&a, &b.port->locals[0], 0);
    warm_up(hop);
    put_datagram(a.port, hop, 53, 0);
    put_datagram(a.port, other, 84, 1);
    a.port->ops->flush(a.port, now_ns());
    assert(came_as_one((uint32_t[]){84, 53}, (uint64_t[]){1, 0}, 2));
    put_datagram(a.port, hop, 1000, 2);
    put_datagram(a.port, other, 1000, 3);
    a.port->ops->flush(a.port, now_ns());
    assert(came_as_one((uint32_t[]){1000, 1000}, (uint64_t[]){2, 3}, 2));
    put_datagram(a.port, hop, 52, 4);
    put_datagram(a.port, hop, 84, 5);
    a.port->ops->flush(a.port, now_ns());
    assert(!came_as_one((uint32_t[]){52, 84}, (uint64_t[]){4, 5}, 2));
    assert(a.port->counters.sent == 6 && a.port->counters.sent_bytes == 2273);
}

/* Datagrams that the kernel cannot join, each longer than the last, come in large batches;
 * and what it joins comes whole after that. */
static void test_unequal_datagrams_come_in_batches(void)
{
    enum { COUNT = 192, SHORTEST = 100 };
    struct harp_arrival in[HARP_BATCH];
    open_end(&a, 1);
    open_end(&b, 1);
    int hop = hop_to(&a, &b.port->locals[0], 0);
    warm_up(hop);
    for (uint64_t i = 0; i < COUNT; i++)
        assert(put_datagram(a.port, hop, SHORTEST + (uint32_t)i, i));
    a.port->ops->flush(a.port, now_ns());
    for (size_t got = 0, n; got < COUNT; got += n) {
        n = wait_for(b.port, in, HARP_BATCH);
        for (size_t i = 0; i < n; i++) {
            assert(in[i].length == SHORTEST + got + i);
            check_datagram(in[i].bytes, in[i].length, got + i);
        }
        b.port->ops->release(b.port, in, n);
    }
    assert(b.port->counters.receive_calls <= COUNT / 12);
    for (uint64_t i = 0; i < 60; i++)
        assert(put_datagram(a.port, hop, 1000, i));
    a.port->ops->flush(a.port, now_ns());
    assert(wait_for(b.port, in, HARP_BATCH) == 60);
}

/* How 20 datagrams leave that fit into one super-packet. */
enum leaving { AS_ONE, ONE_BY_ONE, REFUSED_AS_ONE };

static enum leaving send_20(int hop, uint64_t now)
{
    static uint64_t number;
    struct harp_arrival in[HARP_BATCH];
    bool as_one = true;
    uint64_t before = a.port->counters.send_calls;
    a.port->ops->tend(a.port, now);
    for (uint64_t i = 0; i < 20; i++)
        put_datagram(a.port, hop, i == 19 ? 500 : 1000, number + i);
    a.port->ops->flush(a.port, now);
    for (uint64_t got = 0; got < 20;) {
        size_t n = wait_for(b.port, in, HARP_BATCH);
        as_one = as_one && n == 20;
        for (size_t k = 0; k < n; k++, got++) {
            assert(in[k].length == (got == 19 ? 500 : 1000));
            check_datagram(in[k].bytes, in[k].length, number + got);
            as_one = as_one && in[k].bytes == in[0].bytes + 1000 * k;
        }
    }
    number += 20;
    return a.port->counters.send_calls - before > 1 ? REFUSED_AS_ONE : as_one ? AS_ONE : ONE_BY_ONE;
}

/* Super-packets that the kernel refuses to cut leave as datagrams: of that hop, and for a time that
 * doubles while it refuses. */
static void test_refused_offload(void)
{
    struct harp_notice notice;
    uint64_t now = now_ns();
    open_end(&a, 1);
    open_end(&b, 2);
    int hop = hop_to(&a, &b.port->locals[0], 0), other = hop_to(&a, &b.port->locals[1], 0);
    assert(strstr(a.port->line, ", GSO and GRO"));
    make_no_checksums(1);
    assert(send_20(hop, now) == REFUSED_AS_ONE && send_20(hop, now) == ONE_BY_ONE);
    assert(a.port->ops->notice(a.port, &notice) && notice.type == HARP_NOTICE_TROUBLE);
    assert(notice.trouble == HARP_TROUBLE_SEGMENTATION && notice.error != 0);
    assert(harp_address_same(&notice.about, &b.port->locals[0]));
    make_no_checksums(0);
    assert(send_20(other, now) == AS_ONE && send_20(hop, now) == ONE_BY_ONE);
    make_no_checksums(1);
    now += 1000000000;
    assert(send_20(hop, now) == REFUSED_AS_ONE);
    now += 1000000000;
    make_no_checksums(0);
    assert(send_20(hop, now) == ONE_BY_ONE);
    now += 1000000000;
    assert(send_20(hop, now) == AS_ONE && send_20(hop, now) == AS_ONE);
    assert(!a.port->ops->notice(a.port, &notice) && a.port->counters.dropped == 0);
    int third = hop_to(&a, &b.port->locals[0], 0);
    make_no_checksums(1);
    put_datagram(a.port, third, 52, 0);
    put_datagram(a.port, hop, 84, 1);
    a.port->ops->flush(a.port, now);
    assert(!came_as_one((uint32_t[]){84, 52}, (uint64_t[]){1, 0}, 2));
}

/* A veth keeps one queue for each CPU, and the kernel reorders packets of a process that moves. */
static void stay_on_this_cpu(void)
{
    cpu_set_t present;
    CPU_ZERO(&present);
    CPU_SET((size_t)sched_getcpu(), &present);
    assert(sched_setaffinity(0, sizeof present, &present) == 0);
}

/* Unsent datagrams stay, room shrinks, and all leaves in the end, in order and whole. (The
 * network behind may lose some.) The way out is slow until we have said "full"; on a busy host it
 * may stay slow for long, so patience ends with a time without progress. */
static void test_backlog_leaves_in_order(void)
{
    enum { COUNT = 16000 };
    struct harp_arrival in[HARP_BATCH];
    bool held = false;
    uint64_t sent = 0, next = 0;
    stay_on_this_cpu();
    open_end(&a, 1);
    open_end(&b, 1);
    int hop = hop_to(&a, &b.port->locals[0], 0);
    warm_up(hop);
    size_t empty = a.port->ops->room(a.port, hop);
    uint64_t end_ns = now_ns() + PATIENCE_NS, left = 0;
    while (a.port->counters.sent < COUNT || next == 0) {
        while (sent < COUNT && a.port->ops->room(a.port, hop) > 0)
            assert(put_numbered(a.port, hop, 1400, sent++));
        a.port->ops->flush(a.port, now_ns());
        if (a.port->ops->deadline_ns(a.port) != UINT64_MAX) {
            assert(a.port->ops->room(a.port, hop) < empty);
            if (!held)
                puts("full"), fflush(stdout);
            held = true;
        }
        size_t n = b.port->ops->receive(b.port, now_ns(), in, HARP_BATCH);
        for (size_t i = 0; i < n; i++) {
            uint64_t number = check_numbered(in[i].bytes, in[i].length);
            assert(in[i].length == 1400);
            assert(number >= next);
            next = number + 1;
        }
        b.port->ops->release(b.port, in, n);
        if (a.port->counters.sent > left)
            end_ns = now_ns() + PATIENCE_NS;
        left = a.port->counters.sent;
        if (now_ns() >= end_ns) {
            fprintf(stderr, "of %d put %" PRIu64 ", sent %" PRIu64 ", last seen %" PRIu64 "; %s\n",
                    COUNT, sent, left, next, held ? "was full" : "never full");
            abort();
        }
    }
    assert(held && a.port->counters.dropped == 0);
    assert(a.port->ops->room(a.port, hop) == empty);
}

/* Marks of congestion are reported, and what leaves may be marked. */
static void test_congestion_marks(void)
{
    struct harp_arrival in[HARP_BATCH];
    open_end(&a, 1);
    const struct harp_address *to = &a.port->locals[0];
    bool v4 = harp_address_is_ipv4(to);
    int level = v4 ? IPPROTO_IP : IPPROTO_IPV6;
    struct sockaddr_in to4 = {.sin_family = AF_INET, .sin_port = htons(to->port)}, from4 = to4;
    struct sockaddr_in6 to6 = {.sin6_family = AF_INET6, .sin6_port = htons(to->port)}, from6 = to6;
    memcpy(&to4.sin_addr, to->ip + 12, 4);
    memcpy(&to6.sin6_addr, to->ip, 16);
    from4.sin_port = from6.sin6_port = 0;
    struct harp_address peer;
    assert(harp_address_parse(b.ip, &peer));
    memcpy(&from4.sin_addr, peer.ip + 12, 4);
    memcpy(&from6.sin6_addr, peer.ip, 16);
    enter_namespace(&b);
    int fd = socket(v4 ? AF_INET : AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0), on = 1;
    struct sockaddr *own = v4 ? (struct sockaddr *)&from4 : (struct sockaddr *)&from6;
    socklen_t length = v4 ? sizeof from4 : sizeof from6;
    assert(bind(fd, own, length) == 0 && getsockname(fd, own, &length) == 0);
    assert(connect(fd, v4 ? (struct sockaddr *)&to4 : (struct sockaddr *)&to6, length) == 0);
    assert(setsockopt(fd, level, v4 ? IP_RECVTOS : IPV6_RECVTCLASS, &on, sizeof on) == 0);
    for (int mark = 0; mark < 4; mark++) {
        assert(setsockopt(fd, level, v4 ? IP_TOS : IPV6_TCLASS, &mark, sizeof mark) == 0);
        assert(send(fd, "x", 1, 0) == 1);
        assert(wait_for(a.port, in, HARP_BATCH) == 1);
        assert(in[0].marked == (mark == 3));
    }
    int hop = hop_to(&a, in[0].from, 0);
    char byte, control[128];
    struct iovec part = {&byte, 1};
    struct msghdr header = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = 128};
    put_datagram(a.port, hop, 1, 1);
    a.port->ops->flush(a.port, now_ns());
    assert(recvmsg(fd, &header, 0) == 1 && byte == (char)byte_of(1, 0));
    const struct cmsghdr *item = CMSG_FIRSTHDR(&header);
    assert(item && item->cmsg_level == level && (*CMSG_DATA(item) & 3) == 2);
    close(fd);
}

/* Time in the kernel's queue is separate from time in the network. */
static bool waits_2_ms(int hop)
{
    struct harp_arrival in[HARP_BATCH];
    put_datagram(a.port, hop, 100, 0);
    a.port->ops->flush(a.port, now_ns());
    struct pollfd readable = {.fd = b.port->ops->fd(b.port), .events = POLLIN};
    assert(!b.port->ops->sleep(b.port) || poll(&readable, 1, 50000) == 1);
    uint64_t came_ns = now_ns();
    while (now_ns() < came_ns + 2000000)
        ;
    assert(wait_for(b.port, in, HARP_BATCH) == 1);
    return in[0].waited_ns >= 1900000;
}

/* The kernel begins to take times somewhat after the first socket has asked for them. */
static void test_arrival_times(void)
{
    open_end(&a, 1);
    open_end(&b, 1);
    int hop = hop_to(&a, &b.port->locals[0], 0);
    warm_up(hop);
    int tries = 0;
    while (!waits_2_ms(hop))
        assert(++tries < 500);
}

/* A descriptor that wakes; a child that closes its copy and leaves the parent alone. */
static void test_waiting(void)
{
    struct harp_arrival in[HARP_BATCH];
    open_end(&a, 2);
    open_end(&b, 2);
    int hop = hop_to(&a, &b.port->locals[1], 0);
    struct pollfd readable = {.fd = b.port->ops->fd(b.port), .events = POLLIN};
    assert(b.port->ops->sleep(b.port) && poll(&readable, 1, 0) == 0);
    pid_t child = fork();
    if (child == 0) {
        b.port->ops->close(b.port);
        a.port->ops->close(a.port);
        _exit(0);
    }
    int status;
    assert(child > 0 && waitpid(child, &status, 0) == child && status == 0);
    for (uint64_t round = 0; round < 3; round++) {
        put_datagram(a.port, hop, 64, round);
        put_datagram(a.port, hop, 64, round + 1);
        a.port->ops->flush(a.port, now_ns());
        assert(poll(&readable, 1, 50000) == 1);
        /* One at a time: the second waits in the port's own buffer, and that is no time to sleep.
         */
        assert(wait_for(b.port, in, 1) == 1);
        check_datagram(in[0].bytes, 64, round);
        b.port->ops->release(b.port, in, 1);
        assert(b.port->counters.received % 2 == 0 || !b.port->ops->sleep(b.port) ||
               poll(&readable, 1, 50000) == 1);
        assert(wait_for(b.port, in, 1) == 1);
        check_datagram(in[0].bytes, 64, round + 1);
        b.port->ops->release(b.port, in, 1);
    }
}

static int is_refused(struct harp_port_config config, const char *says)
{
    char why[HARP_WHY_BYTES] = "";
    struct harp_port *port = NULL;
    int error = harp_port_udp_open(&port, &config, why);
    printf("%s\n", why);
    assert(error < 0 && !port && strstr(why, says));
    return error;
}

static void test_errors(void)
{
    struct harp_port_config config = {.locals = 1};
    char why[HARP_WHY_BYTES];
    enter_namespace(&a);
    int fds = dup(0);
    close(fds);
    is_refused(config, "needs an interface or an address");
    config.interface = "harp-nowhere";
    assert(is_refused(config, "no interface harp-nowhere") == -ENODEV);
    config.interface = NULL;
    harp_address_parse("203.0.113.77", &config.local);
    assert(is_refused(config, "has no address 203.0.113.77") == -EADDRNOTAVAIL);
    harp_address_parse(a.ip, &config.local);
    config.mtu = 1000000;
    assert(is_refused(config, "MTU of 1000000") == -EINVAL);
    config.mtu = 0;
    config.locals = 0;
    assert(is_refused(config, "1 to 256 own addresses, not 0") == -EINVAL);
    config.locals = 2;
    assert(harp_port_udp_open(&a.port, &config, why) == 0);
    config.local.port = a.port->locals[0].port;
    assert(is_refused(config, "cannot be had: Address already in use") == -EADDRINUSE);
    int hop = a.port->ops->hop(a.port, &config.local, 1, why);
    assert(hop >= 0);
    a.port->ops->unhop(a.port, hop);
    config.local.port = 0;
    assert(a.port->ops->hop(a.port, &config.local, 0, why) < 0 && strstr(why, "UDP port"));
    printf("%s\n", why);
    harp_address_parse(harp_address_is_ipv4(&config.local) ? "[::1]:7" : "127.0.0.1:7",
                       &config.local);
    assert(a.port->ops->hop(a.port, &config.local, 0, why) < 0 && strstr(why, "it takes an IP"));
    printf("%s\n", why);
    a.port->ops->close(a.port);
    a.port = NULL;
    /* Found by the interface's name, and nothing of all that was refused is left. */
    config = (struct harp_port_config){.locals = 1, .interface = "lo"};
    assert(harp_port_udp_open(&a.port, &config, why) == 0);
    assert(strstr(a.port->line, "udp: lo 127.0.0.1:"));
    a.port->ops->close(a.port);
    a.port = NULL;
    int again = dup(0);
    assert(again == fds);
}

int main(int count, char **words)
{
    static const struct named_test tests[] = {{"sizes", test_sizes},
                                              {"joined", test_equal_datagrams_leave_together},
                                              {"backlog", test_backlog_leaves_in_order},
                                              {"marks", test_congestion_marks},
                                              {"waiting", test_waiting},
                                              {"waited", test_arrival_times},
                                              {"refused_offload", test_refused_offload},
                                              {"errors", test_errors},
                                              {"apart", test_unequal_datagrams_come_in_batches},
                                              {"along", test_one_address_leaves_together}};
    return run_named_test(tests, sizeof tests / sizeof *tests, count, words);
}
