/* The frames of docs/wire.md, between bytes and a struct.
 *
 * `harp_header` is a header as the session sees it: plain integers in the host's order, without tag
 * and CRC, which belong to the step beside the session (seal.h). Encoding and decoding look at the
 * header's own fields only; whether they make sense for a connection is the session's business.
 */
#ifndef HARP_WIRE_H
#define HARP_WIRE_H

#include <stddef.h>
#include <stdint.h>

#define HARP_VERSION 1
#define HARP_HEADER_BYTES 44
#define HARP_TAGGED_BYTES 36 /* what the tag covers: the header up to the tag */
#define HARP_CHUNK_ALIGN 128 /* payloads but a message's last are multiples of it */
#define HARP_MESSAGE_MAX (UINT32_C(1) << 30)
#define HARP_SACK_BITS 1024

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
    uint32_t packet;
    uint32_t message;
    uint32_t offset;
    uint32_t size;
    uint32_t crc;
};

#endif
