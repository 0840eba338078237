#include "wire/seal.h"

#include <assert.h>

#include "base/bytes.h"
#include "wire/crc32c.h"

enum { CRC_AT = 32, TAG_AT = HARP_TAGGED_BYTES };

_Static_assert(HARP_TAGGED_BYTES == 36, "harp_siphash_header is made for this length");

void harp_seal_known(const struct harp_key *key, uint8_t *header, uint32_t lap, uint32_t crc)
{
    harp_store32(header + CRC_AT, crc);
    harp_store64(header + TAG_AT, harp_siphash_header(key, header, lap));
}

void harp_seal(const struct harp_key *key, uint8_t *header, uint32_t lap, const uint8_t *payload,
               size_t length)
{
    assert(harp_wire_frame_bytes(header) == HARP_HEADER_BYTES + length);
    harp_seal_known(key, header, lap, harp_crc32c(payload, length));
}

void harp_seal_tags(const struct harp_key *key, uint8_t *const *headers, const uint32_t *laps,
                    size_t count)
{
    size_t i = 0;
    for (; count - i >= 4; i += 4) {
        const uint8_t *const four[4] = {headers[i], headers[i + 1], headers[i + 2], headers[i + 3]};
        uint64_t tags[4];
        harp_siphash_header4(key, four, laps + i, tags);
        for (size_t lane = 0; lane < 4; lane++)
            harp_store64(headers[i + lane] + TAG_AT, tags[lane]);
    }
    for (; i < count; i++)
        harp_store64(headers[i] + TAG_AT, harp_siphash_header(key, headers[i], laps[i]));
}

/* 1 if the tag in `header` is `tag`: one comparison of whole words, no early end. */
static uint64_t is_tag(const uint8_t *header, uint64_t tag)
{
    return harp_load64(header + TAG_AT) == tag;
}

bool harp_open_tag(const struct harp_key *key, const uint8_t *header, uint32_t lap)
{
    return is_tag(header, harp_siphash_header(key, header, lap));
}

uint64_t harp_open_tags(const struct harp_key *key, const uint8_t *const *headers,
                        const uint32_t *laps, size_t count)
{
    assert(count <= 64);
    uint64_t good = 0;
    size_t i = 0;
    for (; count - i >= 4; i += 4) {
        uint64_t tags[4];
        harp_siphash_header4(key, headers + i, laps + i, tags);
        for (size_t lane = 0; lane < 4; lane++)
            good |= is_tag(headers[i + lane], tags[lane]) << (i + lane);
    }
    for (; i < count; i++)
        good |= is_tag(headers[i], harp_siphash_header(key, headers[i], laps[i])) << i;
    return good;
}

bool harp_payload_unchecked(const uint8_t *header)
{
    return header[1] == HARP_DATA && harp_load32(header + CRC_AT) == 0;
}

bool harp_open_crc(const uint8_t *header, uint32_t crc)
{
    return harp_payload_unchecked(header) || crc == harp_load32(header + CRC_AT);
}

bool harp_open_payload(const uint8_t *header, const uint8_t *payload, size_t length)
{
    assert(harp_wire_frame_bytes(header) == HARP_HEADER_BYTES + length);
    return harp_payload_unchecked(header) ||
           harp_crc32c(payload, length) == harp_load32(header + CRC_AT);
}
