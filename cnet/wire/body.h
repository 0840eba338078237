/* The bodies of control frames (docs/inside/wire.md), between bytes and structs.
 *
 * Encoding writes a body and returns its length: there must be room for HARP_BODY_MAX bytes.
 * Decoding is strict as that of headers is, and returns the same errors (wire.h). Bodies are read
 * after the tag and the CRC have held. COOKIE's body is 16 bytes that mean nothing to the end that
 * brings them back, so it has no struct; PROBE's means nothing to anybody.
 *
 * No function allocates or keeps state.
 */
#ifndef HARP_BODY_H
#define HARP_BODY_H

#include "wire/wire.h"

#define HARP_BODY_MAX 168 /* an ACK with the longest map */

/* cdef: begin */
#define HARP_ADDRESSES_MAX 5 /* that ACCEPT carries */

/* Where a listening end can be reached, too. */
struct harp_wire_address {
    uint8_t ip[16]; /* IPv4 as ::ffff:a.b.c.d */
    uint16_t port;  /* 0: room for an address, all of it zeros */
};

/* FIRST and ACCEPT: what an end brings to a connection. */
struct harp_parameters {
    uint64_t connection; /* the sender's own id, not 0: frames to it carry this */
    uint8_t nonce[16];
    uint16_t epoch;        /* changes with every start of the sender's process */
    uint16_t segment;      /* largest payload that it can take: bytes, a multiple of 128, at
                              least 128. Its low 7 bits: what its port holds (harp_holds_code) */
    uint16_t paths;        /* paths that it can take; 1 to 256 */
    uint8_t flags;         /* 1: it receives streamed */
    uint8_t traffic_class; /* of the connection's packets as the connecting end wants it; the low
                              two bits, ECN's, are 0 */
    uint32_t messages;     /* messages that it has posted; streamed: that may be open */
    uint32_t frames;       /* streamed: frames that it lends; posted: 0 */
    uint32_t first;        /* number of its first message and, on every path, of its first packet */
    uint8_t cookie[16];
    uint8_t addresses_n; /* ACCEPT: further addresses; FIRST: room for them */
    struct harp_wire_address addresses[HARP_ADDRESSES_MAX];
};

/* ACK: what has arrived on a path, and credit. The header's number is the largest that has arrived.
 * Credit has 64 bits, so that it never wraps and an old ACK always differs from a new one. */
struct harp_ack {
    uint64_t messages; /* messages below this number may be sent */
    uint64_t bytes;    /* posted: bytes posted since the beginning */
    uint64_t frames;   /* streamed: chunks below this number may be sent */
    uint32_t delay_ns; /* from the largest packet's arrival to this ACK; saturates */
    uint32_t marked;   /* packets that came with a congestion mark, since the beginning */
    uint32_t sent_ns;  /* when this ACK was made, by its sender's clock; wraps */
    uint16_t bits;     /* of the map, at most 1024 */
    uint8_t map[128];  /* bit i, from the lowest of byte 0: packet largest - 1 - i has arrived */
};

/* CLOSE: a reason of docs/inside/wire.md, and text for the other end's log (bytes, not a string).
 */
struct harp_close {
    uint32_t reason;
    uint8_t text_bytes; /* at most 120 */
    uint8_t text[120];
};

/* VERSION: the versions that a listening end speaks are `lowest` to `highest`. */
struct harp_versions {
    uint8_t lowest;
    uint8_t highest;
};

size_t harp_parameters_encode(const struct harp_parameters *parameters, uint8_t *body);
enum harp_wire_error harp_parameters_decode(const uint8_t *body, size_t length,
                                            struct harp_parameters *parameters);

/* Bytes of arrivals that a port holds until they are taken, as the low 7 bits of `segment` code
 * it: c is (8 + c % 8) * 2^(9 + c / 8), and 0 says nothing. The code of what is not more; 0 of less
 * than 4,608. Versions that do not know of it ignore these bits. */
uint16_t harp_holds_code(uint32_t bytes);
uint32_t harp_parameters_hold_bytes(const struct harp_parameters *parameters);

/* Bits of the map beyond `bits` are written as zeros and read as zeros. */
size_t harp_ack_encode(const struct harp_ack *ack, uint8_t *body);
enum harp_wire_error harp_ack_decode(const uint8_t *body, size_t length, struct harp_ack *ack);

size_t harp_close_encode(const struct harp_close *notice, uint8_t *body);
enum harp_wire_error harp_close_decode(const uint8_t *body, size_t length,
                                       struct harp_close *notice);

size_t harp_versions_encode(const struct harp_versions *versions, uint8_t *body);
enum harp_wire_error harp_versions_decode(const uint8_t *body, size_t length,
                                          struct harp_versions *versions);
/* cdef: end */

#endif
