/* A bit for each of the last numbers of a row that goes on for ever.
 *
 * The bit of number n is n modulo the ring's length, so nothing moves when the row goes on. A
 * reader of a run of bits must know that all of its numbers are still in the ring.
 */
#ifndef HARP_BIT_RING_H
#define HARP_BIT_RING_H

#include <stdbool.h>
#include <stdint.h>

#define HARP_BIT_RING_WORDS 16 /* of 64 bits: as far as the map of an ACK reaches */

struct harp_bit_ring {
    uint64_t words[HARP_BIT_RING_WORDS];
};

static inline bool harp_bit_ring_has(const struct harp_bit_ring *ring, uint64_t number)
{
    return ring->words[number / 64 % HARP_BIT_RING_WORDS] >> number % 64 & 1;
}

static inline void harp_bit_ring_set(struct harp_bit_ring *ring, uint64_t number)
{
    ring->words[number / 64 % HARP_BIT_RING_WORDS] |= UINT64_C(1) << number % 64;
}

static inline void harp_bit_ring_clear(struct harp_bit_ring *ring, uint64_t number)
{
    ring->words[number / 64 % HARP_BIT_RING_WORDS] &= ~(UINT64_C(1) << number % 64);
}

static inline uint64_t harp_bits_reversed(uint64_t x)
{
    x = (x >> 1 & UINT64_C(0x5555555555555555)) | (x & UINT64_C(0x5555555555555555)) << 1;
    x = (x >> 2 & UINT64_C(0x3333333333333333)) | (x & UINT64_C(0x3333333333333333)) << 2;
    x = (x >> 4 & UINT64_C(0x0f0f0f0f0f0f0f0f)) | (x & UINT64_C(0x0f0f0f0f0f0f0f0f)) << 4;
    return __builtin_bswap64(x);
}

/* The bits of the 64 numbers that end with `last`: its own is the lowest, as in the map of an ACK.
 */
static inline uint64_t harp_bit_ring_back_from(const struct harp_bit_ring *ring, uint64_t last)
{
    uint64_t above = 63 - last % 64;
    uint64_t bits = ring->words[last / 64 % HARP_BIT_RING_WORDS] << above;
    if (above)
        bits |= ring->words[(last - 63) / 64 % HARP_BIT_RING_WORDS] >> (64 - above);
    return harp_bits_reversed(bits);
}

#endif
