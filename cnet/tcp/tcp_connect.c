/* The connecting end of TCP connections, until they are open. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>

#include "base/sockaddr.h"
#include "tcp/tcp_state.h"

#define AGAIN_NS UINT64_C(50000000) /* after a listener had no place for a caller */
#define SECOND_NS UINT64_C(1000000000)

/* ---- What both ends need ---- */

struct tcp_connection *tcp_new(const struct tcp_config *config, uint32_t sockets_n)
{
    struct tcp_connection *connection = calloc(1, sizeof *connection);
    uint8_t *stages = malloc((size_t)sockets_n * TCP_STAGE_BYTES); /* touched where it receives */
    if (!connection || !stages) {
        free(connection);
        free(stages);
        return NULL;
    }
    connection->config = *config;
    connection->sockets_n = sockets_n;
    connection->stages = stages;
    for (uint32_t i = 0; i < sockets_n; i++)
        connection->sockets[i] =
            (struct tcp_socket){.fd = -1, .stage = stages + (size_t)i * TCP_STAGE_BYTES};
    return connection;
}

/* Data goes one way, announcements the other. */
void tcp_begin_streams(struct tcp_connection *connection, bool sends)
{
    struct tcp_stream *data = sends ? &connection->out : &connection->in;
    struct tcp_stream *control = sends ? &connection->in : &connection->out;
    connection->sends = sends;
    connection->state = TCP_OPEN;
    data->sockets = connection->sockets + 1;
    data->sockets_n = connection->sockets_n - 1;
    control->sockets = connection->sockets;
    control->sockets_n = 1;
}

uint64_t tcp_sign(const struct harp_key *key, const char *label, uint64_t nonce,
                  const struct tcp_answer *answer)
{
    struct {
        char label[8];
        uint64_t nonce;
        struct tcp_answer answer;
    } text = {.nonce = nonce, .answer = *answer};
    snprintf(text.label, sizeof text.label, "%s", label);
    text.answer.tag = 0;
    return harp_siphash(key, (const uint8_t *)&text, sizeof text);
}

const struct harp_address *tcp_peer(const struct tcp_connection *connection)
{
    return &connection->peer;
}

/* ---- The connecting end ---- */

static int begin_to_connect(struct tcp_connection *connection)
{
    union harp_sockaddr peer;
    socklen_t bytes = harp_sockaddr_write(&connection->peer, 0, &peer);
    struct harp_address local = connection->nic;
    int error = 0;
    local.port = 0;
    while (getrandom(&connection->id, sizeof connection->id, 0) != sizeof connection->id)
        ; /* only a signal interrupts it */
    for (uint32_t i = 0; i < connection->sockets_n; i++) {
        int fd = connection->sockets[i].fd = tcp_socket(&local, true, &error);
        if (fd < 0)
            return -error;
        tcp_tune(fd, &connection->config, i == 0);
        if (connect(fd, &peer.any, bytes) != 0 && errno != EINPROGRESS)
            return -errno;
    }
    return 0;
}

int tcp_connect(const struct tcp_config *config, const struct harp_address *nic,
                const struct harp_address *peer, const uint8_t *secret,
                struct tcp_connection **connection, char *why)
{
    struct tcp_connection *made = tcp_new(config, 1 + config->sockets);
    *connection = NULL;
    if (!made) {
        snprintf(why, HARP_WHY_BYTES, "no memory");
        return -ENOMEM;
    }
    made->nic = *nic;
    made->peer = *peer;
    made->key = harp_key_read(secret);
    made->begun_ns = tcp_now_ns();
    int error = begin_to_connect(made);
    if (error) {
        snprintf(why, HARP_WHY_BYTES, "TCP: %s", strerror(-error));
        tcp_close(made, NULL);
        return error;
    }
    *connection = made;
    return 0;
}

