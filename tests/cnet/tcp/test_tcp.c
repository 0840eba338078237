/* cnet/tcp/tcp.h against a peer that this test plays with bare sockets: bytes one by one, what the
 * protocol forbids, strangers, ends of all kinds.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/copy_lines.h"
#include "check.h"
#include "tcp/tcp_state.h"
#include "virtual/random.h"

enum { PATIENCE_S = 120, DATA = 3, MOST = 400000, GUARD = 64, STRANGERS = 400, MANY = 40 };

static const struct tcp_config config = {
    .sockets = DATA, .timeout_s = 30, .staged_most = 100000}; /* so that both ways are taken */
static const uint8_t secret[TCP_SECRET_BYTES] = "sixteen letters";
static struct harp_address loopback;
static uint16_t port;
static struct tcp_listening *listening;
static time_t begun;
static uint8_t sent[MOST], got[MOST + GUARD];

static void expect_soon(const char *what)
{
    CHECK(time(NULL) - begun < PATIENCE_S, "%s takes too long", what);
}

/* ---- The peer ---- */

static int call_listener(void)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port)};
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(fd >= 0 && connect(fd, (struct sockaddr *)&to, sizeof to) == 0, "no connection");
    return fd;
}

static void write_all(int fd, const void *bytes, size_t count)
{
    CHECK(send(fd, bytes, count, MSG_NOSIGNAL) == (ssize_t)count, "a short write");
}

/* What the listener sends is read while it is driven. */
static void read_all(int fd, void *bytes, size_t count, struct tcp_connection **accepted)
{
    for (size_t n = 0; n < count; expect_soon("a greeting")) {
        if (!*accepted)
            *accepted = tcp_accept(listening);
        ssize_t more = recv(fd, (uint8_t *)bytes + n, count - n, MSG_DONTWAIT);
        CHECK(more != 0, "the listener closed a socket");
        n += more > 0 ? (size_t)more : 0;
    }
}

/* Prove the secret on all sockets, control first. */
static struct tcp_connection *connect_peer(int *fds)
{
    struct harp_key key = harp_key_read(secret);
    struct tcp_connection *accepted = NULL;
    uint64_t welcome;
    for (uint16_t i = 0; i < 1 + DATA; i++) {
        struct tcp_challenge challenge;
        struct tcp_answer answer = {.id = 77, .index = i, .count = 1 + DATA};
        fds[i] = call_listener();
        read_all(fds[i], &challenge, sizeof challenge, &accepted);
        CHECK(challenge.magic == TCP_MAGIC && !accepted, "a challenge");
        answer.tag = tcp_sign(&key, TCP_ANSWERS, challenge.nonce, &answer);
        write_all(fds[i], &answer, sizeof answer);
    }
    read_all(fds[0], &welcome, sizeof welcome, &accepted);
    while (!accepted)
        accepted = tcp_accept(listening);
    return accepted;
}

static void hang_up(int *fds)
{
    for (int i = 0; i < 1 + DATA; i++)
        if (fds[i] >= 0)
            close(fds[i]);
}

/* Drive until there is a completion; its type. */
static uint32_t next_completion(struct tcp_connection *connection, struct harp_completion *came)
{
    while (!tcp_poll(connection, came, 1)) {
        tcp_drive(connection, true);
        expect_soon("a completion");
    }
    return came->type;
}

/* ---- The stream's reader ---- */

/* The bytes of the messages on one socket, as a sender writes them. */
static size_t write_stream(uint32_t index, const uint32_t *sizes, uint32_t n, uint8_t *out)
{
    size_t bytes = 0, from = 0;
    for (uint32_t i = 0; i < n; from += sizes[i++]) {
        uint32_t share = (sizes[i] + DATA - 1) / DATA;
        share = (share + 127) / 128 * 128;
        share = share < TCP_PART_BYTES ? TCP_PART_BYTES : share;
        uint32_t start = share * index < sizes[i] ? share * index : sizes[i];
        uint32_t part = sizes[i] - start < share ? sizes[i] - start : share;
        struct tcp_header header = {.size = sizes[i], .number = i};
        if (index == 0) {
            memcpy(out + bytes, &header, sizeof header);
            bytes += sizeof header;
        }
        memcpy(out + bytes, sent + from + start, part);
        bytes += part;
    }
    return bytes;
}

