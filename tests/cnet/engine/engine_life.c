/* Life of an engine: processes that fork, die and stop, and engines with nothing to do.
 *
 *     engine_life fork   a child of a parent with an engine keeps nothing and disturbs nothing
 *     engine_life kill   the other process is killed: an error within the bound, and why
 *     engine_life stop   the other process is stopped: the same
 *     engine_life wrong  a handle whose secret is wrong: no connection, an error within the bound
 *     engine_life idle   prints the CPU time that a second of idleness took, in percent
 *     engine_life held   prints how much of the time the helper was busy while the application was
 *                        stopped in the middle of a turn, in percent
 *
 * The two processes pass the handle through a pipe.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "check.h"
#include "engine/engine.h"

#define SECOND_NS UINT64_C(1000000000)

static char why[HARP_WHY_BYTES];

static uint64_t clock_ns(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (uint64_t)t.tv_sec * SECOND_NS + (uint64_t)t.tv_nsec;
}

static struct harp_engine_config engine_settings(void)
{
    struct harp_engine_config config;
    harp_engine_defaults(&config);
    config.frames = 256;
    config.ports_n = 1;
    config.ports[0].open = harp_port_udp_open;
    config.ports[0].config.locals = 1;
    CHECK(harp_address_parse("127.0.0.1", &config.ports[0].config.local), "address");
    return config;
}

static struct harp_engine *open_engine(void)
{
    struct harp_engine_config config = engine_settings();
    struct harp_engine *engine;
    CHECK(harp_engine_open(&engine, &config, why) == 0, "%s", why);
    return engine;
}

static uint64_t dead_ns = SECOND_NS;

static struct harp_connection_config default_settings(void)
{
    struct harp_connection_config config;
    harp_connection_defaults(&config);
    config.dead_ns = dead_ns;
    return config;
}

/* Wait for a completion of this type, in bounded time. */
static struct harp_completion await_completion(struct harp_connection *connection, uint32_t type)
{
    struct harp_completion done = {0};
    uint64_t begin_ns = clock_ns(CLOCK_MONOTONIC);
    while (!harp_poll(connection, &done, 1) || done.type != type) {
        CHECK(clock_ns(CLOCK_MONOTONIC) - begin_ns < 120 * SECOND_NS, "no completion of type %u",
              type);
        harp_connection_why(connection, why);
        CHECK(done.type != HARP_COMPLETION_CLOSED || type == HARP_COMPLETION_CLOSED,
              "closed early: %s", why);
        sched_yield();
    }
    return done;
}

static struct harp_connection *connect_to(struct harp_engine *engine,
                                          const struct harp_handle *handle)
{
    struct harp_connection_config config = default_settings();
    struct harp_connection *connection;
    CHECK(harp_connect(engine, handle, &config, &connection, why) == 0, "%s", why);
    return connection;
}

static struct harp_connection *accept_from(struct harp_listening *listening)
{
    struct harp_connection *connection;
    while (!(connection = harp_accept(listening)))
        sched_yield();
    await_completion(connection, HARP_COMPLETION_CONNECTED);
    return connection;
}

static void exchange_message(struct harp_connection *from, struct harp_connection *to)
{
    static char out[100000], in[100000];
    for (size_t i = 0; i < sizeof out; i++)
        out[i] = (char)(i * 7 + (i >> 8));
    memset(in, 0, sizeof in);
    CHECK(harp_receive(to, in, sizeof in, 1), "not posted");
    CHECK(harp_send(from, out, sizeof out, 2), "not sent");
    await_completion(to, HARP_COMPLETION_RECEIVED);
    await_completion(from, HARP_COMPLETION_SENT);
    CHECK(memcmp(in, out, sizeof in) == 0, "bytes differ");
}

