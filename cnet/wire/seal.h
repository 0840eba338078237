/* Sealing and opening frames: CRC, tag and copy, beside the session.
 *
 * A sealed header holds the CRC32C of its payload (bytes 32 to 35) and then the tag over bytes 0 to
 * 35 (bytes 36 to 43), so the tag vouches for the payload too. It also covers what no byte carries:
 * the `lap`, bits 32 to 55 of the packet's number, 0 for frames without one. Both ends know it
 * (harp_session_lap), so that a frame replayed after 2^32 packets has another tag. Header and
 * payload need not be neighbours in memory: segmentation by the kernel takes them from different
 * places.
 *
 *     send      harp_header_encode   bytes 0..31            (the CRC may be 0 there)
 *               harp_seal            payload -> CRC -> tag
 *     receive   harp_header_decode   fields, nothing believed yet
 *               (session)            which connection, hence which key
 *               harp_open_tag        the header is the other end's; nothing changes if it is not
 *               (session)            its own checks: duplicates, credit, where the payload goes
 *               harp_open_payload    the payload is whole; or harp_crc32c_copy and harp_open_crc,
 *                                    in one pass with the copy
 *
 * One pass writes before it knows whether the payload is whole. It is for memory that nobody reads
 * before the message is complete. Where somebody may read early (NCCL's flags in the data), check
 * with harp_open_payload first, then copy.
 *
 * Tags are compared without branching on their bytes. The routine for the CRC is the one that
 * harp_crc32c_choose found. No function allocates or keeps state.
 */
#ifndef HARP_SEAL_H
#define HARP_SEAL_H

#include <stdbool.h>

#include "base/siphash.h"
#include "wire/wire.h"

/* cdef: begin */
/* Write CRC and tag into an encoded header. */
void harp_seal(const struct harp_key *key, uint8_t *header, uint32_t lap, const uint8_t *payload,
               size_t length);

/* The same where the payload's CRC is known, as for a chunk that is sent again. */
void harp_seal_known(const struct harp_key *key, uint8_t *header, uint32_t lap, uint32_t crc);

/* harp_seal_known of `count` headers, whose CRCs are in their bytes already: less than half the
 * time each where the CPU has wide registers. */
void harp_seal_tags(const struct harp_key *key, uint8_t *const *headers, const uint32_t *laps,
                    size_t count);

/* Whether the tag holds. The header has HARP_HEADER_BYTES bytes. */
bool harp_open_tag(const struct harp_key *key, const uint8_t *header, uint32_t lap);

/* harp_open_tag of `count` headers of one connection, at most 64: bit i of the result is the i-th.
 */
uint64_t harp_open_tags(const struct harp_key *key, const uint8_t *const *headers,
                        const uint32_t *laps, size_t count);

/* Whether the sender made no CRC of this DATA's payload: then it is 0 (docs/inside/wire.md,
 * Streams). Such a payload holds in all that follows. */
bool harp_payload_unchecked(const uint8_t *header);

/* Whether the payload is the one that the header was sealed with. */
bool harp_open_payload(const uint8_t *header, const uint8_t *payload, size_t length);

/* Whether the payload that the header was sealed with has this CRC32C. */
bool harp_open_crc(const uint8_t *header, uint32_t crc);
/* cdef: end */

#endif
