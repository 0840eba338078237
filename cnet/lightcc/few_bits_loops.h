/* The loops of few_bits.h over a whole chunk; kernel_loops.h includes this for each kind of CPU. */

/* Added to a float32 below 2 to the power of 22 and subtracted, it rounds to nearest, ties to
 * even, whatever the CPU has for that. */
#define ROUNDS 12582912.0F

TARGET static uint32_t find_peak(const float *values)
{
    uint32_t most = 0;
    for (size_t i = 0; i < HARP_BITS_CHUNK; i++) {
        uint32_t magnitude = harp_magnitude(&values[i]);
        most = magnitude > most ? magnitude : most;
    }
    return most;
}

/* A hash of 32 bits: "lowbias32" of Wellons, nullprogram.com/blog/2018/07/31. */
TARGET static inline uint32_t mix_bits(uint32_t x)
{
    x = (x ^ x >> 16) * UINT32_C(0x7FEB352D);
    x = (x ^ x >> 15) * UINT32_C(0x846CA68B);
    return x ^ x >> 16;
}

TARGET static inline int32_t clamp_level(int32_t level, int32_t most)
{
    level = level < most ? level : most;
    return level > -most ? level : -most;
}

TARGET static void round_levels(float *restrict values, int8_t *restrict levels,
                                const struct harp_rounding *rounding)
{
    float inverse = rounding->inverse, scale = rounding->scale;
    uint32_t seed = rounding->seed, first = rounding->first;
    int32_t most = rounding->most, found[HARP_BITS_CHUNK];
    if (seed) {
        for (uint32_t i = 0; i < HARP_BITS_CHUNK; i++) {
            float chance = (float)(int32_t)(mix_bits(first + i + mix_bits(seed)) >> 8) * 0x1p-24F;
            float moved = values[i] * inverse + chance;
            int32_t level = (int32_t)moved;
            found[i] = clamp_level(level - ((float)level > moved), most);
        }
    } else {
        for (size_t i = 0; i < HARP_BITS_CHUNK; i++)
            found[i] = clamp_level((int32_t)((values[i] * inverse + ROUNDS) - ROUNDS), most);
    }
    for (size_t i = 0; i < HARP_BITS_CHUNK; i++) {
        values[i] -= (float)found[i] * scale;
        levels[i] = (int8_t)found[i];
    }
}

TARGET static void add_levels(float *restrict total, const int8_t *restrict levels, float scale)
{
    for (size_t i = 0; i < HARP_BITS_CHUNK; i++)
        total[i] += (float)levels[i] * scale;
}
