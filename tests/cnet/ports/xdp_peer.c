/* A host of the tests: a port that does what lines on its standard input say.
 *
 *     xdp_peer xdp|udp INTERFACE [local=ADDRESS] [locals=N] [queue=N] [mtu=N] [frames=N] [fill=N]
 *              [poll=MICROSECONDS] [copy]
 *
 *     hop ADDRESS [LOCAL]           -> hop NUMBER payload BYTES
 *     local                         -> local NUMBER ADDRESS     one more of its own
 *     send HOP COUNT BYTES          -> sent COUNT        datagrams that carry a pattern
 *     frames HOP COUNT BYTES        -> sent COUNT        the same from frames of the pool
 *     lengthened HOP COUNT BYTES    -> sent COUNT        the same, each begun with 8 bytes
 *     receive COUNT MS              -> received COUNT strays N marked N kept N from ...
 *     turns COUNT MS                -> received COUNT calls N    COUNT receives and nothing else,
 *                                      at a time that stands still MS after the last arrival
 *     keep COUNT | give             -> done              LENT: the next COUNT frames; none any more
 *     notice MS                     -> notice TYPE ADDRESS PAYLOAD, or notice none
 *     fail ERRNO COUNT              -> done              COUNT calls that let the card send fail
 *     payload HOP                   -> payload BYTES
 *     unhop HOP | tend MS           -> done
 *     serve                         -> done              tends the port until the next line comes
 *     counters | states | fork | close
 *
 * The pattern: number, size, then bytes that depend on both and on their place. A datagram with
 * anything else in it ends the program. */
#define _GNU_SOURCE
#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "frame_names.h"
#include "ports/port.h"

enum { KEPT_MAX = 4096 };

static struct harp_arena arena;
static struct harp_frames frames;
static struct harp_port *port;
static uint32_t number, kept[KEPT_MAX], kept_n, to_keep;
static uint64_t waited_ns; /* the longest of an arrival */
static uint64_t still_ns;  /* the time, if it stands still; else 0 */
static uint64_t last_arrival_ns;

