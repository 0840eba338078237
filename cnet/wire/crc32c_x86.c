/* CRC32C by the instructions of x86-64. crc32c_routines.h derives the constants. */
#include "wire/crc32c_routines.h"

#if defined(__x86_64__)

#include <immintrin.h>
#include <stdbool.h>

#include "base/bytes.h"
#include "base/prefetch.h"

#define INLINE static inline __attribute__((always_inline))
#define SSE __attribute__((target("sse4.2,pclmul,prfchw")))
#define AVX2 __attribute__((target("sse4.2,pclmul,prfchw,avx2,vpclmulqdq")))
#define AVX512 __attribute__((target("sse4.2,pclmul,prfchw,avx512f,avx512vl,vpclmulqdq")))

/* The constants K(n), for the distances that are folded over. */
#define K_128 0x493c7d27
#define K_192 0xf20c0dfe
#define K_256 0xba4fc28e
#define K_320 0x3da6d0cb
#define K_384 0xddc0152b
#define K_448 0x1c291d04
#define K_512 0x9e4addf8
#define K_576 0x740eef02
#define K_1024 0x0d3b6092
#define K_1088 0x6992cea2
#define K_2048 0xb9e02b86
#define K_2112 0xdcb17aa4
#define K_65536 0x54a86326
#define K_86016 0x57e82916
#define K_106496 0xba687f9f

SSE INLINE uint32_t serial(uint32_t state, uint8_t *to, const uint8_t *from, size_t length)
{
    uint64_t wide = state;
    size_t at = 0;
    for (; at + 8 <= length; at += 8) {
        uint64_t word = harp_load64(from + at);
        if (to)
            harp_store64(to + at, word);
        wide = _mm_crc32_u64(wide, word);
    }
    for (; at < length; at++) {
        if (to)
            to[at] = from[at];
        wide = _mm_crc32_u8((uint32_t)wide, from[at]);
    }
    return (uint32_t)wide;
}

/* The register after as many zero bytes as `constant` stands for: K(8 bytes). */
SSE INLINE uint64_t shift(uint64_t state, uint32_t constant)
{
    __m128i product = _mm_clmulepi64_si128(_mm_cvtsi64_si128((int64_t)state),
                                           _mm_cvtsi32_si128((int)constant), 0);
    return _mm_crc32_u64(0, (uint64_t)_mm_cvtsi128_si64(product));
}

/* Three neighbouring stretches of `each` bytes, a multiple of 8; `once` and `twice` are K(8 each)
 * and K(16 each). */
SSE INLINE uint32_t three(uint32_t state, uint8_t *to, const uint8_t *from, size_t each,
                          uint32_t once, uint32_t twice)
{
    uint64_t a = state, b = 0, c = 0;
    for (size_t at = 0; at < each; at += 8) {
        uint64_t of_a = harp_load64(from + at), of_b = harp_load64(from + each + at),
                 of_c = harp_load64(from + 2 * each + at);
        if (to) {
            harp_store64(to + at, of_a);
            harp_store64(to + each + at, of_b);
            harp_store64(to + 2 * each + at, of_c);
        }
        a = _mm_crc32_u64(a, of_a);
        b = _mm_crc32_u64(b, of_b);
        c = _mm_crc32_u64(c, of_c);
    }
    return (uint32_t)(shift(a, twice) ^ shift(b, once) ^ c);
}

/* 3 x 1360 is 16 bytes less than a page, 3 x 448 is 64 less than the payload of MTU 1500. */
SSE INLINE uint32_t threeway(uint32_t state, uint8_t *to, const uint8_t *from, size_t length)
{
    size_t at = 0;
    for (; length - at >= 3 * 1360; at += 3 * 1360)
        state = three(state, to ? to + at : NULL, from + at, 1360, 0x3f70cc6f, 0x5aa1f3cf);
    for (; length - at >= 3 * 448; at += 3 * 448)
        state = three(state, to ? to + at : NULL, from + at, 448, 0x1b03397f, 0x68bce87a);
    for (; length - at >= 3 * 64; at += 3 * 64)
        state = three(state, to ? to + at : NULL, from + at, 64, 0x9e4addf8, 0x0d3b6092);
    return serial(state, to ? to + at : NULL, from + at, length - at);
}

