#include "few_bits.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "kernels.h"

#define CHUNK HARP_BITS_CHUNK
#define SCALE_BYTES sizeof(float)
#define INFINITE UINT32_C(0x7F800000)

static size_t levels_bytes(size_t n, uint32_t bits)
{
    return (n * bits + 7) / 8;
}

size_t harp_bits_bytes(size_t n, uint32_t bits)
{
    assert(bits == 8 || bits == 4 || bits == 2);
    size_t rest = n % CHUNK;
    size_t whole = n / CHUNK * (SCALE_BYTES + levels_bytes(CHUNK, bits));
    return whole + (rest ? SCALE_BYTES + levels_bytes(rest, bits) : 0);
}

static void pack_levels(uint8_t *bytes, const int8_t *levels, uint32_t bits)
{
    if (bits == 8) {
        memcpy(bytes, levels, CHUNK);
        return;
    }
    for (size_t i = 0; bits == 4 && i < CHUNK / 2; i++)
        bytes[i] = (uint8_t)((levels[2 * i] & 15) | (levels[2 * i + 1] & 15) << 4);
    for (size_t i = 0; bits == 2 && i < CHUNK / 4; i++)
        bytes[i] = (uint8_t)((levels[4 * i] & 3) | (levels[4 * i + 1] & 3) << 2 |
                             (levels[4 * i + 2] & 3) << 4 | (levels[4 * i + 3] & 3) << 6);
}

/* The lowest `bits` of a byte, with their sign. */
static int8_t level_of(uint32_t byte, uint32_t bits)
{
    uint32_t sign = UINT32_C(1) << (bits - 1), mask = 2 * sign - 1;
    return (int8_t)((int32_t)((byte & mask) ^ sign) - (int32_t)sign);
}

static void unpack_levels(int8_t *levels, const uint8_t *bytes, uint32_t bits)
{
    if (bits == 8) {
        memcpy(levels, bytes, CHUNK);
        return;
    }
    for (size_t i = 0; bits == 4 && i < CHUNK / 2; i++) {
        levels[2 * i] = level_of(bytes[i], 4);
        levels[2 * i + 1] = level_of(bytes[i] >> 4, 4);
    }
    for (size_t i = 0; bits == 2 && i < CHUNK / 4; i++)
        for (size_t j = 0; j < 4; j++)
            levels[4 * i + j] = level_of((uint32_t)bytes[i] >> 2 * j, 2);
}

/* Make levels of a chunk of values, which become what is left of them; returns the scale. */
static float take_chunk(float *values, int8_t *levels, uint32_t bits, uint32_t seed, uint32_t first)
{
    uint32_t magnitude = harp_kernels()->peak(values);
    int32_t most = (1 << (bits - 1)) - 1;
    float peak;
    memcpy(&peak, &magnitude, sizeof peak);
    memset(levels, 0, CHUNK);
    if (magnitude >= INFINITE) {
        memset(values, 0, CHUNK * sizeof *values);
        return NAN;
    }
    if (peak < HARP_BITS_LEAST)
        return 0;
    float scale = peak / (float)most;
    struct harp_rounding rounding = {(float)most / peak, scale, most, seed, first};
    harp_kernels()->round_levels(values, levels, &rounding);
    return scale;
}

void harp_bits_take(const float *values, float *error, size_t n, uint8_t *message, uint32_t bits,
                    uint32_t seed)
{
    float chunk[CHUNK];
    int8_t levels[CHUNK];
    uint8_t packed[CHUNK];
    for (size_t at = 0; at < n; at += CHUNK) {
        size_t here = n - at < CHUNK ? n - at : CHUNK, bytes = levels_bytes(here, bits);
        memset(chunk, 0, sizeof chunk);
        memcpy(chunk, values + at, here * sizeof *chunk);
        for (size_t i = 0; error && i < here; i++)
            chunk[i] += error[at + i];
        float scale = take_chunk(chunk, levels, bits, seed, (uint32_t)at);
        memcpy(message, &scale, SCALE_BYTES);
        pack_levels(packed, levels, bits);
        memcpy(message + SCALE_BYTES, packed, bytes);
        message += SCALE_BYTES + bytes;
        if (error)
            memcpy(error + at, chunk, here * sizeof *chunk);
    }
}

void harp_bits_add(float *total, size_t n, const uint8_t *message, uint32_t bits)
{
    float chunk[CHUNK];
    int8_t levels[CHUNK];
    uint8_t packed[CHUNK] = {0};
    for (size_t at = 0; at < n; at += CHUNK) {
        size_t here = n - at < CHUNK ? n - at : CHUNK, bytes = levels_bytes(here, bits);
        float scale;
        memcpy(&scale, message, SCALE_BYTES);
        memcpy(packed, message + SCALE_BYTES, bytes);
        unpack_levels(levels, packed, bits);
        message += SCALE_BYTES + bytes;
        if (here == CHUNK) {
            harp_kernels()->add_levels(total + at, levels, scale);
            continue;
        }
        memset(chunk, 0, sizeof chunk);
        memcpy(chunk, total + at, here * sizeof *chunk);
        harp_kernels()->add_levels(chunk, levels, scale);
        memcpy(total + at, chunk, here * sizeof *chunk);
    }
}
