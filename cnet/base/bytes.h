/* Little-endian integers at any address.
 *
 * Frames are little-endian (docs/inside/wire.md) and so is every host that this runs on, so a load
 * is a plain move; memcpy says so without breaking C's rules on alignment and aliasing. A
 * big-endian host is refused here, at compile time, rather than somewhere on the wire.
 */
#ifndef HARP_BYTES_H
#define HARP_BYTES_H

#include <stdint.h>
#include <string.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "HARP needs a little-endian host");

static inline uint16_t harp_load16(const uint8_t *at)
{
    uint16_t value;
    memcpy(&value, at, sizeof value);
    return value;
}

static inline uint32_t harp_load32(const uint8_t *at)
{
    uint32_t value;
    memcpy(&value, at, sizeof value);
    return value;
}

static inline uint64_t harp_load64(const uint8_t *at)
{
    uint64_t value;
    memcpy(&value, at, sizeof value);
    return value;
}

static inline void harp_store16(uint8_t *at, uint16_t value)
{
    memcpy(at, &value, sizeof value);
}
static inline void harp_store32(uint8_t *at, uint32_t value)
{
    memcpy(at, &value, sizeof value);
}
static inline void harp_store64(uint8_t *at, uint64_t value)
{
    memcpy(at, &value, sizeof value);
}

#endif
