#define _GNU_SOURCE
#include "tcp_kernel.h"

#include <errno.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/sequence.h"
#include "base/sockaddr.h"
#include "ports/interface.h"
#include "ports/port_tcp.h"
#include "virtual/event_heap.h"

#define FD_FIRST (1 << 20) /* no other descriptor of the program is so high */
#define EPOLLS 16
#define SOCKETS 4096
#define BACKLOG 64
#define CHUNK_MOST 20000 /* bytes that arrive at a time */
#define RETRANSMISSION_NS (200 * DST_MS)
#define FAULTS_NS (100 * DST_MS)
#define DARK_NS (500 * DST_MS)
#define ASKED_NS ((TCP_IDLE_S + TCP_ASK_AGAIN_S) * DST_S)
#define READABLE (EPOLLIN | EPOLLRDHUP)

enum socket_kind { NOTHING, LISTENER, CONNECTING, OPEN };
enum event_kind { SYN, SYN_ACK, REFUSED, DATA, END, RESET, ROOM, UNACKED, ASKED };

struct chunk {
    struct chunk *next;
    uint32_t n, at;
    uint8_t bytes[];
};

struct socket {
    enum socket_kind kind;
    bool closed; /* the application has let go of it */
    bool shut;   /* an END has gone */
    bool ended;  /* an END has come */
    bool blocked;
    bool dead;  /* reset, or refused: nothing moves any more */
    bool timed; /* UNACKED is to come */
    bool keeps; /* SO_KEEPALIVE */
    int error;
    uint8_t side;
    struct harp_address local, remote;
    struct socket *peer;
    uint64_t out_last_ns; /* when the last that was sent arrives */
    uint32_t out_bytes;   /* sent, not received by the application */
    struct chunk *in, **in_tail;
    uint64_t dark_from_ns, dark_to_ns; /* what is sent then comes later; HARP_NEVER: never */
    int epoll;                         /* 0: none watches it */
    uint32_t pending;
    epoll_data_t data;
    struct socket *waiting[BACKLOG]; /* listener: not accepted yet */
    uint32_t waiting_n;
};

struct event {
    enum event_kind kind;
    struct socket *at;
    struct chunk *chunk;
    int error;
};

static struct {
    uint64_t random;
    const uint64_t *now_ns;
    uint64_t *wake_ns[2];
    struct dst_kernel_faults faults;
    uint32_t dead;
    struct socket *sockets[SOCKETS];
    uint32_t sockets_n;
    bool epolls[EPOLLS];
    uint16_t port_last;
    uint64_t received;
    struct virtual_events events;
} kernel;

static bool has_fault(uint32_t permille)
{
    return *kernel.now_ns < kernel.faults.heal_ns && virtual_chance(&kernel.random, permille);
}

static uint64_t draw_delay_ns(void)
{
    return kernel.faults.delay_ns + virtual_below(&kernel.random, kernel.faults.delay_ns + 1);
}

static void push_event(uint64_t at_ns, enum event_kind kind, struct socket *at, struct chunk *chunk,
                       int error)
{
    struct event *event = malloc(sizeof *event);
    *event = (struct event){kind, at, chunk, error};
    DST_CHECK(virtual_events_push(&kernel.events, at_ns, (uintptr_t)event), "no memory", 0, 0);
}

/* When bytes that a socket sends now reach its peer, in order; HARP_NEVER: they do not. */
static uint64_t arrival_ns(struct socket *socket)
{
    uint64_t now_ns = *kernel.now_ns, at_ns = now_ns + draw_delay_ns();
    if (has_fault(kernel.faults.late))
        at_ns += RETRANSMISSION_NS;
    if (now_ns >= socket->dark_from_ns && now_ns < socket->dark_to_ns)
        at_ns =
            socket->dark_to_ns == HARP_NEVER ? HARP_NEVER : socket->dark_to_ns + draw_delay_ns();
    if (at_ns == HARP_NEVER) {
        if (!socket->timed)
            push_event(now_ns + TCP_UNACKED_MS * DST_MS, UNACKED, socket, NULL, ETIMEDOUT);
        socket->timed = true;
        return HARP_NEVER;
    }
    return socket->out_last_ns = harp_max(at_ns, socket->out_last_ns);
}

