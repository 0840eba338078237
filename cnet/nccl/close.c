/* Closing of comms, whether or not NCCL asks for it. */
#define _GNU_SOURCE
#include <stdlib.h>

#include "base/clock.h"
#include "plugin.h"

#define PART_NS UINT64_C(1000000000) /* finalize waits so long at most for ends that close */

static void say_what_it_did(const struct comm *comm)
{
    struct harp_connection_info info;
    char peer[64];
    if (!plugin.settings.stats || !comm_lives(comm))
        return;
    harp_connection_info(comm->connection, &info);
    harp_address_format(&info.peer, peer, sizeof peer);
    plugin_info("%s %s on %s: %llu frames sent, %llu of them again, %llu lost, %llu placed, %llu "
                "twice; segment %u, paths %u",
                comm->kind == COMM_SENDING ? "sent to" : "received from", peer, comm->device->name,
                (unsigned long long)info.counters.data_sent,
                (unsigned long long)info.counters.data_again,
                (unsigned long long)info.counters.lost, (unsigned long long)info.counters.placed,
                (unsigned long long)info.counters.duplicates, info.segment, info.paths);
}

/* A receiving end that has got all stays until the sending end has closed: were the last
 * acknowledgement lost, a CLOSE of ours would make that end take its messages for lost, too. */
static bool has_peer_to_await(const struct comm *comm)
{
    return comm->kind == COMM_RECEIVING && comm_lives(comm) && !comm->closed &&
           comm->failed == NCCL_SUCCESS && comm_idle(comm) && !plugin.forked;
}

static enum nccl_result close_comm(struct comm *comm, enum comm_kind kind, const char *call)
{
    if (!comm || comm->kind != kind)
        return plugin_fail(NCCL_INVALID_ARGUMENT, "%s: this is not its comm", call);
    pthread_mutex_lock(&plugin.lock);
    plugin.open -= comm->life == plugin.life;
    say_what_it_did(comm);
    if (has_peer_to_await(comm)) {
        comm->until_ns = harp_clock_ns() + plugin_timeout_ns();
        comm->next = plugin.lingering;
        plugin.lingering = comm;
    } else {
        comm_let_go(comm);
        free(comm);
    }
    close_sweep();
    pthread_mutex_unlock(&plugin.lock);
    return NCCL_SUCCESS;
}

enum nccl_result plugin_close_send(void *sending)
{
    return close_comm(sending, COMM_SENDING, "closeSend");
}

enum nccl_result plugin_close_receive(void *receiving)
{
    return close_comm(receiving, COMM_RECEIVING, "closeRecv");
}

static bool is_parted(struct comm *comm)
{
    struct harp_completion completion;
    while (harp_poll(comm->connection, &completion, 1))
        if (completion.type == HARP_COMPLETION_CLOSED)
            return true;
    return harp_clock_ns() >= comm->until_ns;
}

void close_sweep(void)
{
    if (plugin.forked)
        return;
    struct comm **at = &plugin.lingering;
    while (*at) {
        struct comm *comm = *at;
        if (!is_parted(comm)) {
            at = &comm->next;
            continue;
        }
        *at = comm->next;
        comm_let_go(comm);
        free(comm);
    }
}

void close_give_up(void)
{
    uint64_t until_ns = harp_clock_ns() + PART_NS;
    if (plugin.forked)
        return;
    for (struct comm *at = plugin.lingering; at; at = at->next)
        at->until_ns = at->until_ns < until_ns ? at->until_ns : until_ns;
    while (plugin.lingering) {
        uint64_t now_ns = harp_clock_ns();
        if (now_ns < until_ns)
            harp_connection_wait(plugin.lingering->connection, until_ns - now_ns);
        close_sweep();
    }
}
