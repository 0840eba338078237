/* Messages through the sockets: parts, headers, buffers, completions. */
#define _GNU_SOURCE
#include <assert.h>
#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "base/copy_lines.h"
#include "tcp/tcp_state.h"

#define LOOK_NS UINT64_C(1000000) /* how often a sender that waits looks at the control socket */

static struct tcp_message *message_at(struct tcp_stream *stream, uint32_t number)
{
    return &stream->messages[number % TCP_MESSAGES];
}

/* How many bytes of a message a socket moves, and from where on. */
static uint32_t part_of_message(const struct tcp_stream *stream, uint32_t socket, uint32_t size,
                                uint32_t *start)
{
    uint32_t share = (size + stream->sockets_n - 1) / stream->sockets_n;
    share = (share + HARP_LINE_BYTES - 1) / HARP_LINE_BYTES * HARP_LINE_BYTES;
    share = share < TCP_PART_BYTES ? TCP_PART_BYTES : share;
    uint64_t from = (uint64_t)share * socket;
    *start = from < size ? (uint32_t)from : size;
    return size - *start < share ? size - *start : share;
}

static void finish_part(struct tcp_stream *stream, struct tcp_socket *socket)
{
    struct tcp_message *message = message_at(stream, socket->message);
    socket->message++;
    socket->moved = 0;
    message->left--;
    while (stream->done != stream->known && !message_at(stream, stream->done)->left)
        stream->bytes += message_at(stream, stream->done++)->size;
}

/* ---- Sending ---- */

static bool send_bytes(struct tcp_connection *connection, struct tcp_socket *socket,
                       const struct tcp_message *message, uint32_t head, uint32_t start,
                       uint32_t bytes)
{
    struct iovec pieces[2];
    struct msghdr call = {.msg_iov = pieces};
    uint32_t moved = socket->moved < head ? 0 : socket->moved - head;
    if (socket->moved < head)
        pieces[call.msg_iovlen++] =
            (struct iovec){(uint8_t *)&message->header + socket->moved, head - socket->moved};
    if (moved < bytes)
        pieces[call.msg_iovlen++] = (struct iovec){message->data + start + moved, bytes - moved};
    ssize_t sent = sendmsg(socket->fd, &call, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0) {
        if (errno != EAGAIN && errno != EINTR)
            tcp_lose(connection, socket, errno);
        return false;
    }
    socket->moved += (uint32_t)sent;
    return socket->moved == head + bytes;
}

/* Whether the socket may go on to its next message. */
static bool send_part(struct tcp_connection *connection, uint32_t index)
{
    struct tcp_stream *stream = &connection->out;
    struct tcp_socket *socket = &stream->sockets[index];
    const struct tcp_message *message = message_at(stream, socket->message);
    uint32_t start, bytes = part_of_message(stream, index, message->size, &start);
    uint32_t head = index ? 0 : (uint32_t)sizeof message->header;
    if (head + bytes && !send_bytes(connection, socket, message, head, start, bytes))
        return false;
    finish_part(stream, socket);
    return true;
}

void tcp_flush(struct tcp_connection *connection)
{
    struct tcp_stream *stream = &connection->out;
    for (uint32_t i = 0; i < stream->sockets_n && stream->done != stream->posted; i++)
        while (connection->state == TCP_OPEN && stream->sockets[i].message != stream->posted &&
               send_part(connection, i))
            ;
}

bool tcp_send(struct tcp_connection *connection, const void *data, uint32_t size, uint64_t context)
{
    struct tcp_stream *stream = &connection->out;
    if (connection->state != TCP_OPEN || stream->posted - stream->taken == TCP_MESSAGES)
        return false;
    bool idle = stream->done == stream->posted;
    *message_at(stream, stream->posted) =
        (struct tcp_message){.data = (uint8_t *)(uintptr_t)data,
                             .context = context,
                             .size = size,
                             .left = stream->sockets_n,
                             .header = {.size = size, .number = stream->posted}};
    stream->known = ++stream->posted;
    if (idle) /* else the kernel has no room for what came before */
        tcp_flush(connection);
    return true;
}

/* ---- Receiving ---- */