/* For what is copied; `nontemporal` goes past the caches. */
INLINE void prefetch(const uint8_t *to, const uint8_t *from, bool nontemporal)
{
    if (!to)
        return;
    harp_prefetch_read(from);
    if (!nontemporal)
        harp_prefetch_write(to);
}

/* `nontemporal`: past the caches; `to` is aligned to 64 then. */
SSE INLINE __m128i take16(uint8_t *to, const uint8_t *from, bool nontemporal)
{
    __m128i block = _mm_loadu_si128((const __m128i *)from);
    if (to && nontemporal)
        _mm_stream_si128((__m128i *)to, block);
    else if (to)
        _mm_storeu_si128((__m128i *)to, block);
    return block;
}

/* `block`, standing as far ahead of `next` as the constants say, folded into it. */
SSE INLINE __m128i fold16(__m128i block, __m128i constants, __m128i next)
{
    __m128i low = _mm_clmulepi64_si128(block, constants, 0x00);
    __m128i high = _mm_clmulepi64_si128(block, constants, 0x11);
    return _mm_xor_si128(_mm_xor_si128(low, high), next);
}

/* Constants to fold over `n` bits: K(n + 64) for the low half, K(n) for the high one. */
#define OVER(n, n_and_64) _mm_set_epi64x(K_##n, K_##n_and_64)

/* The rest of the bytes behind one block. */
SSE INLINE uint32_t fold_rest(__m128i block, uint8_t *to, const uint8_t *from, size_t length)
{
    size_t at = 0;
    for (; length - at >= 16; at += 16)
        block = fold16(block, OVER(128, 192), take16(to ? to + at : NULL, from + at, false));
    uint64_t state = _mm_crc32_u64(0, (uint64_t)_mm_cvtsi128_si64(block));
    state = _mm_crc32_u64(state, (uint64_t)_mm_extract_epi64(block, 1));
    return serial((uint32_t)state, to ? to + at : NULL, from + at, length - at);
}

SSE INLINE uint32_t fold(uint32_t state, uint8_t *to, const uint8_t *from, size_t length,
                         bool nontemporal)
{
    if (length < 64)
        return serial(state, to, from, length);
    __m128i block[4];
    for (size_t i = 0; i < 4; i++)
        block[i] = take16(to ? to + 16 * i : NULL, from + 16 * i, nontemporal);
    block[0] = _mm_xor_si128(block[0], _mm_cvtsi32_si128((int)state));
    size_t at = 64;
    for (; length - at >= 64; at += 64) {
        prefetch(to ? to + at : NULL, from + at, nontemporal);
        for (size_t i = 0; i < 4; i++)
            block[i] =
                fold16(block[i], OVER(512, 576),
                       take16(to ? to + at + 16 * i : NULL, from + at + 16 * i, nontemporal));
    }
    __m128i one = fold16(block[0], OVER(384, 448), block[3]);
    one = fold16(block[1], OVER(256, 320), one);
    one = fold16(block[2], OVER(128, 192), one);
    return fold_rest(one, to ? to + at : NULL, from + at, length - at);
}

AVX2 INLINE __m256i take32(uint8_t *to, const uint8_t *from, bool nontemporal)
{
    __m256i block = _mm256_loadu_si256((const void *)from);
    if (to && nontemporal)
        _mm256_stream_si256((void *)to, block);
    else if (to)
        _mm256_storeu_si256((void *)to, block);
    return block;
}

AVX2 INLINE __m256i fold32(__m256i block, __m256i constants, __m256i next)
{
    __m256i low = _mm256_clmulepi64_epi128(block, constants, 0x00);
    __m256i high = _mm256_clmulepi64_epi128(block, constants, 0x11);
    return _mm256_xor_si256(_mm256_xor_si256(low, high), next);
}

/* Four neighbouring blocks folded into the last. */
AVX2 INLINE __m256i join_blocks(const __m256i block[4])
{
    const __m256i over_256 = _mm256_broadcastsi128_si256(OVER(256, 320));
    __m256i one = block[0];
    for (size_t i = 1; i < 4; i++)
        one = fold32(one, over_256, block[i]);
    return one;
}

/* The first half of a block folded into the second. */
AVX2 INLINE __m128i join_halves(__m256i one)
{
    return fold16(_mm256_castsi256_si128(one), OVER(128, 192), _mm256_extracti128_si256(one, 1));
}