/* Write all streams in pieces of up to `most` bytes, in an order that chance gives. */
static void read_in_pieces(uint64_t seed, const uint32_t *sizes, uint32_t n, uint32_t most)
{
    static uint8_t streams[DATA][MOST + 1000];
    size_t bytes[DATA], written[DATA] = {0}, total = 0, begin = 0;
    int fds[1 + DATA];
    struct tcp_connection *connection = connect_peer(fds);
    for (uint32_t i = 0; i < DATA; i++)
        total += bytes[i] = write_stream(i, sizes, n, streams[i]);
    memset(got, 0xa5, sizeof got);
    for (uint32_t i = 0, from = 0; i < n; from += sizes[i++])
        CHECK(tcp_receive(connection, got + from, sizes[i], from % 2 == 0, i),
              "a buffer is refused");
    for (uint32_t done = 0; done < n; expect_soon("a message")) {
        uint32_t at = (uint32_t)(virtual_draw(&seed) % DATA);
        size_t piece = 1 + virtual_draw(&seed) % most;
        piece = piece < bytes[at] - written[at] ? piece : bytes[at] - written[at];
        if (piece)
            write_all(fds[1 + at], streams[at] + written[at], piece);
        written[at] += piece;
        struct harp_completion came;
        tcp_drive(connection, true);
        for (; tcp_poll(connection, &came, 1); begin += sizes[done++]) {
            CHECK(came.type == HARP_COMPLETION_RECEIVED && came.context == done &&
                      came.size == sizes[done],
                  "message %u of %u bytes came as %u of %u", done, sizes[done], came.message,
                  came.size);
            CHECK(memcmp(got + begin, sent + begin, sizes[done]) == 0, "message %u differs", done);
        }
    }
    CHECK(written[0] + written[1] + written[2] == total, "done before all was written");
    CHECK(got[begin] == 0xa5, "a byte behind the messages was written");
    tcp_close(connection, NULL);
    hang_up(fds);
}

static void test_short_reads_and_partial_headers(void)
{
    const uint32_t small[] = {0, 1, 7, 8, 9, 0, 127, 128, 129, 4096, 4097, 5000};
    const uint32_t large[] = {100, 70000, 0, 200000, 4104, 65536, 8};
    for (uint64_t seed = 1; seed <= 8; seed++) {
        begun = time(NULL);
        read_in_pieces(seed, small, sizeof small / sizeof small[0], seed % 2 ? 3 : 3000);
        read_in_pieces(seed, large, sizeof large / sizeof large[0], seed % 2 ? 9000 : 100000);
    }
}

/* A send that nobody reads goes on where it stopped. */
static void test_short_writes(void)
{
    int fds[1 + DATA];
    static uint8_t long_one[8 << 20];
    struct tcp_connection *connection = connect_peer(fds);
    struct harp_completion came;
    size_t n = 0;
    CHECK(tcp_send(connection, long_one, sizeof long_one, 9), "a send is refused");
    /* On the control socket, which is all that a receiving end sends on: kernels take less. */
    while (n < sizeof long_one + sizeof(struct tcp_header)) {
        ssize_t more = recv(fds[0], got, sizeof got, MSG_DONTWAIT);
        n += more > 0 ? (size_t)more : 0;
        tcp_drive(connection, true);
        expect_soon("a long send");
    }
    CHECK(next_completion(connection, &came) == HARP_COMPLETION_SENT && came.context == 9, "SENT");
    tcp_close(connection, NULL);
    hang_up(fds);
}

