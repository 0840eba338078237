/* dst FIRST COUNT: run COUNT seeds from FIRST on. dst SEED -v: run one and say what happened. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "crc32c.h"
#include "world.h"

static uint64_t running;

_Noreturn void dst_fail(const char *what, uint64_t a, uint64_t b)
{
    printf("seed %llu: %s (%llu, %llu)\nreplay: make dst SEED=%llu\n", (unsigned long long)running,
           what, (unsigned long long)a, (unsigned long long)b, (unsigned long long)running);
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

int main(int argc, char **argv)
{
    harp_crc32c_choose();
    if (argc != 3) {
        fprintf(stderr, "usage: %s FIRST COUNT, or %s SEED -v\n", argv[0], argv[0]);
        return 2;
    }
    running = strtoull(argv[1], NULL, 10);
    if (strcmp(argv[2], "-v") == 0) {
        run_verbose();
        return 0;
    }
    uint64_t stop = running + strtoull(argv[2], NULL, 10), frames = 0;
    for (; running != stop; running++) {
        struct dst_result with = dst_run(running, true);
        frames += with.frames;
        if (running % 8 == 0 && dst_run(running, false).trace != with.trace)
            dst_fail("the trace differs without payload", with.trace, 0);
    }
    printf("%s seeds, %llu frames\n", argv[2], (unsigned long long)frames);
    return 0;
}
