#include "wire/body.h"

#include <assert.h>
#include <stdbool.h>

#include "base/bytes.h"

enum {
    PARAMETERS_BYTES = 60,
    ADDRESS_BYTES = 18,
    ACK_BYTES = 40,
    CLOSE_BYTES = 4,
    VERSIONS_BYTES = 4,
    PATHS_MAX = 256,
    ECN_MASK = 3
};

_Static_assert(HARP_BODY_MAX == ACK_BYTES + HARP_SACK_BITS / 8, "the longest body is an ACK");
_Static_assert(HARP_BODY_MAX >= PARAMETERS_BYTES + HARP_ADDRESSES_MAX * ADDRESS_BYTES,
               "and it is longer than ACCEPT");

static bool is_room(const struct harp_wire_address *address)
{
    static const struct harp_wire_address none;
    return memcmp(address->ip, none.ip, sizeof none.ip) == 0;
}

static enum harp_wire_error parameters_check(const struct harp_parameters *parameters)
{
    if (parameters->flags > 1 || parameters->traffic_class & ECN_MASK)
        return HARP_WIRE_UNUSED;
    for (uint32_t i = 0; i < parameters->addresses_n; i++)
        if (!parameters->addresses[i].port && !is_room(&parameters->addresses[i]))
            return HARP_WIRE_UNUSED;
    bool enough =
        parameters->connection && parameters->segment >= HARP_CHUNK_ALIGN && parameters->paths >= 1;
    return enough && parameters->paths <= PATHS_MAX ? HARP_WIRE_OK : HARP_WIRE_LIMIT;
}

size_t harp_parameters_encode(const struct harp_parameters *parameters, uint8_t *body)
{
    assert(parameters_check(parameters) == HARP_WIRE_OK);
    harp_store64(body, parameters->connection);
    memcpy(body + 8, parameters->nonce, sizeof parameters->nonce);
    harp_store16(body + 24, parameters->epoch);
    harp_store16(body + 26, parameters->segment);
    harp_store16(body + 28, parameters->paths);
    body[30] = parameters->flags;
    body[31] = parameters->traffic_class;
    harp_store32(body + 32, parameters->messages);
    harp_store32(body + 36, parameters->frames);
    harp_store32(body + 40, parameters->first);
    memcpy(body + 44, parameters->cookie, sizeof parameters->cookie);
    for (uint32_t i = 0; i < parameters->addresses_n; i++) {
        uint8_t *at = body + PARAMETERS_BYTES + i * ADDRESS_BYTES;
        memcpy(at, parameters->addresses[i].ip, sizeof parameters->addresses[i].ip);
        harp_store16(at + 16, parameters->addresses[i].port);
    }
    return PARAMETERS_BYTES + (size_t)parameters->addresses_n * ADDRESS_BYTES;
}

static uint32_t bytes_of_code(uint32_t code)
{
    return code ? (8 + code % 8) << (9 + code / 8) : 0;
}

static void decode_addresses(const uint8_t *body, struct harp_parameters *parameters)
{
    memset(parameters->addresses, 0, sizeof parameters->addresses);
    for (uint32_t i = 0; i < parameters->addresses_n; i++) {
        const uint8_t *at = body + PARAMETERS_BYTES + i * ADDRESS_BYTES;
        memcpy(parameters->addresses[i].ip, at, sizeof parameters->addresses[i].ip);
        parameters->addresses[i].port = harp_load16(at + 16);
    }
}

enum harp_wire_error harp_parameters_decode(const uint8_t *body, size_t length,
                                            struct harp_parameters *parameters)
{
    if (length < PARAMETERS_BYTES ||
        length > PARAMETERS_BYTES + HARP_ADDRESSES_MAX * ADDRESS_BYTES ||
        (length - PARAMETERS_BYTES) % ADDRESS_BYTES)
        return HARP_WIRE_LENGTH;
    parameters->addresses_n = (uint8_t)((length - PARAMETERS_BYTES) / ADDRESS_BYTES);
    parameters->connection = harp_load64(body);
    memcpy(parameters->nonce, body + 8, sizeof parameters->nonce);
    parameters->epoch = harp_load16(body + 24);
    parameters->segment = harp_load16(body + 26);
    parameters->paths = harp_load16(body + 28);
    parameters->flags = body[30];
    parameters->traffic_class = body[31];
    parameters->messages = harp_load32(body + 32);
    parameters->frames = harp_load32(body + 36);
    parameters->first = harp_load32(body + 40);
    memcpy(parameters->cookie, body + 44, sizeof parameters->cookie);
    decode_addresses(body, parameters);
    return parameters_check(parameters);
}

