/* The listening end of TCP connections: callers that are not authenticated yet. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>

#include "base/sockaddr.h"
#include "tcp/tcp_state.h"

#define TCP_CALLERS 256 /* at once: the sockets of three connections at least */
#define BACKLOG 1024    /* the kernel takes no more than net.core.somaxconn */
#define SECOND_NS UINT64_C(1000000000)

struct caller {
    int fd; /* -1: none */
    bool proved;
    uint32_t heard;
    uint64_t since_ns;
    uint64_t nonce;
    struct harp_address address;
    struct tcp_answer answer;
};

struct tcp_listening {
    struct tcp_config config;
    struct harp_key key;
    int fd;
    struct caller callers[TCP_CALLERS];
};

int tcp_listen(const struct tcp_config *config, const struct harp_address *nic,
               const uint8_t *secret, struct tcp_listening **listening, uint16_t *port, char *why)
{
    struct tcp_listening *made = calloc(1, sizeof *made);
    struct harp_address address = *nic;
    union harp_sockaddr bound;
    socklen_t room = sizeof bound;
    int error = 0;
    *listening = NULL;
    address.port = 0;
    int fd = made ? tcp_socket(&address, false, &error) : -1;
    if (fd < 0 || listen(fd, BACKLOG) != 0 || getsockname(fd, &bound.any, &room) != 0) {
        error = !made ? ENOMEM : fd < 0 ? error : errno;
        snprintf(why, HARP_WHY_BYTES, "TCP: %s", strerror(error));
        tcp_shut(&fd);
        free(made);
        return -error;
    }
    harp_sockaddr_read(&bound.any, &address);
    *port = address.port;
    made->config = *config;
    made->key = harp_key_read(secret);
    made->fd = fd;
    for (int i = 0; i < TCP_CALLERS; i++)
        made->callers[i].fd = -1;
    *listening = made;
    return 0;
}

static void drop_caller(struct caller *caller)
{
    tcp_shut(&caller->fd);
    *caller = (struct caller){.fd = -1};
}

void tcp_unlisten(struct tcp_listening *listening)
{
    for (int i = 0; i < TCP_CALLERS; i++)
        drop_caller(&listening->callers[i]);
    tcp_shut(&listening->fd);
    free(listening);
}

/* A free place, else that of who has said nothing for longest; NULL: all have proved who they are.
 */
static struct caller *place_for_caller(struct tcp_listening *listening)
{
    struct caller *oldest = NULL;
    for (int i = 0; i < TCP_CALLERS; i++) {
        struct caller *caller = &listening->callers[i];
        if (caller->fd < 0)
            return caller;
        if (!caller->proved && (!oldest || caller->since_ns < oldest->since_ns))
            oldest = caller;
    }
    if (oldest)
        drop_caller(oldest);
    return oldest;
}

static void challenge_caller(struct caller *caller)
{
    struct tcp_challenge challenge = {.magic = TCP_MAGIC, .version = TCP_VERSION};
    while (getrandom(&challenge.nonce, sizeof challenge.nonce, 0) != sizeof challenge.nonce)
        ; /* only a signal interrupts it */
    caller->nonce = challenge.nonce;
    if (send(caller->fd, &challenge, sizeof challenge, MSG_DONTWAIT | MSG_NOSIGNAL) !=
        sizeof challenge)
        drop_caller(caller);
}

static void take_callers(struct tcp_listening *listening)
{
    for (int i = 0; i < TCP_CALLERS; i++) {
        union harp_sockaddr from;
        socklen_t room = sizeof from;
        int fd = accept4(listening->fd, &from.any, &room, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0)
            return;
        tcp_keep(fd);
        struct caller *caller = place_for_caller(listening);
        if (!caller) {
            tcp_shut(&fd);
            return;
        }
        *caller = (struct caller){.fd = fd, .since_ns = tcp_now_ns()};
        harp_sockaddr_read(&from.any, &caller->address);
        challenge_caller(caller);
    }
}

static bool is_right(const struct tcp_listening *listening, const struct caller *caller)
{
    const struct tcp_answer *answer = &caller->answer;
    return answer->tag == tcp_sign(&listening->key, TCP_ANSWERS, caller->nonce, answer) &&
           answer->count >= 2 && answer->count <= 1 + TCP_SOCKETS_MAX &&
           answer->index < answer->count;
}

/* One who has proved who it is says nothing more before it is welcome: what comes is its end. */
static void hear_caller(struct tcp_listening *listening, struct caller *caller)
{
    uint64_t age_ns = tcp_now_ns() - caller->since_ns;
    uint8_t byte, *to = caller->proved ? &byte : (uint8_t *)&caller->answer + caller->heard;
    size_t room = caller->proved ? 1 : sizeof caller->answer - caller->heard;
    ssize_t got = recv(caller->fd, to, room, MSG_DONTWAIT);
    bool later = got < 0 && (errno == EAGAIN || errno == EINTR);
    if (later && age_ns <= listening->config.timeout_s * SECOND_NS)
        return;
    caller->heard += got > 0 ? (uint32_t)got : 0;
    bool all = caller->heard == sizeof caller->answer;
    if (got <= 0 || caller->proved || (all && !is_right(listening, caller)))
        drop_caller(caller);
    else
        caller->proved = all;
}

/* The sockets of the connection that this caller is the control socket of, if all are there. */
static bool gather_sockets(struct tcp_listening *listening, const struct caller *control,
                           struct caller **found)
{
    uint32_t count = 0;
    for (int i = 0; i < TCP_CALLERS; i++) {
        struct caller *caller = &listening->callers[i];
        const struct tcp_answer *answer = &caller->answer;
        if (caller->fd < 0 || !caller->proved || answer->id != control->answer.id ||
            answer->count != control->answer.count || found[answer->index])
            continue;
        found[answer->index] = caller;
        count++;
    }
    return count == control->answer.count;
}

static struct tcp_connection *make_connection(const struct tcp_listening *listening,
                                              struct caller **found)
{
    const struct caller *control = found[0];
    struct tcp_connection *made = tcp_new(&listening->config, control->answer.count);
    uint64_t welcome = tcp_sign(&listening->key, TCP_WELCOMES, control->nonce, &control->answer);
    if (!made)
        return NULL;
    made->peer = control->address;
    made->config.traffic_class = control->answer.traffic_class;
    /* If that fails, the peer is gone, and the first receive says so. */
    send(control->fd, &welcome, sizeof welcome, MSG_DONTWAIT | MSG_NOSIGNAL);
    for (uint32_t i = 0; i < made->sockets_n; i++) {
        made->sockets[i].fd = found[i]->fd;
        *found[i] = (struct caller){.fd = -1};
        tcp_tune(made->sockets[i].fd, &made->config, i == 0);
    }
    tcp_begin_streams(made, false);
    made->reported_open = true;
    return made;
}

struct tcp_connection *tcp_accept(struct tcp_listening *listening)
{
    take_callers(listening);
    for (int i = 0; i < TCP_CALLERS; i++)
        if (listening->callers[i].fd >= 0)
            hear_caller(listening, &listening->callers[i]);
    for (int i = 0; i < TCP_CALLERS; i++) {
        const struct caller *caller = &listening->callers[i];
        struct caller *found[1 + TCP_SOCKETS_MAX] = {NULL};
        if (caller->fd >= 0 && caller->proved && caller->answer.index == 0 &&
            gather_sockets(listening, caller, found))
            return make_connection(listening, found);
    }
    return NULL;
}
