/* Sessions with little memory: how small they are, and that they carry messages all the same. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "session_pair.h"

#define CHUNKS 300

static void give_little_memory(struct harp_session_config *config)
{
    config->messages = 4;
    config->chunks = 64;
    config->packets = 32;
}

static void test_an_end_with_little_memory_is_small(void)
{
    struct harp_session_config config;
    harp_session_defaults(&config, 4096, 1);
    assert(harp_session_size(&config) < 512 << 10);
    config.messages = 16;
    config.chunks = 256;
    config.packets = 128;
    assert(harp_session_size(&config) <= 16 << 10);
    give_little_memory(&config);
    assert(harp_session_size(&config) <= 8 << 10);
}

/* Every 20th frame of data is lost, and the first one, so that the window of the message waits. */
static bool lose_some(struct pair *pair, uint8_t to, const struct harp_frame *frame)
{
    return !(to == 1 && frame->header.type == HARP_DATA && pair->frames[1][HARP_DATA] % 20 == 1);
}

/* Returns how many packets of end 0 were lost. */
static uint64_t send_one_message(struct pair *pair)
{
    uint32_t size = CHUNKS * PAIR_SEGMENT - 7;
    uint8_t *from = malloc(size), *to = calloc(1, size);
    int eager;
    for (uint32_t i = 0; i < size; i++)
        from[i] = (uint8_t)(i * 31 + i / 4096);
    assert(harp_session_post(pair->end[1], to, size, 5, &eager) && eager == -1);
    assert(harp_session_message(pair->end[0], from, size, 6));
    pair_pass(pair, 2 * S);
    assert(pair->sent[0] == 1 && pair->received[1] == 1 && memcmp(from, to, size) == 0);
    free(from);
    free(to);
    return harp_session_count(pair->end[0])->lost;
}

static void test_ends_with_little_memory_exchange_a_long_message(void)
{
    struct pair *pair = pair_make(1);
    give_little_memory(&pair->config[0]);
    give_little_memory(&pair->config[1]);
    pair_connect(pair);
    pair->passes = lose_some;
    assert(send_one_message(pair) > 0);
    pair_free(pair);
}

/* The sender goes as far ahead as the protocol allows: the rest counts as lost, and comes again. */
static void test_chunks_beyond_the_receivers_memory_come_again(void)
{
    struct pair *pair = pair_make(1);
    give_little_memory(&pair->config[1]);
    pair->config[0].window.initial_bytes = 200 * (PAIR_SEGMENT + HARP_HEADER_BYTES);
    pair_connect(pair);
    pair->passes = lose_some;
    assert(send_one_message(pair) > CHUNKS / 20 + 10);
    assert(!pair->closed[0].reason && !pair->closed[1].reason);
    pair_free(pair);
}

static void test_no_more_messages_are_taken_than_there_is_memory_for(void)
{
    struct pair *pair = pair_make(1);
    int eager;
    give_little_memory(&pair->config[0]);
    pair_connect(pair);
    for (int i = 0; i < 4; i++) {
        assert(harp_session_message(pair->end[0], NULL, 100, 0));
        assert(harp_session_post(pair->end[0], NULL, 100, 0, &eager));
    }
    assert(!harp_session_message(pair->end[0], NULL, 100, 0));
    assert(!harp_session_post(pair->end[0], NULL, 100, 0, &eager));
    pair_free(pair);
}

int main(void)
{
    test_an_end_with_little_memory_is_small();
    test_ends_with_little_memory_exchange_a_long_message();
    test_chunks_beyond_the_receivers_memory_come_again();
    test_no_more_messages_are_taken_than_there_is_memory_for();
    return 0;
}
