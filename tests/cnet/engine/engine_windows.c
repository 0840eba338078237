/* Many connections over one TCP flow; each is handed a message at the same time. The kernel's
 * buffers bound what is in flight, however small they are. A session takes memory for what is in
 * flight, not for what its window would allow.
 *
 *     engine_windows CONNECTIONS
 */
#include <stdlib.h>

#include "engine/engine_state.h"
#include "engine_two.h"
#include "memory_use.h"

enum {
    MESSAGE_BYTES = 70000,
    SHIFT = 64, /* message i begins that much further on than the one before it */
    AT_ONCE = 50,
    CREDIT_TURNS = 1000,
    IDLE_TURNS = 10000,
    CONNECTION_KIB = 192, /* both ends of one */
    KERNEL_KIB = 1 << 16,
};

static uint32_t connections_n;
static struct harp_connection **from, **to;
static uint8_t *out, *in;

static void await_type(struct harp_connection *connection, uint32_t type)
{
    struct harp_completion done;
    while (!harp_poll(connection, &done, 1))
        go_on();
    CHECK(done.type == type, "completion %u, not %u", done.type, type);
}

static void connect_all(void)
{
    struct harp_connection_config settings;
    struct harp_listening *listening;
    struct harp_handle handle;
    char why[HARP_WHY_BYTES];
    harp_connection_defaults(&settings);
    CHECK(harp_listen(engines[1], &settings, &listening, &handle, why) == 0, "%s", why);
    for (uint32_t first = 0; first < connections_n; first += AT_ONCE) {
        uint32_t end = first + AT_ONCE < connections_n ? first + AT_ONCE : connections_n;
        for (uint32_t i = first; i < end; i++)
            CHECK(harp_connect(engines[0], &handle, &settings, &from[i], why) == 0, "%s", why);
        for (uint32_t i = first; i < end; i++) {
            await_type(from[i], HARP_COMPLETION_CONNECTED);
            while (!(to[i] = harp_accept(listening)))
                go_on();
            await_type(to[i], HARP_COMPLETION_CONNECTED);
        }
    }
}

/* Connections are accepted in any order: which message comes on which is in its first bytes. */
static void hand_over(void)
{
    for (uint32_t i = 0; i < connections_n; i++)
        CHECK(harp_receive(to[i], in + (size_t)i * MESSAGE_BYTES, MESSAGE_BYTES, i), "not posted");
    for (int turn = 0; turn < CREDIT_TURNS; turn++)
        go_on(); /* credit arrives */
    for (uint32_t i = 0; i < connections_n; i++)
        CHECK(harp_send(from[i], out + (size_t)i * SHIFT, MESSAGE_BYTES, i), "not sent");
}

/* The other end reads nothing meanwhile. Returns how many bytes the kernel took. */
static uint64_t send_until_full(void)
{
    const uint64_t *sent = &engines[0]->ports[0]->counters.sent_bytes;
    uint64_t before = *sent, last = before;
    for (int idle = 0; idle < IDLE_TURNS; idle++) {
        harp_engine_drive(engines[0]);
        idle = *sent > last ? 0 : idle;
        last = *sent;
    }
    return last - before;
}

static void check_messages(void)
{
    uint8_t *seen = calloc(connections_n, 1);
    for (uint32_t i = 0; i < connections_n; i++)
        await_type(from[i], HARP_COMPLETION_SENT);
    for (uint32_t i = 0; i < connections_n; i++) {
        const uint8_t *got = in + (size_t)i * MESSAGE_BYTES;
        uint32_t number;
        await_type(to[i], HARP_COMPLETION_RECEIVED);
        memcpy(&number, got, sizeof number);
        CHECK(number < connections_n && !seen[number], "message %u came twice", number);
        seen[number] = 1;
        CHECK(memcmp(got, out + (size_t)number * SHIFT, MESSAGE_BYTES) == 0, "message %u differs",
              number);
    }
    free(seen);
}

/* Every SHIFT bytes are numbered. */
static void make_messages(void)
{
    size_t bytes = (size_t)connections_n * SHIFT + MESSAGE_BYTES;
    from = calloc(connections_n, sizeof(struct harp_connection *));
    to = calloc(connections_n, sizeof(struct harp_connection *));
    out = malloc(bytes);
    in = malloc((size_t)connections_n * MESSAGE_BYTES);
    for (size_t i = 0; i < bytes; i++)
        out[i] = (uint8_t)(i * 31 + i / 4096);
    for (uint32_t i = 0; i < bytes / SHIFT; i++)
        memcpy(out + (size_t)i * SHIFT, &i, sizeof i);
}

int main(int count, char **arguments)
{
    CHECK(count == 2, "usage: engine_windows CONNECTIONS");
    connections_n = (uint32_t)atoi(arguments[1]);
    connections_of_two = connections_n + 1;
    make_messages();
    connect_two(HARP_PROGRESS_MANUAL, -1, harp_port_tcp_open);
    long open_kib = memory_use_kib("VmRSS");
    connect_all();
    long made_kib = memory_use_kib("VmRSS");
    CHECK(made_kib - open_kib < (long)connections_n * CONNECTION_KIB, "%u connections take %ld KiB",
          connections_n, made_kib - open_kib);
    hand_over();
    uint64_t taken = send_until_full();
    CHECK(taken < (uint64_t)connections_n * MESSAGE_BYTES, "the kernel took all");
    CHECK(memory_use_kib("VmRSS") - made_kib < KERNEL_KIB, "%ld KiB for %llu bytes in flight",
          memory_use_kib("VmRSS") - made_kib, (unsigned long long)taken);
    printf("%ld KiB for each connection, %ld KiB while %llu bytes are in flight\n",
           (made_kib - open_kib) / connections_n, memory_use_kib("VmRSS") - made_kib,
           (unsigned long long)taken);
    check_messages();
    harp_engine_close(engines[0]);
    harp_engine_close(engines[1]);
    return 0;
}
