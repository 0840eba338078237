/* Many hosts that connect to one rank at once, with ports that are to be tried.
 *
 * Each host is a process with an interface of its own, p0 and on; the rank has interface "rank".
 * The hosts wait for the rank's handles, connect all at once, send a message each and close.
 * Argument: how many hosts. Prints how long it took until all were connected, how much memory and
 * how many descriptors the rank took meanwhile, and how many trials had a result.
 */
#define _GNU_SOURCE
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "check.h"
#include "descriptors.h"
#include "memory_use.h"
#include "nccl/abi.h"

#define GOOD(call) CHECK((call) == NCCL_SUCCESS, "%s failed", #call)

enum { HOSTS = 256, PATIENCE_S = 240, BYTES = 100000, UNTRIED = 3 };

extern const struct nccl_net_v12 ncclNetPlugin_v12;
static const struct nccl_net_v12 *net = &ncclNetPlugin_v12;
static void *context;
static time_t begun;
static bool tried; /* this host's trial had a result */

static struct host {
    pid_t process;
    int handles[2]; /* a pipe: the rank writes, the host reads */
    char handle[NCCL_HANDLE_BYTES];
    void *listening, *receiving, *memory, *request;
    uint8_t bytes[BYTES];
    bool came;
} hosts[HOSTS];

/* Notice the line that a trial ends with. */
static void note_trial(enum nccl_log_level level, unsigned long parts, const char *file, int line,
                       const char *format, ...)
{
    char said[512];
    va_list arguments;
    (void)level, (void)parts, (void)file, (void)line;
    va_start(arguments, format);
    vsnprintf(said, sizeof said, format, arguments);
    va_end(arguments);
    tried |= strstr(said, "data to 10.7.0.1 over ") != NULL;
}

static void expect_soon(const char *what)
{
    CHECK(time(NULL) - begun < PATIENCE_S, "%s takes too long", what);
}

/* Let the other processes have the core: there are hundreds. */
static void make_way(long ms)
{
    nanosleep(&(struct timespec){.tv_nsec = ms * 1000000}, NULL);
}

static uint8_t value_of(int host, int at)
{
    return (uint8_t)(31 * host + at);
}

static void fill_message(int host, uint8_t *bytes)
{
    for (int i = 0; i < BYTES; i++)
        bytes[i] = value_of(host, i);
}

static void be_host(int number)
{
    static uint8_t bytes[BYTES];
    struct host *host = &hosts[number];
    char name[16];
    void *sending = NULL, *memory, *request = NULL;
    close(host->handles[1]);
    snprintf(name, sizeof name, "=p%d", number);
    setenv("HARP_IFNAME", name, 1);
    GOOD(net->init(&context, 1, NULL, note_trial, NULL));
    CHECK(read(host->handles[0], host->handle, sizeof host->handle) == sizeof host->handle,
          "host %d got no handle", number);
    begun = time(NULL);
    for (; !sending; make_way(10), expect_soon("connect"))
        GOOD(net->connect(context, 0, host->handle, &sending, NULL));
    fill_message(number, bytes);
    GOOD(net->regMr(sending, bytes, BYTES, NCCL_PTR_HOST, &memory));
    for (; !request; expect_soon("isend"))
        GOOD(net->isend(sending, bytes, BYTES, 0, memory, NULL, &request));
    for (int done = 0; !done; make_way(10), expect_soon("a send"))
        GOOD(net->test(request, &done, NULL));
    GOOD(net->deregMr(sending, memory));
    GOOD(net->closeSend(sending));
    GOOD(net->finalize(context));
}

static void start_host(int number)
{
    CHECK(pipe(hosts[number].handles) == 0, "no pipe");
    hosts[number].process = fork();
    CHECK(hosts[number].process >= 0, "no process");
    if (hosts[number].process == 0) {
        be_host(number);
        _exit(tried ? 0 : UNTRIED);
    }
    close(hosts[number].handles[0]);
}

static bool accept_host(struct host *host)
{
    if (!host->receiving)
        GOOD(net->accept(host->listening, &host->receiving, NULL));
    return host->receiving;
}

static bool receive_message(int number)
{
    struct host *host = &hosts[number];
    void *data = host->bytes;
    size_t size = BYTES;
    int tag = 0, got = 0, done = 0;
    if (host->came)
        return true;
    if (!host->memory)
        GOOD(net->regMr(host->receiving, host->bytes, BYTES, NCCL_PTR_HOST, &host->memory));
    if (!host->request)
        GOOD(net->irecv(host->receiving, 1, &data, &size, &tag, &host->memory, NULL,
                        &host->request));
    if (host->request)
        GOOD(net->test(host->request, &done, &got));
    for (int i = 0; done && i < BYTES; i++)
        CHECK(got == BYTES && host->bytes[i] == value_of(number, i), "host %d: wrong bytes",
              number);
    return host->came = done;
}

int main(int argc, char **argv)
{
    int n = argc > 1 ? atoi(argv[1]) : 1, most = 0, trials = 0;
    CHECK(n >= 1 && n <= HOSTS, "%d hosts", n);
    for (int i = 0; i < n; i++)
        start_host(i);
    setenv("HARP_IFNAME", "=rank", 1);
    GOOD(net->init(&context, 1, NULL, note_trial, NULL));
    for (int i = 0; i < n; i++)
        GOOD(net->listen(context, 0, hosts[i].handle, &hosts[i].listening));
    long before_mib = memory_use_kib("VmRSS") >> 10;
    int before = count_descriptors();
    begun = time(NULL);
    for (int i = 0; i < n; i++)
        CHECK(write(hosts[i].handles[1], hosts[i].handle, NCCL_HANDLE_BYTES) == NCCL_HANDLE_BYTES,
              "host %d is gone", i);
    for (int made = 0; made < n; expect_soon("accept")) {
        made = 0;
        for (int i = 0; i < n; i++)
            made += accept_host(&hosts[i]);
        int open = count_descriptors();
        most = open > most ? open : most;
        make_way(1);
    }
    long took_s = time(NULL) - begun, took_mib = (memory_use_kib("VmHWM") >> 10) - before_mib;
    for (int came = 0; came < n; make_way(1), expect_soon("a message")) {
        came = 0;
        for (int i = 0; i < n; i++)
            came += receive_message(i);
    }
    for (int i = 0; i < n; i++) {
        int status;
        CHECK(waitpid(hosts[i].process, &status, 0) > 0 && WIFEXITED(status) &&
                  (WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == UNTRIED),
              "host %d failed", i);
        trials += WEXITSTATUS(status) == 0;
        GOOD(net->closeRecv(hosts[i].receiving));
        GOOD(net->closeListen(hosts[i].listening));
    }
    GOOD(net->finalize(context));
    printf("{\"hosts\": %d, \"s\": %ld, \"mib\": %ld, \"descriptors\": %d, \"trials\": %d}\n", n,
           took_s, took_mib, most - before, trials);
    return 0;
}
