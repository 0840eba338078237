#include "session/sack.h"

#include <assert.h>
#include <string.h>

#include "base/bytes.h"
#include "base/sequence.h"

_Static_assert(HARP_SACK_WORDS == HARP_BIT_RING_WORDS, "a map is as long as a ring");

void harp_sack_init(struct harp_sack *sack, uint64_t first)
{
    memset(sack, 0, sizeof *sack);
    sack->largest = first - 1;
}

bool harp_sack_has(const struct harp_sack *sack, uint64_t packet)
{
    if (harp_packet_before(sack->largest, packet))
        return false;
    if (sack->largest - packet >= HARP_SACK_BITS)
        return true;
    return harp_bit_ring_has(&sack->ring, packet);
}

bool harp_sack_add(struct harp_sack *sack, uint64_t packet)
{
    if (harp_sack_has(sack, packet))
        return false;
    if (harp_packet_before(sack->largest, packet)) {
        if (packet - sack->largest >= HARP_SACK_BITS)
            memset(&sack->ring, 0, sizeof sack->ring);
        else
            for (uint64_t p = sack->largest + 1; p != packet; p++)
                harp_bit_ring_clear(&sack->ring, p);
        sack->largest = packet;
    }
    harp_bit_ring_set(&sack->ring, packet);
    return true;
}

uint16_t harp_sack_write(const struct harp_sack *sack, uint64_t since, uint8_t map[HARP_SACK_BYTES])
{
    uint16_t bits = 0;
    uint64_t words =
        harp_packet_before(sack->largest, since) ? 0 : (sack->largest - since) / 64 + 1;
    for (uint32_t w = 0; w < words && w < HARP_SACK_WORDS; w++) {
        uint64_t word = harp_bit_ring_back_from(&sack->ring, sack->largest - 1 - 64 * w);
        if (w == HARP_SACK_WORDS - 1)
            word &= ~(UINT64_C(1) << 63); /* that bit of the ring belongs to `largest` */
        if (word)
            bits = (uint16_t)(64 * (w + 1));
        for (uint32_t b = 0; b < 8; b++)
            map[8 * w + b] = (uint8_t)(word >> 8 * b);
    }
    return bits;
}

uint64_t harp_sack_word(const uint8_t *map, uint64_t word)
{
    return harp_load64(map + 8 * word);
}
