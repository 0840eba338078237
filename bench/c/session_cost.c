/* Cost of a session: two of them back to back in one thread, frames handed over directly.
 *
 *   cc -O3 -I cnet bench/c/session_cost.c cnet/session/... cnet/virtual/... && ./session_cost
 * [seconds]
 *
 * Rows: messages of 64 bytes, of one frame and of 4 MiB, segments of 4,096 bytes; bare, and with
 * what stands beside a session: header to bytes and back, tags in batches, and the CRC of the
 * payload at both ends. No payload is copied. Prints ns per DATA frame and end (ACKs included, half
 * of the CPU's time), and messages per second if each end had a core of its own.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/sequence.h"
#include "session/session.h"
#include "virtual/session_ends.h"
#include "wire/crc32c.h"
#include "wire/seal.h"

#define BATCH 64
#define SEGMENT 4096

struct row {
    const char *name;
    uint32_t size;
    bool sealed;
    bool streamed;
    uint16_t paths;
    uint32_t ahead; /* messages under way at once */
    const struct harp_cc_ops *cc;
};

struct side {
    struct harp_session *session;
    struct harp_session_config config;
    uint64_t data; /* frames */
    uint32_t open; /* messages under way */
};

static uint8_t *memory;
static uint8_t wire[BATCH][HARP_HEADER_BYTES];
static const struct harp_key key = {1, 2};

static uint64_t now_ns; /* read once a turn, as an engine does */