static uint64_t now_ns(void)
{
    struct timespec time;
    if (still_ns)
        return still_ns;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

static int failing;
static uint32_t failures;

/* In place of libc's: a call with nothing to send lets the card send. */
ssize_t sendto(int fd, const void *bytes, size_t count, int flags, const struct sockaddr *to,
               socklen_t to_bytes)
{
    if (!bytes && failures > 0) {
        failures--;
        errno = failing;
        return -1;
    }
    return syscall(SYS_sendto, fd, bytes, count, flags, to, to_bytes);
}

static uint8_t byte_at(uint32_t number, uint32_t at)
{
    return (uint8_t)(number * 7 + at + (at >> 8) * 13);
}

static void write_pattern(uint8_t *to, uint32_t bytes)
{
    assert(bytes >= 8);
    memcpy(to, &number, 4);
    memcpy(to + 4, &bytes, 4);
    for (uint32_t i = 8; i < bytes; i++)
        to[i] = byte_at(number, i);
    number++;
}

static void check_pattern(const uint8_t *from, uint32_t bytes)
{
    uint32_t which, size;
    assert(bytes >= 8);
    memcpy(&which, from, 4);
    memcpy(&size, from + 4, 4);
    assert(size == bytes);
    for (uint32_t i = 8; i < bytes; i++)
        assert(from[i] == byte_at(which, i));
}

/* One turn without sending. */
static uint32_t take_arrivals(uint32_t *strays, uint32_t *marked, char *from)
{
    struct harp_arrival arrivals[HARP_BATCH];
    size_t count = port->ops->receive(port, now_ns(), arrivals, HARP_BATCH);
    for (size_t i = 0; i < count; i++) {
        struct harp_arrival *one = &arrivals[i];
        check_pattern(one->bytes, one->length);
        waited_ns = one->waited_ns > waited_ns ? one->waited_ns : waited_ns;
        if (one->frame != HARP_NO_FRAME && kept_n < to_keep) {
            harp_frames_move(&frames, one->frame, HARP_FRAME_ARRIVED, HARP_FRAME_LENT);
            kept[kept_n++] = one->frame;
            one->kept = true;
        }
        assert(one->local < port->locals_n);
        harp_address_format(one->from, from, 64);
        *strays += one->stray;
        *marked += one->marked;
    }
    if (count > 0)
        last_arrival_ns = now_ns();
    port->ops->release(port, arrivals, count);
    return (uint32_t)count;
}

static void wait_until(uint64_t end_ns)
{
    uint64_t now = now_ns();
    uint64_t deadline = port->ops->deadline_ns ? port->ops->deadline_ns(port) : UINT64_MAX;
    uint64_t until = deadline < end_ns ? deadline : end_ns;
    struct pollfd at = {.fd = port->ops->fd(port), .events = POLLIN};
    struct timespec most = {0};
    if (until > now)
        most = (struct timespec){(time_t)((until - now) / 1000000000u),
                                 (long)((until - now) % 1000000000u)};
    if (port->ops->sleep(port))
        ppoll(&at, 1, &most, NULL);
}

static void receive_datagrams(uint32_t count, uint64_t end_ns)
{
    uint32_t got = 0, strays = 0, marked = 0;
    char from[64] = "";
    waited_ns = 0;
    do {
        uint32_t now = take_arrivals(&strays, &marked, from);
        got += now;
        port->ops->tend(port, now_ns());
        if (now == 0 && got < count)
            wait_until(end_ns);
    } while (got < count && now_ns() < end_ns);
    printf("received %u strays %u marked %u kept %u from %s waited_ns=%lu\n", got, strays, marked,
           kept_n, *from ? from : "nobody", waited_ns);
}

static void take_turns(uint32_t count, uint32_t ms)
{
    uint64_t calls = port->counters.receive_calls;
    uint32_t got = 0, unused = 0;
    char from[64];
    still_ns = last_arrival_ns + ms * UINT64_C(1000000);
    for (uint32_t i = 0; i < count; i++)
        got += take_arrivals(&unused, &unused, from);
    still_ns = 0;
    printf("received %u calls %lu\n", got, port->counters.receive_calls - calls);
}

enum how { BY_SLOT, BY_FRAME, LENGTHENED };

/* A datagram of 8 bytes that becomes longer. */
static uint8_t *lengthened_slot(int hop, uint32_t bytes)
{
    uint8_t *to = port->ops->slot(port, hop, 8);
    if (to)
        assert(!port->ops->lengthen(port, hop, bytes - 8, bytes - 1));
    if (to && bytes > 8)
        assert(port->ops->lengthen(port, hop, bytes - 8, bytes) == to + 8);
    return to;
}

/* Returns whether one was given to the port. */
static bool send_one(int hop, uint32_t bytes, enum how how)
{
    uint32_t frame;
    if (how != BY_FRAME) {
        uint8_t *to =
            how == LENGTHENED ? lengthened_slot(hop, bytes) : port->ops->slot(port, hop, bytes);
        if (to)
            write_pattern(to, bytes);
        return to;
    }
    if (harp_frames_take(&frames, HARP_FRAME_DRAFT, &frame, 1) == 0)
        return false;
    write_pattern(harp_frame_at(&frames, frame) + 128, bytes);
    harp_frames_move(&frames, frame, HARP_FRAME_DRAFT, HARP_FRAME_READY);
    harp_frames_move(&frames, frame, HARP_FRAME_READY, HARP_FRAME_LEAVING);
    bool sent = port->ops->send_frame(port, hop, frame, 128, bytes);
    if (!sent) {
        number--;
        harp_frames_move(&frames, frame, HARP_FRAME_LEAVING, HARP_FRAME_FREE);
    }
    return sent;
}

static void send_all(int hop, uint32_t count, uint32_t bytes, enum how how)
{
    uint64_t end_ns = now_ns() + 5000000000u;
    uint32_t sent = 0;
    while (sent < count && now_ns() < end_ns) {
        uint32_t batch = 0;
        while (batch < HARP_BATCH && sent < count && send_one(hop, bytes, how))
            batch++, sent++;
        port->ops->flush(port, now_ns());
        port->ops->tend(port, now_ns());
        (void)port->ops->room(port, hop);
    }
    printf("sent %u\n", sent);
}

static void show_notice(uint64_t end_ns)
{
    struct harp_notice notice;
    char about[64];
    while (!port->ops->notice(port, &notice)) {
        if (now_ns() >= end_ns) {
            puts("notice none");
            return;
        }
        wait_until(now_ns() + 10000000);
        port->ops->tend(port, now_ns());
    }
    harp_address_format(&notice.about, about, sizeof about);
    if (notice.type == HARP_NOTICE_TROUBLE)
        printf("notice trouble %d errno %d\n", (int)notice.trouble, notice.error);
    else
        printf("notice %s %s %u\n", notice.type == HARP_NOTICE_MTU ? "mtu" : "unreachable", about,
               notice.payload_max);
}

static void show_states(void)
{
    fputs("states", stdout);
    for (int i = 0; i < HARP_FRAME_STATES; i++)
        printf(" %s %u", frame_names[i], frames.in_state[i]);
    puts("");
}

static void show_counters(void)
{
    const struct harp_port_counters *c = &port->counters;
    printf("counters sent %lu received %lu sent_copied %lu received_copied %lu dropped %lu strays "
           "%lu\n",
           c->sent, c->received, c->sent_copied, c->received_copied, c->dropped, c->strays);
}

/* A child does what an engine does there, and runs on when its parent ends, until the test ends. */
static void fork_child(void)
{
    int ends[2];
    assert(pipe(ends) == 0);
    pid_t child = fork();
    if (child == 0) {
        close(ends[0]);
        port->ops->close(port);
        assert(write(ends[1], "x", 1) == 1);
        alarm(60);
        pause();
        _exit(0);
    }
    char byte;
    close(ends[1]);
    assert(read(ends[0], &byte, 1) == 1);
    close(ends[0]);
    printf("child %d\n", (int)child);
}

static void add_local(void)
{
    char why[HARP_WHY_BYTES] = "", text[64];
    int local = port->ops->add_local(port, 0, why);
    if (local < 0) {
        printf("error %d: %s\n", local, why);
        return;
    }
    harp_address_format(&port->locals[local], text, sizeof text);
    printf("local %d %s\n", local, text);
}

static void add_hop(const char *text, uint16_t local)
{
    char why[HARP_WHY_BYTES];
    struct harp_address to;
    assert(harp_address_parse(text, &to));
    int hop = port->ops->hop(port, &to, local, why);
    if (hop < 0)
        printf("error %d: %s\n", hop, why);
    else
        printf("hop %d payload %u\n", hop, port->ops->hop_payload_max(port, hop));
}

static void tend_for(uint32_t ms)
{
    uint64_t end_ns = now_ns() + ms * UINT64_C(1000000);
    do {
        port->ops->tend(port, now_ns());
        wait_until(now_ns() + 1000000);
    } while (now_ns() < end_ns);
    puts("done");
}

static void tend_until_input(void)
{
    struct pollfd input = {.fd = 0, .events = POLLIN};
    while (poll(&input, 1, 1) == 0)
        port->ops->tend(port, now_ns());
    puts("done");
}

static bool obey_line(char *line)
{
    char what[16], text[64];
    int hop, local = 0;
    uint32_t a = 0, b = 0;
    if (sscanf(line, "hop %63s %d", text, &local) >= 1) {
        add_hop(text, (uint16_t)local);
    } else if (sscanf(line, "send %d %u %u", &hop, &a, &b) == 3) {
        send_all(hop, a, b, BY_SLOT);
    } else if (sscanf(line, "frames %d %u %u", &hop, &a, &b) == 3) {
        send_all(hop, a, b, BY_FRAME);
    } else if (sscanf(line, "lengthened %d %u %u", &hop, &a, &b) == 3) {
        send_all(hop, a, b, LENGTHENED);
    } else if (sscanf(line, "payload %d", &hop) == 1) {
        printf("payload %u\n", port->ops->hop_payload_max(port, hop));
    } else if (sscanf(line, "unhop %d", &hop) == 1) {
        port->ops->unhop(port, hop);
        puts("done");
    } else if (sscanf(line, "%15s %u %u", what, &a, &b) < 1) {
        return true;
    } else if (strcmp(what, "receive") == 0) {
        receive_datagrams(a, now_ns() + b * UINT64_C(1000000));
    } else if (strcmp(what, "fail") == 0) {
        failing = (int)a;
        failures = b;
        puts("done");
    } else if (strcmp(what, "local") == 0) {
        add_local();
    } else if (strcmp(what, "turns") == 0) {
        take_turns(a, b);
    } else if (strcmp(what, "keep") == 0) {
        to_keep = a;
        puts("done");
    } else if (strcmp(what, "give") == 0) {
        while (kept_n > 0)
            harp_frames_move(&frames, kept[--kept_n], HARP_FRAME_LENT, HARP_FRAME_FREE);
        to_keep = 0;
        puts("done");
    } else if (strcmp(what, "notice") == 0) {
        show_notice(now_ns() + a * UINT64_C(1000000));
    } else if (strcmp(what, "tend") == 0) {
        tend_for(a);
    } else if (strcmp(what, "serve") == 0) {
        tend_until_input();
    } else if (strcmp(what, "counters") == 0) {
        show_counters();
    } else if (strcmp(what, "states") == 0) {
        show_states();
    } else if (strcmp(what, "fork") == 0) {
        fork_child();
    } else {
        assert(strcmp(what, "close") == 0);
        return false;
    }
    return true;
}

static void open_port(int count, char **words)
{
    struct harp_port_config config = {.interface = words[1], .locals = 1, .queue = -1};
    uint32_t frames_n = 4096;
    char why[HARP_WHY_BYTES];
    for (int i = 2; i < count; i++) {
        const char *value = strchr(words[i], '=') ? strchr(words[i], '=') + 1 : words[i];
        size_t name = (size_t)(value - words[i]);
        if (strcmp(words[i], "copy") == 0)
            config.copy_only = true;
        else if (strncmp(words[i], "local=", name) == 0)
            assert(harp_address_parse(value, &config.local));
        else if (strncmp(words[i], "locals=", name) == 0)
            config.locals = (uint16_t)atoi(value);
        else if (strncmp(words[i], "poll=", name) == 0)
            config.busy_poll_us = (uint32_t)atoi(value);
        else if (strncmp(words[i], "queue=", name) == 0)
            config.queue = atoi(value);
        else if (strncmp(words[i], "mtu=", name) == 0)
            config.mtu = (uint32_t)atoi(value);
        else if (strncmp(words[i], "fill=", name) == 0)
            config.frames_max = (uint32_t)atoi(value);
        else if (strncmp(words[i], "frames=", name) == 0)
            frames_n = (uint32_t)atoi(value);
    }
    assert(harp_arena_open(&arena, harp_frames_need(frames_n, 4096), HARP_ARENA_LOCAL) == 0);
    assert(harp_frames_open(&frames, &arena, frames_n, 4096) == 0);
    config.frames = &frames;
    config.arena = &arena;
    int error = strcmp(words[0], "udp") == 0 ? harp_port_udp_open(&port, &config, why)
                                             : harp_port_xdp_open(&port, &config, why);
    if (error < 0) {
        assert(frames.in_state[HARP_FRAME_FREE] == frames_n);
        printf("error %d: %s\n", error, why);
        exit(0);
    }
}

int main(int count, char **words)
{
    char line[256];
    assert(count >= 3);
    setvbuf(stdout, NULL, _IOLBF, 0);
    open_port(count - 1, words + 1);
    printf("open payload %u", port->payload_max);
    for (uint32_t i = 0; i < port->locals_n; i++) {
        harp_address_format(&port->locals[i], line, sizeof line);
        printf(" %s", line);
    }
    printf("\n%s\n", port->line);
    while (fgets(line, sizeof line, stdin) && obey_line(line))
        ;
    port->ops->close(port);
    show_states();
    return 0;
}
