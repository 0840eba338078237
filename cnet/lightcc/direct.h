/* Short messages between ranks of one host, through a mem port without an engine and its sessions.
 *
 * What is told before and with a small collective goes so (mover.h): a message is written into the
 * memory that two ranks share, and read from there, with no acknowledgement, checksum or timer.
 *
 *     rank A                                                        rank B
 *     direct_send   --- said, bytes -----------------------------> direct_look: into B's inbox
 *                                                                  direct_first, direct_drop
 *
 * - **Whole, and in order**, as long as the other rank lives. A rank whose memory has ended hears
 *   nothing: that it is gone, its connection tells.
 * - **Nobody waits for a reader.** Ranks that agree have at most INBOX messages under way to each
 *   other, since each call has one each way: what a rank sends beyond that is not heard.
 * - **What came is the reader's own.** It is copied before it is looked at; another rank can write
 *   to the shared memory at any time, but gives no more than wrong values.
 *
 * One thread at a time.
 */
#ifndef HARP_LIGHTCC_DIRECT_H
#define HARP_LIGHTCC_DIRECT_H

#include <stdbool.h>
#include <stdint.h>

/* cdef: begin */
#define HARP_DIRECT_NAME_BYTES 16

struct harp_direct;

/* Open one for a rank of so many `peers`. Returns 0, or -errno and one sentence in `why`
 * (HARP_WHY_BYTES). */
int harp_direct_open(struct harp_direct **direct, uint32_t peers, char *why);
void harp_direct_close(struct harp_direct *direct);

/* By what other ranks find it. */
const uint8_t *harp_direct_name(const struct harp_direct *direct);

/* Link up with a peer of that name. If the peer has done so already, and this one has learnt by
 * other means that it has, both use the same memory. Returns 0, or -errno and a sentence. */
int harp_direct_link(struct harp_direct *direct, uint32_t peer, const uint8_t *name, char *why);
/* cdef: end */

#define DIRECT_BYTES 5120 /* the longest message */
#define DIRECT_INBOX 4    /* messages of a peer that nobody has asked for yet */

struct direct_message {
    uint32_t bytes; /* that were sent; at most DIRECT_BYTES of them are here */
    _Alignas(64) uint8_t at[DIRECT_BYTES];
};

/* Whether messages to and from this peer go so; `direct` may be NULL. */
bool direct_reaches(const struct harp_direct *direct, uint32_t peer);

/* Send `said` and `bytes`; false if there is no room, or nobody to take it. */
bool direct_send(struct harp_direct *direct, uint32_t peer, const uint8_t *said,
                 uint32_t said_bytes, const uint8_t *at, uint32_t bytes);

/* Take in what has come; says whether there was anything. */
bool direct_look(struct harp_direct *direct);

/* The first message of a peer, or NULL. */
struct direct_message *direct_first(struct harp_direct *direct, uint32_t peer);
void direct_drop(struct harp_direct *direct, uint32_t peer);

/* Before waiting for `direct_fd`, which becomes readable when something comes: false if something
 * is there. -1 without one. */
bool direct_sleep(struct harp_direct *direct);
int direct_fd(const struct harp_direct *direct);

#endif
