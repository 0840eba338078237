#include "base/flow_hash.h"

#include <assert.h>

#include "base/flow_hash_linux.h"

const uint8_t harp_toeplitz_default_key[HARP_TOEPLITZ_KEY_BYTES] = {
    0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3,
    0x8f, 0xb0, 0xd0, 0xca, 0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3,
    0x80, 0x30, 0xf2, 0x0c, 0x6a, 0x42, 0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa};

uint32_t harp_crc16(const uint8_t *bytes, size_t length, uint32_t seed)
{
    uint32_t crc = seed & 0xFFFFu;
    for (size_t i = 0; i < length; i++) {
        crc ^= (uint32_t)bytes[i] << 8;
        for (int bit = 0; bit < 8; bit++)
            crc = ((crc << 1) ^ (0x1021u & -(crc >> 15))) & 0xFFFFu;
    }
    return crc;
}

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

uint32_t harp_xor16(const uint8_t *bytes, size_t length, uint32_t seed)
{
    uint32_t folded = seed & 0xFFFFu;
    for (size_t i = 0; i < length; i++)
        folded ^= i % 2 ? bytes[i] : (uint32_t)bytes[i] << 8;
    return folded;
}

uint32_t harp_toeplitz(const uint8_t *bytes, size_t length, const uint8_t *key, uint32_t seed)
{
    assert(length + 4 <= HARP_TOEPLITZ_KEY_BYTES);
    uint32_t hash = seed;
    uint32_t window =
        (uint32_t)key[0] << 24 | (uint32_t)key[1] << 16 | (uint32_t)key[2] << 8 | key[3];
    for (size_t i = 0; i < length; i++) {
        for (int bit = 7; bit >= 0; bit--) {
            hash ^= window & -((uint32_t)bytes[i] >> bit & 1u);
            window = window << 1 | (key[i + 4] >> bit & 1u);
        }
    }
    return hash;
}

static uint32_t hash_one(enum harp_hash function, const uint8_t *tuple, size_t tuple_bytes,
                         const uint8_t *key, uint32_t seed)
{
    switch (function) {
    case HARP_HASH_CRC16:
        return harp_crc16(tuple, tuple_bytes, seed);
    case HARP_HASH_CRC32:
        return harp_crc32(tuple, tuple_bytes, seed);
    case HARP_HASH_XOR:
        return harp_xor16(tuple, tuple_bytes, seed);
    case HARP_HASH_TOEPLITZ:
        return harp_toeplitz(tuple, tuple_bytes - 1, key, seed);
    case HARP_HASH_LINUX:
        return harp_linux_hash(tuple, tuple_bytes, seed);
    }
    assert(!"unknown hash function");
    return 0;
}

/* A hash function on keys of one length: the hash of zeros, and what each byte adds to it. */
struct affine {
    uint32_t zero;
    uint32_t byte[HARP_TUPLE6_BYTES][256];
};

static void affine_build(struct affine *f, enum harp_hash function, size_t tuple_bytes,
                         const uint8_t *key, uint32_t seed)
{
    uint8_t tuple[HARP_TUPLE6_BYTES] = {0};
    f->zero = hash_one(function, tuple, tuple_bytes, key, seed);
    for (size_t place = 0; place < tuple_bytes; place++) {
        uint32_t *adds = f->byte[place];
        adds[0] = 0;
        for (unsigned bit = 1; bit < 256; bit <<= 1) {
            tuple[place] = (uint8_t)bit;
            adds[bit] = hash_one(function, tuple, tuple_bytes, key, seed) ^ f->zero;
            for (unsigned lower = 1; lower < bit; lower++)
                adds[bit | lower] = adds[bit] ^ adds[lower];
        }
        tuple[place] = 0;
    }
}

void harp_hash_packed(enum harp_hash function, const uint8_t *tuples, size_t tuple_bytes,
                      size_t count, const uint8_t *key, uint32_t seed, uint32_t *out)
{
    assert(tuple_bytes == HARP_TUPLE4_BYTES || tuple_bytes == HARP_TUPLE6_BYTES);
    struct affine f;
    if (function == HARP_HASH_LINUX) {
        for (size_t i = 0; i < count; i++)
            out[i] = harp_linux_hash(tuples + i * tuple_bytes, tuple_bytes, seed);
        return;
    }
    affine_build(&f, function, tuple_bytes, key, seed);
    for (size_t i = 0; i < count; i++) {
        const uint8_t *tuple = tuples + i * tuple_bytes;
        uint32_t hash = f.zero;
        for (size_t place = 0; place < tuple_bytes; place++)
            hash ^= f.byte[place][tuple[place]];
        out[i] = hash;
    }
}

void harp_hash_fields(enum harp_hash function, const uint32_t *src_ip, const uint32_t *dst_ip,
                      const uint16_t *src_port, const uint16_t *dst_port, const uint8_t *proto,
                      size_t count, const uint8_t *key, uint32_t seed, uint32_t *out)
{
    struct affine f;
    if (function == HARP_HASH_LINUX) {
        for (size_t i = 0; i < count; i++)
            out[i] =
                harp_linux_hash4(src_ip[i], dst_ip[i], src_port[i], dst_port[i], proto[i], seed);
        return;
    }
    affine_build(&f, function, HARP_TUPLE4_BYTES, key, seed);
    for (size_t i = 0; i < count; i++) {
        uint32_t src = src_ip[i], dst = dst_ip[i];
        out[i] = f.zero ^ f.byte[0][src >> 24] ^ f.byte[1][src >> 16 & 255] ^
                 f.byte[2][src >> 8 & 255] ^ f.byte[3][src & 255] ^ f.byte[4][dst >> 24] ^
                 f.byte[5][dst >> 16 & 255] ^ f.byte[6][dst >> 8 & 255] ^ f.byte[7][dst & 255] ^
                 f.byte[8][src_port[i] >> 8] ^ f.byte[9][src_port[i] & 255] ^
                 f.byte[10][dst_port[i] >> 8] ^ f.byte[11][dst_port[i] & 255] ^
                 f.byte[12][proto[i]];
    }
}

/* The 32-bit finaliser of MurmurHash3 (Austin Appleby, public domain): every input bit changes
 * about half of the output bits. */
static uint32_t scramble_bits(uint32_t x)
{
    x = (x ^ x >> 16) * 0x85ebca6bu;
    x = (x ^ x >> 13) * 0xc2b2ae35u;
    return x ^ x >> 16;
}

uint32_t harp_ecmp_pick(uint32_t hash, uint32_t salt, uint32_t next_hops)
{
    assert(next_hops > 0);
    return (salt ? scramble_bits(hash ^ salt) : hash) % next_hops;
}

void harp_ecmp_pick_batch(const uint32_t *hash, const uint32_t *salt, const uint32_t *next_hops,
                          size_t count, uint32_t *out)
{
    for (size_t i = 0; i < count; i++)
        out[i] = harp_ecmp_pick(hash[i], salt[i], next_hops[i]);
}
