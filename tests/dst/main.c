/* dst FIRST COUNT     run COUNT seeds from FIRST on
 * dst SEED -v         run one and say what happened
 * dst fields FROM BY  change fields, every BY-th way from FROM on
 * dst field NUMBER    one of them */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "wire/crc32c.h"
#include "world.h"

static void run_verbose(uint64_t seed)
{
    dst_runs("SEED", seed);
    struct dst_result r = dst_run(seed, true);
    printf("seed %llu, kind %d: %llu frames, %llu us, %llu chunks again, %llu spurious, "
           "%llu paths died, %llu times narrower, %llu wider, trace %016llx\n",
           (unsigned long long)seed, r.kind, (unsigned long long)r.frames,
           (unsigned long long)(r.now_ns / 1000), (unsigned long long)r.data_again,
           (unsigned long long)r.spurious, (unsigned long long)r.paths_died,
           (unsigned long long)r.pmtu_shrunk, (unsigned long long)r.pmtu_grown,
           (unsigned long long)r.trace);
}

static void run_seeds(uint64_t first, uint64_t count)
{
    uint64_t frames = 0;
    for (uint64_t seed = first; seed != first + count; seed++) {
        if (seed % 5 == 0) {
            dst_runs("SEED", seed | DST_SMALL);
            frames += dst_run(seed | DST_SMALL, true).frames;
        }
        dst_runs("SEED", seed);
        struct dst_result with = dst_run(seed, true);
        frames += with.frames;
        if (seed % 8 == 0 && dst_run(seed, false).trace != with.trace)
            dst_fail("the trace differs without payload", with.trace, 0);
    }
    printf("%llu seeds, %llu frames\n", (unsigned long long)count, (unsigned long long)frames);
}

static bool run_field(uint64_t number)
{
    dst_runs("FIELD", number);
    return dst_run_field(number);
}

static void run_fields(uint64_t from, uint64_t by)
{
    uint64_t count = 0;
    while (run_field(from + by * count))
        count++;
    printf("%llu changes of fields\n", (unsigned long long)count);
}

int main(int argc, char **argv)
{
    harp_crc32c_choose();
    if (argc == 4 && strcmp(argv[1], "fields") == 0)
        run_fields(strtoull(argv[2], NULL, 10), strtoull(argv[3], NULL, 10));
    else if (argc == 3 && strcmp(argv[1], "field") == 0)
        run_field(strtoull(argv[2], NULL, 10));
    else if (argc == 3 && strcmp(argv[2], "-v") == 0)
        run_verbose(strtoull(argv[1], NULL, 10));
    else if (argc == 3)
        run_seeds(strtoull(argv[1], NULL, 10), strtoull(argv[2], NULL, 10));
    else
        fprintf(stderr, "usage: %s FIRST COUNT | SEED -v | fields FROM BY | field NUMBER\n",
                argv[0]);
    return argc < 3 || argc > 4;
}
