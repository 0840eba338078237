#define _GNU_SOURCE
#include "tcp_ref.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

enum { MARK = 0x7c9f5e21 };

static struct tcp_message *message_at(struct tcp_comm *comm, uint64_t number)
{
    return &comm->messages[number % TCP_REQUESTS];
}

/* A socket's part of a message: `bytes` at `start`. */
static size_t part_of_message(const struct tcp_comm *comm, int socket, size_t size, size_t *start)
{
    size_t share = (size + (size_t)comm->sockets_n - 1) / (size_t)comm->sockets_n;
    share = (share + TCP_PART_ALIGN - 1) / TCP_PART_ALIGN * TCP_PART_ALIGN;
    share = share < TCP_PART_BYTES ? TCP_PART_BYTES : share;
    *start = share * (size_t)socket < size ? share * (size_t)socket : size;
    return size - *start < share ? size - *start : share;
}

static void fail_comm(struct tcp_comm *comm, enum nccl_result result, const char *why)
{
    if (comm->failed)
        return;
    comm->failed = result;
    TCP_WARN("TCP reference: %s; the job must be started again", why);
}

static void lose_connection(struct tcp_comm *comm, int error)
{
    fail_comm(comm, NCCL_REMOTE_ERROR,
              error ? strerror(error) : "the other end closed the connection");
}

static void complete_message(struct tcp_comm *comm, struct tcp_message *message)
{
    struct tcp_request *request = message->request;
    uint8_t swapped[4096];
    if (is_broken(SWAPPED_BLOCKS) && !comm->sending &&
        message->header.size >= 3 * sizeof(swapped)) {
        memcpy(swapped, message->data, sizeof(swapped));
        memcpy(message->data, message->data + sizeof(swapped), sizeof(swapped));
        memcpy(message->data + sizeof(swapped), swapped, sizeof(swapped));
    }
    if (is_broken(OVERRUN) && !comm->sending &&
        message->header.size < request->posted[message->receive])
        message->data[message->header.size] = 0;
    request->left--;
}

/* A socket has moved its part of a message. */
static void finish_part(struct tcp_comm *comm, struct tcp_socket *socket)
{
    struct tcp_message *message = message_at(comm, socket->message);
    socket->message++;
    socket->moved = 0;
    if (--message->left == 0)
        complete_message(comm, message);
}

/* ---- Sending ---- */

