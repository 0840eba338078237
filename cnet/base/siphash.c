#include "base/siphash.h"

#include "base/bytes.h"

#define ALWAYS_INLINE static inline __attribute__((always_inline))

/* The same text serves one integer and a vector of four. */
#define ROTATE(x, bits) ((x) << (bits) | (x) >> (64 - (bits)))
#define ROUND(v)                                                                                   \
    do {                                                                                           \
        (v)[0] += (v)[1], (v)[2] += (v)[3];                                                        \
        (v)[1] = ROTATE((v)[1], 13) ^ (v)[0], (v)[3] = ROTATE((v)[3], 16) ^ (v)[2];                \
        (v)[0] = ROTATE((v)[0], 32);                                                               \
        (v)[2] += (v)[1], (v)[0] += (v)[3];                                                        \
        (v)[1] = ROTATE((v)[1], 17) ^ (v)[2], (v)[3] = ROTATE((v)[3], 21) ^ (v)[0];                \
        (v)[2] = ROTATE((v)[2], 32);                                                               \
    } while (0)

static const uint64_t initial[4] = {0x736f6d6570736575, 0x646f72616e646f6d, 0x6c7967656e657261,
                                    0x7465646279746573};

ALWAYS_INLINE void start(uint64_t v[4], const struct harp_key *key)
{
    v[0] = initial[0] ^ key->low;
    v[1] = initial[1] ^ key->high;
    v[2] = initial[2] ^ key->low;
    v[3] = initial[3] ^ key->high;
}

ALWAYS_INLINE void absorb(uint64_t v[4], uint64_t word)
{
    v[3] ^= word;
    ROUND(v);
    ROUND(v);
    v[0] ^= word;
}

ALWAYS_INLINE uint64_t finish(uint64_t v[4])
{
    v[2] ^= 0xff;
    for (int round = 0; round < 4; round++)
        ROUND(v);
    return v[0] ^ v[1] ^ v[2] ^ v[3];
}

uint64_t harp_siphash(const struct harp_key *key, const uint8_t *bytes, size_t length)
{
    uint64_t v[4];
    start(v, key);
    size_t whole = length & ~(size_t)7;
    for (size_t i = 0; i < whole; i += 8)
        absorb(v, harp_load64(bytes + i));
    uint64_t last = (uint64_t)length << 56;
    for (size_t i = whole; i < length; i++)
        last |= (uint64_t)bytes[i] << 8 * (i - whole);
    absorb(v, last);
    return finish(v);
}

/* Word 0 to 4 of 36 bytes and a lap; the last holds four of them, the lap and the length. */
ALWAYS_INLINE uint64_t header_word(const uint8_t *bytes, uint32_t lap, int word)
{
    if (word < 4)
        return harp_load64(bytes + 8 * word);
    uint64_t length = lap ? 39 : 36;
    return length << 56 | (uint64_t)lap << 32 | harp_load32(bytes + 32);
}

uint64_t harp_siphash_header(const struct harp_key *key, const uint8_t *bytes, uint32_t lap)
{
    uint64_t v[4];
    start(v, key);
    for (int word = 0; word < 5; word++)
        absorb(v, header_word(bytes, lap, word));
    return finish(v);
}

/* Four hashes side by side, one a lane. */
typedef uint64_t lanes __attribute__((vector_size(32)));

ALWAYS_INLINE void four(const struct harp_key *key, const uint8_t *const *bytes,
                        const uint32_t *laps, uint64_t *out)
{
    const lanes zero = {0};
    lanes v[4] = {zero + (initial[0] ^ key->low), zero + (initial[1] ^ key->high),
                  zero + (initial[2] ^ key->low), zero + (initial[3] ^ key->high)};
    for (int word = 0; word < 5; word++) {
        const lanes m = {header_word(bytes[0], laps[0], word), header_word(bytes[1], laps[1], word),
                         header_word(bytes[2], laps[2], word),
                         header_word(bytes[3], laps[3], word)};
        v[3] ^= m;
        ROUND(v);
        ROUND(v);
        v[0] ^= m;
    }
    v[2] ^= zero + 0xff;
    for (int round = 0; round < 4; round++)
        ROUND(v);
    lanes result = v[0] ^ v[1] ^ v[2] ^ v[3];
    memcpy(out, &result, sizeof result);
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) static void four_avx2(const struct harp_key *key,
                                                      const uint8_t *const *bytes,
                                                      const uint32_t *laps, uint64_t *out)
{
    four(key, bytes, laps, out);
}

__attribute__((target("avx2,avx512f,avx512vl"))) static void
four_avx512(const struct harp_key *key, const uint8_t *const *bytes, const uint32_t *laps,
            uint64_t *out)
{
    four(key, bytes, laps, out);
}

void harp_siphash_header4(const struct harp_key *key, const uint8_t *const *bytes,
                          const uint32_t *laps, uint64_t *out)
{
    if (__builtin_cpu_supports("avx512vl"))
        four_avx512(key, bytes, laps, out);
    else if (__builtin_cpu_supports("avx2"))
        four_avx2(key, bytes, laps, out);
    else
        for (int i = 0; i < 4; i++)
            out[i] = harp_siphash_header(key, bytes[i], laps[i]);
}
#else
void harp_siphash_header4(const struct harp_key *key, const uint8_t *const *bytes,
                          const uint32_t *laps, uint64_t *out)
{
    four(key, bytes, laps, out);
}
#endif
