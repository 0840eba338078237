/* The keys of a connection, made of a secret that the protocol does not send.
 *
 *     key(label, context) = SipHash(secret, label, 0, context), SipHash(secret, label, 1, context)
 *
 * SipHash serves as a pseudo-random function: two contexts that differ in a bit give keys that have
 * nothing to do with each other, so a frame of one connection, direction or incarnation of a
 * process never carries the tag of another. docs/inside/wire.md ("Keys") has labels and contexts.
 *
 *                    secret + listener's id
 *     FIRST    -->   hello                     known before the ends know each other
 *     COOKIE   <--   hello
 *     ACCEPT   <--   accept                    also holds the connecting end's id and nonce: fresh
 *     others   -->   up                        ids, epochs and nonces of both ends
 *     others   <--   down
 *
 * No function allocates, keeps state or fails.
 */
#ifndef HARP_KEYS_H
#define HARP_KEYS_H

#include "base/siphash.h"

/* cdef: begin */
/* One end's part of the keys of a connection: its parameters of FIRST or ACCEPT. */
struct harp_end {
    uint64_t connection;
    uint16_t epoch;
    uint8_t nonce[16];
};

/* The key of FIRST, COOKIE and VERSION. `listener` is the listener's id. */
struct harp_key harp_key_hello(const struct harp_key *secret, uint64_t listener);

/* The key of ACCEPT; the epoch of the connecting end is no part of it. */
struct harp_key harp_key_accept(const struct harp_key *secret, uint64_t listener,
                                const struct harp_end *connecting);

/* The keys of all other frames, towards the listening end and towards the connecting end. */
struct harp_key harp_key_up(const struct harp_key *secret, const struct harp_end *connecting,
                            const struct harp_end *listening);
struct harp_key harp_key_down(const struct harp_key *secret, const struct harp_end *connecting,
                              const struct harp_end *listening);
/* cdef: end */

#endif
