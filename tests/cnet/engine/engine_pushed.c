/* A push sends what was handed over, and takes in nothing: no driver's turn need follow for the
 * message to leave.
 */
#include "engine/engine_state.h"
#include "engine_two.h"

int main(void)
{
    const uint8_t out[] = "pushed";
    uint8_t in[2][64] = {0};
    struct harp_completion done;
    connect_two(HARP_PROGRESS_MANUAL, -1, harp_port_tcp_open);
    for (int side = 0; side < 2; side++)
        CHECK(harp_receive(connections[side], in[side], sizeof in[side], 0), "not posted");
    for (int turn = 0; turn < 1000; turn++)
        go_on(); /* credit arrives */
    uint64_t calls = engines[0]->ports[0]->counters.receive_calls;
    CHECK(harp_send(connections[0], out, sizeof out, 0), "not sent");
    CHECK(harp_engine_push(engines[0]), "nothing moved");
    CHECK(engines[0]->ports[0]->counters.receive_calls == calls, "it looked at what has come");
    while (!harp_poll(connections[1], &done, 1))
        harp_engine_drive(engines[1]);
    CHECK(done.type == HARP_COMPLETION_RECEIVED && memcmp(in[1], out, sizeof out) == 0,
          "completion %u", done.type);
    harp_engine_close(engines[0]);
    harp_engine_close(engines[1]);
    return 0;
}