/* Sockets, and statistics: whose lock says that the engine lives. */
static bool holds_the_parents(void)
{
    DIR *fds = opendir("/proc/self/fd");
    bool any = false;
    for (struct dirent *entry; (entry = readdir(fds));) {
        char path[300], target[300] = "";
        snprintf(path, sizeof path, "/proc/self/fd/%s", entry->d_name);
        if (readlink(path, target, sizeof target - 1) > 0)
            any |= strstr(target, "socket:") || strstr(target, "/dev/shm/");
    }
    closedir(fds);
    return any;
}

static void in_child(struct harp_engine *engine, struct harp_connection *connection)
{
    struct harp_connection_config config = default_settings();
    struct harp_connection *other;
    struct harp_handle handle = {0};
    struct harp_completion done;
    char byte;
    CHECK(!holds_the_parents(), "the child holds the parent's sockets or statistics");
    CHECK(!harp_send(connection, "x", 1, 0), "the child sent");
    CHECK(!harp_receive(connection, &byte, 1, 0), "the child posted");
    CHECK(harp_poll(connection, &done, 1) == 0, "the child polled something");
    CHECK(harp_connect(engine, &handle, &config, &other, why) < 0, "the child connected");
    CHECK(strstr(why, "parent"), "not what is wrong: %s", why);
    harp_connection_close(connection);
    harp_engine_close(engine);
    _exit(0); /* the leak checker cannot stop the parent's threads */
}

static void test_fork(void)
{
    struct harp_engine *engines[2] = {open_engine(), open_engine()};
    struct harp_connection_config config = default_settings();
    struct harp_listening *listening;
    struct harp_handle handle;
    CHECK(harp_listen(engines[1], &config, &listening, &handle, why) == 0, "%s", why);
    struct harp_connection *from = connect_to(engines[0], &handle);
    struct harp_connection *to = accept_from(listening);
    await_completion(from, HARP_COMPLETION_CONNECTED);
    exchange_message(from, to);
    for (int i = 0; i < 4; i++) {
        pid_t child = fork();
        if (child == 0)
            in_child(engines[0], from);
        exchange_message(from, to);
        int status;
        CHECK(waitpid(child, &status, 0) == child && status == 0, "the child: status %d", status);
        exchange_message(to, from);
    }
    harp_connection_close(from);
    await_completion(to, HARP_COMPLETION_CLOSED);
    harp_connection_close(to);
    harp_unlisten(listening);
    harp_engine_close(engines[0]);
    harp_engine_close(engines[1]);
}

/* Listen in a child, hand the handle through a pipe, take one connection, and wait for the end. */
static pid_t listener_process(struct harp_handle *handle)
{
    int pipe_ends[2];
    CHECK(pipe(pipe_ends) == 0, "pipe");
    pid_t child = fork();
    CHECK(child >= 0, "fork");
    if (child == 0) {
        struct harp_engine *engine = open_engine();
        struct harp_connection_config config = default_settings();
        struct harp_listening *listening;
        struct harp_handle own;
        CHECK(harp_listen(engine, &config, &listening, &own, why) == 0, "%s", why);
        CHECK(write(pipe_ends[1], &own, sizeof own) == sizeof own, "pipe");
        accept_from(listening);
        for (;;)
            pause();
    }
    CHECK(read(pipe_ends[0], handle, sizeof *handle) == sizeof *handle, "pipe");
    close(pipe_ends[0]);
    close(pipe_ends[1]);
    return child;
}

static void test_signal(int number)
{
    if (number == SIGKILL)
        dead_ns = 600 * SECOND_NS; /* its silence is not what tells */
    struct harp_handle handle;
    pid_t child = listener_process(&handle);
    struct harp_engine *engine = open_engine();
    struct harp_connection *connection = connect_to(engine, &handle);
    await_completion(connection, HARP_COMPLETION_CONNECTED);
    static char message[1 << 20];
    CHECK(harp_send(connection, message, sizeof message, 0), "not sent"); /* nobody posts for it */
    kill(child, number);
    await_completion(connection, HARP_COMPLETION_CLOSED);
    harp_connection_why(connection, why);
    printf("%s\n", why);
    CHECK(!harp_send(connection, message, 1, 0), "sent after the end");
    harp_connection_close(connection);
    harp_engine_close(engine);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
}

