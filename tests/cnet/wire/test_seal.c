/* Sealing and opening touch no byte but their own: every buffer is exactly as long as it is used.
 */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "wire/crc32c.h"
#include "wire/seal.h"

enum { MANY = 11 };

static uint8_t *allocate_exactly(size_t length)
{
    uint8_t *bytes = malloc(length + !length);
    assert(bytes);
    for (size_t i = 0; i < length; i++)
        bytes[i] = (uint8_t)(i * 7 + length);
    return bytes;
}

static void check_one(const struct harp_key *key, uint16_t length)
{
    struct harp_header header = {.version = HARP_VERSION,
                                 .type = HARP_DATA,
                                 .length = length,
                                 .size = length,
                                 .connection = 5};
    uint8_t *frame = allocate_exactly(HARP_HEADER_BYTES), *payload = allocate_exactly(length),
            *to = allocate_exactly(length);
    harp_header_encode(&header, frame);
    harp_seal(key, frame, 7, payload, length);
    assert(harp_open_tag(key, frame, 7) && !harp_open_tag(key, frame, 6));
    assert(!harp_open_tag(key, frame, 0) && harp_open_payload(frame, payload, length));
    memset(to, 0, length);
    assert(harp_open_crc(frame, harp_crc32c_copy(to, payload, length)));
    assert(memcmp(to, payload, length) == 0);
    for (size_t i = 0; i < length; i += 13) {
        payload[i] ^= 0x10;
        assert(!harp_open_payload(frame, payload, length));
        payload[i] ^= 0x10;
    }
    free(frame);
    free(payload);
    free(to);
}

static void check_many(const struct harp_key *key, size_t count)
{
    uint8_t *frames[MANY];
    const uint8_t *opened[MANY];
    uint32_t laps[MANY];
    for (size_t i = 0; i < count; i++) {
        opened[i] = frames[i] = allocate_exactly(HARP_HEADER_BYTES);
        laps[i] = i % 3 ? HARP_LAP_MAX >> i : 0;
    }
    assert(harp_open_tags(key, opened, laps, count) == 0);
    harp_seal_tags(key, frames, laps, count);
    assert(harp_open_tags(key, opened, laps, count) == (UINT64_C(1) << count) - 1);
    for (size_t i = 0; i < count; i++) {
        frames[i][i] ^= 1;
        assert(harp_open_tags(key, opened, laps, count) ==
               (((UINT64_C(1) << count) - 1) ^ UINT64_C(1) << i));
        frames[i][i] ^= 1;
        laps[i]++;
        assert(harp_open_tags(key, opened, laps, count) ==
               (((UINT64_C(1) << count) - 1) ^ UINT64_C(1) << i));
        laps[i]--;
    }
    for (size_t i = 0; i < count; i++)
        free(frames[i]);
}

int main(void)
{
    struct harp_key key = {.low = 1, .high = 2};
    for (size_t routine = 0; harp_crc32c_name(routine); routine++) {
        harp_crc32c_use(routine);
        for (uint16_t length = 0; length < 300; length++)
            check_one(&key, length);
        check_one(&key, 1408);
        check_one(&key, 65408);
    }
    for (size_t count = 0; count <= MANY; count++)
        check_many(&key, count);
    return 0;
}
