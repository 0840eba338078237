/* Number of engines of a device, and number of CPUs of a rank. */
#include <string.h>

#include "check.h"
#include "nccl/engines_auto.h"

static char why[ENGINES_AUTO_WHY_BYTES];

static void expect_count(struct engines_host host, uint32_t wanted, const char *because)
{
    uint32_t n = engines_auto(&host, 16, why);
    CHECK(n == wanted && strstr(why, because), "wanted %u \"%s\", got %u \"%s\"", wanted, because,
          n, why);
}

static void the_speed_decides_where_cpus_are_free(void)
{
    expect_count((struct engines_host){.speed_mbps = 10000, .cpus = 64, .devices = 1}, 1,
                 "10000 Mb/s");
    expect_count((struct engines_host){.speed_mbps = 25000, .cpus = 64, .devices = 1}, 1,
                 "25000 Mb/s");
    expect_count((struct engines_host){.speed_mbps = 25001, .cpus = 64, .devices = 1}, 2,
                 "25001 Mb/s");
    expect_count((struct engines_host){.speed_mbps = 100000, .cpus = 64, .devices = 1}, 4,
                 "100000 Mb/s");
    expect_count((struct engines_host){.speed_mbps = 800000, .cpus = 64, .devices = 1}, 16,
                 "800000 Mb/s");
    expect_count((struct engines_host){.cpus = 64, .devices = 1}, 1, "HARP_SPEED");
}

static void there_are_no_more_engines_than_cpus_for_them(void)
{
    expect_count((struct engines_host){.speed_mbps = 100000, .cpus = 4, .devices = 1}, 2,
                 "CPUs are free");
    expect_count((struct engines_host){.speed_mbps = 100000, .cpus = 8, .devices = 3}, 2,
                 "CPUs are free");
    expect_count((struct engines_host){.speed_mbps = 100000, .cpus = 1, .devices = 8}, 1,
                 "CPUs are free");
    expect_count(
        (struct engines_host){.speed_mbps = 100000, .cpus = 4, .engine_cpus = 3, .devices = 1}, 3,
        "HARP_CPUS");
}

static void there_are_no_more_engines_than_queues(void)
{
    expect_count((struct engines_host){.speed_mbps = 100000, .cpus = 64, .devices = 1, .queues = 2},
                 2, "queues");
}

static void one_thread_that_drives_them_all_gets_one(void)
{
    expect_count(
        (struct engines_host){
            .speed_mbps = 100000, .cpus = 64, .devices = 1, .drives_inline = true},
        1, "NCCL's thread");
}

static void expect_threads(struct engines_host host, bool wanted, const char *because)
{
    bool threads = engines_auto_threads(&host, why);
    CHECK(threads == wanted && strstr(why, because), "wanted \"%s\", got %d \"%s\"", because,
          threads, why);
}

static void an_engine_has_a_thread_where_a_cpu_is_free_for_it(void)
{
    expect_threads((struct engines_host){.cpus = 3, .devices = 1}, true, "a CPU is free");
    expect_threads((struct engines_host){.cpus = 2, .devices = 1}, false, "no CPU is free");
    expect_threads((struct engines_host){.cpus = 5, .devices = 3}, true, "a CPU is free");
    expect_threads((struct engines_host){.cpus = 5, .devices = 4}, false, "no CPU is free");
    expect_threads((struct engines_host){.cpus = 1, .engine_cpus = 1, .devices = 1}, true,
                   "1 in HARP_CPUS");
}

static void ranks_of_a_host_share_its_cpus(void)
{
    CHECK(cores_of_rank(&(struct cores){.cpus = 64, .ranks = 8}) == 8, "shared");
    CHECK(cores_of_rank(&(struct cores){.cpus = 8, .ranks = 8, .bound = true}) == 8, "bound");
    CHECK(cores_of_rank(&(struct cores){.cpus = 2, .ranks = 8}) == 1, "one at least");
}

int main(int count, char **arguments)
{
    struct cores here;
    cores_find(&here);
    if (count > 1) { /* what this process has, for the test that starts it */
        printf("%u %u %d %u\n", here.cpus, here.ranks, here.bound, cores_of_rank(&here));
        (void)arguments;
        return 0;
    }
    CHECK(here.cpus >= 1 && here.ranks >= 1, "this host has a CPU");
    the_speed_decides_where_cpus_are_free();
    there_are_no_more_engines_than_cpus_for_them();
    there_are_no_more_engines_than_queues();
    one_thread_that_drives_them_all_gets_one();
    an_engine_has_a_thread_where_a_cpu_is_free_for_it();
    ranks_of_a_host_share_its_cpus();
    return 0;
}
