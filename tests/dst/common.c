#include "common.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

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

void dst_runs(const char *what, uint64_t number)
{
    static bool ready;
    what_runs = what;
    running = number;
    if (ready)
        return;
    ready = true;
    signal(SIGABRT, on_abort);
    if (__sanitizer_set_death_callback)
        __sanitizer_set_death_callback(say_replay);
}

void dst_fail(const char *what, uint64_t a, uint64_t b)
{
    printf("%s %llu: %s (%llu, %llu)\n", what_runs, (unsigned long long)running, what,
           (unsigned long long)a, (unsigned long long)b);
    say_replay();
    exit(1);
}
