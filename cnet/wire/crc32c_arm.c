/* CRC32C by the instructions of ARMv8, and on machines for which no file knows any. */
#include "wire/crc32c_routines.h"

#if defined(__aarch64__)

#include <asm/hwcap.h>
#include <sys/auxv.h>

#include "base/bytes.h"

/* By name, as the compilers' intrinsics need the whole file to be compiled for such a CPU. */
static inline uint32_t crc_of_8(uint32_t state, uint64_t word)
{
    __asm__(".arch_extension crc\n\tcrc32cx %w0, %w0, %x1" : "+r"(state) : "r"(word));
    return state;
}

static inline uint32_t crc_of_1(uint32_t state, uint32_t byte)
{
    __asm__(".arch_extension crc\n\tcrc32cb %w0, %w0, %w1" : "+r"(state) : "r"(byte));
    return state;
}

static inline uint32_t hash_words(uint32_t state, uint8_t *to, const uint8_t *from, size_t length)
{
    size_t at = 0;
    for (; at + 8 <= length; at += 8) {
        uint64_t word = harp_load64(from + at);
        if (to)
            harp_store64(to + at, word);
        state = crc_of_8(state, word);
    }
    for (; at < length; at++) {
        if (to)
            to[at] = from[at];
        state = crc_of_1(state, from[at]);
    }
    return state;
}

static uint32_t serial_crc(uint32_t state, const uint8_t *from, size_t length)
{
    return hash_words(state, NULL, from, length);
}

static uint32_t serial_copy(uint32_t state, uint8_t *to, const uint8_t *from, size_t length)
{
    return hash_words(state, to, from, length);
}

size_t harp_crc32c_machine(struct harp_crc32c_routine *list)
{
    if (!(getauxval(AT_HWCAP) & HWCAP_CRC32))
        return 0;
    list[0] = (struct harp_crc32c_routine){"serial", serial_crc, serial_copy, NULL};
    return 1;
}

#elif !defined(__x86_64__)

size_t harp_crc32c_machine(struct harp_crc32c_routine *list)
{
    (void)list;
    return 0;
}

#endif
