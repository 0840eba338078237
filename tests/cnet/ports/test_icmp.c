/* Network events that the udp port sees: ICMP, a smaller MTU, an interface that goes.
 *
 * usage: test_icmp TEST IP-A SPACE-A IP-B SPACE-B     SPACE is a namespace's file or "-"
 */
#define _GNU_SOURCE
#include <errno.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "port_udp_ends.h"

/* Send now and then until a notice comes. */
static struct harp_notice notice_after(int hop, uint32_t length)
{
    struct harp_notice notice;
    uint64_t end_ns = now_ns() + PATIENCE_NS;
    for (;;) {
        put_datagram(a.port, hop, length, 0);
        a.port->ops->flush(a.port, now_ns());
        struct pollfd readable = {.fd = a.port->ops->fd(a.port), .events = POLLIN};
        assert(a.port->ops->sleep(a.port));
        poll(&readable, 1, 10);
        a.port->ops->tend(a.port, now_ns());
        if (a.port->ops->notice(a.port, &notice))
            return notice;
        assert(now_ns() < end_ns);
    }
}

/* Nobody listens there, and later somebody does. */
static void test_port_unreachable(void)
{
    struct harp_arrival in[HARP_BATCH];
    open_end(&a, 1);
    open_end(&b, 2);
    struct harp_address there = b.port->locals[1];
    b.port->ops->close(b.port);
    int hop = hop_to(&a, &there, 0);
    struct harp_notice notice = notice_after(hop, 100);
    assert(notice.type == HARP_NOTICE_REFUSED && harp_address_same(&notice.about, &there));
    uint8_t sent[100];
    fill_datagram(sent, sizeof sent, 0);
    assert(memcmp(notice.quote, sent, sizeof notice.quote) == 0);
    assert(notice_after(hop, 100).type == HARP_NOTICE_REFUSED);
    /* An error that waits at the socket must not cost a datagram to somebody else. */
    open_end(&b, 1);
    int other = hop_to(&a, &b.port->locals[0], 0);
    put_datagram(a.port, hop, 100, 0);
    a.port->ops->flush(a.port, now_ns());
    for (uint64_t i = 0; i < 100; i++) {
        put_datagram(a.port, hop, 100, 0);
        put_datagram(a.port, other, 200, i);
        a.port->ops->flush(a.port, now_ns());
        size_t n = wait_for(b.port, in, HARP_BATCH);
        assert(n == 1 && in[0].length == 200);
        check_datagram(in[0].bytes, 200, i);
    }
}

/* The way behind the first router takes 1300 bytes only. */
static void test_too_narrow(void)
{
    open_end(&a, 1);
    open_end(&b, 1);
    int hop = hop_to(&a, &b.port->locals[0], 0);
    uint32_t full = a.port->ops->hop_payload_max(a.port, hop);
    struct harp_notice notice = notice_after(hop, full);
    assert(notice.type == HARP_NOTICE_MTU);
    assert(harp_address_same(&notice.about, &b.port->locals[0]));
    assert(notice.payload_max == full - 200);
    assert(a.port->ops->hop_payload_max(a.port, hop) == full - 200);
}

static void set_mtu(const struct end *end, int mtu)
{
    struct ifreq request = {.ifr_mtu = mtu};
    enter_namespace(end);
    strcpy(request.ifr_name, "v1");
    int control = socket(AF_INET, SOCK_DGRAM, 0);
    assert(ioctl(control, SIOCSIFMTU, &request) == 0);
    close(control);
}

/* The interface's own MTU goes down under an open port. */
static void test_lowered_mtu(void)
{
    open_end(&a, 1);
    open_end(&b, 1);
    int hop = hop_to(&a, &b.port->locals[0], 0);
    uint32_t full = a.port->ops->hop_payload_max(a.port, hop);
    set_mtu(&a, 1400);
    for (int i = 0; i < 10; i++)
        put_datagram(a.port, hop, full, 0);
    struct harp_notice notice = notice_after(hop, full);
    assert(notice.type == HARP_NOTICE_MTU && notice.payload_max == full - 100);
    assert(a.port->counters.dropped >= 10 && a.port->counters.sent == 0);
    struct harp_arrival in[HARP_BATCH];
    put_datagram(a.port, hop, full - 100, 7);
    a.port->ops->flush(a.port, now_ns());
    assert(wait_for(b.port, in, HARP_BATCH) == 1);
    check_datagram(in[0].bytes, full - 100, 7);
}

static void in_space_of(const struct end *end, const char *command)
{
    enter_namespace(end);
    assert(system(command) == 0);
}

