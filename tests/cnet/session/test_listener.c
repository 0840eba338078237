/* Cookies: asked for only under load, good for one sender, one connection and two minutes. */
#include <assert.h>
#include <string.h>

#include "session/listener.h"

static const struct harp_listener listener = {.key = {3, 4}, .id = 77, .calm = 10};
static const struct harp_from here = {.address = {1}, .port = 5};
static const uint64_t minute_ns = UINT64_C(60000000000);

static struct harp_parameters first = {.connection = 8, .epoch = 2, .segment = 1408, .paths = 1};
static struct harp_frame answer;

static enum harp_welcome judge_first(uint64_t now_ns, const struct harp_from *from,
                                     uint32_t half_open, uint64_t id)
{
    uint8_t body[HARP_BODY_MAX];
    struct harp_header header = {.type = HARP_FIRST, .connection = id, .path = 3};
    struct harp_parameters read;
    header.length = (uint16_t)harp_parameters_encode(&first, body);
    return harp_listener_judge(&listener, now_ns, from, half_open, &header, body, &read, &answer);
}

static void test_another_version(void)
{
    uint8_t frame[HARP_HEADER_BYTES + 8] = {9, HARP_FIRST};
    struct harp_header header;
    struct harp_versions spoken;
    frame[4] = 77;
    frame[HARP_HEADER_BYTES] = 21; /* the connecting end's id */
    assert(harp_header_decode(frame, sizeof frame, &header) == HARP_WIRE_VERSION);
    assert(harp_listener_refuse(&listener, &header, frame, sizeof frame, &answer));
    assert(answer.header.type == HARP_VERSION_NOTICE && answer.header.connection == 21);
    assert(harp_header_check(&answer.header) == HARP_WIRE_OK);
    assert(harp_versions_decode(answer.body, answer.header.length, &spoken) == HARP_WIRE_OK);
    assert(spoken.lowest == HARP_VERSION && spoken.highest == HARP_VERSION);
    assert(HARP_HEADER_BYTES + answer.header.length <= (int)sizeof frame);
    assert(!harp_listener_refuse(&listener, &header, frame, sizeof frame - 1, &answer));
    header.connection++;
    assert(!harp_listener_refuse(&listener, &header, frame, sizeof frame, &answer));
}

int main(void)
{
    test_another_version();
    struct harp_from elsewhere = here;
    elsewhere.port++;
    assert(judge_first(0, &here, 0, 78) == HARP_WELCOME_DROP);
    assert(judge_first(0, &here, 9, 77) == HARP_WELCOME_MAKE);
    assert(judge_first(0, &here, 10, 77) == HARP_WELCOME_COOKIE);
    assert(answer.header.connection == 8 && answer.header.epoch == 2 && answer.path == 3);
    assert(answer.header.length < 60); /* shorter than what it answers */
    memcpy(first.cookie, answer.body, sizeof first.cookie);
    assert(judge_first(0, &here, 10, 77) == HARP_WELCOME_MAKE);
    assert(judge_first(minute_ns, &here, 10, 77) == HARP_WELCOME_MAKE);
    assert(judge_first(2 * minute_ns, &here, 10, 77) == HARP_WELCOME_COOKIE);
    assert(judge_first(0, &elsewhere, 10, 77) == HARP_WELCOME_COOKIE);
    first.connection++;
    assert(judge_first(0, &here, 10, 77) == HARP_WELCOME_COOKIE);
    first.connection--;
    first.cookie[15] ^= 1;
    assert(judge_first(0, &here, 10, 77) == HARP_WELCOME_COOKIE);
    first.addresses_n = 2; /* room for two is right, an address is not */
    assert(judge_first(0, &here, 0, 77) == HARP_WELCOME_MAKE);
    first.addresses[1].port = 7;
    assert(judge_first(0, &here, 0, 77) == HARP_WELCOME_DROP);
    return 0;
}
