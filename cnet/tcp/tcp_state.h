/* Connections of tcp.h, as tcp_stream.c (messages), tcp_end.c (the end), tcp_connect.c and
 * tcp_listen.c (the beginning) share them. */
#ifndef HARP_TCP_STATE_H
#define HARP_TCP_STATE_H

#include "base/siphash.h"
#include "tcp/tcp.h"

/* Before each message, on the first socket of its direction; little-endian, as all below. */
struct tcp_header {
    uint32_t size; /* TCP_NOTICE: no message but struct tcp_notice */
    uint32_t number;
};

#define TCP_NOTICE UINT32_MAX

struct tcp_notice {
    struct tcp_header header; /* number: enum harp_reason */
    char text[TCP_TEXT_BYTES];
};

struct tcp_message {
    uint8_t *data;
    uint64_t context;
    uint32_t size;     /* of a buffer: what came */
    uint32_t capacity; /* of a buffer */
    uint32_t left;     /* sockets that still move their part */
    bool watched;      /* a buffer that somebody may read while it fills */
    struct tcp_header header;
};

struct tcp_socket {
    int fd;           /* -1: none */
    uint32_t message; /* that it works at */
    uint32_t moved;   /* bytes of its part, of sent ones header included */
    uint8_t *stage;   /* of one that receives: read and not yet used */
    uint32_t stage_from, stage_to;
    bool dry;   /* the kernel had less than was asked for */
    bool ended; /* nothing will come any more */
};

/* One direction. Numbers count messages and wrap: taken <= done <= known <= posted. */
struct tcp_stream {
    struct tcp_socket *sockets;
    uint32_t sockets_n;
    uint32_t taken;  /* by tcp_poll */
    uint32_t done;   /* all before it are */
    uint32_t known;  /* their size is known */
    uint32_t posted; /* sends, or buffers */
    uint64_t bytes;
    struct tcp_message messages[TCP_MESSAGES];
};

/* The beginning of a socket: the listener's challenge, the connecting end's answer; on the control
 * socket the listener's welcome when all sockets are there. */
struct tcp_challenge {
    uint32_t magic, version;
    uint64_t nonce;
};

struct tcp_answer {
    uint64_t id;    /* of the connection, random */
    uint16_t index; /* of the socket; 0: control */
    uint16_t count; /* of the connection's sockets */
    uint8_t traffic_class;
    uint8_t zero[3];
    uint64_t tag;
};

struct tcp_greeting {
    struct tcp_challenge challenge;
    uint64_t welcome;
    uint32_t heard; /* bytes of both */
    bool answered;
};

enum tcp_state { TCP_CONNECTING, TCP_OPEN, TCP_ENDING, TCP_CLOSED };

struct tcp_connection {
    struct tcp_connection *next, **at; /* of the list for tcp_forked */
    struct tcp_config config;
    struct harp_address nic, peer;
    struct harp_key key;
    uint64_t id;
    uint64_t begun_ns; /* to connect */
    uint64_t again_ns; /* connecting: not before then, as a listener gave it up */
    uint64_t heard_ns; /* the control socket was read */
    enum tcp_state state;
    bool sends;         /* the sending end */
    bool reported_open; /* by tcp_poll */
    bool reported_end;
    bool over;       /* nothing but a notice may still come on the control socket */
    uint32_t reason; /* CLOSED */
    bool by_peer;
    struct tcp_notice notice;
    uint32_t notice_bytes;                              /* that have come */
    struct tcp_greeting greetings[1 + TCP_SOCKETS_MAX]; /* connecting: of each socket */
    struct tcp_stream out, in;
    uint8_t *stages;
    uint32_t sockets_n;
    struct tcp_socket sockets[1 + TCP_SOCKETS_MAX]; /* control, data */
};

/* tcp_stream.c: give the kernel what is to be sent, and take what has come. */
void tcp_flush(struct tcp_connection *connection);
void tcp_take(struct tcp_connection *connection);

/* tcp_end.c */
void tcp_lose(struct tcp_connection *connection, struct tcp_socket *socket, int error);
void tcp_end(struct tcp_connection *connection, uint32_t reason); /* this end found a reason */
void tcp_hear_notice(struct tcp_connection *connection);

void tcp_fail(struct tcp_connection *connection,
              uint32_t reason); /* without a notice to the peer */

/* tcp_connect.c: the connecting end; and what tcp_listen.c needs of it. */
#define TCP_ANSWERS "answer"
#define TCP_WELCOMES "welcome"
struct tcp_connection *tcp_new(const struct tcp_config *config, uint32_t sockets_n);
void tcp_begin_streams(struct tcp_connection *connection, bool sends);
void tcp_drive_handshake(struct tcp_connection *connection);
uint64_t tcp_sign(const struct harp_key *key, const char *label, uint64_t nonce,
                  const struct tcp_answer *answer);

/* tcp_socket.c: every descriptor of this file's kind, so that a child of fork finds them.
 * tcp_adopt makes it non-blocking and sets what the connection asks for. */
#define TCP_MAGIC UINT32_C(0x54524148) /* "HART" */
#define TCP_VERSION 1

/* A socket bound to a local address, or -1. One that will connect takes a port only then: connect
 * picks one that is free towards its peer, so that two peers may have the same, whereas bind would
 * take it from every program of the host. */
int tcp_socket(const struct harp_address *local, bool will_connect, int *error);
void tcp_keep(int fd);
void tcp_tune(int fd, const struct tcp_config *config, bool control);
void tcp_shut(int *fd);
uint64_t tcp_now_ns(void);

#endif
