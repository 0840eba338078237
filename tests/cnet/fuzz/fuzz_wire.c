/* Any bytes as a frame: decoding reads within them, and what it accepts encodes to the same bytes.
 * Built by clang -fsanitize=fuzzer, or with fuzz_replay.c. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "wire/body.h"
#include "wire/wire.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static size_t encode_again(uint8_t type, const uint8_t *body, size_t length, uint8_t *out)
{
    struct harp_parameters parameters;
    struct harp_ack ack;
    struct harp_close notice;
    struct harp_versions versions;
    switch (type) {
    case HARP_FIRST:
    case HARP_ACCEPT:
        if (harp_parameters_decode(body, length, &parameters) == HARP_WIRE_OK)
            return harp_parameters_encode(&parameters, out);
        return 0;
    case HARP_ACK:
        if (harp_ack_decode(body, length, &ack) == HARP_WIRE_OK)
            return harp_ack_encode(&ack, out);
        return 0;
    case HARP_CLOSE:
        if (harp_close_decode(body, length, &notice) == HARP_WIRE_OK)
            return harp_close_encode(&notice, out);
        return 0;
    case HARP_VERSION_NOTICE:
        if (harp_versions_decode(body, length, &versions) == HARP_WIRE_OK)
            return harp_versions_encode(&versions, out);
        return 0;
    }
    return 0;
}

static void body_of(uint8_t type, const uint8_t *body, size_t length)
{
    uint8_t out[HARP_BODY_MAX];
    size_t written = encode_again(type, body, length, out);
    assert(written == 0 || (written == length && memcmp(out, body, length) == 0));
}

/* Payload of a frame: of a run's chunks, each of which might have come alone. */
static size_t bytes_of_chunks(const struct harp_header *header)
{
    struct harp_header chunk;
    size_t bytes = 0;
    for (uint32_t k = 0; harp_header_chunk(header, k, &chunk); k++) {
        assert(!header->length || k == 0 || chunk.offset == header->offset + bytes);
        assert(harp_header_check(&chunk) == HARP_WIRE_OK && !(chunk.flags & HARP_RUN));
        bytes += chunk.length;
    }
    return bytes;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct harp_header header;
    enum harp_wire_error error = harp_header_decode(data, size, &header);
    if (error == HARP_WIRE_OK) {
        uint8_t bytes[HARP_TAGGED_BYTES];
        harp_header_encode(&header, bytes);
        assert(memcmp(bytes, data, HARP_TAGGED_BYTES) == 0);
        assert(bytes_of_chunks(&header) == size - HARP_HEADER_BYTES);
        body_of(header.type, data + HARP_HEADER_BYTES, size - HARP_HEADER_BYTES);
    }
    /* Bodies are decoded strictly whatever header they came with. */
    if (size > 0)
        for (uint8_t type = HARP_FIRST; type <= HARP_VERSION_NOTICE; type++)
            body_of(type, data + 1, size - 1);
    return 0;
}