static void test_wrong(void)
{
    struct harp_handle handle;
    pid_t child = listener_process(&handle);
    struct harp_engine *engine = open_engine();
    handle.secret[3] ^= 1;
    struct harp_connection *connection = connect_to(engine, &handle);
    struct harp_completion closed = await_completion(connection, HARP_COMPLETION_CLOSED);
    CHECK(closed.reason == HARP_REASON_NO_ANSWER, "reason %u", closed.reason);
    harp_connection_why(connection, why);
    printf("%s\n", why);
    harp_connection_close(connection);
    harp_engine_close(engine);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
}

static void test_idle(void)
{
    struct harp_engine *engines[2] = {open_engine(), open_engine()};
    struct harp_connection_config config = default_settings();
    struct harp_listening *listening;
    struct harp_handle handle;
    config.dead_ns = 30 * SECOND_NS;
    CHECK(harp_listen(engines[1], &config, &listening, &handle, why) == 0, "%s", why);
    struct harp_connection *from = connect_to(engines[0], &handle);
    struct harp_connection *to = accept_from(listening);
    await_completion(from, HARP_COMPLETION_CONNECTED);
    exchange_message(from, to);
    uint64_t before_ns = clock_ns(CLOCK_PROCESS_CPUTIME_ID);
    nanosleep(&(struct timespec){.tv_sec = 1},
              NULL); /* the idleness itself, not a wait for something */
    uint64_t used_ns = clock_ns(CLOCK_PROCESS_CPUTIME_ID) - before_ns;
    printf("%.2f\n", (double)used_ns * 100 / SECOND_NS);
    exchange_message(to, from);
    harp_connection_close(from);
    harp_connection_close(to);
    harp_unlisten(listening);
    harp_engine_close(engines[0]);
    harp_engine_close(engines[1]);
}

/* The thread that sets it stops for half a second when the engine asks it for the time. */
static _Thread_local bool stops;

static uint64_t clock_that_stops(void *context)
{
    (void)context;
    if (stops) {
        stops = false;
        nanosleep(&(struct timespec){.tv_nsec = (long)SECOND_NS / 2}, NULL);
    }
    return clock_ns(CLOCK_MONOTONIC);
}

/* A scheduler may do that at any time, and more likely if the helper wants the same CPU. */
static void test_held(void)
{
    struct harp_engine_config config = engine_settings();
    struct harp_engine *engine;
    config.progress = HARP_PROGRESS_INLINE;
    config.world.now_ns = clock_that_stops;
    CHECK(harp_engine_open(&engine, &config, why) == 0, "%s", why);
    uint64_t before_ns = clock_ns(CLOCK_PROCESS_CPUTIME_ID);
    /* The helper may be in a turn of its own. */
    for (stops = true; stops;)
        harp_engine_drive(engine);
    uint64_t used_ns = clock_ns(CLOCK_PROCESS_CPUTIME_ID) - before_ns;
    printf("%.2f\n", (double)used_ns * 200 / SECOND_NS);
    harp_engine_close(engine);
}

int main(int count, char **arguments)
{
    CHECK(count == 2, "usage: engine_life fork | kill | stop | wrong | idle | held");
    if (!strcmp(arguments[1], "fork"))
        test_fork();
    else if (!strcmp(arguments[1], "kill"))
        test_signal(SIGKILL);
    else if (!strcmp(arguments[1], "stop"))
        test_signal(SIGSTOP);
    else if (!strcmp(arguments[1], "wrong"))
        test_wrong();
    else if (!strcmp(arguments[1], "held"))
        test_held();
    else
        test_idle();
    return 0;
}
