/* The connecting end moves its path to another flow of TCP while the listening end is away. What
 * the listening end had on its way is lost with the old flow, and it gives that up as soon as it
 * hears the path on the new one: nothing else would say so before a timeout.
 */
#include "engine/engine_state.h"
#include "engine_two.h"

enum { MESSAGE_BYTES = 8 << 20 };

static struct harp_path_info info_of(int side)
{
    struct harp_path_info info;
    CHECK(harp_session_path_info(connections[side]->session, 0, &info), "no path");
    return info;
}

/* Until neither the kernel nor the engine takes more. */
static void fill_flow_from(int side)
{
    uint64_t sent;
    do {
        sent = info_of(side).sent;
        for (int turn = 0; turn < 100; turn++)
            harp_engine_drive(engines[side]);
    } while (info_of(side).sent != sent);
    CHECK(info_of(side).bytes_in_flight > 0, "nothing is on its way");
}

/* Leave the old flow, and say so on the new one. */
static void move_path_of_connecting_end(void)
{
    struct harp_port *port = engines[0]->ports[0];
    char why[HARP_WHY_BYTES];
    int local = port->ops->add_local(port, 0, why);
    CHECK(local > 0, "%s", why);
    CHECK(harp_engine_path_leaves_by(connections[0], 0, (uint16_t)local), "the path stays");
    harp_engine_wake(engines[0], connections[0]);
    uint64_t sent = port->counters.sent_bytes;
    while (port->counters.sent_bytes == sent)
        harp_engine_drive(engines[0]);
}

int main(void)
{
    static uint8_t out[MESSAGE_BYTES], in[MESSAGE_BYTES];
    connect_two(HARP_PROGRESS_MANUAL, -1, harp_port_tcp_open);
    for (uint32_t i = 0; i < MESSAGE_BYTES; i++)
        out[i] = (uint8_t)(i * 2654435761u >> 24);
    CHECK(harp_receive(connections[0], in, sizeof in, 0), "not posted");
    for (int turn = 0; turn < 1000; turn++)
        go_on(); /* the listening end has credit then */
    CHECK(harp_send(connections[1], out, sizeof out, 0), "not sent");
    fill_flow_from(1);
    move_path_of_connecting_end();
    int old = connections[1]->hops[0].hop;
    while (connections[1]->hops[0].hop == old)
        harp_engine_drive(engines[1]);
    CHECK(info_of(1).lost > 0, "what was on the old flow is waited for");
    await_completion(0, HARP_COMPLETION_RECEIVED);
    await_completion(1, HARP_COMPLETION_SENT);
    CHECK(memcmp(in, out, sizeof in) == 0, "other bytes came");
    harp_engine_close(engines[0]);
    harp_engine_close(engines[1]);
    return 0;
}
