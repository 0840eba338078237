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

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct harp_header header;
    enum harp_wire_error error = harp_header_decode(data, size, &header);
    if (error == HARP_WIRE_OK) {
        uint8_t bytes[HARP_TAGGED_BYTES];
        harp_header_encode(&header, bytes);
        assert(memcmp(bytes, data, HARP_TAGGED_BYTES) == 0);
        assert(header.length == size - HARP_HEADER_BYTES);
        body_of(header.type, data + HARP_HEADER_BYTES, header.length);
    }
    /* Bodies are decoded strictly whatever header they came with. */
    if (size > 0)
        for (uint8_t type = HARP_FIRST; type <= HARP_VERSION_NOTICE; type++)
            body_of(type, data + 1, size - 1);
    return 0;
}
