/* Choice of a path's UDP port, where cards have many queues.
 *
 * Two engines over mem in virtual time. The connecting one's port pretends to have one UDP port
 * after another, and each leads to the right queue of a card or not: of the far one, of the
 * near one, of both or of neither.
 */
#include <errno.h>

#include "engine/engine_state.h"
#include "engine_world.h"

enum { LOCALS_MAX = 256, QUEUES = 16 };

static struct harp_port_ops near_ops, far_ops;
static uint16_t current; /* of the path that frames take now, in both directions */
static uint32_t hops_made;
static uint16_t both; /* the only one that is right for both; LOCALS_MAX: none is */

static bool is_right_there(uint16_t local)
{
    return local == both || local % QUEUES == 5;
}

static bool is_right_here(uint16_t local)
{
    return local == both || local % QUEUES == 9;
}

static int make_hop(struct harp_port *port, const struct harp_address *to, uint16_t local,
                    char *why)
{
    current = local;
    hops_made++;
    return world_mem->hop(port, to, 0, why);
}

static int add_local(struct harp_port *port, uint16_t udp_port, char *why)
{
    (void)udp_port;
    if (port->locals_n == LOCALS_MAX)
        return snprintf(why, HARP_WHY_BYTES, "enough"), -EMFILE;
    return port->locals_n++;
}

static size_t receive_near(struct harp_port *port, uint64_t now_ns, struct harp_arrival *arrivals,
                           size_t room)
{
    size_t n = world_mem->receive(port, now_ns, arrivals, room);
    for (size_t i = 0; i < n; i++) {
        arrivals[i].local = current;
        arrivals[i].stray = !is_right_here(current);
    }
    return n;
}

static size_t receive_far(struct harp_port *port, uint64_t now_ns, struct harp_arrival *arrivals,
                          size_t room)
{
    size_t n = world_mem->receive(port, now_ns, arrivals, room);
    for (size_t i = 0; i < n; i++)
        arrivals[i].stray = !is_right_there(current);
    return n;
}

static int open_near(struct harp_port **port, const struct harp_port_config *config, char *why)
{
    int error = world_open_mem(port, config, why, &near_ops);
    if (error)
        return error;
    far_ops = near_ops;
    near_ops.hop = make_hop;
    near_ops.add_local = add_local;
    near_ops.receive = receive_near;
    far_ops.receive = receive_far;
    (*port)->holds_back = false;
    return 0;
}

static struct harp_connection_config settings;
static struct harp_listening *listening;
static struct harp_handle handle;

static void begin_with_right_port(uint16_t right)
{
    both = right;
    world_port = open_near;
    world_open(2);
    world_engines[1]->ports[0]->ops = &far_ops;
    harp_connection_defaults(&settings);
    listening = world_listen(&settings, &handle);
}

static void send_one(struct harp_connection *from, struct harp_connection *to)
{
    static char byte, got;
    CHECK(harp_receive(to, &got, 1, 0) && harp_send(from, &byte, 1, 0), "not handed over");
    CHECK(world_next(from).type == HARP_COMPLETION_SENT, "not sent");
    CHECK(world_next(to).type == HARP_COMPLETION_RECEIVED, "not received");
}

/* Connect, by local 0 at first, and talk until the path has settled. */
static void connect_and_settle(void)
{
    struct harp_connection *from, *to;
    world_connect(listening, &handle, &settings, &from, &to);
    for (int i = 0; i < 600; i++) {
        send_one(from, to);
        send_one(to, from);
    }
}

int main(void)
{
    begin_with_right_port(200);
    connect_and_settle();
    CHECK(current == 200, "both ways are right by local 200, and it took %u", current);
    hops_made = 0;
    connect_and_settle();
    CHECK(current == 200 && hops_made <= 3, "another one took %u after %u", current, hops_made);
    world_close();
    begin_with_right_port(LOCALS_MAX);
    connect_and_settle();
    CHECK(is_right_there(current), "what it sends goes wrong by local %u", current);
    world_close();
    return 0;
}
