/* The frame of every program of the speed table: a CPU of its own, a clock, a window to count in.
 *
 *     receiver                               sender
 *     pin, open, say "ready" ------------>   is started then; sends until it is killed
 *     first arrival: window opens after a quarter of `seconds` more, in which all warms up
 *     `seconds` later: one line of JSON, exit 0
 *
 * A receiver without arrivals ends with an error after ten seconds more.
 */
#ifndef BENCH_H
#define BENCH_H

#ifndef _GNU_SOURCE
#error "bench.h needs _GNU_SOURCE before the first header"
#endif
#include <errno.h>
#include <sched.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

/* End with one sentence, and with errno's text if it is set. */
__attribute__((noreturn, format(printf, 1, 2))) static inline void bench_die(const char *format,
                                                                             ...)
{
    int error = errno;
    va_list arguments;
    va_start(arguments, format);
    fputs("error: ", stderr);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fprintf(stderr, error ? ": %s\n" : "\n", strerror(error));
    exit(1);
}

/* Let this thread run on one CPU only; below 0: wherever. */
static inline void bench_pin(int cpu)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    if (cpu < 0)
        return;
    CPU_SET((size_t)cpu, &set);
    if (sched_setaffinity(0, sizeof set, &set))
        bench_die("CPU %d", cpu);
}

static inline uint64_t bench_now_ns(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

/* Time that all CPUs of this machine have worked, in user space, the kernel, interrupts and
 * softirqs, from the first line of /proc/stat, which counts in ticks of 10 ms. */
static inline double bench_busy_s(void)
{
    unsigned long long user, nice, kernel, idle, wait, irq, softirq;
    FILE *file = fopen("/proc/stat", "r");
    if (!file)
        bench_die("/proc/stat");
    if (fscanf(file, "cpu %llu %llu %llu %llu %llu %llu %llu", &user, &nice, &kernel, &idle, &wait,
               &irq, &softirq) != 7)
        bench_die("/proc/stat has no line for all CPUs");
    fclose(file);
    return (double)(user + nice + kernel + irq + softirq) / (double)sysconf(_SC_CLK_TCK);
}

/* Memory on huge pages where the machine gives them, touched. */
static inline void *bench_memory(size_t bytes)
{
    size_t page = 2u << 20, whole = (bytes + page - 1) / page * page;
    uint8_t *start =
        mmap(NULL, whole + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (start == MAP_FAILED)
        bench_die("%zu bytes of memory", whole + page);
    start += -(uintptr_t)start & (page - 1);
    madvise(start, whole, MADV_HUGEPAGE);
    memset(start, 1, whole);
    return start;
}

/* Bytes that every program sends from and receives into, a piece after the other, whatever it
 * measures: as much as NCCL gives a channel (NCCL_BUFFSIZE). One small buffer again and again would
 * stay in the nearest cache, which no training job's does. */
#define BENCH_BYTES (4u << 20)

/* The piece of `bytes` after the one at *offset. */
static inline uint8_t *bench_piece(uint8_t *memory, size_t *offset, size_t bytes)
{
    if (*offset + bytes > BENCH_BYTES)
        *offset = 0;
    uint8_t *piece = memory + *offset;
    *offset += bytes;
    return piece;
}

struct bench_window {
    uint64_t length_ns;
    uint64_t opens_ns, closes_ns; /* 0: nothing has arrived */
    uint64_t opened_ns;           /* 0: not yet */
    uint64_t bytes, packets;
    double busy_s;
};

/* A window that opens with what arrives from now on. */
static inline void bench_open(struct bench_window *window, double seconds)
{
    *window = (struct bench_window){.length_ns = (uint64_t)(seconds * 1e9)};
    errno = 0;
    if (window->length_ns == 0)
        bench_die("a window of %g seconds; it must be longer than 0", seconds);
    alarm((unsigned)(seconds * 1.25) + 10);
}

/* The same, and say that we are ready. */
static inline void bench_window(struct bench_window *window, double seconds)
{
    bench_open(window, seconds);
    puts("ready");
    fflush(stdout);
}

/* Count an arrival; false once the window is closed. */
static inline bool bench_count(struct bench_window *window, uint64_t bytes, uint64_t packets)
{
    uint64_t now_ns = bench_now_ns();
    if (!window->opens_ns)
        window->opens_ns = now_ns + window->length_ns / 4;
    if (now_ns < window->opens_ns)
        return true;
    if (!window->opened_ns) { /* what arrived just now arrived before */
        window->opened_ns = now_ns;
        window->busy_s = bench_busy_s();
        return true;
    }
    window->bytes += bytes;
    window->packets += packets;
    window->closes_ns = now_ns;
    return now_ns < window->opened_ns + window->length_ns;
}

/* Print what was counted; `more` are further members of the object, or "". */
static inline void bench_print(const struct bench_window *window, const char *more)
{
    double seconds = (double)(window->closes_ns - window->opened_ns) / 1e9;
    printf("{\"bytes\": %llu, \"packets\": %llu, \"seconds\": %.6f, \"cpu_s\": %.2f, "
           "\"gbps\": %.3f%s}\n",
           (unsigned long long)window->bytes, (unsigned long long)window->packets, seconds,
           bench_busy_s() - window->busy_s, (double)window->bytes * 8e-9 / seconds, more);
    fflush(stdout);
}

#endif