/* The address moves to another interface, whose MTU is smaller, and the port's own one is gone. */
static void test_vanished_interface(void)
{
    char command[256];
    struct harp_arrival in[HARP_BATCH];
    open_end(&a, 1);
    open_end(&b, 1);
    int hop = hop_to(&a, &b.port->locals[0], 0);
    uint32_t full = a.port->ops->hop_payload_max(a.port, hop);
    warm_up(hop);
    snprintf(command, sizeof command,
             "ip link add v9 mtu 1300 type veth peer v8 && ip link set v9 up && "
             "ip link delete v1 && ip address add %s/24 dev v9",
             a.ip);
    in_space_of(&a, command);
    for (int i = 0; i < 10; i++)
        put_datagram(a.port, hop, full, 0);
    struct harp_notice notice = notice_after(hop, full);
    assert(notice.type == HARP_NOTICE_MTU && notice.payload_max == full - 200);
    in_space_of(&a, "ip link delete v9");
    put_datagram(a.port, hop, full, 0);
    notice = notice_after(hop, full);
    assert(notice.type == HARP_NOTICE_UNREACHABLE);
    assert(a.port->ops->receive(a.port, now_ns(), in, HARP_BATCH) == 0);
    a.port->ops->unhop(a.port, hop);
}

static uint16_t internet_sum(const uint8_t *bytes, size_t count)
{
    uint32_t sum = 0;
    for (size_t i = 0; i < count; i += 2)
        sum += (uint32_t)bytes[i] << 8 | bytes[i + 1];
    sum = (sum & 0xffff) + (sum >> 16);
    return htons((uint16_t)~((sum & 0xffff) + (sum >> 16)));
}

/* b's host says to a, so often, that nobody listens at b's port. */
static void say_refused(int count)
{
    uint8_t packet[8 + 20 + 8 + HARP_QUOTE_BYTES] = {3, 3}; /* ICMP: port unreachable; IP; UDP */
    struct sockaddr_in to = {.sin_family = AF_INET};
    memcpy(&to.sin_addr, a.port->locals[0].ip + 12, 4);
    packet[8] = 0x45;
    packet[8 + 3] = 20 + 8 + HARP_QUOTE_BYTES;
    packet[8 + 9] = IPPROTO_UDP;
    memcpy(packet + 8 + 12, a.port->locals[0].ip + 12, 4);
    memcpy(packet + 8 + 16, b.port->locals[0].ip + 12, 4);
    uint16_t ports[2] = {htons(a.port->locals[0].port), htons(b.port->locals[0].port)};
    memcpy(packet + 28, ports, sizeof ports);
    uint16_t sum = internet_sum(packet, sizeof packet);
    memcpy(packet + 2, &sum, sizeof sum);
    enter_namespace(&b);
    int raw = socket(AF_INET, SOCK_RAW, IPPROTO_ICMP);
    assert(raw >= 0);
    for (int i = 0; i < count; i++)
        assert(sendto(raw, packet, sizeof packet, 0, (struct sockaddr *)&to, sizeof to) > 0);
    close(raw);
}

/* Forged ICMP fills the memory that a socket has for what arrives: it is thrown away, and for some
 * time not taken; then again. */
static void test_icmp_flood(void)
{
    enum { FORGED = 40000, COUNT = 600 };
    struct harp_arrival in[HARP_BATCH];
    struct harp_notice notice;
    open_end(&a, 1);
    open_end(&b, 1);
    int hop = hop_to(&a, &b.port->locals[0], 0);
    warm_up(hop);
    int back = hop_to(&b, &a.port->locals[0], 0);
    uint64_t now = now_ns(), got = 0;
    say_refused(FORGED);
    a.port->ops->tend(a.port, now);
    for (uint64_t i = 0; i < COUNT; i += HARP_BATCH / 2) {
        for (uint64_t k = 0; k < HARP_BATCH / 2; k++)
            put_datagram(b.port, back, 1400, i + k);
        b.port->ops->flush(b.port, now_ns());
    }
    while (got < COUNT)
        got += wait_for(a.port, in, HARP_BATCH);
    bool noticed = false;
    while (a.port->ops->notice(a.port, &notice))
        noticed |= notice.type == HARP_NOTICE_TROUBLE && notice.trouble == HARP_TROUBLE_ICMP;
    assert(noticed);
    say_refused(100);
    a.port->ops->tend(a.port, now);
    assert(!a.port->ops->notice(a.port, &notice));
    a.port->ops->tend(a.port, now + 200000000);
    say_refused(1);
    a.port->ops->tend(a.port, now + 200000000);
    assert(a.port->ops->notice(a.port, &notice) && notice.type == HARP_NOTICE_REFUSED);
}

int main(int count, char **words)
{
    static const struct named_test tests[] = {{"unreachable", test_port_unreachable},
                                              {"narrow", test_too_narrow},
                                              {"lowered", test_lowered_mtu},
                                              {"vanished", test_vanished_interface},
                                              {"flood", test_icmp_flood}};
    return run_named_test(tests, sizeof tests / sizeof *tests, count, words);
}
