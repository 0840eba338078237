#include "forge.h"

#include <string.h>

enum { BODY = HARP_HEADER_BYTES };

const struct dst_field dst_fields[] = {
    {"version", 0, 0, 1},
    {"type", 0, 1, 1},
    {"path", 0, 2, 1},
    {"flags", 0, 3, 1},
    {"connection", 0, 4, 8},
    {"epoch", 0, 12, 2},
    {"length", 0, 14, 2},
    {"packet", 0, 16, 4},
    {"message", 0, 20, 4},
    {"offset", 0, 24, 4},
    {"size", 0, 28, 4},
    {"crc", 0, 32, 4},
    {"tag", 0, 36, 8},
    {"FIRST connection", HARP_FIRST, BODY, 8},
    {"FIRST nonce", HARP_FIRST, BODY + 8, 16},
    {"FIRST epoch", HARP_FIRST, BODY + 24, 2},
    {"FIRST segment", HARP_FIRST, BODY + 26, 2},
    {"FIRST paths", HARP_FIRST, BODY + 28, 2},
    {"FIRST flags", HARP_FIRST, BODY + 30, 2},
    {"FIRST messages", HARP_FIRST, BODY + 32, 4},
    {"FIRST frames", HARP_FIRST, BODY + 36, 4},
    {"FIRST first", HARP_FIRST, BODY + 40, 4},
    {"FIRST cookie", HARP_FIRST, BODY + 44, 16},
    {"FIRST addresses", HARP_FIRST, BODY + 60, 0},
    {"COOKIE cookie", HARP_COOKIE, BODY, 16},
    {"ACCEPT connection", HARP_ACCEPT, BODY, 8},
    {"ACCEPT nonce", HARP_ACCEPT, BODY + 8, 16},
    {"ACCEPT epoch", HARP_ACCEPT, BODY + 24, 2},
    {"ACCEPT segment", HARP_ACCEPT, BODY + 26, 2},
    {"ACCEPT paths", HARP_ACCEPT, BODY + 28, 2},
    {"ACCEPT flags", HARP_ACCEPT, BODY + 30, 2},
    {"ACCEPT messages", HARP_ACCEPT, BODY + 32, 4},
    {"ACCEPT frames", HARP_ACCEPT, BODY + 36, 4},
    {"ACCEPT first", HARP_ACCEPT, BODY + 40, 4},
    {"ACCEPT cookie", HARP_ACCEPT, BODY + 44, 16},
    {"ACCEPT addresses", HARP_ACCEPT, BODY + 60, 0},
    {"DATA payload", HARP_DATA, BODY, 8},
    {"ACK messages", HARP_ACK, BODY, 8},
    {"ACK bytes", HARP_ACK, BODY + 8, 8},
    {"ACK frames", HARP_ACK, BODY + 16, 8},
    {"ACK delay_ns", HARP_ACK, BODY + 24, 4},
    {"ACK marked", HARP_ACK, BODY + 28, 4},
    {"ACK sent_ns", HARP_ACK, BODY + 32, 4},
    {"ACK bits", HARP_ACK, BODY + 36, 2},
    {"ACK zero", HARP_ACK, BODY + 38, 2},
    {"ACK map", HARP_ACK, BODY + 40, 0},
    {"CLOSE reason", HARP_CLOSE, BODY, 4},
    {"CLOSE text", HARP_CLOSE, BODY + 4, 0},
    {"VERSION lowest", HARP_VERSION_NOTICE, BODY, 1},
    {"VERSION highest", HARP_VERSION_NOTICE, BODY + 1, 1},
    {"VERSION zero", HARP_VERSION_NOTICE, BODY + 2, 2},
};
const size_t dst_fields_n = sizeof dst_fields / sizeof *dst_fields;

static size_t width_of_field(const struct dst_field *field, size_t bytes_n)
{
    if (field->bytes)
        return field->at + field->bytes <= bytes_n ? field->bytes : 0;
    return bytes_n > field->at ? bytes_n - field->at : 0;
}

/* Values that a field is set to, or that are added to it. */
enum value { ZERO, ONES, PLUS_ONE, MINUS_ONE, PLUS_WINDOW, MINUS_WINDOW, HALF_WAY, VALUES };

