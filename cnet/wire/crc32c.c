#define _POSIX_C_SOURCE 200809L
#include "wire/crc32c.h"

#include <assert.h>
#include <stdatomic.h>
#include <time.h>

#include "base/bytes.h"
#include "wire/crc32c_routines.h"

/* tables[k][b]: what byte b adds to the register when k bytes follow it. */
static uint32_t tables[8][256];

static inline __attribute__((always_inline)) uint32_t table_body(uint32_t state, uint8_t *to,
                                                                 const uint8_t *from, size_t length)
{
    size_t at = 0;
    for (; at + 8 <= length; at += 8) {
        uint64_t word = harp_load64(from + at);
        if (to)
            harp_store64(to + at, word);
        word ^= state;
        state = tables[7][word & 255] ^ tables[6][word >> 8 & 255] ^ tables[5][word >> 16 & 255] ^
                tables[4][word >> 24 & 255] ^ tables[3][word >> 32 & 255] ^
                tables[2][word >> 40 & 255] ^ tables[1][word >> 48 & 255] ^ tables[0][word >> 56];
    }
    for (; at < length; at++) {
        if (to)
            to[at] = from[at];
        state = state >> 8 ^ tables[0][(state ^ from[at]) & 255];
    }
    return state;
}

static uint32_t table_crc(uint32_t state, const uint8_t *from, size_t length)
{
    return table_body(state, NULL, from, length);
}

static uint32_t table_copy(uint32_t state, uint8_t *to, const uint8_t *from, size_t length)
{
    return table_body(state, to, from, length);
}

static struct harp_crc32c_routine routines[HARP_CRC32C_ROUTINES_MAX] = {
    {"table", table_crc, table_copy, NULL}};
static size_t routine_count = 1;
static _Atomic(const struct harp_crc32c_routine *) chosen = routines;

/* Runs before main, or when the library is loaded, so that nobody sees half a table. */
__attribute__((constructor)) static void prepare(void)
{
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t state = byte;
        for (int bit = 0; bit < 8; bit++)
            state = state >> 1 ^ (UINT32_C(0x82F63B78) & -(state & 1));
        tables[0][byte] = state;
    }
    for (int after = 1; after < 8; after++)
        for (int byte = 0; byte < 256; byte++)
            tables[after][byte] =
                tables[after - 1][byte] >> 8 ^ tables[0][tables[after - 1][byte] & 255];
    routine_count = 1 + harp_crc32c_machine(routines + 1);
    assert(routine_count <= HARP_CRC32C_ROUTINES_MAX);
}

const char *harp_crc32c_name(size_t index)
{
    return index < routine_count ? routines[index].name : NULL;
}

void harp_crc32c_use(size_t index)
{
    assert(index < routine_count);
    atomic_store_explicit(&chosen, &routines[index], memory_order_relaxed);
}

uint32_t harp_crc32c(const uint8_t *bytes, size_t length)
{
    return ~atomic_load_explicit(&chosen, memory_order_relaxed)->crc(~0u, bytes, length);
}

uint32_t harp_crc32c_copy(uint8_t *to, const uint8_t *from, size_t length)
{
    assert(length == 0 || to + length <= from || from + length <= to);
    return ~atomic_load_explicit(&chosen, memory_order_relaxed)->copy(~0u, to, from, length);
}

/* Below this, the other core has a line sooner from this one's cache than from memory. */
enum { NONTEMPORAL_BYTES = 2048 };

uint32_t harp_crc32c_copy_nontemporal(uint8_t *to, const uint8_t *from, size_t length)
{
    const struct harp_crc32c_routine *routine = atomic_load_explicit(&chosen, memory_order_relaxed);
    if (length < NONTEMPORAL_BYTES || (uintptr_t)to % 64 != 0 || !routine->nontemporal)
        return harp_crc32c_copy(to, from, length);
    assert(to + length <= from || from + length <= to);
    return ~routine->nontemporal(~UINT32_C(0), to, from, length);
}

/* As many bytes in payloads of MTU 1500, which are copied, as in one that is not, as tcp's are; for
 * so long: a core that has not used vectors of 512 bits lately runs them at a fraction of their
 * speed for tens of microseconds, some for half a millisecond (T. Downs, "Gathering Intel on Intel
 * AVX-512 Transitions", 2020). */
enum { TRIAL_BYTES = 16384, TRIAL_COPY_BYTES = 1408, TRIALS_NS = 2000000 };

static int64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static int64_t trial_ns(const struct harp_crc32c_routine *routine, uint8_t *to, const uint8_t *from)
{
    uint32_t state = ~UINT32_C(0);
    int64_t start_ns = now_ns();
    for (size_t at = 0; at + TRIAL_COPY_BYTES <= TRIAL_BYTES; at += TRIAL_COPY_BYTES)
        state = routine->copy(state, to, from + at, TRIAL_COPY_BYTES);
    state = routine->crc(state, from, TRIAL_BYTES);
    int64_t took_ns = now_ns() - start_ns;
    to[0] = (uint8_t)state; /* a use of the result that no compiler can drop */
    return took_ns;
}

/* The shortest of several trials counts, since what disturbs one only makes it longer; and the
 * routines take turns, so that a disturbance does not hit all trials of one. */
const char *harp_crc32c_choose(void)
{
    uint8_t from[TRIAL_BYTES], to[TRIAL_COPY_BYTES];
    memset(from, 0xa5, sizeof from);
    size_t best = 0;
    int64_t best_ns = INT64_MAX;
    int64_t end_ns = now_ns() + TRIALS_NS;
    do {
        for (size_t i = 0; i < routine_count; i++) {
            int64_t took_ns = trial_ns(&routines[i], to, from);
            if (took_ns < best_ns) {
                best_ns = took_ns;
                best = i;
            }
        }
    } while (now_ns() < end_ns);
    harp_crc32c_use(best);
    return routines[best].name;
}
