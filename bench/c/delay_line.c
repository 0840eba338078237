/* A long line between two devices: frames leave the other one some time after they came.
 *
 *   delay_line LEFT RIGHT --delay-us N [--cpu N]     prints "ready", runs until it is killed
 *
 * Stands in for netem, which few kernels have. The devices are ends of two veth pairs, in the
 * namespace of the program. Frames arrive by packet sockets, which see what the other end of a
 * pair sends, whole; so that end has its segmentation and checksum offloads off. A direction holds
 * at most LINE_FRAMES frames, some 100 ms of full frames at 1 Gb/s; what comes then is lost, as
 * on a line without room.
 */
#define _GNU_SOURCE
#include "bench.h"

#include "options.h"

#include <linux/if_packet.h>
#include <net/ethernet.h>
#include <net/if.h>
#include <poll.h>
#include <sys/socket.h>

#ifndef PACKET_IGNORE_OUTGOING
#define PACKET_IGNORE_OUTGOING 23
#endif

#define USAGE "usage: delay_line LEFT RIGHT --delay-us N [--cpu N]\n"

enum {
    LINE_FRAMES = 8192, /* a power of two */
    FRAME_BYTES = 2048,
    SOCKET_BYTES = 32 << 20,
};

struct frame {
    uint64_t due_ns;
    ssize_t nbytes;
    uint8_t bytes[FRAME_BYTES];
};

struct direction {
    int from, to;
    uint64_t first, next; /* frames that are under way: [first, next) */
    struct frame *frames;
};

static int open_device(const char *name)
{
    const int on = 1, bytes = SOCKET_BYTES;
    struct sockaddr_ll place = {.sll_family = AF_PACKET,
                                .sll_protocol = htons(ETH_P_ALL),
                                .sll_ifindex = (int)if_nametoindex(name)};
    int fd = socket(AF_PACKET, SOCK_RAW | SOCK_NONBLOCK, 0);
    if (fd < 0 || !place.sll_ifindex)
        bench_die("%s", name);
    if (setsockopt(fd, SOL_PACKET, PACKET_IGNORE_OUTGOING, &on, sizeof(on)) < 0 ||
        setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &bytes, sizeof(bytes)) < 0 ||
        setsockopt(fd, SOL_SOCKET, SO_SNDBUFFORCE, &bytes, sizeof(bytes)) < 0 ||
        bind(fd, (const struct sockaddr *)&place, sizeof(place)) < 0)
        bench_die("%s", name);
    return fd;
}

static void take_what_came(struct direction *line, uint64_t delay_ns)
{
    for (;;) {
        struct frame *frame = &line->frames[line->next % LINE_FRAMES];
        ssize_t got = recv(line->from, frame->bytes, FRAME_BYTES, 0);
        if (got < 0)
            return;
        if (line->next - line->first == LINE_FRAMES - 1)
            continue; /* no room: lost */
        frame->nbytes = got;
        frame->due_ns = bench_now_ns() + delay_ns;
        line->next++;
    }
}

static void send_what_is_due(struct direction *line, uint64_t now_ns)
{
    while (line->first != line->next) {
        const struct frame *frame = &line->frames[line->first % LINE_FRAMES];
        if (frame->due_ns > now_ns)
            return;
        if (send(line->to, frame->bytes, (size_t)frame->nbytes, 0) < 0 && errno == EAGAIN)
            return; /* the device is full: at the next look */
        line->first++;
    }
}

static uint64_t first_due_ns(const struct direction *line, uint64_t otherwise_ns)
{
    if (line->first == line->next)
        return otherwise_ns;
    uint64_t due_ns = line->frames[line->first % LINE_FRAMES].due_ns;
    return due_ns < otherwise_ns ? due_ns : otherwise_ns;
}

static void wait_for_frames(const struct direction *lines)
{
    struct pollfd waits[2] = {{.fd = lines[0].from, .events = POLLIN},
                              {.fd = lines[1].from, .events = POLLIN}};
    uint64_t now_ns = bench_now_ns(), until_ns = now_ns + 1000000000;
    for (int i = 0; i < 2; i++)
        until_ns = first_due_ns(&lines[i], until_ns);
    uint64_t left_ns = until_ns > now_ns ? until_ns - now_ns : 0;
    struct timespec left = {.tv_sec = (time_t)(left_ns / 1000000000),
                            .tv_nsec = (long)(left_ns % 1000000000)};
    ppoll(waits, 2, &left, NULL);
}

int main(int count, char **words)
{
    int cpu = -1;
    uint64_t delay_us = 0;
    struct bench_option options[] = {BENCH_OPTION("delay-us", &delay_us),
                                     BENCH_OPTION("cpu", &cpu)};
    int rest = bench_read_options(count, words, options, sizeof(options) / sizeof(*options), USAGE);
    if (rest != 2 || !delay_us)
        bench_usage(USAGE);
    bench_pin(cpu);
    int left = open_device(words[1]), right = open_device(words[2]);
    struct direction lines[2] = {{.from = left, .to = right}, {.from = right, .to = left}};
    for (int i = 0; i < 2; i++)
        if (!(lines[i].frames = calloc(LINE_FRAMES, sizeof(struct frame))))
            bench_die("memory");
    puts("ready");
    fflush(stdout);
    for (;;) {
        wait_for_frames(lines);
        for (int i = 0; i < 2; i++) {
            take_what_came(&lines[i], delay_us * 1000);
            send_what_is_due(&lines[i], bench_now_ns());
        }
    }
}
