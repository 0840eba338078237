/* Both ends of a comm in one thread: which send goes into which buffer when the sending end is
 * ahead of the receiving one.
 */
#define _GNU_SOURCE
#include "nccl/abi.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "check.h"

enum { LARGE = 3000000, SMALL = 64, AHEAD = 7, PATIENCE_S = 20 };

extern const struct nccl_net_v12 ncclNetPlugin_v12;
static const struct nccl_net_v12 *net = &ncclNetPlugin_v12;
static void *context, *sending, *receiving, *out_memory, *in_memory;
static uint8_t *out, *in;
static time_t begun;

#define GOOD(call) CHECK((call) == NCCL_SUCCESS, "%s failed", #call)

static void patience(const char *what)
{
    CHECK(time(NULL) - begun < PATIENCE_S, "%s takes too long", what);
}

static bool done(void *request, int *size)
{
    int is = 0;
    patience("a request");
    GOOD(net->test(request, &is, size));
    return is;
}

static int wait_for(void *request)
{
    int sizes[NCCL_RECEIVES_MAX] = {-1};
    while (!done(request, sizes))
        ;
    return sizes[0];
}

static void *send_now(void *data, size_t size, int tag)
{
    void *request = NULL;
    GOOD(net->isend(sending, data, size, tag, out_memory, NULL, &request));
    return request;
}

static void *receive(void *data, size_t size, int tag)
{
    void *request = NULL;
    GOOD(net->irecv(receiving, 1, &data, &size, &tag, &in_memory, NULL, &request));
    CHECK(request, "irecv gave no request");
    return request;
}

/* A comm of which one message of tag 5 has gone through. */
static void meet(void)
{
    char handle[NCCL_HANDLE_BYTES];
    void *listening, *send = NULL;
    GOOD(net->listen(context, 0, handle, &listening));
    for (sending = receiving = NULL; !sending || !receiving; patience("connecting")) {
        if (!sending)
            GOOD(net->connect(context, 0, handle, &sending, NULL));
        if (!receiving)
            GOOD(net->accept(listening, &receiving, NULL));
    }
    GOOD(net->closeListen(listening));
    GOOD(net->regMr(sending, out, LARGE * AHEAD, NCCL_PTR_HOST, &out_memory));
    GOOD(net->regMr(receiving, in, LARGE * AHEAD, NCCL_PTR_HOST, &in_memory));
    void *first = receive(in, SMALL, 5);
    while (!(send = send_now(out, SMALL, 5)))
        patience("the first send");
    CHECK(wait_for(first) == SMALL && wait_for(send) == SMALL, "the first message");
}

static void part(bool send_end, bool receive_end)
{
    if (send_end) {
        GOOD(net->deregMr(sending, out_memory));
        GOOD(net->closeSend(sending));
    }
    if (receive_end) {
        GOOD(net->deregMr(receiving, in_memory));
        GOOD(net->closeRecv(receiving));
    }
}

/* Tag 5 is sent on and on; then the first buffer to be posted has tag 7. */
static void ahead(void)
{
    void *sends[AHEAD], *seven, *receives[AHEAD], *send = NULL;
    bool came = false;
    meet();
    for (int i = 0; i < AHEAD; i++) {
        size_t size = i < AHEAD - 1 ? SMALL + (size_t)i : LARGE;
        sends[i] = send_now(out + i * SMALL, size, 5);
        CHECK(sends[i], "a send of the run has to wait");
    }
    seven = receive(in, SMALL, 7);
    for (int i = 0; i < AHEAD; i++)
        receives[i] = receive(in + SMALL + i * LARGE, LARGE, 5);
    while (!send) {
        patience("the send of tag 7");
        send = send_now(out + 777, SMALL, 7);
        came = came || done(seven, NULL);
    }
    while (!came)
        came = done(seven, NULL);
    CHECK(memcmp(in, out + 777, SMALL) == 0, "tag 7 got other bytes");
    wait_for(send);
    for (int i = 0; i < AHEAD; i++) {
        int size = wait_for(receives[i]);
        CHECK(size == (i < AHEAD - 1 ? SMALL + i : LARGE), "receive %d has %d bytes", i, size);
        CHECK(memcmp(in + SMALL + i * LARGE, out + i * SMALL, (size_t)size) == 0,
              "receive %d has other bytes", i);
        wait_for(sends[i]);
    }
    part(true, true);
}

