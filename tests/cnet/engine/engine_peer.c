/* One end of a conversation between two processes, as in engine_pair.
 *
 *     engine_peer PORT INTERFACE ADDRESS KIND PATHS MESSAGES LARGEST [HANDLE]
 *
 * Without HANDLE it listens, prints its handle and takes one connection; with it, it connects.
 * PORT: udp, xdp. ADDRESS: own address, or "-" for the interface's first. Prints its lines, and at
 * the end how many datagrams were copied on their way.
 */
#define _GNU_SOURCE
#include "engine_side.h"

static char why[HARP_WHY_BYTES];

static void print_handle(const struct harp_handle *handle)
{
    for (size_t i = 0; i < sizeof *handle; i++)
        printf("%02x", ((const uint8_t *)handle)[i]);
    printf("\n");
    fflush(stdout);
}

static void read_handle(const char *text, struct harp_handle *handle)
{
    for (size_t i = 0; i < sizeof *handle; i++)
        CHECK(sscanf(text + 2 * i, "%2hhx", (uint8_t *)handle + i) == 1, "handle");
}

static void exchange_all(struct side *side, struct harp_listening *listening)
{
    uint64_t moved_ns = now_ns();
    while (!is_done(side)) {
        if (!side->connection)
            side->connection = harp_accept(listening);
        bool moved = harp_engine_drive(side->engine);
        moved |= drive_side(side);
        if (moved)
            moved_ns = now_ns();
        CHECK(now_ns() - moved_ns < 20000000000u, "nothing moves: %u of %u received, %u sent",
              side->received, messages, side->sent_done);
    }
}

/* The listening end waits until the other closes, which it does when it has everything. */
static void await_end(struct side *side, bool listens)
{
    while (listens && !side->closed) {
        harp_engine_drive(side->engine);
        drive_side(side);
    }
    harp_connection_close(side->connection);
    for (uint64_t end_ns = now_ns() + 50000000; now_ns() < end_ns;)
        harp_engine_drive(side->engine); /* CLOSE is on its way */
}

int main(int count, char **arguments)
{
    CHECK(count >= 8,
          "usage: engine_peer PORT INTERFACE ADDRESS KIND PATHS MESSAGES LARGEST [HANDLE]");
    bool listens = count < 9;
    struct harp_engine_config config;
    struct harp_connection_config connecting;
    struct harp_listening *listening = NULL;
    struct harp_handle handle;
    struct side side = {0};
    harp_engine_defaults(&config);
    harp_connection_defaults(&connecting);
    config.progress = HARP_PROGRESS_INLINE;
    config.ports_n = 1;
    config.ports[0].open = strcmp(arguments[1], "xdp") ? harp_port_udp_open : harp_port_xdp_open;
    config.ports[0].config.interface = arguments[2];
    config.ports[0].config.queue = -1;
    config.ports[0].config.locals = (uint16_t)atoi(arguments[5]);
    if (strcmp(arguments[3], "-"))
        CHECK(harp_address_parse(arguments[3], &config.ports[0].config.local), "address");
    read_kind(arguments[4], &connecting);
    connecting.paths = (uint16_t)atoi(arguments[5]);
    messages = (uint32_t)atoi(arguments[6]);
    largest = (uint32_t)atoi(arguments[7]);
    side_memory(&side, listens);
    CHECK(harp_engine_open(&side.engine, &config, why) == 0, "open: %s", why);
    side_begin(&side);
    if (listens) {
        CHECK(harp_listen(side.engine, &connecting, &listening, &handle, why) == 0, "%s", why);
        print_handle(&handle);
    } else {
        read_handle(arguments[8], &handle);
        CHECK(harp_connect(side.engine, &handle, &connecting, &side.connection, why) == 0, "%s",
              why);
    }
    for (uint32_t l = 0; harp_engine_line(side.engine, l); l++)
        printf("%s\n", harp_engine_line(side.engine, l));
    exchange_all(&side, listening);
    printf("segment %u\n", harp_segment(side.connection));
    await_end(&side, listens);
    check_frames(&side);
    const struct harp_port_counters *counters = &side.engine->ports[0]->counters;
    printf("sent %llu copied %llu, received %llu copied %llu\n", (unsigned long long)counters->sent,
           (unsigned long long)counters->sent_copied, (unsigned long long)counters->received,
           (unsigned long long)counters->received_copied);
    if (listening)
        harp_unlisten(listening);
    harp_engine_close(side.engine);
    side_free(&side);
    return 0;
}
