/* A card whose ring is full for good holds up no connection that has another rail.
 *
 * Two engines with two mem ports each, in virtual time; the connecting one's second port says from
 * some moment on that it has no room, as a card does whose driver has stopped.
 */
#include "engine/engine_state.h"
#include "engine_world.h"

enum { MESSAGES = 64, MESSAGE_BYTES = 1 << 16 };

static struct harp_port_ops ops;
static bool stuck;
static uint32_t wrapped;

static size_t say_room(struct harp_port *port, int hop)
{
    return stuck ? 0 : world_mem->room(port, hop);
}

static uint8_t *take_slot(struct harp_port *port, int hop, uint32_t bytes)
{
    return stuck ? NULL : world_mem->slot(port, hop, bytes);
}

static int open_port(struct harp_port **port, const struct harp_port_config *config, char *why)
{
    int error = world_open_mem(port, config, why, &ops);
    if (error)
        return error;
    (*port)->holds_back = false; /* as a network, it loses */
    if (wrapped++ % 2 == 0)
        (*port)->ops = world_mem; /* the rail that is not stuck */
    ops.room = say_room;
    ops.slot = take_slot;
    return 0;
}

static struct harp_connection *from, *to;

static void connect_over_two_rails(void)
{
    struct harp_connection_config settings;
    struct harp_listening *listening;
    struct harp_handle handle;
    harp_connection_defaults(&settings);
    settings.paths = 2;
    world_ports_n = 2;
    world_port = open_port;
    world_open(1);
    listening = world_listen(&settings, &handle);
    world_connect(listening, &handle, &settings, &from, &to);
}

/* Each way at once; all must come, though nobody says when. */
static void exchange_both_ways(void)
{
    static uint8_t out[MESSAGE_BYTES], in[2][MESSAGE_BYTES];
    struct harp_connection *ends[2] = {from, to};
    struct harp_completion done;
    uint32_t came = 0;
    for (int m = 0; m < MESSAGES; m++)
        for (int i = 0; i < 2; i++)
            CHECK(harp_receive(ends[i], in[i], MESSAGE_BYTES, 0) &&
                      harp_send(ends[i], out, MESSAGE_BYTES, 0),
                  "not handed over");
    for (uint64_t end_ns = world_ns + 10 * WORLD_SECOND_NS; came < 4 * MESSAGES;) {
        CHECK(world_ns < end_ns, "%u of %u", came, 4 * MESSAGES);
        world_turn(WORLD_STEP_NS);
        for (int i = 0; i < 2; i++)
            while (harp_poll(ends[i], &done, 1)) {
                CHECK(done.type != HARP_COMPLETION_CLOSED, "it ended");
                came++;
            }
    }
}

int main(void)
{
    connect_over_two_rails();
    exchange_both_ways();
    CHECK(world_engines[0]->ports[1]->counters.sent > 20, "it was not used");
    stuck = true;
    exchange_both_ways(); /* at rest when it gets stuck */
    stuck = false;
    exchange_both_ways();
    static uint8_t out[MESSAGE_BYTES], in[MESSAGE_BYTES];
    CHECK(harp_receive(to, in, sizeof in, 0) && harp_send(from, out, sizeof out, 0), "not sent");
    harp_engine_drive(world_engines[0]);
    stuck = true; /* with data of ours on its way */
    CHECK(world_next(from).type == HARP_COMPLETION_SENT, "not sent");
    CHECK(world_next(to).type == HARP_COMPLETION_RECEIVED, "not received");
    exchange_both_ways();
    world_close();
    return 0;
}
