/* The header of docs/inside/wire.md, between bytes and a struct.
 *
 * `harp_header` is a header as the session sees it: plain integers in the host's order, without the
 * tag. The CRC is there because bytes hold it; sealing writes it and opening checks it (seal.h).
 *
 *     bytes -- harp_header_decode --> struct harp_header --> the session's own checks
 *     struct harp_header -- harp_header_encode --> bytes -- harp_seal --> frame
 *
 * Encoding and decoding look at the header's own fields only; whether they make sense for a
 * connection is the session's business. Decoding is strict: it refuses every header that encoding
 * cannot have written, and says why. Bodies of control frames are in body.h.
 */
#ifndef HARP_WIRE_H
#define HARP_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* cdef: begin */
#define HARP_VERSION 3
#define HARP_HEADER_BYTES 44
#define HARP_TAGGED_BYTES 36        /* what the tag covers: the header up to the tag */
#define HARP_CHUNK_ALIGN 128        /* payloads but a message's last are multiples of it */
#define HARP_MESSAGE_MAX 0x40000000 /* 1 GiB */
#define HARP_SACK_BITS 1024
#define HARP_LAP_MAX 0xffffff /* a packet's number has 56 bits; its header holds 32 */

#define HARP_JOINED_BYTES 1024 /* of a datagram that brings several frames: any path takes it */

/* `flags` of DATA: 0 where it is one whole chunk; into how many fragments its chunk is cut; or the
 * sum of HARP_RUN and of how many whole chunks follow one another in it. */
#define HARP_FRAGMENTS_MAX 64
#define HARP_RUN 0x80
#define HARP_RUN_MOST 16
#define HARP_ACK_OFF_QUEUE 1 /* flags of ACK: the path's frames arrive on a wrong queue */

enum harp_type {
    HARP_FIRST = 1,
    HARP_COOKIE = 2,
    HARP_ACCEPT = 3,
    HARP_DATA = 4,
    HARP_ACK = 5,
    HARP_PROBE = 6,
    HARP_CLOSE = 7,
    HARP_VERSION_NOTICE = 8,
};

struct harp_header {
    uint8_t version;
    uint8_t type;
    uint8_t path;
    uint8_t flags;
    uint64_t connection;
    uint16_t epoch;
    uint16_t length;
    uint32_t packet; /* the lower 32 bits of the number */
    uint32_t message;
    uint32_t offset;
    uint32_t size;
    uint32_t crc;
};

/* The fault of bytes that should be a header or a body. */
enum harp_wire_error {
    HARP_WIRE_OK,
    HARP_WIRE_SHORT,   /* fewer bytes than a header */
    HARP_WIRE_VERSION, /* another version of the protocol; the header's `version` is the other's */
    HARP_WIRE_TYPE,    /* no such type */
    HARP_WIRE_LENGTH,  /* `length` is not what came, or not what this type has */
    HARP_WIRE_UNUSED,  /* something that this type does not use is not zero */
    HARP_WIRE_CHUNK,   /* offset, length and size do not make a chunk of a message */
    HARP_WIRE_LIMIT,   /* a body offers less than the protocol needs, or more than it has */
};

/* The connection that a frame is for, by its first HARP_CONNECTION_BYTES: as ICMP quotes it. */
#define HARP_CONNECTION_BYTES 12
uint64_t harp_wire_connection(const uint8_t *beginning);

/* Whether a frame of this type and version can have these fields; `crc` matters only as far as it
 * is 0 where there is no payload. Decoding returns the same. */
enum harp_wire_error harp_header_check(const struct harp_header *header);

/* Write bytes 0 to 35. The tag's 8 bytes stay as they are. The header must pass
 * harp_header_check. */
void harp_header_encode(const struct harp_header *header, uint8_t *bytes);

/* Whether such a frame may share a datagram with others: DATA and ACK may. */
bool harp_header_joins(const struct harp_header *header);

/* Chunk `k` of a run as its header would be in a frame of its own; 0 of any other frame is that
 * itself. False if there are not as many. */
bool harp_header_chunk(const struct harp_header *header, uint32_t k, struct harp_header *chunk);

/* How many of a datagram's bytes are its first frame: all, unless others follow. */
size_t harp_wire_first_frame(const uint8_t *datagram, size_t bytes);

/* How many bytes the frame has that begins with this header, in a stream of them. */
size_t harp_wire_frame_bytes(const uint8_t *header);

/* Read the header of a frame that has `frame_bytes` bytes, payload included. On HARP_WIRE_VERSION
 * `version`, `type` and `connection` are read and the rest is zero; on other errors nothing in
 * `header` means anything. A version notice is read whatever its version. Nothing here is believed
 * yet: the tag comes next. */
enum harp_wire_error harp_header_decode(const uint8_t *frame, size_t frame_bytes,
                                        struct harp_header *header);
/* cdef: end */

#endif
