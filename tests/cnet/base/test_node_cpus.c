/* CPUs of a NUMA node, in folders as sysfs has them, and where an engine's thread runs. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/node_cpus.h"
#include "check.h"
#include "engine/engine_state.h"

static char folder[] = "/tmp/harp-nodes-XXXXXX";

static void write_file(const char *name, const char *text)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *to = fopen(path, "w");
    CHECK(to && fputs(text, to) >= 0 && fclose(to) == 0, "cannot write %s", path);
}

static void make_node(const char *name, const char *cpus)
{
    char path[256], file[64];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    CHECK(mkdir(path, 0755) == 0, "cannot make %s", path);
    snprintf(file, sizeof file, "%s/cpulist", name);
    write_file(file, cpus);
}

static void remove_folder(void)
{
    char command[128];
    snprintf(command, sizeof command, "rm -r %s", folder);
    CHECK(system(command) == 0, "cannot remove %s", folder);
}

static void test_lists(void)
{
    cpu_set_t cpus;
    CHECK(harp_cpus_parse("0-3,8,10-11\n", &cpus) && CPU_COUNT(&cpus) == 7, "ranges");
    CHECK(CPU_ISSET(8, &cpus) && CPU_ISSET(11, &cpus) && !CPU_ISSET(9, &cpus), "members");
    const char *const wrong[] = {"", "\n", "x", "3-1", "0,x", "99999999", "0-99999999"};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        CHECK(!harp_cpus_parse(wrong[i], &cpus), "\"%s\" is a list", wrong[i]);
}

static void test_nodes(void)
{
    cpu_set_t allowed, cpus;
    char list[16];
    int first = 0;
    CHECK(sched_getaffinity(0, sizeof allowed, &allowed) == 0, "affinity");
    while (!CPU_ISSET((size_t)first, &allowed))
        first++;
    snprintf(list, sizeof list, "%d", first);
    make_node("node0", list);
    make_node("node1", "1020-1023"); /* this process may use none of them */
    make_node("node2", "\n");        /* memory alone */
    write_file("online", "0-2\n");
    CHECK(harp_node_cpus(folder, 0, &cpus), "node 0");
    CHECK(CPU_COUNT(&cpus) == 1 && CPU_ISSET((size_t)first, &cpus), "its CPU");
    for (int node = 1; node < 4; node++)
        CHECK(!harp_node_cpus(folder, node, &cpus), "node %d", node);
    CHECK(!harp_node_cpus(folder, -1, &cpus), "no node");
    CHECK(harp_nodes_are_several(folder), "three nodes");
    write_file("online", "0\n");
    CHECK(!harp_nodes_are_several(folder), "one node");
}

static void open_on(int node, cpu_set_t *runs_on)
{
    struct harp_engine_config config;
    struct harp_engine *engine;
    char why[HARP_WHY_BYTES];
    harp_engine_defaults(&config);
    config.node = node;
    config.frames = 64;
    config.ports_n = 1;
    config.ports[0].open = harp_port_mem_open;
    config.ports[0].config.locals = 1;
    CHECK(harp_engine_open(&engine, &config, why) == 0, "%s", why);
    CHECK(pthread_getaffinity_np(engine->drive.thread, sizeof *runs_on, runs_on) == 0, "affinity");
    harp_engine_close(engine);
}

/* A thread that is bound to one CPU opens engines, as NCCL's are to those of a GPU's node. */
static void *open_from_bound_thread(void *unused)
{
    cpu_set_t bound, wanted, seen;
    int last = CPU_SETSIZE - 1;
    CHECK(harp_node_cpus(HARP_NODES_FOLDER, 0, &wanted), "this host has no node 0");
    while (!CPU_ISSET((size_t)last, &wanted))
        last--;
    CPU_ZERO(&bound);
    CPU_SET((size_t)last, &bound);
    CHECK(pthread_setaffinity_np(pthread_self(), sizeof bound, &bound) == 0, "bind");
    open_on(0, &seen);
    CHECK(CPU_EQUAL(&seen, &wanted), "the thread has %d CPUs", CPU_COUNT(&seen));
    open_on(HARP_ARENA_LOCAL, &seen);
    CHECK(CPU_EQUAL(&seen, &bound), "without a node it has %d", CPU_COUNT(&seen));
    return unused;
}

int main(void)
{
    pthread_t thread;
    CHECK(mkdtemp(folder), "no folder");
    test_lists();
    test_nodes();
    remove_folder();
    CHECK(pthread_create(&thread, NULL, open_from_bound_thread, NULL) == 0, "no thread");
    CHECK(pthread_join(thread, NULL) == 0, "no end");
    return 0;
}
