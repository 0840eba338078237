/* isend, irecv and test ask the C library for no memory and no lock, nor the kernel for memory,
 * also where the sending end is ahead of its buffers and where receives come in groups.
 *
 * Calls are counted by wrapping the functions (-Wl,--wrap=…).
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/random.h>

#include "both_ends.h"

static _Atomic uint32_t calls;

#define COUNT(type, name, parameters, arguments)                                                   \
    type __real_##name parameters;                                                                 \
    type __wrap_##name parameters;                                                                 \
    type __wrap_##name parameters                                                                  \
    {                                                                                              \
        calls++;                                                                                   \
        return __real_##name arguments;                                                            \
    }

COUNT(void *, malloc, (size_t bytes), (bytes))
COUNT(void *, calloc, (size_t count, size_t bytes), (count, bytes))
COUNT(void *, realloc, (void *old, size_t bytes), (old, bytes))
COUNT(void *, aligned_alloc, (size_t align, size_t bytes), (align, bytes))
COUNT(void, free, (void *memory), (memory))
COUNT(void *, mmap, (void *at, size_t bytes, int protection, int flags, int fd, off_t offset),
      (at, bytes, protection, flags, fd, offset))
COUNT(int, munmap, (void *at, size_t bytes), (at, bytes))
COUNT(int, pthread_mutex_lock, (pthread_mutex_t * mutex), (mutex))
COUNT(ssize_t, getrandom, (void *bytes, size_t count, unsigned flags), (bytes, count, flags))

static void many_single_messages(void)
{
    for (int i = 0; i < 500; i++) {
        void *request = begin_receive(in, i % 10 ? SMALL : LARGE, 5), *send;
        while (!(send = send_now(out, i % 10 ? SMALL : LARGE, 5)))
            is_done(request, NULL);
        wait_for_both(send, request);
    }
}

/* Sends whose buffers are not posted. */
static void sends_that_are_ahead(void)
{
    void *sends[AHEAD], *receives[AHEAD];
    for (int i = 0; i < AHEAD; i++)
        CHECK((sends[i] = send_now(out, i < AHEAD - 1 ? SMALL : LARGE, 5)), "not taken");
    for (int i = 0; i < AHEAD; i++)
        receives[i] = begin_receive(in + SMALL + i * LARGE, LARGE, 5);
    for (int i = 0; i < AHEAD; i++)
        wait_for_both(sends[i], receives[i]);
}

int main(void)
{
    begin_both_ends();
    connect_ends();
    uint32_t before = calls;
    many_single_messages();
    sends_that_are_ahead();
    CHECK(calls == before, "%u calls for memory or locks", calls - before);
    close_ends(true, true);
    CHECK(calls != before, "nothing was counted");
    end_both_ends();
    return 0;
}
