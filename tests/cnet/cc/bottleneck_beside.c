/* Share of a connection beside TCP flows in one queue, as a table: bottleneck_beside
 * [KEY=VALUE]...
 *
 *   mbps=100,1000 rtt_us=50,1000 bdp=0.5,2 flows=1,4 kind=cubic,bbr seeds=3 supers=0,1 late=0,1
 *
 * A line for each combination, with the least and the mean over the seeds of our rate by the fair
 * share. `bdp` is the buffer by what the empty path holds, 30 KB at least; where it is below 4
 * supers, TCP sends packet by packet.
 * `late`: the TCP flows were there first. A run takes so long that CUBIC grows back twice, within
 * bounds, and its first third is not counted.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bottleneck.h"

#define VALUES 8
#define BUFFER_LEAST 30e3
#define PACKETS_MOST 4e6 /* that the line carries in a run: seconds of real time */
#define SEED_FIRST 11

enum { MBPS, RTT_US, BDP, FLOWS, KIND, SUPERS, LATE, SEEDS, KEYS };

struct list {
    const char *key;
    double values[VALUES];
    int n;
};

static struct list lists[KEYS] = {
    [MBPS] = {"mbps", {100, 1000, 10000, 25000}, 4},
    [RTT_US] = {"rtt_us", {50, 200, 1000, 10000}, 4},
    [BDP] = {"bdp", {0.2, 1, 4}, 3},
    [FLOWS] = {"flows", {1, 4, 16}, 3},
    [KIND] = {"kind", {TCP_CUBIC, TCP_BBR}, 2},
    [SUPERS] = {"supers", {1}, 1},
    [LATE] = {"late", {1}, 1},
    [SEEDS] = {"seeds", {3}, 1},
};

static void read_argument(char *argument)
{
    char *value = strchr(argument, '=');
    for (int i = 0; value && i < KEYS; i++) {
        if (strlen(lists[i].key) != (size_t)(value - argument) ||
            strncmp(lists[i].key, argument, (size_t)(value - argument)) != 0)
            continue;
        lists[i].n = 0;
        for (char *word = strtok(value + 1, ","); word && lists[i].n < VALUES;
             word = strtok(NULL, ","))
            lists[i].values[lists[i].n++] = strcmp(word, "cubic") == 0 ? TCP_CUBIC
                                            : strcmp(word, "bbr") == 0 ? TCP_BBR
                                                                       : atof(word);
        return;
    }
    fprintf(stderr, "no such setting: %s\n", argument);
    exit(2);
}

/* Twice the time in which CUBIC is back at a window of its fair share, 0.4 t^3 = 0.3 of it
 * segments, or 300 round trips of a full queue. */
static double run_seconds(const double *v)
{
    double packets_s = v[MBPS] * 1e6 / 8 / CROSS_BYTES;
    double full_s = v[RTT_US] * 1e-6 * (1 + v[BDP]);
    double back_s = cbrt(0.75 * packets_s * full_s / (v[FLOWS] + 1));
    return fmin(fmax(2 * back_s, 300 * full_s) + 0.5, PACKETS_MOST / packets_s);
}

static double measure_share(const double *v, uint64_t seed)
{
    double path_bytes = v[MBPS] * v[RTT_US] / 8, run_ns = 1e9 * run_seconds(v);
    double buffer_bytes = fmax(v[BDP] * path_bytes, BUFFER_LEAST);
    bool supers = v[SUPERS] != 0 && buffer_bytes >= 4 * CROSS_SUPER * CROSS_BYTES;
    struct bn_scene scene = {.flows = 1,
                             .line.rate_mbps = (uint64_t)v[MBPS],
                             .line.buffer_bytes = (uint64_t)buffer_bytes,
                             .rtt_ns = (uint64_t)(v[RTT_US] * 1000),
                             .cross.kind = (enum tcp_cc_kind)v[KIND],
                             .cross.flows = (uint32_t)v[FLOWS],
                             .cross.supers = supers,
                             .cross.from_ns = 10000000,
                             .start_ns = v[LATE] != 0 ? (uint64_t)(run_ns / 10) : 0,
                             .from_ns = (uint64_t)(run_ns / 3),
                             .to_ns = (uint64_t)run_ns,
                             .seed = seed};
    return bn_measure(&scene).use * (v[FLOWS] + 1);
}

static void print_row(const double *v)
{
    double least = INFINITY, sum = 0;
    for (int i = 0; i < (int)v[SEEDS]; i++) {
        double share = measure_share(v, SEED_FIRST + (uint64_t)i);
        least = fmin(least, share);
        sum += share;
    }
    printf("%6.0f Mb/s %6.0f us %4.1f bdp %2.0f %-5s %-6s %-5s %6.1f s  least %.2f mean %.2f\n",
           v[MBPS], v[RTT_US], v[BDP], v[FLOWS], v[KIND] == TCP_BBR ? "bbr" : "cubic",
           v[SUPERS] != 0 ? "supers" : "single", v[LATE] != 0 ? "late" : "early", run_seconds(v),
           least, sum / v[SEEDS]);
    fflush(stdout);
}

/* Every combination of the lists' values from the `at`th list on. */
static void print_rows(double *v, int at)
{
    if (at == KEYS) {
        print_row(v);
        return;
    }
    for (int i = 0; i < lists[at].n; i++) {
        v[at] = lists[at].values[i];
        print_rows(v, at + 1);
    }
}

int main(int argc, char **argv)
{
    double v[KEYS];
    for (int i = 1; i < argc; i++)
        read_argument(argv[i]);
    print_rows(v, 0);
    return 0;
}