static bool send_some(struct tcp_comm *comm, int index)
{
    struct tcp_socket *socket = &comm->sockets[index];
    struct tcp_message *message = message_at(comm, socket->message);
    size_t start, bytes = part_of_message(comm, index, message->header.size, &start);
    size_t head = index == 0 ? sizeof(message->header) : 0;
    struct iovec pieces[2];
    struct msghdr call = {.msg_iov = pieces};
    if (socket->moved < head)
        pieces[call.msg_iovlen++] =
            (struct iovec){(uint8_t *)&message->header + socket->moved, head - socket->moved};
    size_t moved = socket->moved < head ? 0 : socket->moved - head;
    if (bytes > moved)
        pieces[call.msg_iovlen++] = (struct iovec){message->data + start + moved, bytes - moved};
    if (call.msg_iovlen) {
        ssize_t sent = sendmsg(socket->fd, &call, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (sent < 0 && errno != EAGAIN && errno != EINTR)
            lose_connection(comm, errno);
        if (sent <= 0)
            return false;
        socket->moved += (size_t)sent;
    }
    if (socket->moved < head + bytes)
        return false; /* the kernel took what it could */
    finish_part(comm, socket);
    return true;
}

/* ---- Receiving ---- */

/* Read into memory; 0 if there is nothing. */
static size_t take_bytes(struct tcp_comm *comm, int fd, void *data, size_t bytes)
{
    ssize_t got = recv(fd, data, bytes, MSG_DONTWAIT);
    if (got > 0)
        return (size_t)got;
    if (got == 0 && is_broken(SILENT_DEATH))
        return 0;
    if (got == 0)
        lose_connection(comm, 0);
    else if (errno != EAGAIN && errno != EINTR)
        lose_connection(comm, is_broken(SILENT_DEATH) ? 0 : errno);
    return 0;
}

/* Find the buffer of the message whose header has come, in the oldest receive that waits. */
static void match_message(struct tcp_comm *comm)
{
    struct tcp_request *request = comm->order[comm->begun % TCP_REQUESTS];
    int chosen = -1;
    if (comm->incoming.mark != MARK) {
        fail_comm(comm, NCCL_INTERNAL_ERROR, "what came is no header");
        return;
    }
    for (int i = request->n - 1; i >= 0; i--)
        if (!(request->matched & 1 << i) &&
            (is_broken(IGNORED_TAGS) || request->tag[i] == comm->incoming.tag))
            chosen = i;
    if (chosen < 0 || request->posted[chosen] < comm->incoming.size) {
        fail_comm(comm, NCCL_INVALID_USAGE,
                  chosen < 0 ? "a message has a tag that no posted receive has"
                             : "a message is longer than its buffer");
        return;
    }
    request->matched |= 1 << chosen;
    request->size[chosen] = comm->incoming.size;
    if (request->matched == (1 << request->n) - 1)
        comm->begun++;
    *message_at(comm, comm->known++) = (struct tcp_message){.request = request,
                                                            .receive = chosen,
                                                            .left = comm->sockets_n,
                                                            .data = request->data[chosen],
                                                            .header = comm->incoming};
}

static bool receive_header(struct tcp_comm *comm, struct tcp_socket *socket)
{
    if (comm->begun == comm->posted)
        return false;
    socket->moved += take_bytes(comm, socket->fd, (uint8_t *)&comm->incoming + socket->moved,
                                sizeof(comm->incoming) - socket->moved);
    if (socket->moved < sizeof(comm->incoming))
        return false;
    match_message(comm);
    return !comm->failed;
}

static void take_backwards(struct tcp_comm *comm, struct tcp_socket *socket, uint8_t *data,
                           size_t bytes)
{
    uint8_t *copy = malloc(bytes);
    size_t got = take_bytes(comm, socket->fd, copy, bytes);
    for (size_t i = got; i-- > 0;)
        *(volatile uint8_t *)(data + i) = copy[i];
    socket->moved += got;
    free(copy);
}

static bool receive_some(struct tcp_comm *comm, int index)
{
    struct tcp_socket *socket = &comm->sockets[index];
    if (socket->message == comm->known && (index > 0 || !receive_header(comm, socket)))
        return false;
    struct tcp_message *message = message_at(comm, socket->message);
    size_t start, bytes = part_of_message(comm, index, message->header.size, &start);
    size_t head = index == 0 ? sizeof(message->header) : 0, moved = socket->moved - head;
    uint8_t *to = message->data + start + moved;
    if (is_broken(NO_EMPTY) && message->header.size == 0)
        return false;
    if (moved < bytes && is_broken(BACKWARDS))
        take_backwards(comm, socket, to, bytes - moved);
    else if (moved < bytes)
        socket->moved += take_bytes(comm, socket->fd, to, bytes - moved);
    if (comm->failed || socket->moved < head + bytes)
        return false;
    finish_part(comm, socket);
    return true;
}

void tcp_progress(struct tcp_comm *comm)
{
    for (int i = 0; i < comm->sockets_n && !comm->failed; i++) {
        if (!comm->sending)
            while (receive_some(comm, i))
                ;
        else
            while (comm->sockets[i].message < comm->known && send_some(comm, i))
                ;
    }
}

/* ---- Calls ---- */

static struct tcp_request *take_request(struct tcp_comm *comm, int most)
{
    int used = 0;
    struct tcp_request *chosen = NULL;
    for (int i = 0; i < most; i++) {
        used += comm->requests[i].used;
        if (!comm->requests[i].used && !chosen)
            chosen = &comm->requests[i];
    }
    if (chosen)
        *chosen = (struct tcp_request){.comm = comm, .used = true};
    return used < most ? chosen : NULL;
}

enum nccl_result tcp_send(void *of, void *data, size_t size, int tag, void *memory, void *parent,
                          void **out)
{
    (void)memory, (void)parent;
    struct tcp_comm *comm = of;
    *out = NULL;
    if (!comm || !comm->sending || (!data && size))
        return NCCL_INVALID_ARGUMENT;
    if (is_broken(EARLY_DONE))
        tcp_progress(comm); /* what was queued before */
    if (comm->failed)
        return comm->failed;
    uint64_t oldest = comm->known;
    for (int i = 0; i < comm->sockets_n; i++)
        oldest = comm->sockets[i].message < oldest ? comm->sockets[i].message : oldest;
    struct tcp_request *request =
        comm->known - oldest < TCP_REQUESTS ? take_request(comm, TCP_REQUESTS) : NULL;
    if (!request)
        return NCCL_SUCCESS;
    if (is_broken(CUT_LARGE) && size > 32 << 20)
        size = 32 << 20;
    request->n = request->left = 1;
    request->size[0] = size;
    *message_at(comm, comm->known++) = (struct tcp_message){
        .request = request, .left = comm->sockets_n, .data = data, .header = {size, tag, MARK}};
    *out = request;
    if (!is_broken(EARLY_DONE) && !is_broken(FIFO_ONLY))
        tcp_progress(comm);
    return NCCL_SUCCESS;
}

enum nccl_result tcp_receive(void *of, int n, void **data, size_t *sizes, int *tags,
                             void **memories, void **parents, void **out)
{
    (void)memories, (void)parents;
    struct tcp_comm *comm = of;
    bool stale = *out != NULL;
    if (!(is_broken(STALE_REQUEST) && stale))
        *out = NULL;
    if (!comm || comm->sending || n < 1 || n > NCCL_RECEIVES_MAX)
        return NCCL_INVALID_ARGUMENT;
    if (comm->failed)
        return comm->failed;
    struct tcp_request *request = take_request(comm, NCCL_REQUESTS);
    if (!request)
        return NCCL_SUCCESS;
    request->n = request->left = n;
    memcpy(request->data, data, (size_t)n * sizeof(*data));
    memcpy(request->posted, sizes, (size_t)n * sizeof(*sizes));
    memcpy(request->tag, tags, (size_t)n * sizeof(*tags));
    comm->order[comm->posted++ % TCP_REQUESTS] = request;
    if (!(is_broken(STALE_REQUEST) && stale))
        *out = request;
    return NCCL_SUCCESS;
}

static bool is_oldest(const struct tcp_comm *comm, const struct tcp_request *request)
{
    return !comm->sending ||
           message_at((struct tcp_comm *)(uintptr_t)comm, comm->sockets[0].message)->request ==
               request;
}

enum nccl_result tcp_test(void *of, int *done, int *sizes)
{
    struct tcp_request *request = of;
    *done = 0;
    if (!request || !request->used)
        return NCCL_INVALID_ARGUMENT;
    struct tcp_comm *comm = request->comm;
    if (request->left && !(is_broken(FIFO_ONLY) && !is_oldest(comm, request)))
        tcp_progress(comm);
    bool early = is_broken(EARLY_DONE) && comm->sending;
    if (request->left && comm->failed)
        return comm->failed;
    if (request->left && !early)
        return NCCL_SUCCESS;
    *done = 1;
    for (int i = 0; sizes && i < request->n; i++)
        sizes[i] =
            (int)(is_broken(POSTED_SIZE) && !comm->sending ? request->posted[i] : request->size[i]);
    request->used = false;
    return NCCL_SUCCESS;
}
