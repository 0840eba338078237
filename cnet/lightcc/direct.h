/* Messages between ranks of one host through the memory of a mem port, without an engine and its
 * sessions: no acknowledgement, checksum or timer.
 *
 *     rank A                                                  rank B
 *     direct_write_described, direct_write  --- record, record, ... -->  direct_first, direct_drop
 *
 * A message is cut into records, which lie in a ring (ports/port_mem_ring.h) until they are
 * dropped: what comes is reduced, or copied to where it belongs, from there. That is two copies,
 * and faster than one by the kernel (process_vm_readv), which on an AMD EPYC copies 6 GB/s where a
 * process copies 19.
 *
 * - **Whole, and in order**, as long as the other rank lives. A rank that has ended writes
 *   nothing more; its connection reports the end.
 * - **A full ring** holds a writer back until its reader has dropped something. A ring has room for
 *   some pieces of a collective, so two ranks that send each other one before they take the other's
 *   do not wait for each other.
 * - **A piece can change** as long as it lies there, since the other rank can write to it at any
 *   time. That gives no more than wrong values.
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

/* Open one for a rank with `peers` peers. Returns 0, or -errno and one sentence in `why`
 * (HARP_WHY_BYTES). */
int harp_direct_open(struct harp_direct **direct, uint32_t peers, char *why);
void harp_direct_close(struct harp_direct *direct);

/* By what other ranks find it. */
const uint8_t *harp_direct_name(const struct harp_direct *direct);

/* Link up with a peer of that name. If the peer has done so already, and this one has learned by
 * other means that it has, both use the same memory. Returns 0, or -errno and a sentence. */
int harp_direct_link(struct harp_direct *direct, uint32_t peer, const uint8_t *name, char *why);
/* cdef: end */

#define DIRECT_RECORD_BYTES 32768 /* at most: the next ones are written while it is read */

struct direct_record {
    uint8_t *at; /* of the ring, at the begin of a line: the reader's to write to until it drops */
    uint32_t bytes;
    uint32_t whole; /* bytes of the message that it is a part of */
};

/* Whether messages to and from this peer go so; `direct` may be NULL. */
bool direct_reaches(const struct harp_direct *direct, uint32_t peer);

/* Whether it still takes any. */
bool direct_lives(const struct harp_direct *direct, uint32_t peer);

/* Send `said` and `bytes`, a record at most, as one message; false if there is no room now. */
bool direct_write_described(struct harp_direct *direct, uint32_t peer, const uint8_t *said,
                            uint32_t said_bytes, const uint8_t *at, uint32_t bytes);

/* Send of a message as much as there is room for, from its byte `*done` on; says whether that was
 * all of it. */
bool direct_write(struct harp_direct *direct, uint32_t peer, const uint8_t *at, uint32_t bytes,
                  uint32_t *done);

/* See what has come; says whether there is more than at the last look. */
bool direct_look(struct harp_direct *direct);

/* The first record of a peer, or NULL; it lies there until it is dropped. */
const struct direct_record *direct_first(struct harp_direct *direct, uint32_t peer);
void direct_drop(struct harp_direct *direct, uint32_t peer);

/* Before waiting for `direct_fd`, which becomes readable when more comes, or there is room for what
 * could not be written: false if that is so already. -1 without one. */
bool direct_sleep(struct harp_direct *direct);
int direct_fd(const struct harp_direct *direct);

#endif
