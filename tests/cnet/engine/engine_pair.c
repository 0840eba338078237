/* Two engines in one process that send messages to each other, both ways at once.
 *
 *     engine_pair PORT PROGRESS KIND PATHS MESSAGES LARGEST [FAULTS]
 *
 * PORT: udp, mem; PROGRESS: thread, inline, manual; KIND of receiving and sending: posted,
 * streamed, drafts (streamed, and sent from frames). At the end no frame may be missing from either
 * pool.
 */
#define _GNU_SOURCE
#include "engine_side.h"

static struct side sides[2];

static void read_arguments(int count, char **arguments, struct harp_engine_config *config,
                           struct harp_connection_config *connecting)
{
    harp_engine_defaults(config);
    harp_connection_defaults(connecting);
    config->progress = !strcmp(arguments[2], "thread")   ? HARP_PROGRESS_THREAD
                       : !strcmp(arguments[2], "inline") ? HARP_PROGRESS_INLINE
                                                         : HARP_PROGRESS_MANUAL;
    config->ports_n = 1;
    config->ports[0].open = !strcmp(arguments[1], "mem") ? harp_port_mem_open : harp_port_udp_open;
    config->ports[0].config.locals = (uint16_t)atoi(arguments[4]);
    CHECK(harp_address_parse("127.0.0.1", &config->ports[0].config.local), "address");
    if (count > 7)
        config->ports[0].faults = arguments[7];
    read_kind(arguments[3], connecting);
    connecting->paths = (uint16_t)atoi(arguments[4]);
    messages = (uint32_t)atoi(arguments[5]);
    largest = (uint32_t)atoi(arguments[6]);
}

static void open_side(int i, const struct harp_engine_config *config)
{
    char why[HARP_WHY_BYTES];
    side_memory(&sides[i], i);
    CHECK(harp_engine_open(&sides[i].engine, config, why) == 0, "open: %s", why);
    side_begin(&sides[i]);
    for (uint32_t l = 0; harp_engine_line(sides[i].engine, l); l++)
        printf("%s\n", harp_engine_line(sides[i].engine, l));
}

/* Until both sides have sent and received everything. */
static void exchange_messages(bool drives, struct harp_listening *listening)
{
    uint64_t moved_ns = now_ns();
    while (!is_done(&sides[0]) || !is_done(&sides[1])) {
        bool moved = false;
        for (int i = 0; i < 2; i++) {
            if (drives)
                harp_engine_drive(sides[i].engine);
            moved |= drive_side(&sides[i]);
        }
        if (!sides[1].connection)
            sides[1].connection = harp_accept(listening);
        if (moved)
            moved_ns = now_ns();
        CHECK(now_ns() - moved_ns < 20000000000u,
              "nothing moves: %u and %u of %u received, %u and %u sent", sides[0].received,
              sides[1].received, messages, sides[0].sent_done, sides[1].sent_done);
    }
}

static void show_counters(uint64_t took_ns)
{
    struct harp_connection_info info;
    harp_connection_info(sides[0].connection, &info);
    printf("%u messages each way in %.3f s; segment %u, %llu frames, %llu again, %llu lost, %llu "
           "spurious\n",
           messages, (double)took_ns / 1e9, info.segment,
           (unsigned long long)info.counters.data_sent,
           (unsigned long long)info.counters.data_again, (unsigned long long)info.counters.lost,
           (unsigned long long)info.counters.spurious);
}

static void close_connections(bool drives)
{
    char why[HARP_WHY_BYTES];
    harp_connection_close(sides[0].connection);
    while (!sides[1].closed) {
        for (int i = 0; i < 2 && drives; i++)
            harp_engine_drive(sides[i].engine);
        drive_side(&sides[1]);
    }
    harp_connection_why(sides[1].connection, why);
    printf("closed: %s\n", why);
    harp_connection_close(sides[1].connection);
}

static void close_side(struct side *side)
{
    harp_token_take(side->engine);
    check_frames(side);
    harp_token_drop(side->engine);
    harp_engine_close(side->engine);
    side_free(side);
}

int main(int count, char **arguments)
{
    CHECK(count >= 7, "usage: engine_pair PORT PROGRESS KIND PATHS MESSAGES LARGEST [FAULTS]");
    struct harp_engine_config config;
    struct harp_connection_config connecting;
    struct harp_listening *listening;
    struct harp_handle handle;
    char why[HARP_WHY_BYTES];
    read_arguments(count, arguments, &config, &connecting);
    for (int i = 0; i < 2; i++)
        open_side(i, &config);
    CHECK(harp_listen(sides[1].engine, &connecting, &listening, &handle, why) == 0, "%s", why);
    CHECK(harp_connect(sides[0].engine, &handle, &connecting, &sides[0].connection, why) == 0, "%s",
          why);
    uint64_t begin_ns = now_ns();
    bool drives = config.progress != HARP_PROGRESS_THREAD;
    exchange_messages(drives, listening);
    show_counters(now_ns() - begin_ns);
    close_connections(drives);
    harp_unlisten(listening);
    for (int i = 0; i < 2; i++)
        close_side(&sides[i]);
    return 0;
}
