/* SipHash-2-4 with a 64-bit result (Aumasson, Bernstein: "SipHash: a fast short-input PRF",
 * INDOCRYPT 2012).
 *
 * A keyed function of short inputs: without the 128-bit key nobody can tell its results from
 * random numbers. HARP uses it for the tag of a header, for keys (keys.h) and for cookies.
 *
 *     state v0..v3 = key ^ "somepseudorandomlygeneratedbytes"
 *     for each 8 bytes m, and for the rest with the length as top byte:
 *         v3 ^= m;  two rounds;  v0 ^= m
 *     v2 ^= 0xff;  four rounds;  result = v0 ^ v1 ^ v2 ^ v3
 *
 * A round is a chain of dependent additions, so one hash leaves most of a core idle.
 * harp_siphash_header4 hashes four inputs at once, each in one lane of vector registers where the
 * CPU has them wide enough, and gives the same results everywhere.
 *
 * No function allocates, keeps state or fails.
 */
#ifndef HARP_SIPHASH_H
#define HARP_SIPHASH_H

#include <stddef.h>
#include <stdint.h>

/* cdef: begin */
/* A key of 128 bits: bytes 0 to 7 and bytes 8 to 15, each read as a little-endian integer. */
struct harp_key {
    uint64_t low;
    uint64_t high;
};

uint64_t harp_siphash(const struct harp_key *key, const uint8_t *bytes, size_t length);

/* harp_siphash of the 36 tagged bytes of a header, followed by the three bytes of `lap` (below
 * 2^24) unless it is 0. These fit into the last word, so they cost nothing. */
uint64_t harp_siphash_header(const struct harp_key *key, const uint8_t *bytes, uint32_t lap);

/* harp_siphash_header of four inputs under one key. */
void harp_siphash_header4(const struct harp_key *key, const uint8_t *const *bytes,
                          const uint32_t *laps, uint64_t *out);
/* cdef: end */

#endif
