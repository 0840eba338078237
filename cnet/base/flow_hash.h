/* Hash functions that switches use to spread flows over equal-cost links.
 *
 * A switch with several equal-cost next hops hashes a packet's five-tuple and takes the hash
 * modulo the number of next hops, so that one flow stays on one path. The simulator calls these
 * functions to learn where flows go. Real hosts call the same functions to choose the UDP source
 * ports of their paths: a port whose hash leads to an idle link, or to the receive queue that a
 * socket is bound to. One source serves both, so a plan made in simulation holds on the wire.
 *
 * A five-tuple is packed in network byte order, the protocol last:
 *
 *     IPv4   0     4     8   10   12 13        IPv6   0      16     32   34   36 37
 *            |src  |dst  |sp |dp  |pr|                |src   |dst   |sp  |dp  |pr|
 *
 * Functions
 *   CRC16     CCITT polynomial 0x1021, most significant bit first; binascii.crc_hqx.
 *   CRC32     IEEE 802.3 polynomial, reflected, inverted before and after; zlib's crc32.
 *   XOR       exclusive or of the key's big-endian 16-bit words; an odd last byte is a high byte.
 *   TOEPLITZ  Microsoft's receive side scaling hash; as there, the protocol byte is left out.
 *   LINUX     what a Linux router does (flow_hash_linux.h), which also picks in its own way.
 *
 * The seed is the value that the register starts from (CRC16, CRC32: as in the two libraries
 * above; XOR, TOEPLITZ: exclusive-ored into the result), or the key (LINUX).
 *
 * All but LINUX are affine over GF(2): on keys of one length,
 *     f(a ^ b) = f(a) ^ f(b) ^ f(0).
 * Two things follow.
 * - A batch needs only one table, the contribution of each byte value at each place, and no
 *   carry from byte to byte: about a dozen independent loads per key whichever the function.
 * - A seed only adds a constant to every hash. Two tiers of switches whose seeds differ would
 *   still split flows along the same lines, so all flows that meet at a second-tier switch would
 *   leave it by one port (polarisation; "Hashing Linearity Enables Relative Path Control in Data
 *   Centers", USENIX ATC 2021). Switch chips escape by taking other bits or another function
 *   per switch. harp_ecmp_pick models that with a salt: it scrambles hash and salt together by
 *   a function that is not linear. Salt 0 is the bare rule, hash modulo next_hops.
 *
 * No function allocates, keeps state or fails; contracts are asserted.
 */
#ifndef HARP_FLOW_HASH_H
#define HARP_FLOW_HASH_H

#include <stddef.h>
#include <stdint.h>

/* cdef: begin */
enum harp_hash {
    HARP_HASH_CRC16,
    HARP_HASH_CRC32,
    HARP_HASH_XOR,
    HARP_HASH_TOEPLITZ,
    HARP_HASH_LINUX
};

/* Bytes of a packed five-tuple, and of the longest key of a Toeplitz hash (the usual length). */
enum { HARP_TUPLE4_BYTES = 13, HARP_TUPLE6_BYTES = 37, HARP_TOEPLITZ_KEY_BYTES = 40 };

/* The verification key that Microsoft publishes for RSS and most drivers ship. */
extern const uint8_t harp_toeplitz_default_key[40];

uint32_t harp_crc16(const uint8_t *bytes, size_t length, uint32_t seed);
uint32_t harp_crc32(const uint8_t *bytes, size_t length, uint32_t seed);
uint32_t harp_xor16(const uint8_t *bytes, size_t length, uint32_t seed);

/* `key` has HARP_TOEPLITZ_KEY_BYTES bytes and `length` is at most 36. */
uint32_t harp_toeplitz(const uint8_t *bytes, size_t length, const uint8_t *key, uint32_t seed);

/* Hash `count` packed five-tuples that lie back to back, `tuple_bytes` each (13 or 37).
 * `key` is Toeplitz's and unused by the other functions; out[i] is the hash of the i-th. */
void harp_hash_packed(enum harp_hash function, const uint8_t *tuples, size_t tuple_bytes,
                      size_t count, const uint8_t *key, uint32_t seed, uint32_t *out);

/* The same over an array for each field of IPv4 five-tuples, in host byte order. */
void harp_hash_fields(enum harp_hash function, const uint32_t *src_ip, const uint32_t *dst_ip,
                      const uint16_t *src_port, const uint16_t *dst_port, const uint8_t *proto,
                      size_t count, const uint8_t *key, uint32_t seed, uint32_t *out);

/* Index of the next hop, 0 <= index < next_hops, that a switch with this salt takes; next_hops > 0.
 * Not for LINUX, whose salt is the seed of its hash: harp_linux_pick. */
uint32_t harp_ecmp_pick(uint32_t hash, uint32_t salt, uint32_t next_hops);

/* harp_ecmp_pick over arrays of `count`. */
void harp_ecmp_pick_batch(const uint32_t *hash, const uint32_t *salt, const uint32_t *next_hops,
                          size_t count, uint32_t *out);
/* cdef: end */

#endif
