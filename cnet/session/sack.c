#include "session/sack.h"

#include <assert.h>
#include <string.h>

#include "base/sequence.h"

static uint64_t bit_of(uint64_t packet)
{
    return UINT64_C(1) << (packet % 64);
}

static uint64_t word_of(uint64_t packet)
{
    return packet / 64 % HARP_SACK_WORDS;
}

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
    return sack->ring[word_of(packet)] & bit_of(packet);
}

bool harp_sack_add(struct harp_sack *sack, uint64_t packet)
{
    if (harp_sack_has(sack, packet))
        return false;
    if (harp_packet_before(sack->largest, packet)) {
        if (packet - sack->largest >= HARP_SACK_BITS)
            memset(sack->ring, 0, sizeof sack->ring);
        else
            for (uint64_t p = sack->largest + 1; p != packet; p++)
                sack->ring[word_of(p)] &= ~bit_of(p);
        sack->largest = packet;
    }
    sack->ring[word_of(packet)] |= bit_of(packet);
    return true;
}

static uint64_t reversed(uint64_t x)
{
    x = (x >> 1 & UINT64_C(0x5555555555555555)) | (x & UINT64_C(0x5555555555555555)) << 1;
    x = (x >> 2 & UINT64_C(0x3333333333333333)) | (x & UINT64_C(0x3333333333333333)) << 2;
    x = (x >> 4 & UINT64_C(0x0f0f0f0f0f0f0f0f)) | (x & UINT64_C(0x0f0f0f0f0f0f0f0f)) << 4;
    x = (x >> 8 & UINT64_C(0x00ff00ff00ff00ff)) | (x & UINT64_C(0x00ff00ff00ff00ff)) << 8;
    x = (x >> 16 & UINT64_C(0x0000ffff0000ffff)) | (x & UINT64_C(0x0000ffff0000ffff)) << 16;
    return x >> 32 | x << 32;
}

/* The 64 bits that end with packet `last`, which becomes the highest. */
static uint64_t bits_up_to(const struct harp_sack *sack, uint64_t last)
{
    uint64_t above = 63 - last % 64;
    uint64_t high = sack->ring[word_of(last)] << above;
    return above ? high | sack->ring[word_of(last - 63)] >> (64 - above) : high;
}

uint16_t harp_sack_write(const struct harp_sack *sack, uint64_t since, uint8_t map[HARP_SACK_BYTES])
{
    uint16_t bits = 0;
    uint64_t words =
        harp_packet_before(sack->largest, since) ? 0 : (sack->largest - since) / 64 + 1;
    for (uint32_t w = 0; w < words && w < HARP_SACK_WORDS; w++) {
        uint64_t word = reversed(bits_up_to(sack, sack->largest - 1 - 64 * w));
        if (w == HARP_SACK_WORDS - 1)
            word &= ~(UINT64_C(1) << 63); /* that bit of the ring belongs to `largest` */
        if (word)
            bits = (uint16_t)(64 * (w + 1));
        for (uint32_t b = 0; b < 8; b++)
            map[8 * w + b] = (uint8_t)(word >> 8 * b);
    }
    return bits;
}

bool harp_sack_says(uint64_t largest, const uint8_t *map, uint16_t bits, uint64_t packet)
{
    assert(bits <= HARP_SACK_BITS);
    if (packet == largest)
        return true;
    uint64_t bit = largest - 1 - packet;
#ifdef HARP_BUG_SACK_OFF_BY_ONE
    bit++;
#endif
    return bit < bits && map[bit / 8] >> bit % 8 & 1;
}