static void send_event(struct socket *from, enum event_kind kind, struct chunk *chunk, int error)
{
    uint64_t at_ns = from->peer ? arrival_ns(from) : HARP_NEVER;
    if (at_ns == HARP_NEVER)
        free(chunk);
    else
        push_event(at_ns, kind, from->peer, chunk, error);
}

static void notify_side(struct socket *socket, uint32_t events)
{
    socket->pending |= events;
    if (socket->epoll && kernel.wake_ns[socket->side])
        *kernel.wake_ns[socket->side] = *kernel.now_ns;
}

static void fail_socket(struct socket *socket, int error)
{
    if (socket->dead)
        return;
    socket->dead = true;
    socket->error = error;
    notify_side(socket, EPOLLERR | EPOLLHUP | EPOLLOUT | READABLE);
}

static struct socket *new_socket(void)
{
    DST_CHECK(kernel.sockets_n < SOCKETS, "more sockets than the kernel has", SOCKETS, 0);
    struct socket *socket = calloc(1, sizeof *socket);
    socket->in_tail = &socket->in;
    socket->dark_from_ns = socket->dark_to_ns = HARP_NEVER;
    return kernel.sockets[kernel.sockets_n++] = socket;
}

/* ---- What happens ---- */

static struct socket *find_listener(const struct harp_address *address)
{
    for (uint32_t i = 0; i < kernel.sockets_n; i++) {
        struct socket *socket = kernel.sockets[i];
        if (socket->kind == LISTENER && !socket->closed &&
            harp_address_same(&socket->local, address))
            return socket;
    }
    return NULL;
}

/* Faults of a new connection, the same for both of its ends. */
static void draw_faults(struct socket *client, struct socket *server)
{
    uint64_t at_ns = *kernel.now_ns + virtual_below(&kernel.random, FAULTS_NS);
    if (has_fault(kernel.faults.reset)) {
        push_event(at_ns, RESET, client, NULL, ECONNRESET);
        push_event(at_ns + draw_delay_ns(), RESET, server, NULL, ECONNRESET);
    } else if (has_fault(kernel.faults.dark)) {
        bool dead = kernel.dead < kernel.faults.dead;
        kernel.dead += dead;
        client->dark_from_ns = server->dark_from_ns = at_ns;
        client->dark_to_ns = server->dark_to_ns =
            dead ? HARP_NEVER : at_ns + virtual_below(&kernel.random, DARK_NS);
        for (int i = 0; dead && i < 2; i++)
            push_event(at_ns + ASKED_NS, ASKED, i ? client : server, NULL, ETIMEDOUT);
    }
}

static void hear_syn(struct socket *client)
{
    struct socket *listener = find_listener(&client->remote);
    uint64_t at_ns = *kernel.now_ns + draw_delay_ns();
    if (client->closed)
        return;
    if (!listener || listener->waiting_n == BACKLOG) {
        push_event(at_ns, REFUSED, client, NULL, ECONNREFUSED);
        return;
    }
    struct socket *server = new_socket();
    server->kind = OPEN;
    server->side = listener->side;
    server->local = client->remote;
    server->remote = client->local;
    server->peer = client;
    client->peer = server;
    listener->waiting[listener->waiting_n++] = server;
    draw_faults(client, server);
    notify_side(listener, EPOLLIN);
    push_event(at_ns, SYN_ACK, client, NULL, 0);
}

