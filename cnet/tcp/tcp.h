/* Messages over kernel TCP, as NCCL's own sockets carry them; the order is harp_send's.
 *
 *      sending end                                               receiving end
 *      control   <------- announcements -- notice of the end ---->   control
 *      data 0     -- header 0 | part 0 of 0 | header 1 | part 0 of 1 ... -->   data 0
 *      data 1     -- part 1 of 0 | part 1 of 1 ...                       -->   data 1
 *
 * The n-th message of one end goes into the n-th buffer that the other posts, each way, with the
 * calls and completions of engine.h. The kernel copies out of the sender's buffer and into the
 * receiver's, but for a watched one, which a GPU may read while it fills (LL, LL128): a message of
 * up to TCP_STAGED_MOST bytes comes into a stage first and is copied from there in order of its
 * lines (base/copy_lines.h), which the kernel's copy does not promise. A message is cut evenly into
 * one part for each data socket,
 * each of TCP_PART_BYTES at least. A header stays in the kernel until its buffer is posted; the
 * kernel's window then holds the sender back. A send is done when the kernel has taken all of it.
 *
 * **What drives it.** The thread that calls tcp_drive, and nothing else: no thread, no lock, no
 * allocation. Each socket is non-blocking, and one that gave less than was asked for is not asked
 * again in the same call.
 *
 * **Who may connect.** The listener sends each caller a nonce, and accepts those that answer with
 * its SipHash under the handle's secret. Once all sockets of a connection are there it proves on
 * the control socket that it has the secret, too. Silent callers wait in TCP_CALLERS places; a new
 * caller takes the oldest one's place, and a connection that lost its place tries again.
 *
 * **How it ends.** The end that closes writes the reason on the control socket (struct tcp_notice),
 * then closes all sockets. So the end of a data socket only makes an end look there; if there is
 * nothing but the end, the process is gone. A host that is gone is noticed by TCP's keepalive on
 * sockets that wait, and on the control socket of a sender when its data is not acknowledged.
 *
 * **Fork.** A child closes its copies of all sockets at once: else the peer of a parent that died
 * would hear nothing as long as a child lives. tcp_forked is for pthread_atfork.
 */
#ifndef HARP_TCP_H
#define HARP_TCP_H

#include "base/address.h"
#include "engine/engine.h"

#define TCP_SOCKETS_MAX 64   /* of data, a connection: NCCL takes no more */
#define TCP_PART_BYTES 65536 /* NCCL's MIN_CHUNKSIZE */
#define TCP_MESSAGES 512     /* open at once, each way; a power of two */
#define TCP_STAGE_BYTES 65536
/* NCCL's LL128 sends no more at once: 120 elements of 8 bytes for each of 640 threads. LL sends
 * less (src/include/device.h of 2.30; NCCL_LL_BUFFSIZE and NCCL_LL128_BUFFSIZE divided by 8 steps,
 * where they are set). */
#define TCP_STAGED_MOST 614400
#define TCP_SECRET_BYTES 16
#define TCP_TEXT_BYTES 120

struct tcp_connection;
struct tcp_listening;

struct tcp_config {
    uint32_t sockets;      /* of data; the connecting end's count */
    uint32_t staged_most;  /* bytes of the longest message that comes into a watched buffer early */
    uint32_t timeout_s;    /* after which a host that does not answer is gone */
    uint32_t mtu;          /* of packets; 0: the kernel's choice */
    uint8_t traffic_class; /* of the packets of both ends; the connecting end's */
};

/* Listen on the NIC's address, on a port of the kernel's choice, which goes to `port`. Returns 0,
 * or -errno and one sentence in `why` (HARP_WHY_BYTES). */
int tcp_listen(const struct tcp_config *config, const struct harp_address *nic,
               const uint8_t *secret, struct tcp_listening **listening, uint16_t *port, char *why);

/* The next connection with all its sockets, or NULL. Never waits. It outlives the
 * listening. */
struct tcp_connection *tcp_accept(struct tcp_listening *listening);
void tcp_unlisten(struct tcp_listening *listening);

/* Begin to connect from the NIC's address; CONNECTED or CLOSED follows. */
int tcp_connect(const struct tcp_config *config, const struct harp_address *nic,
                const struct harp_address *peer, const uint8_t *secret,
                struct tcp_connection **connection, char *why);

/* As harp_send and harp_receive. tcp_send tries to give the message to the kernel at once.
 * `watched`: somebody may read the buffer while it fills. */
bool tcp_send(struct tcp_connection *connection, const void *data, uint32_t size, uint64_t context);
bool tcp_receive(struct tcp_connection *connection, void *data, uint32_t capacity, bool watched,
                 uint64_t context);

/* Move what the sockets give and take. The control socket of a sending end is read if `news`, and
 * now and then, else only when something on it is due. */
void tcp_drive(struct tcp_connection *connection, bool news);

/* As harp_poll: what was moved; no system call. */
size_t tcp_poll(struct tcp_connection *connection, struct harp_completion *completions,
                size_t room);

/* Send the other end the reason, and release everything. `text` NULL: all is through. */
void tcp_close(struct tcp_connection *connection, const char *text);

/* Why it ended, in one sentence; and where the other end is. */
void tcp_why(const struct tcp_connection *connection, char *why);
const struct harp_address *tcp_peer(const struct tcp_connection *connection);

/* What its sockets did, for the log. */
struct tcp_counters {
    uint64_t messages, bytes; /* the way that data goes */
    uint64_t again;           /* segments sent again */
    uint32_t sockets;
    uint32_t rtt_us; /* smoothed, of the first data socket */
};

void tcp_count(const struct tcp_connection *connection, struct tcp_counters *counters);

void tcp_forked(void);

#endif
