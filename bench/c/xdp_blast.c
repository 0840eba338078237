/* The ceiling of AF_XDP: send as many UDP frames as one socket can, or receive them.
 *
 *   xdp_blast receive eth1 [options]       prints one line of JSON, exits with 0 if frames came
 *   xdp_blast send eth0 --to-mac MAC --from-ip IP --to-ip IP [options]
 *
 * Frames carry a 64-bit number, so that the receiver counts losses. Nothing else of the
 * payload is written or read. bench.h says when the receiver's clock runs. The
 * sender's runs at once.
 */
#define _GNU_SOURCE
#include "raw_xdp.h"

#include "bench.h"
#include "options.h"

#include <arpa/inet.h>
#include <assert.h>
#include <inttypes.h>
#include <linux/if_ether.h>
#include <linux/ip.h>
#include <linux/udp.h>
#include <net/if.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

enum { HEADERS_BYTES = 14 + 20 + 8 };

struct settings {
    struct raw_xdp_options xdp;
    uint32_t batch;       /* frames between two looks at clock and rings */
    uint32_t frame_bytes; /* on the wire, with the Ethernet header */
    double seconds;
    int cpu;   /* below 0: any */
    bool spin; /* receiver: ask the ring again instead of sleeping in poll() */
    uint8_t to_mac[6];
    struct in_addr from_ip, to_ip;
};

static void own_mac(const char *interface, uint8_t mac[6])
{
    struct ifreq request = {0};
    strncpy(request.ifr_name, interface, IFNAMSIZ - 1);
    int fd = socket(AF_INET, SOCK_DGRAM, 0);
    int rc = ioctl(fd, SIOCGIFHWADDR, &request);
    assert(fd >= 0 && rc == 0);
    (void)rc;
    close(fd);
    memcpy(mac, request.ifr_hwaddr.sa_data, 6);
}

static uint16_t ip_checksum(const uint8_t *bytes, unsigned count)
{
    uint32_t sum = 0;
    for (unsigned i = 0; i < count; i += 2)
        sum += (uint32_t)bytes[i] << 8 | bytes[i + 1];
    while (sum >> 16)
        sum = (sum & 0xffff) + (sum >> 16);
    return htons((uint16_t)~sum);
}

static void write_headers(uint8_t *frame, const struct settings *s)
{
    struct ethhdr ethernet = {.h_proto = htons(ETH_P_IP)};
    memcpy(ethernet.h_dest, s->to_mac, 6);
    own_mac(s->xdp.interface, ethernet.h_source);
    struct iphdr ip = {.version = 4,
                       .ihl = 5,
                       .ttl = 64,
                       .protocol = IPPROTO_UDP,
                       .tot_len = htons((uint16_t)(s->frame_bytes - 14)),
                       .saddr = s->from_ip.s_addr,
                       .daddr = s->to_ip.s_addr};
    ip.check = ip_checksum((const uint8_t *)&ip, sizeof(ip));
    struct udphdr udp = {.source = htons(s->xdp.udp_port),
                         .dest = htons(s->xdp.udp_port),
                         .len = htons((uint16_t)(s->frame_bytes - 34))}; /* no checksum */
    memcpy(frame, &ethernet, sizeof(ethernet));
    memcpy(frame + 14, &ip, sizeof(ip));
    memcpy(frame + 34, &udp, sizeof(udp));
}

static void send_frames(const struct settings *s)
{
    struct raw_xdp_options options = s->xdp;
    options.udp_port = 0;
    struct raw_xdp xdp;
    raw_xdp_open(&xdp, &options);
    uint64_t idle[RAW_RING_SLOTS]; /* addresses of frames that the kernel does not hold */
    uint32_t idle_count = 0;
    for (; idle_count < RAW_RING_SLOTS; idle_count++) {
        idle[idle_count] = raw_frame(RAW_RING_SLOTS + idle_count);
        write_headers(xdp.umem + idle[idle_count], s);
    }
    uint64_t number = 0, end_ns = bench_now_ns() + (uint64_t)(s->seconds * 1e9);
    while (bench_now_ns() < end_ns) {
        for (uint32_t n = raw_filled(&xdp.completion); n > 0; n--)
            idle[idle_count++] = *raw_addr(&xdp.completion, xdp.completion.own++);
        raw_release(&xdp.completion);
        uint32_t room = raw_free(&xdp.tx, s->batch);
        uint32_t count = s->batch < room ? s->batch : room;
        count = count < idle_count ? count : idle_count;
        for (uint32_t i = 0; i < count; i++, number++) {
            uint64_t address = idle[--idle_count];
            memcpy(xdp.umem + address + HEADERS_BYTES, &number, sizeof(number));
            *raw_desc(&xdp.tx, xdp.tx.own++) =
                (struct xdp_desc){.addr = address, .len = s->frame_bytes};
        }
        raw_publish(&xdp.tx);
        if (!s->xdp.zero_copy || raw_needs_wakeup(&xdp.tx))
            raw_kick_send(&xdp);
    }
    raw_xdp_close(&xdp);
}

struct counted {
    uint64_t frames, bytes; /* of UDP payload */
    uint64_t next, lost;
};

