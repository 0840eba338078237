/* The reference of two processes that share memory: bytes copied by memcpy into a ring that both
 * see, and out of it again.
 *
 *   shared_ring CPU CPU SECONDS SLOT-BYTES       prints one line of JSON
 *
 *     writer's memory --memcpy--> slot 0 1 2 ... 15 --memcpy--> reader's memory, 32 MiB each
 *
 * The counts of slots that were written and that were read have a line each.
 */
#define _GNU_SOURCE
#include "bench.h"

#include <signal.h>
#include <stdatomic.h>
#include <sys/wait.h>

enum { SLOTS = 16, SLOT_MOST = 1 << 20, MEMORY_BYTES = 32 << 20 };

struct ring {
    _Alignas(64) atomic_uint_least64_t written;
    _Alignas(64) atomic_uint_least64_t read;
    _Alignas(4096) uint8_t slots[SLOTS * SLOT_MOST];
};

static size_t slot_bytes; /* a power of two */

static uint8_t *byte_at(uint8_t *memory, uint64_t number)
{
    return memory + number * slot_bytes % MEMORY_BYTES;
}

static uint8_t *slot_at(struct ring *ring, uint64_t number)
{
    return ring->slots + number % SLOTS * slot_bytes;
}

static void write_all(struct ring *ring)
{
    uint8_t *memory = bench_memory(MEMORY_BYTES);
    for (uint64_t number = 0;; number++) {
        while (number - atomic_load_explicit(&ring->read, memory_order_acquire) == SLOTS)
            sched_yield();
        memcpy(slot_at(ring, number), byte_at(memory, number), slot_bytes);
        atomic_store_explicit(&ring->written, number + 1, memory_order_release);
    }
}

static void read_until(struct ring *ring, struct bench_window *window)
{
    uint8_t *memory = bench_memory(MEMORY_BYTES);
    for (uint64_t number = 0;; number++) {
        while (number == atomic_load_explicit(&ring->written, memory_order_acquire))
            sched_yield();
        memcpy(byte_at(memory, number), slot_at(ring, number), slot_bytes);
        atomic_store_explicit(&ring->read, number + 1, memory_order_release);
        if (!bench_count(window, slot_bytes, 1))
            return;
    }
}

int main(int count, char **words)
{
    struct bench_window window;
    slot_bytes = count == 5 ? (size_t)atol(words[4]) : 0;
    if (slot_bytes == 0 || slot_bytes > SLOT_MOST || slot_bytes & (slot_bytes - 1))
        bench_die("shared_ring CPU CPU SECONDS SLOT-BYTES, a power of two");
    struct ring *ring =
        mmap(NULL, sizeof(*ring), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (ring == MAP_FAILED)
        bench_die("%zu bytes of memory", sizeof(*ring));
    pid_t writer = fork();
    bench_pin(atoi(words[writer ? 2 : 1]));
    if (!writer)
        write_all(ring);
    bench_open(&window, atof(words[3]));
    read_until(ring, &window);
    kill(writer, SIGKILL);
    waitpid(writer, NULL, 0);
    bench_print(&window, "");
    return 0;
}