/* Three stretches by the CRC32C instruction and a fourth by folding, step by step: each keeps a
 * unit of the CPU busy that the other does not need, so that both together take hardly longer than
 * one of them alone. */
enum { STEPS = 64, STRETCH = 40 * STEPS, FUSED_BYTES = 3 * STRETCH + 128 * STEPS };

AVX2 INLINE uint32_t fuse(uint32_t state, const uint8_t *from)
{
    const __m256i over_1024 = _mm256_broadcastsi128_si256(OVER(1024, 1088));
    const uint8_t *folded = from + 3 * STRETCH, *next = from + FUSED_BYTES;
    uint64_t a = state, b = 0, c = 0;
    __m256i block[4];
    for (size_t i = 0; i < 4; i++)
        block[i] = _mm256_setzero_si256();
    for (size_t step = 0; step < STEPS; step++, folded += 128, next += FUSED_BYTES / STEPS) {
        for (size_t i = 0; i < 4; i++)
            __builtin_prefetch(next + 64 * i); /* for the next call (prefetch.h says why) */
        for (size_t i = 0; i < 5; i++, from += 8) {
            a = _mm_crc32_u64(a, harp_load64(from));
            b = _mm_crc32_u64(b, harp_load64(from + STRETCH));
            c = _mm_crc32_u64(c, harp_load64(from + 2 * STRETCH));
        }
        for (size_t i = 0; i < 4; i++)
            block[i] = fold32(block[i], over_1024, take32(NULL, folded + 32 * i, false));
    }
    uint32_t last = fold_rest(join_halves(join_blocks(block)), NULL, folded, 0);
    return (uint32_t)(shift(a, K_106496) ^ shift(b, K_86016) ^ shift(c, K_65536)) ^ last;
}

AVX2 INLINE uint32_t fold256(uint32_t state, uint8_t *to, const uint8_t *from, size_t length,
                             bool nontemporal)
{
    for (; !to && length >= FUSED_BYTES; length -= FUSED_BYTES, from += FUSED_BYTES)
        state = fuse(state, from);
    if (length < 128)
        return fold(state, to, from, length, nontemporal);
    const __m256i over_1024 = _mm256_broadcastsi128_si256(OVER(1024, 1088));
    __m256i block[4];
    for (size_t i = 0; i < 4; i++)
        block[i] = take32(to ? to + 32 * i : NULL, from + 32 * i, nontemporal);
    block[0] = _mm256_xor_si256(block[0], _mm256_zextsi128_si256(_mm_cvtsi32_si128((int)state)));
    size_t at = 128;
    for (; length - at >= 128; at += 128) {
        prefetch(to ? to + at : NULL, from + at, nontemporal);
        prefetch(to ? to + at + 64 : NULL, from + at + 64, nontemporal);
        for (size_t i = 0; i < 4; i++)
            block[i] =
                fold32(block[i], over_1024,
                       take32(to ? to + at + 32 * i : NULL, from + at + 32 * i, nontemporal));
    }
    __m256i one = join_blocks(block);
    for (; length - at >= 32; at += 32)
        one = fold32(one, _mm256_broadcastsi128_si256(OVER(256, 320)),
                     take32(to ? to + at : NULL, from + at, nontemporal));
    return fold_rest(join_halves(one), to ? to + at : NULL, from + at, length - at);
}

AVX512 INLINE __m512i take64(uint8_t *to, const uint8_t *from, bool nontemporal)
{
    __m512i block = _mm512_loadu_si512(from);
    prefetch(to, from, nontemporal);
    if (to && nontemporal)
        _mm512_stream_si512((void *)to, block);
    else if (to)
        _mm512_storeu_si512(to, block);
    return block;
}

AVX512 INLINE __m512i fold64(__m512i block, __m512i constants, __m512i next)
{
    __m512i low = _mm512_clmulepi64_epi128(block, constants, 0x00);
    __m512i high = _mm512_clmulepi64_epi128(block, constants, 0x11);
    return _mm512_ternarylogic_epi64(low, high, next, 0x96); /* exclusive or of three */
}