static uint64_t read_clock_ns(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

static void configure_side(struct side *side, const struct harp_session_config *config,
                           const struct row *row)
{
    side->config = *config;
    side->config.cc = row->cc;
    side->config.window.initial_bytes = 128 * SEGMENT;
    side->config.stream_frames = row->streamed ? 4096 : 0;
    side->data = 0;
}

/* Tags in batches, the payload's CRC, and the header as bytes. */
static void seal_frames(const struct harp_frame *frames, size_t n)
{
    uint8_t *headers[BATCH];
    uint32_t laps[BATCH];
    for (size_t i = 0; i < n; i++) {
        struct harp_header header = frames[i].header;
        const uint8_t *payload = frames[i].payload ? frames[i].payload : frames[i].body;
        header.crc = header.length ? harp_crc32c(payload, header.length) : 0;
        harp_header_encode(&header, wire[i]);
        headers[i] = wire[i];
        laps[i] = frames[i].lap;
    }
    harp_seal_tags(&key, headers, laps, n);
}

static void deliver_frames(struct side *to, const struct harp_frame *frames, size_t n, bool sealed)
{
    const uint8_t *headers[BATCH];
    uint32_t laps[BATCH];
    for (size_t i = 0; i < n; i++) {
        headers[i] = wire[i];
        laps[i] = harp_session_lap(to->session, &frames[i].header);
    }
    uint64_t good = sealed ? harp_open_tags(&key, headers, laps, n) : UINT64_MAX;
    uint32_t taken = 0;
    for (size_t i = 0; i < n; i++) {
        struct harp_header header = frames[i].header;
        struct harp_place place;
        const uint8_t *payload = frames[i].payload ? frames[i].payload : frames[i].body;
        if (sealed && (!(good >> i & 1) ||
                       harp_header_decode(wire[i], HARP_HEADER_BYTES + header.length, &header)))
            abort();
        if (harp_session_receive(to->session, now_ns, 0, &header, frames[i].body, false, &place) !=
            HARP_PLACE)
            continue;
        harp_session_placed(to->session,
                            !sealed || harp_open_payload(wire[i], payload, header.length));
        taken++;
    }
    to->data += taken;
    if (to->config.stream_frames && taken)
        harp_session_returned(to->session, taken);
}

static size_t move_frames(struct side *from, struct side *to, bool sealed)
{
    struct harp_frame frames[BATCH];
    size_t n = harp_session_send(from->session, now_ns, frames, BATCH);
    if (sealed)
        seal_frames(frames, n);
    if (!to->session) {
        to->session =
            virtual_session_accept(&to->config, now_ns, &frames[0].header, frames[0].body);
        if (!to->session)
            abort();
        return n;
    }
    deliver_frames(to, frames, n, sealed);
    harp_session_deadline_ns(from->session);
    return n;
}

static uint64_t poll_events(struct side *side)
{
    struct harp_event event;
    uint64_t received = 0;
    for (harp_session_poll(side->session, &event); event.type;
         harp_session_poll(side->session, &event)) {
        received += event.type == HARP_EVENT_RECEIVED;
        side->open -= event.type == HARP_EVENT_SENT;
        if (event.type == HARP_EVENT_CLOSED)
            abort();
    }
    return received;
}

static void feed_messages(struct side *up, struct side *down, const struct row *row)
{
    int eager;
    while (!row->streamed && harp_session_post(down->session, memory, row->size, 0, &eager))
        ;
    while (up->open < row->ahead && harp_session_message(up->session, memory, row->size, 0))
        up->open++;
}

static void measure_row(const struct row *row, double seconds)
{
    struct side up = {0}, down = {0};
    struct harp_session_config config[2];
    virtual_configure_pair(config, SEGMENT, row->paths);
    configure_side(&up, &config[0], row);
    configure_side(&down, &config[1], row);
    now_ns = read_clock_ns(CLOCK_MONOTONIC);
    up.session = virtual_session_connect(&up.config, now_ns);
    uint64_t messages = 0, from_data = 0, from_messages = 0, from_cpu_ns = 0, acks = 0;
    uint64_t begin_ns = now_ns, run_ns = (uint64_t)(seconds * 1e9);
    for (; now_ns - begin_ns < run_ns; now_ns = read_clock_ns(CLOCK_MONOTONIC)) {
        if (!from_cpu_ns && now_ns - begin_ns > run_ns / 4) {
            from_cpu_ns = read_clock_ns(CLOCK_THREAD_CPUTIME_ID);
            from_data = down.data;
            from_messages = messages;
            acks = 0;
        }
        if (down.session)
            feed_messages(&up, &down, row);
        move_frames(&up, &down, row->sealed);
        messages += poll_events(&down);
        acks += move_frames(&down, &up, row->sealed);
        poll_events(&up);
    }
    uint64_t took_ns = read_clock_ns(CLOCK_THREAD_CPUTIME_ID) - from_cpu_ns;
    double each_ns = (double)took_ns / 2 / (double)(down.data - from_data);
    const struct harp_session_counters *count = harp_session_count(up.session);
    printf("%-28s %7.1f ns a frame and end %8.2f M messages/s, %.1f frames an ACK, %lu again\n",
           row->name, each_ns, (double)(messages - from_messages) * 1e3 / (double)took_ns * 2,
           (double)(down.data - from_data) / (double)acks, (unsigned long)count->data_again);
    free(up.session);
    free(down.session);
}

int main(int argc, char **argv)
{
    static const struct row rows[] = {
        {"64 B, bare", 64, false, false, 1, 256, &harp_cc_fixed},
        {"64 B, bare, swift", 64, false, false, 1, 256, &harp_cc_swift},
        {"64 B, bare, streamed", 64, false, true, 1, 256, &harp_cc_fixed},
        {"64 B, sealed", 64, true, false, 1, 256, &harp_cc_fixed},
        {"64 B, bare, one by one", 64, false, false, 1, 1, &harp_cc_swift},
        {"64 B, bare, one by one, 8 paths", 64, false, false, 8, 1, &harp_cc_swift},
        {"4 MiB, bare, 8 paths", 4 << 20, false, false, 8, 256, &harp_cc_swift},
        {"4 KiB, bare", SEGMENT, false, false, 1, 256, &harp_cc_fixed},
        {"4 MiB, bare", 4 << 20, false, false, 1, 256, &harp_cc_fixed},
        {"4 MiB, bare, swift", 4 << 20, false, false, 1, 256, &harp_cc_swift},
        {"4 MiB, bare, streamed", 4 << 20, false, true, 1, 256, &harp_cc_fixed},
        {"4 MiB, sealed", 4 << 20, true, false, 1, 256, &harp_cc_fixed},
        {"4 MiB, sealed, swift", 4 << 20, true, false, 1, 256, &harp_cc_swift},
    };
    double seconds = argc > 1 ? atof(argv[1]) : 0.4;
    memory = malloc(4 << 20);
    memset(memory, 1, 4 << 20);
    harp_crc32c_choose();
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (argc < 3 || (size_t)atoi(argv[2]) == i)
            measure_row(&rows[i], seconds);
    free(memory);
    return 0;
}
