/* Payloads that arrived in parts, cut anywhere, come to their place whole or not at all. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "engine/parts.h"
#include "virtual/random.h"
#include "wire/seal.h"
#include "wire/wire.h"

enum { PAYLOAD_MAX = 9000, PARTS_MAX = 6, GUARD = 0xee };

static uint64_t random_state = 1;

static uint32_t random_below(uint32_t limit)
{
    return (uint32_t)virtual_below(&random_state, limit);
}

static uint8_t frame[HARP_HEADER_BYTES + PAYLOAD_MAX];
static struct harp_arrival parts[PARTS_MAX];

static uint16_t make_frame(void)
{
    static const struct harp_key key;
    uint16_t length = (uint16_t)(1 + random_below(PAYLOAD_MAX));
    struct harp_header header = {
        .version = HARP_VERSION, .type = HARP_DATA, .length = length, .size = length};
    harp_header_encode(&header, frame);
    for (uint16_t i = 0; i < length; i++)
        frame[HARP_HEADER_BYTES + i] = (uint8_t)random_below(256);
    harp_seal(&key, frame, 0, frame + HARP_HEADER_BYTES, length);
    return length;
}

/* Each part in memory of its own, whose end the sanitizer watches. The first has all of the header,
 * as a card's does. */
static void cut_frame(uint16_t length)
{
    uint32_t at = 0, all = HARP_HEADER_BYTES + length, count = 1 + random_below(PARTS_MAX);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t least = i == 0 ? HARP_HEADER_BYTES : 0, left = all - at - least;
        uint32_t bytes = i == count - 1         ? all - at
                         : random_below(2) == 0 ? least + random_below(left + 1)
                                                : least + (left < 130 ? left : random_below(130));
        parts[i] = (struct harp_arrival){.length = bytes, .more = (uint8_t)(count - 1 - i)};
        parts[i].bytes = malloc(bytes ? bytes : 1);
        assert(parts[i].bytes);
        memcpy(parts[i].bytes, frame + at, bytes);
        at += bytes;
    }
}

static void free_parts(void)
{
    for (int i = parts[0].more; i >= 0; i--)
        free(parts[i].bytes);
}

static bool is_untouched(const uint8_t *bytes, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (bytes[i] != GUARD)
            return false;
    return true;
}

int main(void)
{
    static uint8_t to[PAYLOAD_MAX + 64];
    for (int turn = 0; turn < 20000; turn++) {
        bool lines = random_below(2) == 0, wrong = random_below(4) == 0;
        uint16_t length = make_frame();
        cut_frame(length);
        const struct harp_arrival *last = &parts[parts[0].more];
        wrong = wrong && last->length > (last == parts ? HARP_HEADER_BYTES : 0);
        if (wrong)
            last->bytes[last->length - 1] ^= 1;
        memset(to, GUARD, sizeof to);
        assert((lines ? harp_parts_copy_lines(parts, to) : harp_parts_copy(parts, to)) != wrong);
        assert(wrong || memcmp(to, frame + HARP_HEADER_BYTES, length) == 0);
        assert(!wrong || !lines || is_untouched(to, length));
        assert(is_untouched(to + length, sizeof to - length));
        free_parts();
    }
    return 0;
}
