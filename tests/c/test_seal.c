/* Sealing and opening touch no byte but their own: every buffer is exactly as long as it is used.
 */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "wire/crc32c.h"
#include "wire/seal.h"

enum { MANY = 11 };

static uint8_t *exactly(size_t length)
{
    uint8_t *bytes = malloc(length + !length);
    assert(bytes);
    for (size_t i = 0; i < length; i++)
        bytes[i] = (uint8_t)(i * 7 + length);
    return bytes;
}

static void one(const struct harp_key *key, uint16_t length)
{
    struct harp_header header = {.version = HARP_VERSION,
                                 .type = HARP_DATA,
                                 .length = length,
                                 .size = length,
                                 .connection = 5};
    uint8_t *frame = exactly(HARP_HEADER_BYTES), *payload = exactly(length), *to = exactly(length);
    harp_header_encode(&header, frame);
    harp_seal(key, frame, payload, length);
    assert(harp_open_tag(key, frame) && harp_open_payload(frame, payload, length));
    memset(to, 0, length);
    assert(harp_open_copy(frame, to, payload, length) && memcmp(to, payload, length) == 0);
    uint8_t before[HARP_HEADER_BYTES];
    memcpy(before, frame, sizeof before);
    memset(to, 0, length);
    harp_seal_copy(key, frame, to, payload, length);
    assert(memcmp(before, frame, sizeof before) == 0 && memcmp(to, payload, length) == 0);
    for (size_t i = 0; i < length; i += 13) {
        payload[i] ^= 0x10;
        assert(!harp_open_payload(frame, payload, length));
        payload[i] ^= 0x10;
    }
    free(frame);
    free(payload);
    free(to);
}

static void many(const struct harp_key *key, size_t count)
{
    uint8_t *frames[MANY];
    const uint8_t *opened[MANY];
    for (size_t i = 0; i < count; i++)
        opened[i] = frames[i] = exactly(HARP_HEADER_BYTES);
    assert(harp_open_tags(key, opened, count) == 0);
    harp_seal_tags(key, frames, count);
    assert(harp_open_tags(key, opened, count) == (UINT64_C(1) << count) - 1);
    for (size_t i = 0; i < count; i++) {
        frames[i][i] ^= 1;
        assert(harp_open_tags(key, opened, count) ==
               (((UINT64_C(1) << count) - 1) ^ UINT64_C(1) << i));
        frames[i][i] ^= 1;
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
            one(&key, length);
        one(&key, 1408);
        one(&key, 65408);
    }
    for (size_t count = 0; count <= MANY; count++)
        many(&key, count);
    return 0;
}