AVX512 INLINE uint32_t fold512(uint32_t state, uint8_t *to, const uint8_t *from, size_t length,
                               bool nontemporal)
{
    if (length < 256)
        return fold(state, to, from, length, nontemporal);
    const __m512i over_2048 = _mm512_broadcast_i32x4(OVER(2048, 2112));
    const __m512i over_512 = _mm512_broadcast_i32x4(OVER(512, 576));
    __m512i block[4];
    for (size_t i = 0; i < 4; i++)
        block[i] = take64(to ? to + 64 * i : NULL, from + 64 * i, nontemporal);
    block[0] = _mm512_xor_si512(block[0], _mm512_zextsi128_si512(_mm_cvtsi32_si128((int)state)));
    size_t at = 256;
    for (; length - at >= 256; at += 256)
        for (size_t i = 0; i < 4; i++)
            block[i] =
                fold64(block[i], over_2048,
                       take64(to ? to + at + 64 * i : NULL, from + at + 64 * i, nontemporal));
    __m512i one = block[0];
    for (size_t i = 1; i < 4; i++)
        one = fold64(one, over_512, block[i]);
    for (; length - at >= 64; at += 64)
        one = fold64(one, over_512, take64(to ? to + at : NULL, from + at, nontemporal));
    __m128i last = _mm512_extracti32x4_epi32(one, 3);
    last = fold16(_mm512_extracti32x4_epi32(one, 0), OVER(384, 448), last);
    last = fold16(_mm512_extracti32x4_epi32(one, 1), OVER(256, 320), last);
    last = fold16(_mm512_extracti32x4_epi32(one, 2), OVER(128, 192), last);
    return fold_rest(last, to ? to + at : NULL, from + at, length - at);
}

/* Each routine twice, without the copy and with it. */
#define ROUTINE(target, name, arguments)                                                           \
    target static uint32_t name##_crc(uint32_t state, const uint8_t *from, size_t length)          \
    {                                                                                              \
        uint8_t *const to = NULL;                                                                  \
        return name arguments;                                                                     \
    }                                                                                              \
    target static uint32_t name##_copy(uint32_t state, uint8_t *to, const uint8_t *from,           \
                                       size_t length)                                              \
    {                                                                                              \
        return name arguments;                                                                     \
    }
ROUTINE(SSE, serial, (state, to, from, length))
ROUTINE(SSE, threeway, (state, to, from, length))
ROUTINE(SSE, fold, (state, to, from, length, false))
ROUTINE(AVX2, fold256, (state, to, from, length, false))
ROUTINE(AVX512, fold512, (state, to, from, length, false))

/* Stores past the caches are ordered by a fence only. */
SSE static uint32_t fold_nontemporal(uint32_t state, uint8_t *to, const uint8_t *from,
                                     size_t length)
{
    state = fold(state, to, from, length, true);
    _mm_sfence();
    return state;
}

AVX2 static uint32_t fold256_nontemporal(uint32_t state, uint8_t *to, const uint8_t *from,
                                         size_t length)
{
    state = fold256(state, to, from, length, true);
    _mm_sfence();
    return state;
}

AVX512 static uint32_t fold512_nontemporal(uint32_t state, uint8_t *to, const uint8_t *from,
                                           size_t length)
{
    state = fold512(state, to, from, length, true);
    _mm_sfence();
    return state;
}

size_t harp_crc32c_machine(struct harp_crc32c_routine *list)
{
    __builtin_cpu_init(); /* this runs before main */
    if (!__builtin_cpu_supports("sse4.2") || !__builtin_cpu_supports("pclmul"))
        return 0;
    list[0] = (struct harp_crc32c_routine){"serial", serial_crc, serial_copy, fold_nontemporal};
    list[1] =
        (struct harp_crc32c_routine){"threeway", threeway_crc, threeway_copy, fold_nontemporal};
    list[2] = (struct harp_crc32c_routine){"fold", fold_crc, fold_copy, fold_nontemporal};
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("vpclmulqdq"))
        return 3;
    list[3] =
        (struct harp_crc32c_routine){"fold256", fold256_crc, fold256_copy, fold256_nontemporal};
    if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512vl"))
        return 4;
    list[4] =
        (struct harp_crc32c_routine){"fold512", fold512_crc, fold512_copy, fold512_nontemporal};
    return 5;
}

#endif
