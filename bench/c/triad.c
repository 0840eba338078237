/* The reference of memory for sums: STREAM's triad (McCalpin, 1995), one thread, arrays of 100 MB.
 *
 *   triad CPU SECONDS       prints one line of JSON; bytes are those read and written
 */
#define _GNU_SOURCE
#include "bench.h"

#define ELEMENTS 25000000u

static void run_triad(float *restrict a, const float *restrict b, const float *restrict c,
                      float scale)
{
    for (size_t i = 0; i < ELEMENTS; i++)
        a[i] = b[i] + scale * c[i];
}

int main(int count, char **words)
{
    struct bench_window window;
    if (count != 3)
        bench_die("triad CPU SECONDS");
    bench_pin(atoi(words[1]));
    float *a = (float *)(void *)bench_memory(4 * ELEMENTS);
    float *b = (float *)(void *)bench_memory(4 * ELEMENTS);
    float *c = (float *)(void *)bench_memory(4 * ELEMENTS);
    bench_window(&window, atof(words[2]));
    do {
        run_triad(a, b, c, 0.5F);
        __asm__ volatile("" ::"r"(a) : "memory"); /* the sums are not to be optimised away */
    } while (bench_count(&window, (uint64_t)12 * ELEMENTS, 1));
    bench_print(&window, "");
    return 0;
}
