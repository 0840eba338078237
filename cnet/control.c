#include "control.h"

#include <string.h>

#include "bytes.h"

uint16_t harp_parameters_write(const struct harp_parameters *parameters, uint8_t *body)
{
    harp_store64(body, parameters->connection);
    memcpy(body + 8, parameters->nonce, HARP_NONCE_BYTES);
    harp_store16(body + 24, parameters->epoch);
    harp_store16(body + 26, parameters->segment);
    harp_store16(body + 28, parameters->paths);
    harp_store16(body + 30, parameters->flags);
    harp_store32(body + 32, parameters->messages);
    harp_store32(body + 36, parameters->frames);
    harp_store32(body + 40, parameters->first);
    memcpy(body + 44, parameters->cookie, HARP_COOKIE_BYTES);
    return HARP_PARAMETERS_BYTES;
}

bool harp_parameters_read(struct harp_parameters *parameters, const uint8_t *body, uint16_t length)
{
    if (length != HARP_PARAMETERS_BYTES)
        return false;
    parameters->connection = harp_load64(body);
    memcpy(parameters->nonce, body + 8, HARP_NONCE_BYTES);
    parameters->epoch = harp_load16(body + 24);
    parameters->segment = harp_load16(body + 26);
    parameters->paths = harp_load16(body + 28);
    parameters->flags = harp_load16(body + 30);
    parameters->messages = harp_load32(body + 32);
    parameters->frames = harp_load32(body + 36);
    parameters->first = harp_load32(body + 40);
    memcpy(parameters->cookie, body + 44, HARP_COOKIE_BYTES);
    return parameters->segment >= HARP_CHUNK_ALIGN && parameters->paths > 0;
}

uint16_t harp_ack_write(const struct harp_ack *ack, uint8_t *body)
{
    uint16_t map_bytes = (uint16_t)((ack->bits + 7) / 8);
    harp_store32(body, ack->largest);
    harp_store32(body + 4, ack->delay_ns);
    harp_store32(body + 8, ack->messages);
    harp_store64(body + 12, ack->bytes);
    harp_store32(body + 20, ack->frames);
    harp_store32(body + 24, ack->marked);
    harp_store16(body + 28, ack->bits);
    harp_store16(body + 30, 0);
    memcpy(body + HARP_ACK_BYTES, ack->map, map_bytes);
    return (uint16_t)(HARP_ACK_BYTES + map_bytes);
}

bool harp_ack_read(struct harp_ack *ack, const uint8_t *body, uint16_t length)
{
    if (length < HARP_ACK_BYTES)
        return false;
    ack->largest = harp_load32(body);
    ack->delay_ns = harp_load32(body + 4);
    ack->messages = harp_load32(body + 8);
    ack->bytes = harp_load64(body + 12);
    ack->frames = harp_load32(body + 20);
    ack->marked = harp_load32(body + 24);
    ack->bits = harp_load16(body + 28);
    if (ack->bits > HARP_SACK_BITS || harp_load16(body + 30) != 0)
        return false;
    uint16_t map_bytes = (uint16_t)((ack->bits + 7) / 8);
    if (length != HARP_ACK_BYTES + map_bytes)
        return false;
    memcpy(ack->map, body + HARP_ACK_BYTES, map_bytes);
    return true;
}

uint16_t harp_close_write(uint32_t reason, uint8_t *body)
{
    harp_store32(body, reason);
    return 4;
}

bool harp_close_read(uint32_t *reason, const uint8_t *body, uint16_t length)
{
    if (length < 4 || length > 4 + HARP_CLOSE_TEXT_MAX)
        return false;
    *reason = harp_load32(body);
    return true;
}