size_t dst_changes_of(const struct dst_field *field, size_t bytes_n)
{
    size_t bytes = width_of_field(field, bytes_n);
    return bytes ? 8 * bytes + VALUES : 0;
}

static void set_value(uint8_t *at, size_t bytes, enum value value)
{
    static const int64_t steps[] = {[PLUS_ONE] = 1,
                                    [MINUS_ONE] = -1,
                                    [PLUS_WINDOW] = HARP_SACK_BITS,
                                    [MINUS_WINDOW] = -HARP_SACK_BITS,
                                    [HALF_WAY] = INT64_C(1) << 31};
    if (value == ZERO || value == ONES) {
        memset(at, value == ZERO ? 0 : 0xff, bytes);
        return;
    }
    uint64_t number = 0;
    size_t wide = bytes < sizeof number ? bytes : sizeof number;
    memcpy(&number, at, wide); /* little-endian here and there */
    number += (uint64_t)steps[value];
    memcpy(at, &number, wide);
}

void dst_change(const struct dst_field *field, size_t which, uint8_t *bytes, size_t bytes_n)
{
    size_t wide = width_of_field(field, bytes_n);
    if (which < 8 * wide)
        bytes[field->at + which / 8] ^= (uint8_t)(1u << which % 8);
    else
        set_value(bytes + field->at, wide, (enum value)(which - 8 * wide));
}

void dst_tamper(uint64_t *random, uint8_t *bytes, size_t bytes_n)
{
    const struct dst_field *field;
    size_t changes = 0;
    do {
        field = &dst_fields[virtual_below(random, dst_fields_n)];
        if (field->type == 0 || field->type == bytes[1])
            changes = dst_changes_of(field, bytes_n);
    } while (changes == 0);
    /* Bits and telling values alike, else long fields had their bits flipped and nothing more. Only
     * bits of what depends on the payload, so that a run is the same without payload. */
    bool any = field->at != 32 && field->at != 36 && field->type != HARP_DATA;
    size_t which = any && virtual_chance(random, 500) ? changes - 1 - virtual_below(random, VALUES)
                                                      : virtual_below(random, changes - VALUES);
    dst_change(field, which, bytes, bytes_n);
}

static void write_noise(uint64_t *random, uint8_t *bytes, size_t from, size_t to)
{
    for (size_t i = from; i < to; i++)
        bytes[i] = (uint8_t)virtual_draw(random);
}

void dst_forge(uint64_t *random, uint8_t *bytes, size_t *bytes_n, size_t room)
{
    size_t longer = *bytes_n + 1 + virtual_below(random, 64);
    switch (virtual_below(random, 8)) {
    case 0:
        *bytes_n = virtual_below(random, *bytes_n);
        return;
    case 1:
        if (longer <= room) {
            write_noise(random, bytes, *bytes_n, longer);
            *bytes_n = longer;
        }
        return;
    case 2: /* length and all, but for the tag */
        if (longer <= room) {
            write_noise(random, bytes, *bytes_n, longer);
            *bytes_n = longer;
            bytes[14] = (uint8_t)(longer - BODY);
            bytes[15] = (uint8_t)((longer - BODY) >> 8);
        }
        return;
    case 3:
        write_noise(random, bytes, virtual_below(random, 2) ? 0 : 14, *bytes_n);
        return;
    default:
        for (uint64_t turns = 1 + virtual_below(random, 3); turns > 0; turns--)
            dst_tamper(random, bytes, *bytes_n);
    }
}

void dst_compare(const struct dst_flight *sealed, struct dst_flight *twin)
{
    size_t first = harp_wire_first_frame(sealed->bytes, sealed->bytes_n);
    /* Cut after the first of its frames, a datagram brings that one as it was sealed. */
    size_t n = twin->bytes_n == first ? first : sealed->bytes_n;
    bool same_n = n == twin->bytes_n;
    bool data = same_n && sealed->bytes[1] == HARP_DATA;
    twin->forged = !same_n || memcmp(sealed->bytes, twin->bytes, data ? BODY : n) != 0;
    twin->spoilt = !same_n || memcmp(sealed->bytes, twin->bytes, n) != 0;
}