/* Of a watched buffer only whole lines are written; another one fills with all that is there. */
static void test_what_a_watched_buffer_shows(void)
{
    enum { SIZE = 3 * HARP_LINE_BYTES, HALF = SIZE / 2 };
    const struct tcp_header header = {.size = SIZE};
    for (int watched = 0; watched < 2; watched++) {
        int fds[1 + DATA];
        struct harp_completion came;
        struct tcp_connection *connection = connect_peer(fds);
        memset(got, 0xa5, sizeof got);
        CHECK(tcp_receive(connection, got, SIZE, watched, 0), "a buffer is refused");
        write_all(fds[1], &header, sizeof header);
        write_all(fds[1], sent, HALF);
        size_t shown = watched ? HARP_LINE_BYTES : HALF;
        while (memcmp(got, sent, shown) != 0) {
            tcp_drive(connection, true);
            expect_soon("half of a message");
        }
        CHECK(got[shown] == 0xa5, "byte %zu was written before its line was there", shown);
        write_all(fds[1], sent + HALF, SIZE - HALF);
        CHECK(next_completion(connection, &came) == HARP_COMPLETION_RECEIVED, "no message");
        CHECK(memcmp(got, sent, SIZE) == 0, "the message differs");
        tcp_close(connection, NULL);
        hang_up(fds);
    }
}

/* ---- Ends ---- */

static void expect_end(struct tcp_connection *connection, uint32_t reason, const char *words)
{
    struct harp_completion came;
    char why[HARP_WHY_BYTES];
    CHECK(next_completion(connection, &came) == HARP_COMPLETION_CLOSED, "type %u", came.type);
    CHECK(came.reason == reason, "reason %u and not %u", came.reason, reason);
    tcp_why(connection, why);
    CHECK(strstr(why, words), "\"%s\" lacks \"%s\"", why, words);
    tcp_close(connection, NULL);
}

static void end_after_header(struct tcp_header header, uint32_t reason, const char *words)
{
    int fds[1 + DATA];
    struct tcp_notice notice;
    struct tcp_connection *connection = connect_peer(fds);
    CHECK(tcp_receive(connection, got, 100, true, 0), "a buffer is refused");
    write_all(fds[1], &header, sizeof header);
    expect_end(connection, reason, words);
    CHECK(recv(fds[0], &notice, sizeof notice, MSG_WAITALL) == sizeof notice &&
              notice.header.number == reason,
          "the peer is not told");
    hang_up(fds);
}

static void test_what_the_protocol_forbids(void)
{
    end_after_header((struct tcp_header){.size = 101}, HARP_REASON_TOO_LONG, "longer than");
    end_after_header((struct tcp_header){.number = 1}, HARP_REASON_PROTOCOL, "forbids");
    end_after_header((struct tcp_header){.size = TCP_NOTICE}, HARP_REASON_TOO_LONG, "longer than");
}

static void test_the_end_of_a_process(void)
{
    const struct tcp_header header = {.size = 100};
    for (int written = 0; written < 3; written++) {
        int fds[1 + DATA];
        struct tcp_connection *connection = connect_peer(fds);
        CHECK(tcp_receive(connection, got, 100, true, 0), "a buffer is refused");
        if (written > 0)
            write_all(fds[1], &header, written == 1 ? 5 : sizeof header);
        hang_up(fds);
        expect_end(connection, HARP_REASON_REFUSED, "no process");
    }
}

/* What was sent before the notice comes first, and control characters of its text do no harm. */
static void test_the_words_of_the_other_end(void)
{
    const struct tcp_header header = {.size = 3};
    struct tcp_notice notice = {.header = {TCP_NOTICE, HARP_REASON_UNDER_WAY},
                                .text = "bad\033day"};
    struct harp_completion came;
    int fds[1 + DATA];
    struct tcp_connection *connection = connect_peer(fds);
    CHECK(tcp_receive(connection, got, 100, true, 0) && tcp_receive(connection, got, 100, true, 1),
          "buffers");
    write_all(fds[0], &notice, sizeof notice);
    write_all(fds[1], &header, sizeof header);
    write_all(fds[1], "abc", 3);
    hang_up(fds);
    CHECK(next_completion(connection, &came) == HARP_COMPLETION_RECEIVED && came.size == 3, "abc");
    expect_end(connection, HARP_REASON_UNDER_WAY, "saying \"bad?day\"");
}