/* Small messages are sent, and done, and the sending end closes, before a buffer is posted. */
static void closed_before_received(void)
{
    enum { MESSAGES = 5 };
    enum nccl_result result = NCCL_SUCCESS;
    int is_done = 0;
    meet();
    for (int i = 0; i < MESSAGES; i++)
        wait_for(send_now(out + i * SMALL, SMALL, 5));
    part(true, false);
    struct timespec nap = {.tv_nsec = 20000000};
    nanosleep(&nap, NULL); /* most of the time its end is known by then; right it is either way */
    for (int i = 0; i < MESSAGES; i++) {
        CHECK(wait_for(receive(in + i * SMALL, SMALL, 5)) == SMALL, "message %d is short", i);
        CHECK(memcmp(in + i * SMALL, out + i * SMALL, SMALL) == 0, "message %d is another", i);
    }
    void *data = in, *request = NULL;
    size_t size = SMALL;
    int tag = 5;
    while (result == NCCL_SUCCESS && !is_done) {
        patience("the end");
        if (!request)
            result = net->irecv(receiving, 1, &data, &size, &tag, &in_memory, NULL, &request);
        else
            result = net->test(request, &is_done, NULL);
    }
    CHECK(result == NCCL_REMOTE_ERROR, "a receive after the end gave %d", result);
    part(false, true);
}

/* A message that came before the end and does not fit its buffer is an error, not a hang. */
static void closed_and_too_short(void)
{
    enum nccl_result result = NCCL_SUCCESS;
    int is_done = 0;
    meet();
    wait_for(send_now(out, SMALL, 5));
    part(true, false);
    struct timespec nap = {.tv_nsec = 20000000};
    nanosleep(&nap, NULL);
    void *request = receive(in, SMALL - 1, 5);
    while (result == NCCL_SUCCESS && !is_done) {
        patience("an error");
        result = net->test(request, &is_done, NULL);
    }
    CHECK(result == NCCL_INVALID_USAGE, "too short a receive gave %d", result);
    part(false, true);
}

/* A group takes what was sent as single messages and is all that will come. */
static void closed_before_group(void)
{
    void *data[2] = {in, in + SMALL}, *memories[2], *request = NULL;
    size_t room[2] = {SMALL, SMALL};
    int tags[2] = {5, 5};
    meet();
    memories[0] = memories[1] = in_memory;
    for (int i = 0; i < 2; i++)
        wait_for(send_now(out + i * SMALL, SMALL, 5));
    part(true, false);
    GOOD(net->irecv(receiving, 2, data, room, tags, memories, NULL, &request));
    CHECK(request, "irecv of a group gave no request");
    CHECK(wait_for(request) == SMALL && memcmp(in, out, 2 * SMALL) == 0, "a group is another");
    part(false, true);
}

static void ignore(enum nccl_log_level level, unsigned long parts, const char *file, int line,
                   const char *format, ...)
{
    (void)level, (void)parts, (void)file, (void)line, (void)format;
}

int main(void)
{
    begun = time(NULL);
    out = malloc(LARGE * AHEAD);
    in = malloc(SMALL + LARGE * AHEAD);
    for (size_t i = 0; i < LARGE * AHEAD; i++)
        out[i] = (uint8_t)(i * 2654435761u >> 13);
    GOOD(net->init(&context, 1, NULL, ignore, NULL));
    for (int round = 0; round < 5; round++) {
        ahead();
        closed_before_received();
        closed_and_too_short();
        closed_before_group();
    }
    GOOD(net->finalize(context));
    free(out);
    free(in);
    return 0;
}
