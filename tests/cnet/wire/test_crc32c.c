/* CRC32C: each routine that this CPU offers against published values and a bit-by-bit one. */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "virtual/random.h"
#include "wire/crc32c.h"

enum { ROOM = 40000, GUARD = 64 };

static uint32_t by_bits(const uint8_t *bytes, size_t length)
{
    uint32_t state = ~UINT32_C(0);
    for (size_t i = 0; i < length; i++) {
        state ^= bytes[i];
        for (int bit = 0; bit < 8; bit++)
            state = state >> 1 ^ (UINT32_C(0x82F63B78) & -(state & 1));
    }
    return ~state;
}

static uint64_t random_state = 1;

static uint32_t random_below(uint32_t limit)
{
    return (uint32_t)virtual_below(&random_state, limit);
}

static uint8_t *random_bytes(size_t length)
{
    uint8_t *bytes = malloc(length);
    assert(bytes);
    for (size_t i = 0; i < length; i++)
        bytes[i] = (uint8_t)random_below(256);
    return bytes;
}

/* RFC 3720, appendix B.4, and the check value of the catalogue of parametrised CRC algorithms. */
static void published_values(void)
{
    uint8_t bytes[32];
    memset(bytes, 0, 32);
    assert(harp_crc32c(bytes, 32) == 0x8a9136aa);
    memset(bytes, 0xff, 32);
    assert(harp_crc32c(bytes, 32) == 0x62a8ab43);
    for (int i = 0; i < 32; i++)
        bytes[i] = (uint8_t)i;
    assert(harp_crc32c(bytes, 32) == 0x46dd794e);
    for (int i = 0; i < 32; i++)
        bytes[i] = (uint8_t)(31 - i);
    assert(harp_crc32c(bytes, 32) == 0x113fdb5c);
    static const uint8_t scsi_read_10[48] = {
        0x01, 0xc0, 0, 0, 0, 0, 0,    0, 0,    0, 0, 0,    0, 0, 0, 0,
        0x14, 0,    0, 0, 0, 0, 0x04, 0, 0,    0, 0, 0x14, 0, 0, 0, 0x18,
        0x28, 0,    0, 0, 0, 0, 0,    0, 0x02, 0, 0, 0,    0, 0, 0, 0};
    assert(harp_crc32c(scsi_read_10, 48) == 0xd9963a56);
    assert(harp_crc32c((const uint8_t *)"123456789", 9) == 0xe3069283);
    assert(harp_crc32c(bytes, 0) == 0);
}

/* The bytes are at `target`, and nowhere else was anything written. Guards are back afterwards. */
static void only_there(uint8_t *to, uint8_t *target, const uint8_t *bytes, size_t length)
{
    assert(memcmp(target, bytes, length) == 0);
    for (uint8_t *at = to; at < to + length + 2 * GUARD; at++)
        assert((at >= target && at < target + length) || *at == 0x5a);
    memset(to, 0x5a, length + 2 * GUARD);
}

/* Exactly `length` bytes are read and written: the sanitizer sees the one, guards the other. */
static void check_length(const uint8_t *bytes, size_t length, size_t shift, uint32_t expected)
{
    uint8_t *to = aligned_alloc(64, (length + 2 * GUARD + 63) / 64 * 64);
    uint8_t *from = malloc(length + shift);
    assert(to && from);
    memcpy(from + shift, bytes, length);
    memset(to, 0x5a, length + 2 * GUARD);
    assert(harp_crc32c(from + shift, length) == expected);
    uint8_t *target = to + random_below(GUARD);
    assert(harp_crc32c_copy(target, from + shift, length) == expected);
    only_there(to, target, bytes, length);
    target = to + (random_below(4) ? 64 : random_below(GUARD));
    assert(harp_crc32c_copy_nontemporal(target, from + shift, length) == expected);
    only_there(to, target, bytes, length);
    free(from);
    free(to);
}

static void small_lengths_and_alignments(const uint8_t *bytes)
{
    for (size_t length = 0; length < 700; length++) {
        uint32_t expected = by_bits(bytes, length);
        size_t step = length < 150 ? 1 : 9;
        for (size_t shift = length % step; shift < 16; shift += step)
            check_length(bytes, length, shift, expected);
    }
}

static void random_sizes(const uint8_t *bytes)
{
    for (int turn = 0; turn < 150; turn++) {
        size_t from = random_below(ROOM), length = random_below(ROOM + 1 - (uint32_t)from);
        check_length(bytes + from, length, random_below(64), by_bits(bytes + from, length));
    }
    for (size_t length = 1408; length <= ROOM; length += 1024)
        check_length(bytes, length, 44, by_bits(bytes, length));
}

static void test_choice(void)
{
    const char *name = harp_crc32c_choose();
    int known = 0;
    for (size_t i = 0; harp_crc32c_name(i); i++)
        known |= strcmp(harp_crc32c_name(i), name) == 0;
    assert(known);
    published_values();
}

int main(void)
{
    uint8_t *bytes = random_bytes(ROOM);
    published_values(); /* before any choice */
    for (size_t i = 0; harp_crc32c_name(i); i++) {
        harp_crc32c_use(i);
        printf("%s\n", harp_crc32c_name(i));
        published_values();
        small_lengths_and_alignments(bytes);
        random_sizes(bytes);
    }
    test_choice();
    free(bytes);
    return 0;
}