static void hear_data(struct socket *socket, struct chunk *chunk)
{
    if (socket->closed && !socket->dead)
        send_event(socket, RESET, NULL, ECONNRESET);
    if (socket->closed || socket->dead) {
        free(chunk);
        return;
    }
    *socket->in_tail = chunk;
    socket->in_tail = &chunk->next;
    notify_side(socket, EPOLLIN);
}

static void handle_event(struct event *event)
{
    struct socket *socket = event->at;
    switch (event->kind) {
    case SYN:
        hear_syn(socket);
        break;
    case SYN_ACK:
        if (socket->closed)
            send_event(socket, RESET, NULL, ECONNRESET);
        else if (!socket->dead)
            socket->kind = OPEN;
        notify_side(socket, EPOLLOUT);
        break;
    case DATA:
        hear_data(socket, event->chunk);
        break;
    case END:
        socket->ended = true;
        notify_side(socket, READABLE);
        break;
    case ROOM:
        socket->blocked = false;
        notify_side(socket, EPOLLOUT);
        break;
    case ASKED:
        if (socket->keeps)
            fail_socket(socket, event->error);
        break;
    case REFUSED:
    case RESET:
    case UNACKED:
        fail_socket(socket, event->error);
    }
}

uint64_t dst_kernel_next_ns(void)
{
    return virtual_events_next_ns(&kernel.events);
}

void dst_kernel_step(void)
{
    while (virtual_events_next_ns(&kernel.events) <= *kernel.now_ns) {
        struct event *event = (struct event *)(uintptr_t)virtual_events_take(&kernel.events).what;
        handle_event(event);
        free(event);
    }
}

/* ---- The calls of the port ---- */

static int number_of(const struct socket *socket)
{
    for (uint32_t i = 0; i < kernel.sockets_n; i++)
        if (kernel.sockets[i] == socket)
            return FD_FIRST + EPOLLS + (int)i;
    dst_fail("no such socket", 0, 0);
}

static struct socket *socket_of(int fd)
{
    int i = fd - FD_FIRST - EPOLLS;
    DST_CHECK(i >= 0 && (uint32_t)i < kernel.sockets_n && !kernel.sockets[i]->closed,
              "a call for a socket that is not open", fd, 0);
    return kernel.sockets[i];
}

static int refuse_call(int error)
{
    errno = error;
    return -1;
}

int __wrap_socket(int family, int type, int protocol);
int __wrap_bind(int fd, const struct sockaddr *own, socklen_t bytes);
int __wrap_listen(int fd, int backlog);
int __wrap_connect(int fd, const struct sockaddr *to, socklen_t bytes);
int __wrap_accept4(int fd, struct sockaddr *from, socklen_t *bytes, int flags);
int __wrap_getsockname(int fd, struct sockaddr *own, socklen_t *bytes);
int __wrap_setsockopt(int fd, int level, int option, const void *value, socklen_t bytes);
int __wrap_getsockopt(int fd, int level, int option, void *value, socklen_t *bytes);
int __wrap_shutdown(int fd, int how);
int __wrap_close(int fd);
int __real_close(int fd);
ssize_t __wrap_sendmsg(int fd, const struct msghdr *message, int flags);
ssize_t __wrap_recvmsg(int fd, struct msghdr *message, int flags);
int __wrap_epoll_create1(int flags);
int __wrap_epoll_ctl(int epoll, int what, int fd, struct epoll_event *event);
int __wrap_epoll_wait(int epoll, struct epoll_event *events, int room, int timeout);
int __wrap_harp_interface_find(struct harp_interface *found, const char *kind,
                               const struct harp_port_config *config, struct harp_address *local,
                               char *why);

int __wrap_socket(int family, int type, int protocol)
{
    DST_CHECK(family == AF_INET && type & SOCK_STREAM, "not a TCP socket", family, type);
    (void)protocol;
    return number_of(new_socket());
}