/* The listener closed the socket though it had not heard the answer: it had no place for us. */
static void try_again(struct tcp_connection *connection)
{
    for (uint32_t i = 0; i < connection->sockets_n; i++)
        tcp_shut(&connection->sockets[i].fd);
    memset(connection->greetings, 0, sizeof connection->greetings);
    connection->again_ns = tcp_now_ns() + AGAIN_NS;
}

/* Whether this many bytes of the greeting have come. */
static bool hear_greeting(struct tcp_connection *connection, uint32_t index, uint32_t bytes)
{
    struct tcp_greeting *greeting = &connection->greetings[index];
    uint8_t *to = (uint8_t *)&greeting->challenge + greeting->heard;
    if (greeting->heard >= bytes)
        return true;
    ssize_t got = recv(connection->sockets[index].fd, to, bytes - greeting->heard, MSG_DONTWAIT);
    if (got > 0)
        greeting->heard += (uint32_t)got;
    else if (got == 0 || errno == ECONNRESET || errno == EPIPE)
        try_again(connection);
    else if (errno != EAGAIN && errno != EINTR)
        tcp_fail(connection, errno == ECONNREFUSED ? HARP_REASON_REFUSED : HARP_REASON_NO_ANSWER);
    return greeting->heard >= bytes;
}

static struct tcp_answer answer_of(const struct tcp_connection *connection, uint32_t index)
{
    return (struct tcp_answer){.id = connection->id,
                               .index = (uint16_t)index,
                               .count = (uint16_t)connection->sockets_n,
                               .traffic_class = connection->config.traffic_class};
}

static bool answer_challenge(struct tcp_connection *connection, uint32_t index)
{
    struct tcp_greeting *greeting = &connection->greetings[index];
    if (greeting->answered || !hear_greeting(connection, index, sizeof greeting->challenge))
        return greeting->answered;
    if (greeting->challenge.magic != TCP_MAGIC || greeting->challenge.version != TCP_VERSION) {
        tcp_fail(connection, greeting->challenge.magic == TCP_MAGIC ? HARP_REASON_VERSION
                                                                    : HARP_REASON_NO_ANSWER);
        return false;
    }
    struct tcp_answer answer = answer_of(connection, index);
    answer.tag = tcp_sign(&connection->key, TCP_ANSWERS, greeting->challenge.nonce, &answer);
    greeting->answered = send(connection->sockets[index].fd, &answer, sizeof answer,
                              MSG_DONTWAIT | MSG_NOSIGNAL) == sizeof answer;
    if (!greeting->answered)
        try_again(connection);
    return greeting->answered;
}

static bool is_waiting(struct tcp_connection *connection)
{
    uint64_t now_ns = tcp_now_ns();
    if (now_ns - connection->begun_ns > connection->config.timeout_s * SECOND_NS)
        tcp_fail(connection, HARP_REASON_NO_ANSWER);
    else if (connection->again_ns && now_ns >= connection->again_ns) {
        connection->again_ns = 0;
        if (begin_to_connect(connection) != 0)
            tcp_fail(connection, HARP_REASON_NO_ANSWER);
    }
    return connection->state == TCP_CONNECTING && !connection->again_ns;
}

void tcp_drive_handshake(struct tcp_connection *connection)
{
    struct tcp_greeting *control = &connection->greetings[0];
    bool answered = is_waiting(connection);
    for (uint32_t i = 0; i < connection->sockets_n && is_waiting(connection); i++)
        answered &= answer_challenge(connection, i);
    if (!answered || !is_waiting(connection) ||
        !hear_greeting(connection, 0, offsetof(struct tcp_greeting, heard)))
        return;
    struct tcp_answer answer = answer_of(connection, 0);
    if (control->welcome ==
        tcp_sign(&connection->key, TCP_WELCOMES, control->challenge.nonce, &answer))
        tcp_begin_streams(connection, true);
    else
        tcp_fail(connection, HARP_REASON_NO_ANSWER);
}
