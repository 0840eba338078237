/* dst FIRST COUNT     run COUNT seeds from FIRST on
 * dst SEED -v         run one and say what happened
 * dst fields FROM BY  change fields, every BY-th way from FROM on
 * dst field NUMBER    one of them */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "crc32c.h"
#include "world.h"

static const char *what_runs = "SEED";
static uint64_t running;

/* Of the sanitizers' runtime, where there is one. */
extern void __sanitizer_set_death_callback(void (*say)(void)) __attribute__((weak));

static void say_replay(void)
{
    printf("replay: make dst %s=%llu\n", what_runs, (unsigned long long)running);
    fflush(stdout);
}

static void on_abort(int signal)
{
    (void)signal;
    say_replay(); /* not safe in general, but nobody else prints */
}

_Noreturn void dst_fail(const char *what, uint64_t a, uint64_t b)
{
    printf("%s %llu: %s (%llu, %llu)\n", what_runs, (unsigned long long)running, what,
           (unsigned long long)a, (unsigned long long)b);
    say_replay();
    exit(1);
}

static void run_verbose(void)
{
    struct dst_result r = dst_run(running, true);
    printf("seed %llu, kind %d: %llu frames, %llu us, %llu chunks again, %llu spurious, "
           "%llu paths died, trace %016llx\n",
           (unsigned long long)running, r.kind, (unsigned long long)r.frames,
           (unsigned long long)(r.now_ns / 1000), (unsigned long long)r.data_again,
           (unsigned long long)r.spurious, (unsigned long long)r.paths_died,
           (unsigned long long)r.trace);
}

static void run_seeds(uint64_t count)
{
    uint64_t stop = running + count, frames = 0;
    for (; running != stop; running++) {
        struct dst_result with = dst_run(running, true);
        frames += with.frames;
        if (running % 8 == 0 && dst_run(running, false).trace != with.trace)
            dst_fail("the trace differs without payload", with.trace, 0);
    }
    printf("%llu seeds, %llu frames\n", (unsigned long long)count, (unsigned long long)frames);
}

static void run_fields(uint64_t by)
{
    uint64_t count = 0;
    for (; dst_run_field(running); running += by)
        count++;
    printf("%llu changes of fields\n", (unsigned long long)count);
}

int main(int argc, char **argv)
{
    bool fields = argc > 2 && strncmp(argv[1], "field", 5) == 0;
    if (argc != 3 + (fields && argv[1][5] == 's')) {
        fprintf(stderr, "usage: %s FIRST COUNT | SEED -v | fields FROM BY | field NUMBER\n",
                argv[0]);
        return 2;
    }
    harp_crc32c_choose();
    signal(SIGABRT, on_abort);
    if (__sanitizer_set_death_callback)
        __sanitizer_set_death_callback(say_replay);
    what_runs = fields ? "FIELD" : "SEED";
    running = strtoull(argv[fields ? 2 : 1], NULL, 10);
    if (fields && argc == 4)
        run_fields(strtoull(argv[3], NULL, 10));
    else if (fields)
        dst_run_field(running);
    else if (strcmp(argv[2], "-v") == 0)
        run_verbose();
    else
        run_seeds(strtoull(argv[2], NULL, 10));
    return 0;
}
