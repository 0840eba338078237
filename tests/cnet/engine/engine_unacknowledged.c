/* Over TCP a sender goes on while no ACK comes: the kernel's own windows bound what is on its way.
 * The far port is read here, and its session hears of nothing.
 */
#include "engine/engine_state.h"
#include "engine_two.h"

enum { MESSAGE_BYTES = 4 << 20, MESSAGES = 8, IDLE_TURNS = 100000 };

static uint64_t bytes_in_flight(void)
{
    struct harp_path_info info;
    CHECK(harp_session_path_info(connections[0]->session, 0, &info), "no path");
    return info.bytes_in_flight;
}

static void read_and_forget(void)
{
    static struct harp_arrival arrivals[HARP_BATCH];
    struct harp_port *port = engines[1]->ports[0];
    size_t n = port->ops->receive(port, engines[1]->now_ns, arrivals, HARP_BATCH);
    port->ops->release(port, arrivals, n);
}

int main(void)
{
    static uint8_t out[MESSAGE_BYTES], in[MESSAGE_BYTES];
    uint64_t all = (uint64_t)MESSAGES * MESSAGE_BYTES, before = 0;
    connect_two(HARP_PROGRESS_MANUAL, -1, harp_port_tcp_open);
    for (uint32_t m = 0; m < MESSAGES; m++)
        CHECK(harp_receive(connections[1], in, sizeof in, m), "not posted");
    for (int turn = 0; turn < 1000; turn++)
        go_on(); /* credit arrives */
    for (uint32_t m = 0; m < MESSAGES; m++)
        CHECK(harp_send(connections[0], out, sizeof out, m), "not sent");
    for (int idle = 0; bytes_in_flight() < all; idle++) {
        harp_engine_drive(engines[0]);
        read_and_forget();
        idle = bytes_in_flight() > before ? 0 : idle;
        before = bytes_in_flight();
        CHECK(idle < IDLE_TURNS, "%llu of %llu bytes left", (unsigned long long)before,
              (unsigned long long)all);
    }
    harp_engine_close(engines[0]);
    harp_engine_close(engines[1]);
    return 0;
}