uint16_t harp_holds_code(uint32_t bytes)
{
    uint16_t code = HARP_CHUNK_ALIGN - 1;
    while (code && bytes_of_code(code) > bytes)
        code--;
    return code;
}

uint32_t harp_parameters_hold_bytes(const struct harp_parameters *parameters)
{
    return bytes_of_code(parameters->segment % HARP_CHUNK_ALIGN);
}

/* Bits of the map's last byte beyond `bits`. */
static uint8_t bits_beyond(uint16_t bits, uint8_t last)
{
    return bits % 8 ? (uint8_t)(last & (0xff << bits % 8)) : 0;
}

size_t harp_ack_encode(const struct harp_ack *ack, uint8_t *body)
{
    assert(ack->bits <= HARP_SACK_BITS);
    size_t map_bytes = (ack->bits + 7u) / 8;
    harp_store64(body, ack->messages);
    harp_store64(body + 8, ack->bytes);
    harp_store64(body + 16, ack->frames);
    harp_store32(body + 24, ack->delay_ns);
    harp_store32(body + 28, ack->marked);
    harp_store32(body + 32, ack->sent_ns);
    harp_store16(body + 36, ack->bits);
    harp_store16(body + 38, 0);
    memcpy(body + ACK_BYTES, ack->map, map_bytes);
    if (map_bytes > 0) {
        uint8_t *last = body + ACK_BYTES + map_bytes - 1;
        *last = (uint8_t)(*last & ~bits_beyond(ack->bits, *last));
    }
    return ACK_BYTES + map_bytes;
}

enum harp_wire_error harp_ack_decode(const uint8_t *body, size_t length, struct harp_ack *ack)
{
    if (length < ACK_BYTES)
        return HARP_WIRE_LENGTH;
    ack->messages = harp_load64(body);
    ack->bytes = harp_load64(body + 8);
    ack->frames = harp_load64(body + 16);
    ack->delay_ns = harp_load32(body + 24);
    ack->marked = harp_load32(body + 28);
    ack->sent_ns = harp_load32(body + 32);
    ack->bits = harp_load16(body + 36);
    if (ack->bits > HARP_SACK_BITS)
        return HARP_WIRE_LIMIT;
    size_t map_bytes = (ack->bits + 7u) / 8;
    if (length != ACK_BYTES + map_bytes)
        return HARP_WIRE_LENGTH;
    memset(ack->map, 0, sizeof ack->map);
    memcpy(ack->map, body + ACK_BYTES, map_bytes);
    bool stray = map_bytes > 0 && bits_beyond(ack->bits, ack->map[map_bytes - 1]);
    return harp_load16(body + 38) || stray ? HARP_WIRE_UNUSED : HARP_WIRE_OK;
}

size_t harp_close_encode(const struct harp_close *notice, uint8_t *body)
{
    assert(notice->text_bytes <= sizeof notice->text);
    harp_store32(body, notice->reason);
    memcpy(body + CLOSE_BYTES, notice->text, notice->text_bytes);
    return CLOSE_BYTES + notice->text_bytes;
}

enum harp_wire_error harp_close_decode(const uint8_t *body, size_t length,
                                       struct harp_close *notice)
{
    if (length < CLOSE_BYTES || length > CLOSE_BYTES + sizeof notice->text)
        return HARP_WIRE_LENGTH;
    notice->reason = harp_load32(body);
    notice->text_bytes = (uint8_t)(length - CLOSE_BYTES);
    memset(notice->text, 0, sizeof notice->text);
    memcpy(notice->text, body + CLOSE_BYTES, notice->text_bytes);
    return HARP_WIRE_OK;
}

size_t harp_versions_encode(const struct harp_versions *versions, uint8_t *body)
{
    assert(versions->lowest <= versions->highest);
    body[0] = versions->lowest;
    body[1] = versions->highest;
    harp_store16(body + 2, 0);
    return VERSIONS_BYTES;
}

enum harp_wire_error harp_versions_decode(const uint8_t *body, size_t length,
                                          struct harp_versions *versions)
{
    if (length != VERSIONS_BYTES)
        return HARP_WIRE_LENGTH;
    versions->lowest = body[0];
    versions->highest = body[1];
    if (harp_load16(body + 2))
        return HARP_WIRE_UNUSED;
    return versions->lowest <= versions->highest ? HARP_WIRE_OK : HARP_WIRE_LIMIT;
}
