/* The end of a connection, and the reason that both ends report. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "tcp/tcp_state.h"

#define DRAIN_READS 16

static struct tcp_socket *control_of(struct tcp_connection *connection)
{
    return &connection->sockets[0];
}

static void close_sockets(struct tcp_connection *connection)
{
    for (uint32_t i = 0; i < connection->sockets_n; i++)
        tcp_shut(&connection->sockets[i].fd);
}

static void conclude_connection(struct tcp_connection *connection, uint32_t reason, bool by_peer)
{
    connection->state = TCP_CLOSED;
    connection->reason = reason;
    connection->by_peer = by_peer;
    close_sockets(connection);
}

void tcp_fail(struct tcp_connection *connection, uint32_t reason)
{
    conclude_connection(connection, reason, false);
}

/* What comes in is read first: with bytes that nobody reads, closing would throw away what goes
 * out. */
static void tell_peer(struct tcp_connection *connection, uint32_t reason, const char *text)
{
    struct tcp_notice notice = {.header = {.size = TCP_NOTICE, .number = reason}};
    const struct tcp_stream *out = &connection->out;
    const int fd = control_of(connection)->fd;
    char unread[1024];
    for (int i = 0; i < DRAIN_READS; i++)
        if (recv(fd, unread, sizeof unread, MSG_DONTWAIT) <= 0)
            break;
    snprintf(notice.text, sizeof notice.text, "%s", text ? text : "");
    /* In the middle of an announcement it would be taken for a part of it. */
    if (connection->sends || out->done == out->posted)
        send(fd, &notice, sizeof notice, MSG_DONTWAIT | MSG_NOSIGNAL);
}

void tcp_end(struct tcp_connection *connection, uint32_t reason)
{
    tell_peer(connection, reason, NULL);
    conclude_connection(connection, reason, false);
}

static uint32_t reason_of(int error)
{
    return error == 0 || error == ECONNRESET || error == EPIPE ? HARP_REASON_REFUSED
                                                               : HARP_REASON_SILENT;
}

void tcp_lose(struct tcp_connection *connection, struct tcp_socket *socket, int error)
{
    socket->ended = true;
    if (connection->state == TCP_OPEN)
        connection->state = TCP_ENDING;
    bool last_word = socket == control_of(connection) && connection->sends;
    if (connection->state != TCP_CLOSED && (last_word || reason_of(error) == HARP_REASON_SILENT))
        conclude_connection(connection, reason_of(error), false);
}

/* Bytes of the notice that came along with announcements. */
static uint32_t take_staged_notice(struct tcp_connection *connection, uint8_t *to, uint32_t room)
{
    struct tcp_socket *socket = control_of(connection);
    uint32_t staged = socket->stage_to - socket->stage_from;
    uint32_t n = staged < room ? staged : room;
    memcpy(to, socket->stage + socket->stage_from, n);
    socket->stage_from += n;
    return n;
}

void tcp_hear_notice(struct tcp_connection *connection)
{
    struct tcp_notice *notice = &connection->notice;
    while (connection->state != TCP_CLOSED && connection->notice_bytes < sizeof *notice) {
        uint8_t *to = (uint8_t *)notice + connection->notice_bytes;
        uint32_t room = (uint32_t)sizeof *notice - connection->notice_bytes;
        ssize_t got = take_staged_notice(connection, to, room);
        if (!got)
            got = recv(control_of(connection)->fd, to, room, MSG_DONTWAIT);
        if (got < 0 && (errno == EAGAIN || errno == EINTR))
            return;
        if (got <= 0)
            conclude_connection(connection, reason_of(got ? errno : 0), false);
        else
            connection->notice_bytes += (uint32_t)got;
    }
    if (connection->state == TCP_CLOSED)
        return;
    bool sound = notice->header.size == TCP_NOTICE && notice->header.number < HARP_REASON_SILENT;
    conclude_connection(connection, sound ? notice->header.number : HARP_REASON_PROTOCOL, sound);
}

void tcp_close(struct tcp_connection *connection, const char *text)
{
    if (connection->state == TCP_OPEN || connection->state == TCP_ENDING)
        tell_peer(connection, text ? HARP_REASON_UNDER_WAY : HARP_REASON_DONE, text);
    close_sockets(connection);
    free(connection->stages);
    free(connection);
}

void tcp_why(const struct tcp_connection *connection, char *why)
{
    const struct harp_event closed = {
        .type = HARP_EVENT_CLOSED,
        .reason = connection->reason,
        .by_peer = connection->by_peer,
        .text_bytes = (uint8_t)strnlen(connection->notice.text, TCP_TEXT_BYTES - 1),
        .text = connection->notice.text};
    if (connection->reason == HARP_REASON_NO_ANSWER)
        snprintf(why, HARP_WHY_BYTES,
                 "nobody answered over TCP: nothing listens there, the secret is another, or a "
                 "firewall drops its port; this end says so");
    else
        harp_reason_explain(&closed, why, HARP_WHY_BYTES);
}
