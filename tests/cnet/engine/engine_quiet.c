/* Calls of the C library and the kernel that an engine makes while messages flow.
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

#include "engine_two.h"

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

static void exchange_messages(uint32_t messages, uint32_t size)
{
    static uint8_t out[1 << 20], in[1 << 20];
    for (uint32_t m = 0; m < messages; m++) {
        CHECK(harp_receive(connections[1], in, size, m), "not posted");
        CHECK(harp_send(connections[0], out, size, m), "not sent");
        await_completion(0, HARP_COMPLETION_SENT);
        await_completion(1, HARP_COMPLETION_RECEIVED);
    }
}

int main(int count, char **arguments)
{
    CHECK(count == 2, "usage: engine_quiet udp | mem");
    connect_two(HARP_PROGRESS_MANUAL, -1,
                strcmp(arguments[1], "mem") ? harp_port_udp_open : harp_port_mem_open);
    exchange_messages(20, 1 << 20); /* all pages are touched, all buffers there */
    uint64_t before = calls;
    syscall(SYS_getppid);
    exchange_messages(2000, 64);
    exchange_messages(50, 1 << 20);
    syscall(SYS_getppid);
    CHECK(calls == before, "%lu allocations, frees or locks", calls - before);
    return 0;
}