static void take_arrivals(struct raw_xdp *xdp, uint32_t count, struct counted *c)
{
    /* Every frame is in one place, so the fill ring will have room for all: the kernel says what
     * arrived a moment before it says which fill entries it used. */
    while (raw_free(&xdp->fill, count) < count)
        ;
    for (uint32_t i = 0; i < count; i++) {
        const struct xdp_desc *desc = raw_desc(&xdp->rx, xdp->rx.own++);
        uint64_t number;
        memcpy(&number, xdp->umem + desc->addr + HEADERS_BYTES, sizeof(number));
        c->lost += number - c->next;
        c->next = number + 1;
        c->bytes += desc->len - HEADERS_BYTES;
        *raw_addr(&xdp->fill, xdp->fill.own++) = desc->addr - desc->addr % RAW_FRAME_BYTES;
    }
    c->frames += count;
    raw_release(&xdp->rx);
    raw_publish(&xdp->fill);
}

static void report_counts(const struct raw_xdp *xdp, const struct counted *c,
                          const struct bench_window *window)
{
    struct xdp_statistics dropped = {0};
    socklen_t bytes = sizeof(dropped);
    char more[256];
    getsockopt(xdp->fd, SOL_XDP, XDP_STATISTICS, &dropped, &bytes);
    snprintf(more, sizeof(more),
             ", \"program\": \"xdp_blast receive\", \"zero_copy\": %s, \"lost\": %" PRIu64
             ", \"ring_full\": %" PRIu64 ", \"fill_empty\": %" PRIu64,
             raw_xdp_zero_copy(xdp) ? "true" : "false", c->lost, (uint64_t)dropped.rx_ring_full,
             (uint64_t)dropped.rx_fill_ring_empty_descs);
    bench_print(window, more);
}

static void receive_frames(const struct settings *s)
{
    struct raw_xdp xdp;
    raw_xdp_open(&xdp, &s->xdp);
    struct pollfd ready = {.fd = xdp.fd, .events = POLLIN};
    struct bench_window window;
    bench_window(&window, s->seconds);
    struct counted c = {0};
    uint64_t frames = 0, bytes = 0;
    for (bool open = true; open;) {
        uint32_t count = raw_filled(&xdp.rx);
        if (count > 0) {
            take_arrivals(&xdp, count < s->batch ? count : s->batch, &c);
            open = bench_count(&window, c.bytes - bytes, c.frames - frames);
            bytes = c.bytes;
            frames = c.frames;
            if (raw_needs_wakeup(&xdp.fill))
                raw_kick_receive(&xdp);
        } else if (!s->spin) {
            poll(&ready, 1, 10);
        } else if (raw_needs_wakeup(&xdp.fill)) {
            raw_kick_receive(&xdp);
        }
    }
    report_counts(&xdp, &c, &window);
    raw_xdp_close(&xdp);
}

static const char USAGE[] =
    "usage: xdp_blast send|receive INTERFACE [--copy] [--queue N] [--port N] [--batch N]\n"
    "           [--frame BYTES] [--seconds S] [--spin] [--cpu N]\n"
    "           [--to-mac MAC] [--from-ip IP] [--to-ip IP]\n";

static void read_mac(const char *text, uint8_t mac[6])
{
    if (sscanf(text, "%2hhx:%2hhx:%2hhx:%2hhx:%2hhx:%2hhx", &mac[0], &mac[1], &mac[2], &mac[3],
               &mac[4], &mac[5]) != 6)
        bench_usage(USAGE);
}

int main(int count, char **words)
{
    struct settings s = {
        .xdp = {.udp_port = 4791}, .batch = 64, .frame_bytes = 1514, .seconds = 5, .cpu = -1};
    const char *to_mac = "00:00:00:00:00:00";
    bool copy = false;
    const struct bench_option options[] = {
        BENCH_OPTION("copy", &copy),           BENCH_OPTION("queue", &s.xdp.queue),
        BENCH_OPTION("port", &s.xdp.udp_port), BENCH_OPTION("batch", &s.batch),
        BENCH_OPTION("frame", &s.frame_bytes), BENCH_OPTION("seconds", &s.seconds),
        BENCH_OPTION("spin", &s.spin),         BENCH_OPTION("cpu", &s.cpu),
        BENCH_OPTION("to-mac", &to_mac),       BENCH_OPTION("from-ip", &s.from_ip),
        BENCH_OPTION("to-ip", &s.to_ip)};
    int rest = bench_read_options(count, words, options, sizeof(options) / sizeof(*options), USAGE);
    if (rest != 2 || s.batch == 0 || s.batch > RAW_RING_SLOTS || s.frame_bytes > 3506 ||
        s.frame_bytes < HEADERS_BYTES + sizeof(uint64_t))
        bench_usage(USAGE);
    s.xdp.interface = words[2];
    s.xdp.zero_copy = !copy;
    read_mac(to_mac, s.to_mac);
    bench_pin(s.cpu);
    if (strcmp(words[1], "send") == 0)
        send_frames(&s);
    else if (strcmp(words[1], "receive") == 0)
        receive_frames(&s);
    else
        bench_usage(USAGE);
    return 0;
}
