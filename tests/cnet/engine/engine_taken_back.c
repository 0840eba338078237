/* An application closes a connection over TCP with messages under way and unmaps their memory. The
 * kernel had taken only a part of what was sent from there, and the rest still leaves: another
 * connection shares the flow, and would lose it if the engine read that memory again.
 */
#define _GNU_SOURCE
#include <sys/mman.h>

#include "engine/engine_state.h"
#include "engine_two.h"

enum { MESSAGE_BYTES = 8 << 20, MESSAGES = 8 };

static struct harp_connection *others[2];

/* A second connection, in the place of the first. */
static void connect_others(void)
{
    struct harp_connection_config settings;
    memcpy(others, connections, sizeof others);
    harp_connection_defaults(&settings);
    join_engines(&settings);
    CHECK(others[0]->hops[0].hop == connections[0]->hops[0].hop, "they share no flow");
}

/* Messages of the first connection, until neither the kernel nor the engine takes more. */
static void fill_flow_from(uint8_t *memory, uint8_t *in)
{
    uint64_t sent;
    for (uint32_t m = 0; m < MESSAGES; m++)
        CHECK(harp_receive(others[1], in, MESSAGE_BYTES, m), "not posted");
    for (int turn = 0; turn < 1000; turn++)
        go_on(); /* credit arrives */
    for (uint32_t m = 0; m < MESSAGES; m++)
        CHECK(harp_send(others[0], memory + (size_t)m * MESSAGE_BYTES, MESSAGE_BYTES, m),
              "not sent");
    do {
        sent = engines[0]->ports[0]->counters.sent_bytes;
        for (int turn = 0; turn < 100; turn++)
            harp_engine_drive(engines[0]);
    } while (engines[0]->ports[0]->counters.sent_bytes != sent);
    CHECK(sent < (uint64_t)MESSAGES * MESSAGE_BYTES, "the kernel took everything");
}

int main(void)
{
    static uint8_t in[MESSAGE_BYTES];
    const uint8_t out[] = "still the same flow";
    struct harp_path_info info;
    size_t bytes = (size_t)MESSAGES * MESSAGE_BYTES;
    uint8_t *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    CHECK(memory != MAP_FAILED, "no memory");
    connect_two(HARP_PROGRESS_MANUAL, -1, harp_port_tcp_open);
    connect_others();
    fill_flow_from(memory, in);
    harp_connection_close(others[0]);
    munmap(memory, bytes);
    CHECK(harp_receive(connections[1], in, sizeof in, 0), "not posted");
    CHECK(harp_send(connections[0], out, sizeof out, 0), "not sent");
    await_completion(1, HARP_COMPLETION_RECEIVED);
    CHECK(memcmp(in, out, sizeof out) == 0, "other bytes came");
    CHECK(harp_session_path_info(connections[0]->session, 0, &info) && info.died == 0,
          "the flow broke");
    harp_engine_close(engines[0]);
    harp_engine_close(engines[1]);
    return 0;
}
