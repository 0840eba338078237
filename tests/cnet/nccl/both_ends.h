/* Both ends of a comm of the NCCL plugin in one thread.
 *
 * begin_both_ends loads the plugin, meet makes a comm and sends one message of tag 5 through it,
 * part closes its ends. Work on one comm ends after PATIENCE_S.
 */
#ifndef HARP_TEST_NCCL_BOTH_ENDS_H
#define HARP_TEST_NCCL_BOTH_ENDS_H

#include "nccl/abi.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "check.h"

enum { LARGE = 3000000, SMALL = 64, AHEAD = 7, PATIENCE_S = 120 };
enum { OUT_BYTES = LARGE * AHEAD, IN_BYTES = SMALL + LARGE * AHEAD };

extern const struct nccl_net_v12 ncclNetPlugin_v12;
static const struct nccl_net_v12 *net = &ncclNetPlugin_v12;
static void *context, *sending, *receiving, *out_memory, *in_memory;
static uint8_t *out, *in;
static time_t begun;

#define GOOD(call) CHECK((call) == NCCL_SUCCESS, "%s failed", #call)

static void expect_soon(const char *what)
{
    CHECK(time(NULL) - begun < PATIENCE_S, "%s takes too long", what);
}

static bool is_done(void *request, int *size)
{
    int is = 0;
    expect_soon("a request");
    GOOD(net->test(request, &is, size));
    return is;
}

static int wait_for(void *request)
{
    int size = -1;
    while (!is_done(request, &size))
        ;
    return size;
}

/* Over TCP nothing but the calls moves a long message, at both ends. */
static void wait_for_both(void *send, void *receive)
{
    for (bool sent = false, came = false; !sent || !came;) {
        sent = sent || is_done(send, NULL);
        came = came || is_done(receive, NULL);
    }
}

static void *send_now(void *data, size_t size, int tag)
{
    void *request = NULL;
    GOOD(net->isend(sending, data, size, tag, out_memory, NULL, &request));
    return request;
}

static void *begin_receive(void *data, size_t size, int tag)
{
    void *request = NULL;
    GOOD(net->irecv(receiving, 1, &data, &size, &tag, &in_memory, NULL, &request));
    CHECK(request, "irecv gave no request");
    return request;
}

/* Make a comm and send one message of tag 5 through it. */
static void connect_ends(void)
{
    char handle[NCCL_HANDLE_BYTES];
    void *listening, *send = NULL;
    begun = time(NULL);
    GOOD(net->listen(context, 0, handle, &listening));
    for (sending = receiving = NULL; !sending || !receiving; expect_soon("connecting")) {
        if (!sending)
            GOOD(net->connect(context, 0, handle, &sending, NULL));
        if (!receiving)
            GOOD(net->accept(listening, &receiving, NULL));
    }
    GOOD(net->closeListen(listening));
    GOOD(net->regMr(sending, out, OUT_BYTES, NCCL_PTR_HOST, &out_memory));
    GOOD(net->regMr(receiving, in, IN_BYTES, NCCL_PTR_HOST, &in_memory));
    void *first = begin_receive(in, SMALL, 5);
    while (!(send = send_now(out, SMALL, 5)))
        expect_soon("the first send");
    CHECK(wait_for(first) == SMALL && wait_for(send) == SMALL, "the first message");
}

static void close_ends(bool send_end, bool receive_end)
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

static void log_nothing(enum nccl_log_level level, unsigned long parts, const char *file, int line,
                        const char *format, ...)
{
    (void)level, (void)parts, (void)file, (void)line, (void)format;
}

static void begin_both_ends(void)
{
    begun = time(NULL);
    out = malloc(OUT_BYTES);
    in = malloc(IN_BYTES);
    for (size_t i = 0; i < OUT_BYTES; i++)
        out[i] = (uint8_t)(i * 2654435761u >> 13);
    memset(in, 0, IN_BYTES);
    GOOD(net->init(&context, 1, NULL, log_nothing, NULL));
}

static void end_both_ends(void)
{
    GOOD(net->finalize(context));
    free(out);
    free(in);
}

#endif
