#include "flow_hash.h"

uint32_t harp_crc32(const uint8_t *bytes, size_t length, uint32_t seed)
{
    uint32_t crc = ~seed;
    for (size_t i = 0; i < length; i++) {
        crc ^= bytes[i];
        for (int bit = 0; bit < 8; bit++)
            crc = (crc >> 1) ^ (0xEDB88320u & -(crc & 1u));
    }
    return ~crc;
}
