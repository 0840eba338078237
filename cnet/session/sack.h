/* Record of the packets of one path that have arrived.
 *
 * The receiver keeps the largest packet number that has come and a map of the 1,024 numbers that
 * end with it. The map is a ring of bits: the bit of packet p is p mod 1024, so that a packet in
 * order costs two operations and nothing is shifted.
 *
 *        largest - 1023                    largest
 *   ...  |  1  1  0  1  1  1  ...   0  1  1  |  (not yet arrived)
 *   too old: counts as arrived
 *
 * A packet that has left the map counts as arrived. That is safe in both directions: a sender never
 * has more than 1,024 packets of a path unresolved (sent.h), so what left the map is either
 * acknowledged or given up, and its chunk is sent under a new number.
 *
 * Owner: the session's path. Nothing here allocates; all functions take constant time, except that
 * a jump of n numbers clears n bits, 1,024 at most.
 */
#ifndef HARP_SACK_H
#define HARP_SACK_H

#include <stdbool.h>
#include <stdint.h>

#include "base/bit_ring.h"
#include "wire/wire.h"

#define HARP_SACK_WORDS (HARP_SACK_BITS / 64)
#define HARP_SACK_BYTES (HARP_SACK_BITS / 8)

struct harp_sack {
    uint64_t largest; /* the number before the peer's first until something has arrived */
    struct harp_bit_ring ring;
};

/* An empty map of a path whose first packet will have number `first`. */
void harp_sack_init(struct harp_sack *sack, uint64_t first);

/* Whether `packet` has arrived, or is too old to know. */
bool harp_sack_has(const struct harp_sack *sack, uint64_t packet);

/* Record `packet`; false if it had arrived before, or is too old to know. */
bool harp_sack_add(struct harp_sack *sack, uint64_t packet);

/* Write the map of an ACK, back to packet `since` or somewhat further: bit i, from the lowest of
 * byte 0, stands for packet largest - 1 - i. Returns its length in bits, a multiple of 64 and
 * without trailing words of zeros. The packets that a sender may still ask about are largest - 1023
 * and later, so bit 1023 is always zero. */
uint16_t harp_sack_write(const struct harp_sack *sack, uint64_t since,
                         uint8_t map[HARP_SACK_BYTES]);

/* 64 bits of such a map, from bit 64 * `word` on. */
uint64_t harp_sack_word(const uint8_t *map, uint64_t word);

#endif