/* Read into `pieces`, of which `bytes` are asked for in all. Returns how many came. */
static uint32_t read_bytes(struct tcp_connection *connection, struct tcp_socket *socket,
                           struct iovec *pieces, size_t pieces_n, size_t bytes)
{
    struct msghdr call = {.msg_iov = pieces, .msg_iovlen = pieces_n};
    if (socket->dry || socket->ended)
        return 0;
    ssize_t got = recvmsg(socket->fd, &call, MSG_DONTWAIT);
    socket->dry = got < (ssize_t)bytes;
    if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR))
        tcp_lose(connection, socket, got ? errno : 0);
    return got > 0 ? (uint32_t)got : 0;
}

static uint32_t staged_bytes(const struct tcp_socket *socket)
{
    return socket->stage_to - socket->stage_from;
}

/* Stage up to `most` bytes. Says whether anything came. */
static bool fill_stage(struct tcp_connection *connection, struct tcp_socket *socket, uint32_t most)
{
    uint32_t have = staged_bytes(socket);
    memmove(socket->stage, socket->stage + socket->stage_from, have);
    socket->stage_from = 0;
    struct iovec rest = {socket->stage + have, most - have};
    socket->stage_to = have + read_bytes(connection, socket, &rest, 1, rest.iov_len);
    return socket->stage_to > have;
}

/* Whether the next message is known, and fits its buffer. */
static bool take_header(struct tcp_connection *connection, struct tcp_socket *socket)
{
    struct tcp_stream *stream = &connection->in;
    struct tcp_header header;
    if (stream->known == stream->posted || connection->over)
        return false;
    struct tcp_message *message = message_at(stream, stream->known);
    if (staged_bytes(socket) < sizeof header) /* payload with it, but for what goes straight */
        fill_stage(connection, socket, message->watched ? TCP_STAGE_BYTES : sizeof header);
    if (staged_bytes(socket) < sizeof header)
        return false;
    memcpy(&header, socket->stage + socket->stage_from, sizeof header);
    connection->over = header.size == TCP_NOTICE && connection->sends;
    if (connection->over)
        return false; /* it stays, for tcp_hear_notice */
    bool fits = header.size <= message->capacity;
    if (header.number != stream->known || header.size > HARP_MESSAGE_MAX || !fits) {
        tcp_end(connection, fits || header.number != stream->known ? HARP_REASON_PROTOCOL
                                                                   : HARP_REASON_TOO_LONG);
        return false;
    }
    socket->stage_from += sizeof header;
    message->size = header.size;
    message->left = stream->sockets_n;
    stream->known++;
    return true;
}

/* Payload out of the stage: whole lines, and the rest when all of it is there, so that every copy
 * begins with a line. */
static uint32_t take_staged(struct tcp_socket *socket, uint8_t *to, uint32_t bytes)
{
    uint32_t staged = staged_bytes(socket);
    uint32_t n = staged < bytes ? staged / HARP_LINE_BYTES * HARP_LINE_BYTES : bytes;
    harp_copy_lines(to, socket->stage + socket->stage_from, n);
    socket->stage_from += n;
    return n;
}

static uint32_t take_lines(struct tcp_connection *connection, struct tcp_socket *socket,
                           uint8_t *to, uint32_t bytes)
{
    uint32_t moved = take_staged(socket, to, bytes);
    while (moved < bytes && fill_stage(connection, socket, TCP_STAGE_BYTES))
        moved += take_staged(socket, to + moved, bytes - moved);
    return moved;
}

/* What is staged, and the rest straight into its buffer; the next header behind it. */
static uint32_t take_directly(struct tcp_connection *connection, struct tcp_socket *socket,
                              uint8_t *to, uint32_t bytes)
{
    uint32_t staged = staged_bytes(socket), n = staged < bytes ? staged : bytes;
    memcpy(to, socket->stage + socket->stage_from, n);
    socket->stage_from += n;
    if (n == bytes)
        return n;
    struct iovec pieces[2] = {{to + n, bytes - n}, {socket->stage, sizeof(struct tcp_header)}};
    uint32_t got = read_bytes(connection, socket, pieces, 2, bytes - n + sizeof(struct tcp_header));
    socket->stage_from = 0;
    socket->stage_to = got > bytes - n ? got - (bytes - n) : 0;
    return n + got - socket->stage_to;
}

