/* Single calls of the NCCL plugin: what is refused, what is always written, what the profiler
 * hears, and what becomes of an attempt to connect that nobody asks for any more.
 */
#define _GNU_SOURCE
#include "engine/engine_state.h"
#include "nccl/plugin.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "check.h"

enum { BYTES = 4096, PATIENCE_S = 120, ATTEMPTS = 4096, MORE = 50 };

extern const struct nccl_net_v12 ncclNetPlugin_v12;
extern const struct nccl_net_v6 ncclNetPlugin_v6;
static const struct nccl_net_v12 *net = &ncclNetPlugin_v12;
static void *context, *sending, *receiving, *out_memory, *in_memory;
static uint8_t out[BYTES], in[BYTES];
static char said[1024]; /* last warning */
static int warnings;

#define GOOD(call) CHECK((call) == NCCL_SUCCESS, "%s failed: %s", #call, said)

/* The call gives this result, and one line that has these words. */
#define REFUSED(call, result, words)                                                               \
    do {                                                                                           \
        warnings = 0;                                                                              \
        enum nccl_result got = (call);                                                             \
        CHECK(got == (result), "%s gave %d", #call, got);                                          \
        CHECK(warnings == 1 && strstr(said, words), "%s said \"%s\"", #call, said);                \
    } while (0)
#define WRONG(call, words) REFUSED(call, NCCL_INVALID_ARGUMENT, words)

static void log_line(enum nccl_log_level level, unsigned long parts, const char *file, int line,
                     const char *format, ...)
{
    va_list arguments;
    (void)parts, (void)file, (void)line;
    if (level != NCCL_LOG_WARN)
        return;
    va_start(arguments, format);
    vsnprintf(said, sizeof said, format, arguments);
    va_end(arguments);
    CHECK(strncmp(said, "NET/HARP : ", 11) == 0 && !strchr(said, '\n'), "a line is \"%s\"", said);
    warnings++;
}

static double now_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* ---- The profiler ---- */

static struct {
    void *parent;
    int64_t plugin;
    uint64_t bytes;
    int begun, ended;
} heard;
static int parents[2], event;

static enum nccl_result note_profile(void **handle, int type, void *parent, int64_t plugin,
                                     void *data)
{
    if (type == NCCL_PROFILER_START) {
        memcpy(&heard.bytes, data, sizeof heard.bytes);
        heard.parent = parent;
        heard.plugin = plugin;
        heard.begun++;
        *handle = &event;
    } else {
        CHECK(type == NCCL_PROFILER_STOP && *handle == &event, "an event of type %d", type);
        heard.ended++;
    }
    return NCCL_SUCCESS;
}

/* ---- A comm ---- */

static void connect_ends(void)
{
    char handle[NCCL_HANDLE_BYTES];
    void *listening;
    double until_s = now_s() + PATIENCE_S;
    GOOD(net->listen(context, 0, handle, &listening));
    for (sending = receiving = NULL; !sending || !receiving;) {
        CHECK(now_s() < until_s, "connecting takes too long");
        if (!sending)
            GOOD(net->connect(context, 0, handle, &sending, NULL));
        if (!receiving)
            GOOD(net->accept(listening, &receiving, NULL));
    }
    GOOD(net->closeListen(listening));
    GOOD(net->regMr(sending, out, BYTES, NCCL_PTR_HOST, &out_memory));
    GOOD(net->regMr(receiving, in, BYTES, NCCL_PTR_HOST, &in_memory));
}

static void close_ends(void)
{
    GOOD(net->deregMr(sending, out_memory));
    GOOD(net->deregMr(receiving, in_memory));
    GOOD(net->closeSend(sending));
    GOOD(net->closeRecv(receiving));
}

static void *begin_receive(size_t size, void *parent)
{
    void *data = in, *request = NCCL_OPTIONAL_COMPLETION;
    int tag = 5;
    GOOD(net->irecv(receiving, 1, &data, &size, &tag, &in_memory, parent ? &parent : NULL,
                    &request));
    return request;
}

static void *send_now(size_t size, void *parent)
{
    void *request = NULL;
    double until_s = now_s() + PATIENCE_S;
    while (!request) {
        request = &event; /* no request of the plugin's */
        GOOD(net->isend(sending, out, size, 5, out_memory, parent, &request));
        CHECK(now_s() < until_s, "isend takes too long");
    }
    return request;
}

static void wait_for(void *request)
{
    double until_s = now_s() + PATIENCE_S;
    for (int done = 0; !done;) {
        GOOD(net->test(request, &done, NULL));
        CHECK(now_s() < until_s, "a request takes too long");
    }
}

/* ---- What is tried ---- */

static void test_wrong_arguments(void)
{
    void *data[2] = {in}, *memories[2] = {in_memory}, *request = &event, *memory = &event;
    size_t sizes[2] = {8}, large = ((size_t)1 << 30) + 1;
    char handle[NCCL_HANDLE_BYTES] = "of another plugin";
    int tags[2] = {5}, done;
    void *comm = &event;
    WRONG(net->listen(context, 0, NULL, &comm), "handle or comm is NULL");
    WRONG(net->listen(context, 7, handle, &comm), "there are devices 0 to 0, not 7");
    WRONG(net->connect(context, 0, handle, &comm, NULL), "is not one of this HARP");
    CHECK(comm == NULL, "connect left its comm as it was");
    WRONG(net->accept(sending, &comm, NULL), "no listening comm");
    WRONG(net->getProperties(0, NULL), "the struct is NULL");
    WRONG(net->devices(NULL), "the count is NULL");
    WRONG(net->regMr(sending, out, BYTES, NCCL_PTR_CUDA, &memory), "memory of type 2");
    CHECK(memory == NULL, "regMr left its handle as it was");
    WRONG(net->regMr(sending, NULL, BYTES, NCCL_PTR_HOST, &memory), "data or handle is NULL");
    WRONG(net->deregMr(sending, NULL), "comm or handle is NULL");
    WRONG(net->isend(receiving, out, 8, 5, out_memory, NULL, &request), "no sending comm");
    WRONG(net->isend(sending, out, 8, 5, NULL, NULL, &request), "no registered memory");
    WRONG(net->isend(sending, out, large, 5, out_memory, NULL, &request), "the most is 1073741824");
    WRONG(net->irecv(sending, 1, data, sizes, tags, memories, NULL, &request), "no receiving comm");
    WRONG(net->irecv(receiving, 2, data, sizes, tags, memories, NULL, &request), "maxRecvs is 1");
    CHECK(request == NULL, "irecv left *request as it was");
    WRONG(net->irecv(receiving, 0, data, sizes, tags, memories, NULL, &request), "maxRecvs is 1");
    memories[0] = NULL;
    WRONG(net->irecv(receiving, 1, data, sizes, tags, memories, NULL, &request), "not registered");
    sizes[0] = large, memories[0] = in_memory;
    WRONG(net->irecv(receiving, 1, data, sizes, tags, memories, NULL, &request), "the most is");
    WRONG(net->test(NULL, &done, NULL), "no request");
    WRONG(net->closeSend(receiving), "not its comm");
    WRONG(net->closeRecv(sending), "not its comm");
    WRONG(net->closeListen(sending), "no listening comm");
    WRONG(ncclNetPlugin_v6.isend(sending, out, -1, 5, out_memory, &request), "-1 bytes");
    WRONG(ncclNetPlugin_v6.regMr(sending, out, -1, NCCL_PTR_HOST, &memory), "-1 bytes");
    void *request_done = begin_receive(8, NULL);
    wait_for(send_now(8, NULL));
    wait_for(request_done);
    WRONG(net->test(request_done, &done, NULL), "one that was done before");
}

/* 32 receives may be under way; then *request says so, whatever it was. */
static void test_most_receives_outstanding(void)
{
    void *requests[NCCL_REQUESTS];
    for (int i = 0; i < NCCL_REQUESTS; i++) {
        requests[i] = begin_receive(8, NULL);
        CHECK(requests[i] && requests[i] != NCCL_OPTIONAL_COMPLETION, "receive %d", i);
    }
    CHECK(begin_receive(8, NULL) == NULL, "a 33rd receive got a request");
    for (int i = 0; i < NCCL_REQUESTS; i++) {
        wait_for(send_now(8, NULL));
        wait_for(requests[i]);
    }
}

static void test_profiler_hears_events(void)
{
    void *send, *request = begin_receive(64, &parents[0]);
    CHECK(heard.begun == 1 && heard.parent == &parents[0] && heard.bytes == 64, "a receive");
    CHECK(heard.plugin == 0x48520001, "the plugin's id is %lld", (long long)heard.plugin);
    send = send_now(48, &parents[1]);
    CHECK(heard.begun == 2 && heard.parent == &parents[1] && heard.bytes == 48, "a send");
    wait_for(request);
    wait_for(send);
    CHECK(heard.ended == 2, "%d of 2 events ended", heard.ended);
    request = begin_receive(64, NULL);
    wait_for(send_now(64, NULL));
    wait_for(request);
    CHECK(heard.begun == 2 && heard.ended == 2, "events without a parent");
}

/* NCCL has its memory back before the other end asks for any of them, and may close at once. */
static void test_short_sends_are_done_when_they_are_copied(void)
{
    enum { SHORT = 200, SENDS = HARP_SHORTS / 2 };
    connect_ends();
    void *first = begin_receive(SHORT, NULL);
    wait_for(send_now(SHORT, NULL));
    wait_for(first);
    for (int i = 0; i < SENDS; i++) {
        int done = 0, size = 0;
        memset(out, i, SHORT);
        GOOD(net->test(send_now(SHORT, NULL), &done, &size));
        CHECK(done && size == SHORT, "send %d of %d bytes: done %d", i, size, done);
    }
    memset(out, 0xee, SHORT);
    GOOD(net->deregMr(sending, out_memory));
    GOOD(net->closeSend(sending));
    for (int i = 0; i < SENDS; i++) {
        wait_for(begin_receive(SHORT, NULL));
        CHECK(in[0] == i && in[SHORT - 1] == i, "message %d is %d to %d", i, in[0], in[SHORT - 1]);
    }
    GOOD(net->deregMr(receiving, in_memory));
    GOOD(net->closeRecv(receiving));
}

/* The number of copies is limited: further sends are done when the other end has them. */
static void test_more_short_sends_than_copies(void)
{
    enum { SHORT = 8, MOST = 2 * HARP_SHORTS };
    void *waiting[NCCL_REQUESTS];
    int sent = 0, waits = 0;
    connect_ends();
    void *first = begin_receive(SHORT, NULL);
    wait_for(send_now(SHORT, NULL));
    wait_for(first);
    for (; sent < MOST && waits < NCCL_REQUESTS; sent++) {
        int done = 0;
        void *data = out + (size_t)sent * SHORT, *request;
        out[sent * SHORT] = (uint8_t)sent;
        GOOD(net->isend(sending, data, SHORT, 5, out_memory, NULL, &request));
        CHECK(request, "send %d was not taken", sent);
        GOOD(net->test(request, &done, NULL));
        if (!done)
            waiting[waits++] = request;
    }
    CHECK(waits == NCCL_REQUESTS, "%d of %d sends wait", waits, sent);
    for (int i = 0; i < sent; i++) {
        wait_for(begin_receive(SHORT, NULL));
        CHECK(in[0] == (uint8_t)i, "message %d is %d", i, in[0]);
    }
    for (int i = 0; i < waits; i++)
        wait_for(waiting[i]);
    close_ends();
}

/* A child of fork can do nothing but close, and ends as any process does; the parent goes on. */
static void test_fork_can_only_close(void)
{
    char handle[NCCL_HANDLE_BYTES];
    void *comm, *request, *data = in, *waiting = begin_receive(8, NULL);
    size_t size = 8;
    int tag = 5, done, status;
    pid_t child = fork();
    CHECK(child >= 0, "there is no child");
    if (child == 0) {
        REFUSED(net->init(&context, 2, NULL, log_line, NULL), NCCL_INVALID_USAGE, "child of fork");
        REFUSED(net->listen(context, 0, handle, &comm), NCCL_INVALID_USAGE, "child of fork");
        REFUSED(net->isend(sending, out, 8, 5, out_memory, NULL, &request), NCCL_INVALID_USAGE,
                "child of fork");
        REFUSED(net->irecv(receiving, 1, &data, &size, &tag, &in_memory, NULL, &request),
                NCCL_INVALID_USAGE, "child of fork");
        CHECK(net->test(waiting, &done, NULL) == NCCL_INVALID_USAGE, "test in a child");
        close_ends();
        exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0, "the child ended with %d", status);
    wait_for(send_now(8, NULL));
    wait_for(waiting);
}

/* HARP_TIMEOUT is 1: what NCCL does not ask for within it is given up, by whatever it calls next.
 */
static void forgotten_attempt(void)
{
    char handle[NCCL_HANDLE_BYTES], before[NCCL_HANDLE_BYTES];
    void *listening, *other, *comm = NULL;
    GOOD(net->listen(context, 0, handle, &listening));
    GOOD(net->closeListen(listening)); /* so that no answer comes */
    memcpy(before, handle, sizeof handle);
    GOOD(net->connect(context, 0, handle, &comm, NULL));
    CHECK(!comm && memcmp(handle, before, sizeof handle), "connect began nothing");
    for (double until_s = now_s() + 1.2; now_s() < until_s;)
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    GOOD(net->listen(context, 0, before, &other));
    GOOD(net->closeListen(other));
    REFUSED(net->connect(context, 0, handle, &comm, NULL), NCCL_REMOTE_ERROR,
            "has not asked for this attempt for 1 s");
}

/* Beyond a number of attempts under way, connect says "later" and begins none. */
static void many_attempts(void)
{
    char handle[NCCL_HANDLE_BYTES], copy[NCCL_HANDLE_BYTES];
    void *listening, *comm;
    int begun = 0;
    GOOD(net->listen(context, 0, handle, &listening));
    GOOD(net->closeListen(listening));
    for (int i = 0; i < ATTEMPTS + MORE; i++) {
        memcpy(copy, handle, sizeof copy);
        GOOD(net->connect(context, 0, copy, &comm, NULL));
        begun += memcmp(copy, handle, sizeof copy) != 0;
    }
    CHECK(begun == ATTEMPTS, "%d attempts are under way", begun);
}

/* While the engine takes one attempt the next begins. */
static void attempts_at_once(void)
{
    enum { COMMS = 16 };
    char handle[NCCL_HANDLE_BYTES], copies[COMMS][NCCL_HANDLE_BYTES];
    void *listening, *sends[COMMS] = {NULL}, *receives[COMMS] = {NULL};
    int sent = 0, accepted = 0;
    GOOD(net->listen(context, 0, handle, &listening));
    for (int i = 0; i < COMMS; i++)
        memcpy(copies[i], handle, sizeof handle);
    for (double until_s = now_s() + PATIENCE_S; sent < COMMS || accepted < COMMS;) {
        CHECK(now_s() < until_s, "%d of %d are connected, %d accepted", sent, COMMS, accepted);
        for (int i = 0; i < COMMS; i++) {
            if (sends[i])
                continue;
            GOOD(net->connect(context, 0, copies[i], &sends[i], NULL));
            sent += sends[i] != NULL;
        }
        if (accepted < COMMS)
            GOOD(net->accept(listening, &receives[accepted], NULL));
        accepted += accepted < COMMS && receives[accepted];
    }
    GOOD(net->closeListen(listening));
    for (int i = 0; i < COMMS; i++) {
        GOOD(net->closeSend(sends[i]));
        GOOD(net->closeRecv(receives[i]));
    }
}

/* A message into the receiving end's memory; whether the engine takes it that nobody reads it
 * before all of it is there. */
static bool comes_unread(void)
{
    const struct comm *comm = receiving;
    void *receive = begin_receive(8, NULL), *send = send_now(8, NULL);
    wait_for(receive);
    wait_for(send);
    return harp_bit_ring_has(&comm->connection->received.unread,
                             comm->connection->received.posted - 1);
}

static void test_the_engine_hears_what_is_watched(void)
{
    static uint8_t simple[4194304];
    void *other = in_memory;
    CHECK(!comes_unread(), "memory of another size is watched");
    GOOD(net->regMr(receiving, simple, sizeof simple, NCCL_PTR_HOST, &in_memory));
    CHECK(comes_unread(), "Simple's buffer is not");
    GOOD(net->deregMr(receiving, in_memory));
    in_memory = other;
    CHECK(!comes_unread(), "memory of another size is watched again");
}

int main(int count, char **words)
{
    GOOD(net->init(&context, 1, NULL, log_line, note_profile));
    if (count > 1) {
        void (*run)(void) = strcmp(words[1], "many") ? attempts_at_once : many_attempts;
        run();
        GOOD(net->finalize(context));
        return 0;
    }
    test_short_sends_are_done_when_they_are_copied();
    test_more_short_sends_than_copies();
    connect_ends();
    test_wrong_arguments();
    test_most_receives_outstanding();
    test_profiler_hears_events();
    test_the_engine_hears_what_is_watched();
    test_fork_can_only_close();
    close_ends();
    attempts_at_once();
    forgotten_attempt();
    GOOD(net->finalize(context));
    REFUSED(net->listen(context, 0, (char[NCCL_HANDLE_BYTES]){0}, &(void *){NULL}),
            NCCL_INVALID_USAGE, "no init");
    return 0;
}
