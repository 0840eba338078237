#include "session/listener.h"

#include <string.h>

#include "base/bytes.h"

#define MINUTE_NS UINT64_C(60000000000)
#define COOKIE_BYTES 16
#define COOKIE_OFFSET 44 /* in the body of FIRST */

/* The cookie of `from` and of the parameters in `body`, all but the cookie that they may hold. */
static void make_cookie(const struct harp_listener *listener, uint64_t minute,
                        const struct harp_from *from, const uint8_t *body,
                        uint8_t cookie[COOKIE_BYTES])
{
    uint8_t input[1 + 8 + 16 + 2 + COOKIE_OFFSET];
    harp_store64(input + 1, minute);
    memcpy(input + 9, from->address, 16);
    harp_store16(input + 25, from->port);
    memcpy(input + 27, body, COOKIE_OFFSET);
    for (uint8_t half = 0; half < 2; half++) {
        input[0] = half;
        harp_store64(cookie + 8 * half, harp_siphash(&listener->key, input, sizeof input));
    }
}

/* In time that does not depend on where they differ. */
static bool are_same_bytes(const uint8_t *a, const uint8_t *b)
{
    return ((harp_load64(a) ^ harp_load64(b)) | (harp_load64(a + 8) ^ harp_load64(b + 8))) == 0;
}

static bool brings_cookie(const struct harp_listener *listener, uint64_t minute,
                          const struct harp_from *from, const uint8_t *body)
{
    uint8_t now[COOKIE_BYTES], before[COOKIE_BYTES];
    make_cookie(listener, minute, from, body, now);
    make_cookie(listener, minute - 1, from, body, before);
    return are_same_bytes(body + COOKIE_OFFSET, now) ||
           are_same_bytes(body + COOKIE_OFFSET, before);
}

static void write_cookie(const struct harp_listener *listener, uint64_t minute,
                         const struct harp_from *from, const struct harp_parameters *first,
                         uint8_t path, const uint8_t *body, struct harp_frame *answer)
{
    answer->header = (struct harp_header){.version = HARP_VERSION,
                                          .type = HARP_COOKIE,
                                          .path = path,
                                          .connection = first->connection,
                                          .epoch = first->epoch,
                                          .length = COOKIE_BYTES};
    answer->path = path;
    answer->lap = 0;
    answer->again = false;
    answer->payload = NULL;
    make_cookie(listener, minute, from, body, answer->body);
}

/* FIRST has room for addresses, and none. */
static bool brings_addresses(const struct harp_parameters *first)
{
    for (uint32_t i = 0; i < first->addresses_n; i++)
        if (first->addresses[i].port)
            return true;
    return false;
}

enum harp_welcome harp_listener_judge(const struct harp_listener *listener, uint64_t now_ns,
                                      const struct harp_from *from, uint32_t half_open,
                                      const struct harp_header *header, const uint8_t *body,
                                      struct harp_parameters *first, struct harp_frame *answer)
{
    if (header->type != HARP_FIRST || header->connection != listener->id ||
        harp_parameters_decode(body, header->length, first) != HARP_WIRE_OK ||
        brings_addresses(first))
        return HARP_WELCOME_DROP;
    uint64_t minute = now_ns / MINUTE_NS;
    if (half_open < listener->calm || brings_cookie(listener, minute, from, body))
        return HARP_WELCOME_MAKE;
    write_cookie(listener, minute, from, first, header->path, body, answer);
    return HARP_WELCOME_COOKIE;
}

bool harp_listener_refuse(const struct harp_listener *listener, const struct harp_header *header,
                          const uint8_t *frame, size_t frame_bytes, struct harp_frame *answer)
{
    static const struct harp_versions spoken = {.lowest = HARP_VERSION, .highest = HARP_VERSION};
    if (header->type != HARP_FIRST || header->connection != listener->id ||
        frame_bytes < HARP_HEADER_BYTES + 8)
        return false;
    answer->header = (struct harp_header){
        .version = HARP_VERSION,
        .type = HARP_VERSION_NOTICE,
        .connection = harp_load64(frame + HARP_HEADER_BYTES), /* the same place in all versions */
        .length = (uint16_t)harp_versions_encode(&spoken, answer->body),
    };
    answer->path = 0;
    answer->lap = 0;
    answer->again = false;
    answer->payload = NULL;
    return true;
}
