/* dst_engine FIRST COUNT: run COUNT seeds from FIRST on. */
#include <stdio.h>
#include <stdlib.h>

#include "wire/crc32c.h"
#include "world.h"

int main(int argc, char **argv)
{
    if (argc != 3) {
        fprintf(stderr, "usage: %s FIRST COUNT\n", argv[0]);
        return 2;
    }
    harp_crc32c_choose();
    uint64_t first = strtoull(argv[1], NULL, 10), count = strtoull(argv[2], NULL, 10), frames = 0;
    for (uint64_t seed = first; seed != first + count; seed++) {
        dst_runs("ENGINE", seed);
        frames += dst_run_engines(seed);
    }
    printf("%llu seeds, %llu frames\n", (unsigned long long)count, (unsigned long long)frames);
    return 0;
}