int __wrap_bind(int fd, const struct sockaddr *own, socklen_t bytes)
{
    struct socket *socket = socket_of(fd);
    (void)bytes;
    harp_sockaddr_read(own, &socket->local);
    socket->side = (uint8_t)(socket->local.ip[15] - 1);
    DST_CHECK(socket->side < 2, "bound to an address of nobody", socket->side, 0);
    if (!socket->local.port)
        socket->local.port = kernel.port_last++;
    return 0;
}

int __wrap_listen(int fd, int backlog)
{
    (void)backlog;
    socket_of(fd)->kind = LISTENER;
    return 0;
}

/* The kernel forgets what it has taken, and the other end hears of a reset. */
static int disconnect_socket(struct socket *socket)
{
    if (socket->peer && !socket->dead)
        push_event(*kernel.now_ns + draw_delay_ns(), RESET, socket->peer, NULL, ECONNRESET);
    socket->dead = true;
    return 0;
}

int __wrap_connect(int fd, const struct sockaddr *to, socklen_t bytes)
{
    struct socket *socket = socket_of(fd);
    (void)bytes;
    if (to->sa_family == AF_UNSPEC)
        return disconnect_socket(socket);
    DST_CHECK(socket->kind == NOTHING, "connected twice", fd, socket->kind);
    harp_sockaddr_read(to, &socket->remote);
    socket->kind = CONNECTING;
    push_event(*kernel.now_ns + draw_delay_ns() +
                   (has_fault(kernel.faults.late) ? RETRANSMISSION_NS : 0),
               SYN, socket, NULL, 0);
    return refuse_call(EINPROGRESS);
}

static void write_address(const struct harp_address *address, struct sockaddr *to, socklen_t *bytes)
{
    union harp_sockaddr made;
    socklen_t n = harp_sockaddr_write(address, 0, &made);
    memcpy(to, &made, n < *bytes ? n : *bytes);
    *bytes = n;
}

int __wrap_accept4(int fd, struct sockaddr *from, socklen_t *bytes, int flags)
{
    struct socket *listener = socket_of(fd);
    (void)flags;
    if (!listener->waiting_n)
        return refuse_call(EAGAIN);
    if (has_fault(kernel.faults.no_number))
        return refuse_call(EMFILE);
    struct socket *socket = listener->waiting[0];
    memmove(listener->waiting, listener->waiting + 1,
            --listener->waiting_n * sizeof listener->waiting[0]);
    write_address(&socket->remote, from, bytes);
    return number_of(socket);
}

int __wrap_getsockname(int fd, struct sockaddr *own, socklen_t *bytes)
{
    write_address(&socket_of(fd)->local, own, bytes);
    return 0;
}

int __wrap_setsockopt(int fd, int level, int option, const void *value, socklen_t bytes)
{
    (void)bytes;
    if (level == SOL_SOCKET && option == SO_KEEPALIVE)
        socket_of(fd)->keeps = *(const int *)value;
    return 0;
}

int __wrap_getsockopt(int fd, int level, int option, void *value, socklen_t *bytes)
{
    struct socket *socket = socket_of(fd);
    DST_CHECK(level == SOL_SOCKET && option == SO_ERROR, "an option of no kind", level, option);
    memcpy(value, &socket->error, *bytes = sizeof socket->error);
    socket->error = 0;
    return 0;
}

static void send_end(struct socket *socket)
{
    if (socket->kind == OPEN && !socket->shut && !socket->dead)
        send_event(socket, END, NULL, 0);
    socket->shut = true;
}

int __wrap_shutdown(int fd, int how)
{
    DST_CHECK(how == SHUT_WR, "shut down both ways", fd, how);
    send_end(socket_of(fd));
    return 0;
}

static void free_queue(struct socket *socket)
{
    for (struct chunk *chunk = socket->in, *next; chunk; chunk = next) {
        next = chunk->next;
        free(chunk);
    }
    socket->in = NULL;
    socket->in_tail = &socket->in;
}