/* Whatever a peer that has the secret writes, the end comes, and nothing else happens. */
static void test_any_bytes(void)
{
    for (uint64_t seed = 1; seed <= 200; seed++) {
        int fds[1 + DATA];
        uint64_t state = seed;
        uint8_t noise[512];
        struct tcp_connection *connection = connect_peer(fds);
        struct harp_completion came;
        begun = time(NULL);
        for (uint32_t i = 0; i < 4; i++)
            CHECK(tcp_receive(connection, got, 300, true, i), "a buffer is refused");
        for (uint32_t i = 0; i < sizeof noise; i++)
            noise[i] = (uint8_t)(virtual_draw(&state) & (seed % 3 ? 0xff : 0x01));
        for (int i = 0; i < 1 + DATA; i++)
            write_all(fds[i], noise, 1 + virtual_draw(&state) % sizeof noise);
        hang_up(fds);
        while (next_completion(connection, &came) != HARP_COMPLETION_CLOSED)
            ;
        tcp_close(connection, NULL);
    }
}

/* ---- Who may connect ---- */

static struct tcp_connection *begin_to_connect(const uint8_t *with)
{
    struct tcp_connection *connection;
    struct harp_address peer = loopback;
    char why[HARP_WHY_BYTES];
    peer.port = port;
    CHECK(tcp_connect(&config, &loopback, &peer, with, &connection, why) == 0, "%s", why);
    return connection;
}

static void connect_beside_strangers(void)
{
    struct tcp_connection *sending = begin_to_connect(secret), *receiving = NULL;
    struct harp_completion came;
    while (!receiving || !tcp_poll(sending, &came, 1)) {
        tcp_drive(sending, true);
        if (!receiving)
            receiving = tcp_accept(listening);
        expect_soon("a connection");
    }
    CHECK(came.type == HARP_COMPLETION_CONNECTED, "type %u", came.type);
    CHECK(tcp_receive(receiving, got, 100, true, 5) && tcp_send(sending, "hello", 5, 6),
          "a message");
    CHECK(next_completion(receiving, &came) == HARP_COMPLETION_RECEIVED && came.size == 5, "5");
    tcp_close(sending, NULL);
    tcp_close(receiving, NULL);
}

/* Most say nothing, more of them than there are places; some say something wrong, or hang up. */
static void test_strangers_hold_up_nobody(void)
{
    int fds[STRANGERS];
    uint8_t wrong[sizeof(struct tcp_answer)] = {1};
    for (int i = 0; i < STRANGERS; i++) {
        fds[i] = call_listener();
        if (i % 8 == 1)
            write_all(fds[i], wrong, i % 16 == 1 ? sizeof wrong : 1);
        if (i % 8 == 2)
            shutdown(fds[i], SHUT_WR);
        CHECK(!tcp_accept(listening), "a stranger was accepted");
    }
    connect_beside_strangers();
    for (int i = 0; i < STRANGERS; i++)
        close(fds[i]);
}

/* Another secret is dropped, asks again until its time is over, and is told no more than that. */
static void test_another_secret_is_refused(void)
{
    static const uint8_t other[TCP_SECRET_BYTES] = "another secret";
    struct tcp_connection *connection = begin_to_connect(other);
    struct harp_completion came;
    connection->config.timeout_s = 1;
    while (!tcp_poll(connection, &came, 1)) {
        tcp_drive(connection, true);
        CHECK(!tcp_accept(listening), "who has another secret was accepted");
        expect_soon("the end of an attempt");
    }
    CHECK(came.type == HARP_COMPLETION_CLOSED && came.reason == HARP_REASON_NO_ANSWER, "reason %u",
          came.reason);
    tcp_close(connection, NULL);
}

