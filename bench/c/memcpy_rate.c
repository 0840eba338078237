/* The reference of memory: how fast one thread copies 256 MiB by memcpy.
 *
 *   memcpy_rate CPU SECONDS       prints one line of JSON
 */
#define _GNU_SOURCE
#include "bench.h"

#define BYTES (256u << 20)

int main(int count, char **words)
{
    struct bench_window window;
    if (count != 3)
        bench_die("memcpy_rate CPU SECONDS");
    bench_pin(atoi(words[1]));
    uint8_t *from = bench_memory(BYTES), *to = bench_memory(BYTES);
    bench_window(&window, atof(words[2]));
    do {
        memcpy(to, from, BYTES);
        __asm__ volatile("" ::"r"(to) : "memory"); /* the copy is not to be optimised away */
    } while (bench_count(&window, BYTES, 1));
    bench_print(&window, "");
    return 0;
}
