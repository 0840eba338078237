#include "engine/parts.h"

#include <string.h>

#include "base/copy_lines.h"
#include "wire/crc32c.h"
#include "wire/seal.h"
#include "wire/wire.h"

/* Where the payload begins in part i, and how much of it is there. */
static const uint8_t *payload_of(const struct harp_arrival *arrival, uint32_t i, size_t *bytes)
{
    uint32_t at = i == 0 ? HARP_HEADER_BYTES : 0;
    *bytes = arrival[i].length - at;
    return arrival[i].bytes + at;
}

bool harp_parts_copy(const struct harp_arrival *arrival, uint8_t *to)
{
    bool unchecked = harp_payload_unchecked(arrival->bytes);
    uint32_t crc = 0;
    size_t bytes;
    for (uint32_t i = 0; i <= arrival->more; i++) {
        const uint8_t *from = payload_of(arrival, i, &bytes);
        if (unchecked)
            memcpy(to, from, bytes);
        else
            crc = harp_crc32c_copy_more(crc, to, from, bytes);
        to += bytes;
    }
    return harp_open_crc(arrival->bytes, crc);
}

static bool crc_holds(const struct harp_arrival *arrival)
{
    uint32_t crc = 0;
    size_t bytes;
    if (harp_payload_unchecked(arrival->bytes))
        return true;
    for (uint32_t i = 0; i <= arrival->more; i++) {
        const uint8_t *from = payload_of(arrival, i, &bytes);
        crc = harp_crc32c_more(crc, from, bytes);
    }
    return harp_open_crc(arrival->bytes, crc);
}

/* A line that begins in one part and ends in a later one is put together first. */
bool harp_parts_copy_lines(const struct harp_arrival *arrival, uint8_t *to)
{
    uint8_t line[HARP_LINE_BYTES];
    size_t held = 0, bytes;
    if (!crc_holds(arrival))
        return false;
    for (uint32_t i = 0; i <= arrival->more; i++) {
        const uint8_t *from = payload_of(arrival, i, &bytes);
        size_t room = held ? HARP_LINE_BYTES - held : 0, first = bytes < room ? bytes : room;
        memcpy(line + held, from, first);
        held += first;
        if (first < room)
            continue;
        harp_copy_lines(to, line, held);
        to += held;
        size_t rest = bytes - first,
               whole = i == arrival->more ? rest : rest - rest % HARP_LINE_BYTES;
        harp_copy_lines(to, from + first, whole);
        to += whole;
        held = rest - whole;
        memcpy(line, from + first + whole, held);
    }
    harp_copy_lines(to, line, held);
    return true;
}