static void test_nobody_listens(void)
{
    struct tcp_listening *gone;
    uint16_t kept = port;
    char why[HARP_WHY_BYTES];
    CHECK(tcp_listen(&config, &loopback, secret, &gone, &port, why) == 0, "%s", why);
    tcp_unlisten(gone);
    struct tcp_connection *connection = begin_to_connect(secret);
    port = kept;
    expect_end(connection, HARP_REASON_REFUSED, "no process");
}

/* A child of fork holds no socket open: the peer sees the end when the parent closes. */
static void test_a_child_of_fork_keeps_no_socket(void)
{
    int fds[1 + DATA], pipes[2];
    char byte;
    struct tcp_connection *connection = connect_peer(fds);
    CHECK(pipe(pipes) == 0, "pipe");
    pid_t child = fork();
    if (child == 0) {
        tcp_forked();
        tcp_close(connection, "the child says nothing");
        _exit(write(pipes[1], "x", 1) == 1 && pause() ? 0 : 1);
    }
    CHECK(read(pipes[0], &byte, 1) == 1, "the child is gone");
    struct pollfd quiet = {.fd = fds[0], .events = POLLIN};
    CHECK(poll(&quiet, 1, 0) == 0, "the child told the peer something");
    tcp_close(connection, NULL);
    struct tcp_notice notice;
    CHECK(recv(fds[0], &notice, sizeof notice, MSG_WAITALL) == sizeof notice, "no notice");
    CHECK(recv(fds[1], &byte, 1, 0) == 0, "the child has the socket");
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    close(pipes[0]);
    close(pipes[1]);
    hang_up(fds);
}

/* Many connections of as many sockets as a fast card has, each to a listener of its own, as NCCL
 * makes them, all open at once. */
static void open_many_connections(void)
{
    struct tcp_config wide = config;
    struct tcp_listening *listeners[MANY];
    struct tcp_connection *made[MANY], *accepted[MANY] = {NULL};
    wide.sockets = 16;
    for (int i = 0; i < MANY; i++) {
        struct harp_address peer = loopback;
        char why[HARP_WHY_BYTES];
        begun = time(NULL);
        CHECK(tcp_listen(&wide, &loopback, secret, &listeners[i], &peer.port, why) == 0,
              "listener %d: %s", i, why);
        CHECK(tcp_connect(&wide, &loopback, &peer, secret, &made[i], why) == 0, "connection %d: %s",
              i, why);
        for (; !accepted[i] || made[i]->state != TCP_OPEN; expect_soon("a connection")) {
            accepted[i] = accepted[i] ? accepted[i] : tcp_accept(listeners[i]);
            tcp_drive(made[i], true);
            CHECK(made[i]->state != TCP_CLOSED, "connection %d has failed", i);
        }
    }
    for (int i = 0; i < MANY; i++) {
        tcp_close(made[i], NULL);
        tcp_close(accepted[i], NULL);
        tcp_unlisten(listeners[i]);
    }
}

int main(int arguments_n, char **arguments)
{
    char why[HARP_WHY_BYTES];
    begun = time(NULL);
    if (arguments_n > 1) {
        CHECK(harp_address_parse(arguments[1], &loopback), "%s", arguments[1]);
        open_many_connections();
        return 0;
    }
    for (size_t i = 0; i < sizeof sent; i++)
        sent[i] = (uint8_t)(i * 2654435761u >> 13);
    CHECK(harp_address_parse("127.0.0.1", &loopback), "loopback");
    CHECK(tcp_listen(&config, &loopback, secret, &listening, &port, why) == 0, "%s", why);
    test_short_reads_and_partial_headers();
    test_short_writes();
    test_what_a_watched_buffer_shows();
    test_what_the_protocol_forbids();
    test_the_end_of_a_process();
    test_the_words_of_the_other_end();
    test_any_bytes();
    test_strangers_hold_up_nobody();
    test_another_secret_is_refused();
    test_nobody_listens();
    test_a_child_of_fork_keeps_no_socket();
    tcp_unlisten(listening);
    return 0;
}
