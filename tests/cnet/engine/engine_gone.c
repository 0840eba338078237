/* A process that is killed, as the other host learns of it: over udp, by the kernel's ICMP.
 *
 *     engine_gone ADDRESS COUNT            listens, prints its handle, takes COUNT connections
 *     engine_gone ADDRESS COUNT HANDLE     connects, prints "connected"; after a line of input
 * waits until all have ended, and prints how many ms that took
 */
#define _GNU_SOURCE
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "check.h"
#include "engine/engine.h"

enum { MOST = 256 };

static char why[HARP_WHY_BYTES];
static struct harp_engine *engine;
static struct harp_connection_config settings;
static struct harp_connection *connections[MOST];

static uint64_t now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

static uint32_t await_completion(struct harp_connection *connection, uint32_t type)
{
    struct harp_completion done;
    do
        while (!harp_poll(connection, &done, 1))
            CHECK(harp_connection_wait(connection, UINT64_C(60000000000)), "nothing for a minute");
    while (done.type != type && done.type != HARP_COMPLETION_CLOSED);
    harp_connection_why(connection, why);
    CHECK(done.type == type, "it ended: %s", why);
    return done.reason;
}

static void listen_until_killed(uint32_t count)
{
    struct harp_listening *listening;
    struct harp_handle handle;
    CHECK(harp_listen(engine, &settings, &listening, &handle, why) == 0, "%s", why);
    for (size_t i = 0; i < sizeof handle; i++)
        printf("%02x", ((const uint8_t *)&handle)[i]);
    printf("\n");
    fflush(stdout);
    for (uint32_t i = 0; i < count; i++)
        while (!(connections[i] = harp_accept(listening)))
            harp_listening_wait(listening, 1000000000);
    for (;;)
        pause();
}

static void connect_and_outlive(uint32_t count, const char *text)
{
    struct harp_handle handle;
    char line[8];
    for (size_t i = 0; i < sizeof handle; i++)
        CHECK(sscanf(text + 2 * i, "%2hhx", (uint8_t *)&handle + i) == 1, "handle");
    for (uint32_t i = 0; i < count; i++) {
        CHECK(harp_connect(engine, &handle, &settings, &connections[i], why) == 0, "%s", why);
        await_completion(connections[i], HARP_COMPLETION_CONNECTED);
    }
    printf("connected\n");
    fflush(stdout);
    CHECK(fgets(line, sizeof line, stdin), "no line");
    uint64_t start_ms = now_ms();
    for (uint32_t i = 0; i < count; i++)
        CHECK(await_completion(connections[i], HARP_COMPLETION_CLOSED) == HARP_REASON_REFUSED, "%s",
              why);
    printf("%llu\n", (unsigned long long)(now_ms() - start_ms));
}

int main(int count, char **arguments)
{
    struct harp_engine_config config;
    CHECK(count >= 3 && atoi(arguments[2]) <= MOST, "usage: engine_gone ADDRESS COUNT [HANDLE]");
    harp_engine_defaults(&config);
    harp_connection_defaults(&settings);
    settings.dead_ns = UINT64_C(600000000000);
    config.frames = 64;
    config.ports_n = 1;
    config.ports[0].open = harp_port_udp_open;
    config.ports[0].config.locals = 1;
    CHECK(harp_address_parse(arguments[1], &config.ports[0].config.local), "address");
    CHECK(harp_engine_open(&engine, &config, why) == 0, "%s", why);
    if (count == 3)
        listen_until_killed((uint32_t)atoi(arguments[2]));
    connect_and_outlive((uint32_t)atoi(arguments[2]), arguments[3]);
    for (int i = 0; i < atoi(arguments[2]); i++)
        harp_connection_close(connections[i]);
    harp_engine_close(engine);
    return 0;
}
