/* What an engine asks of the C library and the kernel while messages flow.
 *
 *     engine_quiet PORT     udp, mem
 *
 * Allocations and locks are counted by wrapping the functions (-Wl,--wrap=…); system calls by who
 * runs this under strace: they lie between two calls of getppid, which nothing else makes.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "check.h"
#include "engine/engine.h"

static uint64_t calls;

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t count, size_t bytes);
void *__real_realloc(void *old, size_t bytes);
void *__real_aligned_alloc(size_t align, size_t bytes);
void __real_free(void *memory);
int __real_pthread_mutex_lock(pthread_mutex_t *mutex);

void *__wrap_malloc(size_t bytes)
{
    calls++;
    return __real_malloc(bytes);
}

void *__wrap_calloc(size_t count, size_t bytes)
{
    calls++;
    return __real_calloc(count, bytes);
}

void *__wrap_realloc(void *old, size_t bytes)
{
    calls++;
    return __real_realloc(old, bytes);
}

void *__wrap_aligned_alloc(size_t align, size_t bytes)
{
    calls++;
    return __real_aligned_alloc(align, bytes);
}

void __wrap_free(void *memory)
{
    calls++;
    __real_free(memory);
}

int __wrap_pthread_mutex_lock(pthread_mutex_t *mutex)
{
    calls++;
    return __real_pthread_mutex_lock(mutex);
}

static struct harp_engine *engines[2];
static struct harp_connection *connections[2];
static char why[HARP_WHY_BYTES];

static struct harp_completion next(int side)
{
    struct harp_completion done;
    while (!harp_poll(connections[side], &done, 1)) {
        harp_engine_drive(engines[0]);
        harp_engine_drive(engines[1]);
    }
    return done;
}

static void exchange(uint32_t messages, uint32_t size)
{
    static uint8_t out[1 << 20], in[1 << 20];
    for (uint32_t m = 0; m < messages; m++) {
        CHECK(harp_receive(connections[1], in, size, m), "not posted");
        CHECK(harp_send(connections[0], out, size, m), "not sent");
        CHECK(next(0).type == HARP_COMPLETION_SENT, "not sent");
        CHECK(next(1).type == HARP_COMPLETION_RECEIVED, "not received");
    }
}

int main(int count, char **arguments)
{
    struct harp_engine_config config;
    struct harp_connection_config settings;
    struct harp_listening *listening;
    struct harp_handle handle;
    CHECK(count == 2, "usage: engine_quiet udp | mem");
    harp_engine_defaults(&config);
    harp_connection_defaults(&settings);
    config.progress = HARP_PROGRESS_MANUAL;
    config.frames = 256;
    config.ports_n = 1;
    config.ports[0].open = strcmp(arguments[1], "mem") ? harp_port_udp_open : harp_port_mem_open;
    config.ports[0].config.locals = 1;
    CHECK(harp_address_parse("127.0.0.1", &config.ports[0].config.local), "address");
    for (int i = 0; i < 2; i++)
        CHECK(harp_engine_open(&engines[i], &config, why) == 0, "%s", why);
    CHECK(harp_listen(engines[1], &settings, &listening, &handle, why) == 0, "%s", why);
    CHECK(harp_connect(engines[0], &handle, &settings, &connections[0], why) == 0, "%s", why);
    while (!(connections[1] = harp_accept(listening))) {
        harp_engine_drive(engines[0]);
        harp_engine_drive(engines[1]);
    }
    CHECK(next(0).type == HARP_COMPLETION_CONNECTED && next(1).type == HARP_COMPLETION_CONNECTED,
          "not connected");
    exchange(20, 1 << 20); /* all pages are touched, all buffers there */
    uint64_t before = calls;
    syscall(SYS_getppid);
    exchange(2000, 64);
    exchange(50, 1 << 20);
    syscall(SYS_getppid);
    CHECK(calls == before, "%lu allocations, frees or locks", calls - before);
    return 0;
}