/* An end that closes with bytes unread resets the connection (RFC 2525, 2.17). */
static void close_stream(struct socket *socket)
{
    if (socket->in && !socket->dead)
        send_event(socket, RESET, NULL, ECONNRESET);
    else
        send_end(socket);
    free_queue(socket);
    socket->closed = true;
    socket->epoll = 0;
}

int __wrap_close(int fd)
{
    if (fd < FD_FIRST)
        return __real_close(fd);
    if (fd < FD_FIRST + EPOLLS) {
        kernel.epolls[fd - FD_FIRST] = false;
        return 0;
    }
    struct socket *socket = socket_of(fd);
    for (uint32_t i = 0; i < socket->waiting_n; i++)
        close_stream(socket->waiting[i]);
    close_stream(socket);
    return 0;
}

/* ---- Data ---- */

static size_t bytes_of(const struct msghdr *message)
{
    size_t bytes = 0;
    for (size_t i = 0; i < message->msg_iovlen; i++)
        bytes += message->msg_iov[i].iov_len;
    return bytes;
}

/* `n` bytes from position `at` of what the pieces hold, or into them. */
static void copy_pieces(const struct msghdr *message, size_t at, uint8_t *bytes, size_t n, bool out)
{
    for (size_t i = 0; n; i++) {
        size_t here = message->msg_iov[i].iov_len;
        uint8_t *piece = message->msg_iov[i].iov_base;
        if (at >= here) {
            at -= here;
            continue;
        }
        size_t part = harp_min(n, here - at);
        memcpy(out ? bytes : piece + at, out ? piece + at : bytes, part);
        bytes += part;
        n -= part;
        at = 0;
    }
}

static void fly_pieces(struct socket *socket, const struct msghdr *message, size_t taken)
{
    for (size_t at = 0, n; at < taken; at += n) {
        n = harp_min(taken - at, 1 + virtual_below(&kernel.random, CHUNK_MOST));
        struct chunk *chunk = malloc(sizeof *chunk + n);
        *chunk = (struct chunk){.n = (uint32_t)n};
        copy_pieces(message, at, chunk->bytes, n, true);
        send_event(socket, DATA, chunk, 0);
    }
}

ssize_t __wrap_sendmsg(int fd, const struct msghdr *message, int flags)
{
    struct socket *socket = socket_of(fd);
    size_t bytes = bytes_of(message), room = kernel.faults.room_bytes - socket->out_bytes;
    (void)flags;
    DST_CHECK(bytes && socket->kind == OPEN, "sent too early, or nothing", fd, bytes);
    if (socket->dead || socket->shut)
        return refuse_call(socket->error ? socket->error : EPIPE);
    bool refused = room && has_fault(kernel.faults.no_room);
    size_t taken = refused ? virtual_below(&kernel.random, harp_min(bytes, room)) : room;
    taken = harp_min(taken, bytes);
    fly_pieces(socket, message, taken);
    socket->out_bytes += (uint32_t)taken;
    socket->blocked = taken < bytes;
    if (refused && taken < bytes)
        push_event(*kernel.now_ns + draw_delay_ns(), ROOM, socket, NULL, 0);
    return taken ? (ssize_t)taken : refuse_call(EAGAIN);
}

/* The sender hears of room when a third is free (sk_stream_is_writeable). */
static void give_room(struct socket *sender, size_t bytes)
{
    if (!sender)
        return;
    sender->out_bytes -= (uint32_t)bytes;
    if (sender->blocked && 3 * sender->out_bytes <= 2 * kernel.faults.room_bytes)
        push_event(*kernel.now_ns + draw_delay_ns(), ROOM, sender, NULL, 0);
}

