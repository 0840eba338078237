#define _GNU_SOURCE
#include "client.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

struct shared *shared;
static const struct options *options;

uint64_t now_ns(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

void fail(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    if (shared)
        vsnprintf(shared->verdict, sizeof(shared->verdict), format, arguments);
    else
        vfprintf(stderr, format, arguments);
    if (!shared)
        fputs("\n", stderr);
    va_end(arguments);
    _exit(1);
}

void step(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(shared->step, sizeof(shared->step), format, arguments);
    va_end(arguments);
}

const char *result_name(enum nccl_result result)
{
    static const char *const names[] = {
        "ncclSuccess",         "ncclUnhandledCudaError", "ncclSystemError", "ncclInternalError",
        "ncclInvalidArgument", "ncclInvalidUsage",       "ncclRemoteError", "ncclInProgress"};
    return result < sizeof(names) / sizeof(*names) ? names[result] : "a result that NCCL lacks";
}

void expect(const struct world *world, enum nccl_result result, const char *call)
{
    (void)world;
    if (result != NCCL_SUCCESS)
        fail("%s gave %s%s%s", call, result_name(result), shared->said[0] ? "; it said: " : "",
             shared->said);
}

/* ---- What NCCL hands to init ---- */

static void log_line(enum nccl_log_level level, unsigned long parts, const char *file, int line,
                     const char *format, ...)
{
    (void)parts;
    char text[sizeof(shared->said)];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    if (level == NCCL_LOG_WARN)
        memcpy(shared->said, text, sizeof(text));
    if (level <= NCCL_LOG_WARN || options->verbose)
        fprintf(stderr, "rank %d: %s %s:%d %s\n", options->rank,
                level <= NCCL_LOG_WARN ? "WARN" : "INFO", file ? file : "?", line, text);
}

static int parent_event;
static atomic_long begun, ended;

void *profiler_parent(void)
{
    return &parent_event;
}

enum nccl_result profiler_call(void **event, int type, void *parent, int64_t plugin, void *data)
{
    (void)plugin, (void)data;
    if (!event || (type == NCCL_PROFILER_START && parent != &parent_event))
        fail("the profiler is called with a parent that came with no isend or irecv");
    if (type == NCCL_PROFILER_START) {
        *event = &parent_event;
        atomic_fetch_add(&begun, 1);
    } else if (*event != &parent_event) {
        fail("the profiler is called with an event that it did not give");
    }
    if (type == NCCL_PROFILER_STOP || type == NCCL_PROFILER_UPDATE_AND_STOP)
        atomic_fetch_add(&ended, 1);
    return NCCL_SUCCESS;
}

/* A call that began has ended, unless it was given up. */
static void profiler_check(const struct world *world)
{
    if (begun != ended && !world->unfinished)
        fail("the profiler heard of %ld events that began and %ld that ended", begun, ended);
}

/* ---- Threads and descriptors of this process ---- */

static int count_threads(void)
{
    int count = 0;
    DIR *folder = opendir("/proc/self/task");
    while (folder && readdir(folder))
        count++;
    if (folder)
        closedir(folder);
    return count - 2;
}

static void list_files(uint64_t *bits, size_t words)
{
    memset(bits, 0, words * sizeof(*bits));
    for (int fd = 0; fd < (int)words * 64; fd++)
        if (fcntl(fd, F_GETFD) >= 0)
            bits[fd / 64] |= (uint64_t)1 << fd % 64;
}

static void check_leftovers(const struct world *world)
{
    uint64_t now[16], until = now_ns() + 2000000000u;
    char link[64], target[256];
    step("wait for the plugin's threads to be gone");
    /* A thread that was joined is in /proc a moment longer. */
    while (count_threads() != world->threads_before)
        if (now_ns() > until)
            fail("%d threads of the plugin are left after dlclose",
                 count_threads() - world->threads_before);
    list_files(now, 16);
    for (int fd = 0; fd < 16 * 64; fd++) {
        if (!(now[fd / 64] & ~world->files_before[fd / 64] & (uint64_t)1 << fd % 64))
            continue;
        snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
        ssize_t length = readlink(link, target, sizeof(target) - 1);
        target[length > 0 ? length : 0] = 0;
        fail("descriptor %d (%s) is left open after dlclose", fd, target);
    }
}

/* ---- Open and close ---- */

static void check_name(const struct world *world)
{
    const char *name = plugin_name(&world->plugin);
    if (!name || !name[0])
        fail("the table has no name");
}

void world_open(struct world *world, int communicators)
{
    char why[400];
    int devices = 0;
    options = world->options;
    step("load and init");
    world->threads_before = count_threads();
    list_files(world->files_before, 16);
    if (!plugin_load(&world->plugin, options->path, options->version, why, sizeof(why)))
        fail("%s", why);
    world->plugin.traffic_class = options->traffic_class;
    check_name(world);
    bool contexts = world->plugin.version >= PLUGIN_CONTEXTS;
    for (int i = 0; i < communicators; i++)
        if (i == 0 || contexts)
            expect(world,
                   plugin_init(&world->plugin, &world->contexts[i], mix(options->seed + i),
                               log_line, profiler_call),
                   "init");
    world->communicators = communicators;
    expect(world, plugin_devices(&world->plugin, &devices), "devices");
    if (devices < 1)
        fail("the plugin found no device");
    for (int i = 0; i < devices; i++)
        expect(world, plugin_properties(&world->plugin, i, &world->properties), "getProperties");
    if (options->device >= devices)
        fail("device %d was asked for, the plugin has %d", options->device, devices);
    expect(world, plugin_properties(&world->plugin, options->device, &world->properties),
           "getProperties");
    if (world->one_thread)
        return;
    worker_begin(&world->service);
    for (int i = 0; i < communicators; i++)
        worker_begin(&world->progress[i]);
}

void world_finalize(struct world *world, int communicator)
{
    worker_end(&world->progress[communicator]);
    step("finalize");
    expect(world, plugin_finalize(&world->plugin, world->contexts[communicator]), "finalize");
    world->contexts[communicator] = NULL;
}

void world_close(struct world *world)
{
    bool contexts = world->plugin.version >= PLUGIN_CONTEXTS;
    worker_end(&world->service);
    for (int i = 0; i < world->communicators; i++)
        if (!contexts)
            worker_end(&world->progress[i]);
        else if (world->contexts[i] || world->progress[i].running)
            world_finalize(world, i);
    step("dlclose");
    profiler_check(world);
    plugin_unload(&world->plugin);
    check_leftovers(world);
    regions_forget();
}

void on_service(struct world *world, void (*job)(void *), void *of)
{
    if (world->one_thread) {
        job(of);
        return;
    }
    worker_start(&world->service, job, of);
    worker_wait(&world->service, 1e6);
}
