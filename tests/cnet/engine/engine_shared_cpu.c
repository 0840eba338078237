/* Two engines' threads and the application's on one CPU: who has nothing to do makes room for who
 * has. Prints how many turns the engines made for a message; who spins to the end of its time makes
 * hundreds.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdio.h>

#include "engine/engine_state.h"
#include "engine_two.h"

enum { MESSAGES = 500 };

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

static uint64_t count_turns(void)
{
    uint64_t turns = 0;
    for (int i = 0; i < 2; i++)
        turns += __atomic_load_n(&engines[i]->stats.stats->engine.turns, __ATOMIC_RELAXED);
    return turns;
}

int main(void)
{
    uint8_t out[8] = {1}, in[8];
    connect_two(HARP_PROGRESS_THREAD, pin_to_first_cpu(), harp_port_udp_open);
    uint64_t before = count_turns();
    for (int i = 0; i < MESSAGES; i++) {
        CHECK(harp_receive(connections[1], in, sizeof in, 0), "not posted");
        CHECK(harp_send(connections[0], out, sizeof out, 0), "not sent");
        await_completion(1, HARP_COMPLETION_RECEIVED);
        await_completion(0, HARP_COMPLETION_SENT);
    }
    printf("%.1f\n", (double)(count_turns() - before) / MESSAGES);
    for (int i = 0; i < 2; i++)
        harp_engine_close(engines[i]);
    return 0;
}