ssize_t __wrap_recvmsg(int fd, struct msghdr *message, int flags)
{
    struct socket *socket = socket_of(fd);
    size_t room = bytes_of(message), got = 0;
    (void)flags;
    while (socket->in && got < room) {
        struct chunk *chunk = socket->in;
        size_t n = harp_min(chunk->n - chunk->at, room - got);
        copy_pieces(message, got, chunk->bytes + chunk->at, n, false);
        chunk->at += (uint32_t)n;
        got += n;
        if (chunk->at < chunk->n)
            break;
        socket->in = chunk->next;
        if (!socket->in)
            socket->in_tail = &socket->in;
        free(chunk);
    }
    kernel.received += got;
    give_room(socket->peer, got);
    if (got)
        return (ssize_t)got;
    if (socket->error)
        return refuse_call(socket->error);
    return socket->ended || socket->dead ? 0 : refuse_call(EAGAIN);
}

/* ---- epoll ---- */

int __wrap_epoll_create1(int flags)
{
    (void)flags;
    for (int i = 1; i < EPOLLS; i++)
        if (!kernel.epolls[i]) {
            kernel.epolls[i] = true;
            return FD_FIRST + i;
        }
    return refuse_call(EMFILE);
}

int __wrap_epoll_ctl(int epoll, int what, int fd, struct epoll_event *event)
{
    struct socket *socket = socket_of(fd);
    socket->epoll = what == EPOLL_CTL_ADD ? epoll : 0;
    if (!socket->epoll)
        return 0;
    DST_CHECK(event->events & EPOLLET, "a socket is not watched by edges", fd, 0);
    socket->data = event->data;
    if (socket->kind == OPEN)
        notify_side(socket, EPOLLOUT | (socket->in || socket->ended ? EPOLLIN : 0));
    return 0;
}

int __wrap_epoll_wait(int epoll, struct epoll_event *events, int room, int timeout)
{
    int n = 0;
    DST_CHECK(timeout == 0, "virtual time is waited for", timeout, 0);
    for (uint32_t i = 0; i < kernel.sockets_n && n < room; i++) {
        struct socket *socket = kernel.sockets[i];
        if (socket->epoll != epoll || !socket->pending)
            continue;
        events[n++] = (struct epoll_event){.events = socket->pending, .data = socket->data};
        socket->pending = 0;
    }
    return n;
}

int __wrap_harp_interface_find(struct harp_interface *found, const char *kind,
                               const struct harp_port_config *config, struct harp_address *local,
                               char *why)
{
    (void)kind, (void)why;
    *found = (struct harp_interface){.name = "dst", .index = 1, .family = AF_INET, .mtu = 1500};
    *local = config->local;
    return 0;
}

/* ---- The whole ---- */

uint32_t dst_kernel_open(uint8_t side)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < kernel.sockets_n; i++) {
        const struct socket *socket = kernel.sockets[i];
        n += socket->side == side && !socket->closed && socket->kind != LISTENER && socket->epoll;
    }
    return n;
}

uint64_t dst_kernel_received(void)
{
    return kernel.received;
}

void dst_kernel_begin(uint64_t random, const uint64_t *now_ns, uint64_t *const wake_ns[2],
                      const struct dst_kernel_faults *faults)
{
    memset(&kernel, 0, sizeof kernel);
    kernel.random = random;
    kernel.now_ns = now_ns;
    memcpy(kernel.wake_ns, wake_ns, sizeof kernel.wake_ns);
    kernel.faults = *faults;
    kernel.port_last = 20000;
    DST_CHECK(virtual_events_open(&kernel.events, 64), "no memory", 0, 0);
}

void dst_kernel_end(void)
{
    while (kernel.events.n) {
        struct event *event = (struct event *)(uintptr_t)virtual_events_take(&kernel.events).what;
        free(event->chunk);
        free(event);
    }
    virtual_events_close(&kernel.events);
    for (uint32_t i = 0; i < kernel.sockets_n; i++) {
        free_queue(kernel.sockets[i]);
        free(kernel.sockets[i]);
    }
    kernel.sockets_n = 0;
}
