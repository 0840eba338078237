/* Two engines' threads and the application's on one CPU: who has nothing to do makes room for who
 * has. Prints how many turns the engines made for a message; who spins to the end of its time makes
 * hundreds.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdio.h>

#include "check.h"
#include "engine/engine_state.h"

enum { MESSAGES = 500 };

static struct harp_engine *engines[2];
static struct harp_connection *connections[2];
static char why[HARP_WHY_BYTES];

static int pin_to_first_cpu(void)
{
    cpu_set_t all, one;
    int cpu = 0;
    CHECK(sched_getaffinity(0, sizeof all, &all) == 0, "no affinity");
    while (!CPU_ISSET((size_t)cpu, &all))
        cpu++;
    CPU_ZERO(&one);
    CPU_SET((size_t)cpu, &one);
    CHECK(sched_setaffinity(0, sizeof one, &one) == 0, "not pinned");
    return cpu;
}

static void await(int side, uint32_t type)
{
    struct harp_completion done;
    while (!harp_poll(connections[side], &done, 1))
        sched_yield();
    CHECK(done.type == type, "completion %u, not %u", done.type, type);
}

static uint64_t count_turns(void)
{
    uint64_t turns = 0;
    for (int i = 0; i < 2; i++)
        turns += __atomic_load_n(&engines[i]->stats.stats->engine.turns, __ATOMIC_RELAXED);
    return turns;
}

int main(void)
{
    struct harp_engine_config config;
    struct harp_connection_config settings;
    struct harp_listening *listening;
    struct harp_handle handle;
    uint8_t out[8] = {1}, in[8];
    harp_engine_defaults(&config);
    harp_connection_defaults(&settings);
    config.cpu = pin_to_first_cpu();
    config.frames = 256;
    config.ports_n = 1;
    config.ports[0].open = harp_port_udp_open;
    config.ports[0].config.locals = 1;
    CHECK(harp_address_parse("127.0.0.1", &config.ports[0].config.local), "address");
    for (int i = 0; i < 2; i++)
        CHECK(harp_engine_open(&engines[i], &config, why) == 0, "%s", why);
    CHECK(harp_listen(engines[1], &settings, &listening, &handle, why) == 0, "%s", why);
    CHECK(harp_connect(engines[0], &handle, &settings, &connections[0], why) == 0, "%s", why);
    while (!(connections[1] = harp_accept(listening)))
        sched_yield();
    await(0, HARP_COMPLETION_CONNECTED);
    await(1, HARP_COMPLETION_CONNECTED);
    uint64_t before = count_turns();
    for (int i = 0; i < MESSAGES; i++) {
        CHECK(harp_receive(connections[1], in, sizeof in, 0), "not posted");
        CHECK(harp_send(connections[0], out, sizeof out, 0), "not sent");
        await(1, HARP_COMPLETION_RECEIVED);
        await(0, HARP_COMPLETION_SENT);
    }
    printf("%.1f\n", (double)(count_turns() - before) / MESSAGES);
    for (int i = 0; i < 2; i++)
        harp_engine_close(engines[i]);
    return 0;
}
