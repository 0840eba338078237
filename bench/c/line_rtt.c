/* The floor of a round trip between two CPUs: one cache line there and back.
 *
 *   line_rtt CPU CPU SECONDS       prints one line of JSON
 */
#define _GNU_SOURCE
#include "bench.h"

#include <pthread.h>
#include <stdatomic.h>

enum { TRIPS = 1000 }; /* between two looks at the clock */

static _Alignas(128) _Atomic uint64_t there;
static _Alignas(128) _Atomic uint64_t back;

static void *answer_lines(void *cpu)
{
    bench_pin(*(int *)cpu);
    for (uint64_t expected = 1, came = 0; came != UINT64_MAX;) {
        came = atomic_load_explicit(&there, memory_order_acquire);
        if (came != expected)
            continue;
        atomic_store_explicit(&back, expected++, memory_order_release);
    }
    return NULL;
}

static int by_size(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

int main(int count, char **words)
{
    static uint64_t times_ns[1 << 16];
    pthread_t thread;
    if (count != 4)
        bench_die("line_rtt CPU CPU SECONDS");
    int other = atoi(words[2]);
    bench_pin(atoi(words[1]));
    if (pthread_create(&thread, NULL, answer_lines, &other))
        bench_die("a thread");
    uint64_t trip = 0, n = 0, start_ns = bench_now_ns(), now_ns = start_ns;
    uint64_t end_ns = start_ns + (uint64_t)(atof(words[3]) * 1e9);
    double busy_s = bench_busy_s();
    for (uint64_t then_ns = start_ns; now_ns < end_ns; then_ns = now_ns) {
        for (int i = 0; i < TRIPS; i++) {
            atomic_store_explicit(&there, ++trip, memory_order_release);
            while (atomic_load_explicit(&back, memory_order_acquire) != trip)
                ;
        }
        now_ns = bench_now_ns();
        times_ns[n++ % (1 << 16)] = (now_ns - then_ns) / TRIPS;
    }
    atomic_store(&there, UINT64_MAX);
    pthread_join(thread, NULL);
    n = n < 1 << 16 ? n : 1 << 16;
    qsort(times_ns, n, sizeof *times_ns, by_size);
    printf("{\"seconds\": %.6f, \"cpu_s\": %.2f, \"median_us\": %.3f}\n",
           (double)(now_ns - start_ns) / 1e9, bench_busy_s() - busy_s,
           (double)times_ns[n / 2] / 1e3);
    return 0;
}
