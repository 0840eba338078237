/* dst_engine FIRST COUNT [tcp]: run COUNT seeds from FIRST on, over simulated ports or over tcp. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "wire/crc32c.h"
#include "world.h"

int main(int argc, char **argv)
{
    bool tcp = argc == 4 && strcmp(argv[3], "tcp") == 0;
    if (argc != 3 && !tcp) {
        fprintf(stderr, "usage: %s FIRST COUNT [tcp]\n", argv[0]);
        return 2;
    }
    harp_crc32c_choose();
    uint64_t first = strtoull(argv[1], NULL, 10), count = strtoull(argv[2], NULL, 10), moved = 0;
    for (uint64_t seed = first; seed != first + count; seed++) {
        dst_runs(tcp ? "TCP" : "ENGINE", seed);
        moved += dst_run_engines(seed, tcp);
    }
    printf("%llu seeds, %llu %s\n", (unsigned long long)count, (unsigned long long)moved,
           tcp ? "bytes" : "frames");
    return 0;
}
