#include "wire/wire.h"

#include <assert.h>
#include <stdio.h>

#include "base/bytes.h"

/* Payloads and fields of a type; docs/inside/wire.md has the same table. */
struct use {
    uint16_t shortest;
    uint16_t longest;
    bool epoch;
    bool path;
    bool packet;
    uint8_t flags;
};

static const struct use uses[] = {
    [HARP_FIRST] = {60, 150, false, true, false, 0},
    [HARP_COOKIE] = {16, 16, true, true, false, 0},
    [HARP_ACCEPT] = {60, 150, true, true, false, 0},
    [HARP_DATA] = {0, UINT16_MAX, true, true, true, 0xff},
    [HARP_ACK] = {40, 40 + HARP_SACK_BITS / 8, true, true, true, HARP_ACK_OFF_QUEUE},
    [HARP_PROBE] = {0, UINT16_MAX, true, true, true, 0},
    [HARP_CLOSE] = {4, 4 + 120, true, true, false, 0},
    [HARP_VERSION_NOTICE] = {4, 4, false, false, false, 0},
};

/* A chunk lies within its message; all but the last have the same aligned length, which divides
 * their offsets. A message of no bytes is one chunk of no bytes. Fragments of a chunk begin where
 * that does, so that their length need not divide their offset. */
static bool is_chunk(const struct harp_header *header)
{
    if (header->flags == 1 || header->flags > HARP_FRAGMENTS_MAX)
        return false;
    if (header->size > HARP_MESSAGE_MAX || header->offset > header->size ||
        header->length > header->size - header->offset)
        return false;
    if (header->length == 0)
        return header->size == 0 && !header->flags;
    if (header->offset + header->length == header->size)
        return header->offset % HARP_CHUNK_ALIGN == 0;
    uint32_t step = header->flags ? HARP_CHUNK_ALIGN : header->length;
    return header->length % HARP_CHUNK_ALIGN == 0 && header->offset % step == 0;
}

static uint32_t chunks_of(const struct harp_header *header)
{
    return header->flags & HARP_RUN ? header->flags - (uint32_t)HARP_RUN : 1;
}

bool harp_header_chunk(const struct harp_header *header, uint32_t k, struct harp_header *chunk)
{
    *chunk = *header;
    if (k >= chunks_of(header))
        return false;
    if (header->flags & HARP_RUN) {
        chunk->flags = 0;
        chunk->packet += k;
        chunk->offset += k * header->length;
        uint32_t rest = header->size - chunk->offset;
        chunk->length = rest < header->length ? (uint16_t)rest : header->length;
    }
    return true;
}

/* The first chunk and the last one are chunks; then so are those between. */
static bool is_run(const struct harp_header *header)
{
    uint32_t chunks = chunks_of(header);
    struct harp_header first, last;
    if (chunks < 2 || chunks > HARP_RUN_MOST || header->offset >= header->size ||
        (chunks - 1) * header->length >= header->size - header->offset)
        return false;
    harp_header_chunk(header, 0, &first);
    harp_header_chunk(header, chunks - 1, &last);
    return is_chunk(&first) && is_chunk(&last);
}

enum harp_wire_error harp_header_check(const struct harp_header *header)
{
    if (header->version != HARP_VERSION && header->type != HARP_VERSION_NOTICE)
        return HARP_WIRE_VERSION;
    if (header->type < HARP_FIRST || header->type > HARP_VERSION_NOTICE)
        return HARP_WIRE_TYPE;
    const struct use *use = &uses[header->type];
    if (header->length < use->shortest || header->length > use->longest)
        return HARP_WIRE_LENGTH;
    if ((header->flags & ~use->flags) || (header->epoch && !use->epoch) ||
        (header->path && !use->path) || (header->packet && !use->packet) ||
        (header->crc && !header->length))
        return HARP_WIRE_UNUSED;
    if (header->type == HARP_DATA)
        return is_run(header) || is_chunk(header) ? HARP_WIRE_OK : HARP_WIRE_CHUNK;
    return header->message || header->offset || header->size ? HARP_WIRE_UNUSED : HARP_WIRE_OK;
}

uint64_t harp_wire_connection(const uint8_t *beginning)
{
    return harp_load64(beginning + 4);
}

static bool may_share_datagram(uint8_t version, uint8_t type)
{
    return version == HARP_VERSION && (type == HARP_DATA || type == HARP_ACK);
}

bool harp_header_joins(const struct harp_header *header)
{
    return may_share_datagram(header->version, header->type);
}

size_t harp_wire_frame_bytes(const uint8_t *header)
{
    size_t length = harp_load16(header + 14);
    uint32_t offset = harp_load32(header + 24), size = harp_load32(header + 28);
    if (header[1] == HARP_DATA && header[3] & HARP_RUN && offset < size) {
        length *= header[3] - HARP_RUN;
        length = length < size - offset ? length : size - offset;
    }
    return HARP_HEADER_BYTES + length;
}

size_t harp_wire_first_frame(const uint8_t *datagram, size_t bytes)
{
    if (bytes < 2 * HARP_HEADER_BYTES || bytes > HARP_JOINED_BYTES ||
        !may_share_datagram(datagram[0], datagram[1]))
        return bytes;
    size_t first = harp_wire_frame_bytes(datagram);
    return first + HARP_HEADER_BYTES <= bytes ? first : bytes;
}

void harp_header_encode(const struct harp_header *header, uint8_t *bytes)
{
    assert(harp_header_check(header) == HARP_WIRE_OK);
    bytes[0] = header->version;
    bytes[1] = header->type;
    bytes[2] = header->path;
    bytes[3] = header->flags;
    harp_store64(bytes + 4, header->connection);
    harp_store16(bytes + 12, header->epoch);
    harp_store16(bytes + 14, header->length);
    harp_store32(bytes + 16, header->packet);
    harp_store32(bytes + 20, header->message);
    harp_store32(bytes + 24, header->offset);
    harp_store32(bytes + 28, header->size);
    harp_store32(bytes + 32, header->crc);
}

enum harp_wire_error harp_header_decode(const uint8_t *frame, size_t frame_bytes,
                                        struct harp_header *header)
{
    *header = (struct harp_header){0};
    if (frame_bytes < HARP_HEADER_BYTES)
        return HARP_WIRE_SHORT;
    header->version = frame[0];
    header->type = frame[1];
    header->connection = harp_wire_connection(frame);
    if (header->version != HARP_VERSION && header->type != HARP_VERSION_NOTICE)
        return HARP_WIRE_VERSION;
    header->path = frame[2];
    header->flags = frame[3];
    header->epoch = harp_load16(frame + 12);
    header->length = harp_load16(frame + 14);
    header->packet = harp_load32(frame + 16);
    header->message = harp_load32(frame + 20);
    header->offset = harp_load32(frame + 24);
    header->size = harp_load32(frame + 28);
    header->crc = harp_load32(frame + 32);
    if (frame_bytes != harp_wire_frame_bytes(frame))
        return HARP_WIRE_LENGTH;
    return harp_header_check(header);
}
