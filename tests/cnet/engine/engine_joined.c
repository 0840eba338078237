/* Small frames that take one way share a datagram.
 *
 * Two engines over mem in virtual time. The connecting one's port keeps what was written until the
 * flush, as a card's does, and lets datagrams become longer. A message is sent there and back again
 * and again, on a connection for each direction, as between two ranks of NCCL.
 */
#include <string.h>

#include "engine/engine_state.h"
#include "engine_world.h"

enum { ROUNDS = 200, STAGED = 64, DATAGRAM_BYTES = 1472, NANOSECONDS = 1000 };

static struct harp_port_ops ops;
static struct {
    int hop;
    uint32_t bytes;
    uint8_t datagram[DATAGRAM_BYTES];
} staged[STAGED];
static uint32_t staged_n, left_n, longest;

static uint8_t *stage_datagram(struct harp_port *port, int hop, uint32_t bytes)
{
    CHECK(bytes <= DATAGRAM_BYTES, "a datagram of %u", bytes);
    if (staged_n == STAGED || !world_mem->room(port, hop))
        return NULL;
    staged[staged_n].hop = hop;
    staged[staged_n].bytes = bytes;
    return staged[staged_n++].datagram;
}

static uint8_t *lengthen_datagram(struct harp_port *port, int hop, uint32_t bytes, uint32_t most)
{
    (void)port, (void)hop; /* there is one way only */
    if (!staged_n || staged[staged_n - 1].bytes + bytes > most)
        return NULL;
    staged[staged_n - 1].bytes += bytes;
    return staged[staged_n - 1].datagram + staged[staged_n - 1].bytes - bytes;
}

static void let_leave(struct harp_port *port, uint64_t now_ns)
{
    for (uint32_t i = 0; i < staged_n; i++) {
        uint8_t *slot = world_mem->slot(port, staged[i].hop, staged[i].bytes);
        CHECK(slot, "no room");
        memcpy(slot, staged[i].datagram, staged[i].bytes);
        longest = longest > staged[i].bytes ? longest : staged[i].bytes;
    }
    left_n += staged_n;
    staged_n = 0;
    world_mem->flush(port, now_ns);
}

static uint32_t say_payload_max(const struct harp_port *port, int hop)
{
    (void)port, (void)hop;
    return DATAGRAM_BYTES;
}

static int open_port(struct harp_port **port, const struct harp_port_config *config, char *why)
{
    int error = world_open_mem(port, config, why, &ops);
    if (error)
        return error;
    ops.slot = stage_datagram;
    ops.lengthen = lengthen_datagram;
    ops.flush = let_leave;
    ops.hop_payload_max = say_payload_max;
    (*port)->payload_max = DATAGRAM_BYTES;
    (*port)->holds_back = false; /* and it may lose them, as a network does */
    return 0;
}

static struct harp_connection *there[2], *back[2]; /* its end here, its end at the other engine */

static void send_one(struct harp_connection *from, struct harp_connection *to, uint32_t size,
                     uint8_t value)
{
    static uint8_t out[DATAGRAM_BYTES], in[DATAGRAM_BYTES];
    struct harp_completion done;
    memset(out, value, size);
    CHECK(harp_receive(to, in, size, 0) && harp_send(from, out, size, 0), "not handed over");
    uint64_t end_ns = world_ns + WORLD_SECOND_NS;
    do {
        CHECK(world_ns < end_ns, "nothing came");
        world_turn(NANOSECONDS);
        while (harp_poll(from, &done, 1))
            CHECK(done.type == HARP_COMPLETION_SENT, "completion %u", done.type);
    } while (!harp_poll(to, &done, 1) || done.type != HARP_COMPLETION_RECEIVED);
    CHECK(!memcmp(in, out, size), "other bytes came");
}

static void send_there_and_back(uint32_t size)
{
    for (int i = 0; i < ROUNDS; i++) {
        send_one(there[0], there[1], size, (uint8_t)i);
        send_one(back[1], back[0], size, (uint8_t)~i);
    }
}

int main(void)
{
    struct harp_connection_config settings;
    struct harp_listening *listening;
    struct harp_handle handle;
    world_port = open_port;
    world_open(2);
    harp_connection_defaults(&settings);
    listening = world_listen(&settings, &handle);
    world_connect(listening, &handle, &settings, &there[0], &there[1]);
    world_connect(listening, &handle, &settings, &back[0], &back[1]);
    send_there_and_back(8);
    left_n = longest = 0;
    send_there_and_back(8);
    CHECK(left_n <= ROUNDS + ROUNDS / 10, "%u datagrams for %d answers", left_n, ROUNDS);
    CHECK(longest <= HARP_JOINED_BYTES, "a datagram of %u bytes", longest);
    left_n = 0;
    send_there_and_back(1024); /* no room for an ACK beside it */
    CHECK(left_n >= 2 * ROUNDS - ROUNDS / 10, "%u datagrams", left_n);
    world_close();
    return 0;
}
