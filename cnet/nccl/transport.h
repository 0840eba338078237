/* A comm's connection, HARP's or kernel TCP's, for order.c, transfer.c and connect.c: the
 * n-th message of one end goes into the n-th buffer that the other posts, each way. Calls and
 * completions are engine.h's; a comm has one of `connection` and `tcp`, or none any more. */
#ifndef HARP_NCCL_TRANSPORT_H
#define HARP_NCCL_TRANSPORT_H

#include "plugin.h"
#include "tcp/tcp.h"

static inline bool transport_send(struct comm *comm, const void *data, uint32_t size,
                                  uint64_t context)
{
    return comm->tcp ? tcp_send(comm->tcp, data, size, context)
                     : harp_send(comm->connection, data, size, context);
}

static inline bool transport_receive(struct comm *comm, void *data, uint32_t capacity, bool watched,
                                     uint64_t context)
{
    return comm->tcp ? tcp_receive(comm->tcp, data, capacity, watched, context)
           : watched ? harp_receive(comm->connection, data, capacity, context)
                     : harp_receive_unread(comm->connection, data, capacity, context);
}

static inline size_t transport_poll(struct comm *comm, struct harp_completion *completions,
                                    size_t room)
{
    return comm->tcp ? tcp_poll(comm->tcp, completions, room)
                     : harp_poll(comm->connection, completions, room);
}

/* NCCL's thread moves things on, if that is its task. `news`: it waits for the other end's
 * announcements. */
static inline void transport_drive(struct comm *comm, bool news)
{
    if (comm->tcp)
        tcp_drive(comm->tcp, news);
    else if (plugin.drives && comm_lives(comm))
        harp_engine_drive(comm->engine);
}

/* End it and let go of all memory; `text` says why, if it was cut off. */
static inline void transport_close(struct comm *comm, const char *text)
{
    if (comm->tcp)
        tcp_close(comm->tcp, text);
    else if (comm_lives(comm) && text)
        harp_connection_abort(comm->connection, text);
    else if (comm_lives(comm))
        harp_connection_close(comm->connection);
    comm->connection = NULL;
    comm->tcp = NULL;
}

static inline void transport_why(const struct comm *comm, char *why)
{
    if (comm->tcp)
        tcp_why(comm->tcp, why);
    else
        harp_connection_why(comm->connection, why);
}

static inline struct harp_address transport_peer(const struct comm *comm)
{
    struct harp_connection_info info;
    if (comm->tcp)
        return *tcp_peer(comm->tcp);
    harp_connection_info(comm->connection, &info);
    return info.peer;
}

#endif