static bool receive_part(struct tcp_connection *connection, uint32_t index)
{
    struct tcp_stream *stream = &connection->in;
    struct tcp_socket *socket = &stream->sockets[index];
    if (socket->message == stream->known && (index || !take_header(connection, socket)))
        return false;
    const struct tcp_message *message = message_at(stream, socket->message);
    uint32_t start, bytes = part_of_message(stream, index, message->size, &start);
    uint8_t *to = message->data + start + socket->moved;
    uint32_t left = bytes - socket->moved;
    if (left)
        socket->moved += message->watched && message->size <= connection->config.staged_most
                             ? take_lines(connection, socket, to, left)
                             : take_directly(connection, socket, to, left);
    if (socket->moved < bytes)
        return false;
    finish_part(stream, socket);
    return true;
}

void tcp_take(struct tcp_connection *connection)
{
    struct tcp_stream *stream = &connection->in;
    for (uint32_t i = 0; i < stream->sockets_n; i++) {
        stream->sockets[i].dry = false;
        while (connection->state != TCP_CLOSED && receive_part(connection, i))
            ;
    }
}

bool tcp_receive(struct tcp_connection *connection, void *data, uint32_t capacity, bool watched,
                 uint64_t context)
{
    struct tcp_stream *stream = &connection->in;
    if (stream->posted - stream->taken == TCP_MESSAGES)
        return false;
    *message_at(stream, stream->posted++) = (struct tcp_message){
        .data = data, .context = context, .capacity = capacity, .watched = watched};
    return true;
}

/* ---- Both ---- */

static void drive_sender(struct tcp_connection *connection, bool news)
{
    tcp_flush(connection);
    if (!news && connection->state == TCP_OPEN) {
        uint64_t now_ns = tcp_now_ns();
        if (now_ns - connection->heard_ns < LOOK_NS)
            return;
        connection->heard_ns = now_ns;
    }
    tcp_take(connection);
    if (connection->over)
        tcp_hear_notice(connection);
}

/* Whether some of what was sent before the end may still come: headers are on the first socket,
 * parts of messages that are known on all. */
static bool has_more(const struct tcp_connection *connection)
{
    const struct tcp_stream *stream = &connection->in;
    bool more = !stream->sockets[0].ended;
    for (uint32_t i = 1; i < stream->sockets_n; i++)
        more |= !stream->sockets[i].ended && stream->sockets[i].message != stream->known;
    return more;
}

static void drive_receiver(struct tcp_connection *connection)
{
    tcp_flush(connection);
    tcp_take(connection);
    if (connection->state == TCP_ENDING && !has_more(connection))
        tcp_hear_notice(connection);
}

void tcp_drive(struct tcp_connection *connection, bool news)
{
    if (connection->state == TCP_CONNECTING)
        tcp_drive_handshake(connection);
    else if (connection->state != TCP_CLOSED && connection->sends)
        drive_sender(connection, news);
    else if (connection->state != TCP_CLOSED)
        drive_receiver(connection);
}

static size_t poll_stream(struct tcp_stream *stream, uint32_t type,
                          struct harp_completion *completions, size_t room)
{
    size_t n = 0;
    for (; n < room && stream->taken != stream->done; stream->taken++) {
        const struct tcp_message *message = message_at(stream, stream->taken);
        completions[n++] = (struct harp_completion){.type = type,
                                                    .size = message->size,
                                                    .context = message->context,
                                                    .message = stream->taken};
    }
    return n;
}

size_t tcp_poll(struct tcp_connection *connection, struct harp_completion *completions, size_t room)
{
    size_t n = 0;
    if (connection->state == TCP_OPEN && !connection->reported_open && room) {
        connection->reported_open = true;
        completions[n++] = (struct harp_completion){.type = HARP_COMPLETION_CONNECTED};
    }
    n += poll_stream(&connection->out, HARP_COMPLETION_SENT, completions + n, room - n);
    n += poll_stream(&connection->in, HARP_COMPLETION_RECEIVED, completions + n, room - n);
    if (connection->state == TCP_CLOSED && !connection->reported_end && n < room) {
        connection->reported_end = true;
        completions[n++] =
            (struct harp_completion){.type = HARP_COMPLETION_CLOSED, .reason = connection->reason};
    }
    return n;
}
