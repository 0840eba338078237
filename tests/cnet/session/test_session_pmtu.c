/* MTU of paths: found out, followed down and up, for each path alone. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "session/pmtu.h"
#include "session_pair.h"
#include "virtual/random.h"

#define FULL (PAIR_SEGMENT + HARP_HEADER_BYTES)
#define SIZE (20 * PAIR_SEGMENT + 1000)
#define LITTLE 200 /* less than any chunk in two fragments */

static uint8_t bytes[SIZE], arrived[SIZE];
static uint64_t data_on[HARP_PATHS_MAX]; /* frames of data towards end 1 */
static uint16_t longest_data;            /* of these */
static uint32_t runs;                    /* of frames of one length among them */
static uint16_t most[2][HARP_PATHS_MAX]; /* longest frame that passes towards an end; 0: any */
static uint32_t loss;                    /* per mille of frames that are lost besides */
static uint64_t chance = 1;

static bool drop_too_long(struct pair *pair, uint8_t to, const struct harp_frame *frame)
{
    (void)pair;
    uint16_t frame_bytes = (uint16_t)(HARP_HEADER_BYTES + frame->header.length);
    if (to == 1 && frame->header.type == HARP_DATA) {
        data_on[frame->path]++;
        longest_data = (uint16_t)harp_max(longest_data, frame_bytes);
        static uint16_t last;
        runs += frame_bytes != last;
        last = frame_bytes;
    }
    return (!most[to][frame->path] || frame_bytes <= most[to][frame->path]) &&
           !virtual_chance(&chance, loss);
}

/* Towards end 1, these paths pass frames of `frame_bytes`. */
static void narrow_to(uint32_t paths, uint16_t frame_bytes)
{
    for (uint32_t p = 0; p < HARP_PATHS_MAX; p++)
        most[1][p] = p < 32 && paths >> p & 1 ? frame_bytes : 0;
}

static struct pair *make_pair(uint16_t paths, uint32_t stream_frames)
{
    struct pair *pair = pair_make(paths);
    for (int side = 0; side < 2; side++)
        pair->config[side].pmtu.base_bytes = 5 * HARP_CHUNK_ALIGN + HARP_HEADER_BYTES;
    pair->config[1].stream_frames = stream_frames;
    pair->passes = drop_too_long;
    memset(most, 0, sizeof most);
    loss = 0;
    for (uint32_t i = 0; i < SIZE; i++)
        bytes[i] = (uint8_t)(i * 131 >> 3);
    return pair;
}

static struct pair *with_paths(uint16_t paths, uint32_t narrow, uint16_t frame_bytes)
{
    struct pair *pair = make_pair(paths, 0);
    narrow_to(narrow, frame_bytes);
    pair_connect(pair);
    return pair;
}

static bool message_through(const struct pair *pair)
{
    return pair->received[1] == pair->sent[0] && pair->sent[0];
}

static void begin_message_of(struct pair *pair, uint32_t size)
{
    int eager;
    memset(data_on, 0, sizeof data_on);
    memset(arrived, 0, sizeof arrived);
    longest_data = runs = 0;
    pair->sent[0] = pair->received[1] = 0;
    assert(harp_session_post(pair->end[1], arrived, SIZE, 0, &eager) && eager < 0);
    assert(harp_session_message(pair->end[0], bytes, size, 0));
}

static void begin_message(struct pair *pair)
{
    begin_message_of(pair, SIZE);
}

/* A message of one chunk: which path it takes. */
static uint8_t path_of_chunk(struct pair *pair)
{
    begin_message_of(pair, PAIR_SEGMENT);
    assert(pair_until(pair, S, message_through));
    assert(!data_on[0] != !data_on[1]);
    return data_on[1] != 0;
}

/* One message from end 0 to end 1, byte for byte. */
static void send_one(struct pair *pair)
{
    begin_message(pair);
    assert(pair_until(pair, S, message_through));
    assert(memcmp(bytes, arrived, SIZE) == 0);
}

static struct harp_path_info info_of(const struct pair *pair, uint8_t side, uint8_t path)
{
    struct harp_path_info out;
    bool exists = harp_session_path_info(pair->end[side], path, &out);
    assert(exists);
    return out;
}

static void test_a_narrow_path_comes_after_wide_ones_until_it_is_wide(void)
{
    struct pair *pair = with_paths(2, 1 << 1, FULL - 1);
    pair_pass(pair, 100 * MS);
    struct harp_path_info seen = info_of(pair, 0, 1);
    assert(seen.fragments == 2 && seen.alive && seen.usable && !seen.mtu_fails);
    assert(info_of(pair, 1, 1).usable &&
           info_of(pair, 1, 1).fragments == 1); /* the other direction */
    for (int i = 0; i < 20; i++)
        assert(path_of_chunk(pair) == 0);
    assert(harp_session_count(pair->end[0])->data_again == 0);
    narrow_to(0, 0);
    pair_pass(pair, 1100 * MS);
    seen = info_of(pair, 0, 1);
    assert(seen.fragments == 1 && seen.usable && seen.confirmed_bytes == FULL);
    for (int i = 0; i < 20; i++)
        send_one(pair);
    assert(info_of(pair, 0, 1).sent > 30);
    pair_free(pair);
}

/* A port is not idle for want of a few bytes of MTU. */
static void test_a_narrow_path_carries_what_wide_ones_have_no_room_for(void)
{
    struct pair *pair = with_paths(2, 1 << 1, FULL - 1);
    pair_pass(pair, 100 * MS);
    harp_session_path_full(pair->end[0], pair->now_ns, 0, S);
    send_one(pair);
    assert(data_on[0] == 0 && data_on[1] == 2 * 21);
    pair_free(pair);
}

/* First hop 9001 before an edge of 1500: nothing was ever wide. */
static void test_all_paths_are_narrow_from_the_start(void)
{
    struct pair *pair = with_paths(3, 7, FULL - 1);
    send_one(pair);
    pair_pass(pair, 20 * MS);
    assert(!pair->closed[0].type && info_of(pair, 0, 0).fragments == 2 &&
           info_of(pair, 0, 0).usable);
    send_one(pair);
    assert(longest_data <= FULL - 1 && harp_session_count(pair->end[0])->pmtu_shrunk == 3);
    pair_free(pair);
}

/* Of the sizes that there are, the largest is found that passes. */
static void test_the_search_finds_the_size(void)
{
    static const struct {
        uint16_t passes, fragments;
    } cases[] = {{FULL, 1}, {FULL - 1, 2}, {812, 2}, {811, 3},
                 {556, 3},  {555, 4},      {428, 4}, {427, 6}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct pair *pair = make_pair(1, 0);
        pair->config[0].pmtu.base_bytes = 128 + HARP_HEADER_BYTES;
        narrow_to(1, cases[i].passes);
        pair_connect(pair);
        pair_pass(pair, 500 * MS);
        assert(info_of(pair, 0, 0).fragments == cases[i].fragments);
        send_one(pair);
        assert(harp_session_count(pair->end[0])->lost <= 3 * 11);
        pair_free(pair);
    }
}

/* A backup route: data is under way when it becomes narrow, and again when that is over. */
static void test_a_path_shrinks_and_grows_with_the_route(void)
{
    struct pair *pair = with_paths(1, 0, 0);
    send_one(pair);
    assert(longest_data == FULL);
    begin_message(pair);
    pair_pass(pair, 5 * US);
    narrow_to(1, FULL - 1);
    assert(pair_until(pair, S, message_through));
    assert(memcmp(bytes, arrived, SIZE) == 0);
    pair_pass(pair, 50 * MS);
    assert(info_of(pair, 0, 0).fragments == 2);
    assert(harp_session_count(pair->end[0])->pmtu_shrunk == 1);
    narrow_to(0, 0);
    pair_pass(pair, 2 * S);
    assert(info_of(pair, 0, 0).fragments == 1);
    assert(harp_session_count(pair->end[0])->pmtu_grown >= 1);
    send_one(pair);
    assert(longest_data == FULL && !pair->closed[0].type);
    pair_free(pair);
}

/* Segmentation offload takes frames of one length in a row, and each chunk here makes frames of
 * two. */
/* Not even BASE_PLPMTU, but what an MTU of 600 takes; and back. */
static void test_a_path_shrinks_below_what_most_take(void)
{
    struct pair *pair = make_pair(1, 0);
    for (int side = 0; side < 2; side++)
        pair->config[side].pmtu.base_bytes = HARP_PMTU_BASE;
    pair_connect(pair);
    assert(info_of(pair, 0, 0).fragments == 1);
    narrow_to(1, 572);
    begin_message(pair);
    assert(pair_until(pair, S, message_through));
    assert(memcmp(bytes, arrived, SIZE) == 0);
    pair_pass(pair, 100 * MS);
    assert(info_of(pair, 0, 0).frame_bytes == 512 + HARP_HEADER_BYTES);
    narrow_to(0, 0);
    pair_pass(pair, 40 * S);
    assert(info_of(pair, 0, 0).fragments == 1 && !pair->closed[0].type);
    pair_free(pair);
}

static void test_fragments_of_one_length_go_in_a_row(void)
{
    struct pair *pair = with_paths(1, 1, FULL - 1);
    pair_pass(pair, 50 * MS);
    send_one(pair);
    assert(data_on[0] == 2 * 21 && runs <= 9);
    pair_free(pair);
}

/* A path's MTU may shrink while the connection lives. */
static void test_of_two_paths_the_wide_one_is_taken(void)
{
    struct pair *pair = with_paths(2, 0, 0);
    send_one(pair);
    narrow_to(1 << 0, FULL - 1);
    for (int i = 0; i < 20; i++)
        send_one(pair);
    pair_pass(pair, 50 * MS);
    assert(info_of(pair, 0, 0).fragments == 2);
    assert(path_of_chunk(pair) == 1);
    narrow_to(1 << 1, FULL - 1);
    for (int i = 0; i < 20; i++)
        send_one(pair);
    pair_pass(pair, 2 * S);
    assert(info_of(pair, 0, 1).fragments == 2 && info_of(pair, 0, 0).fragments == 1);
    assert(path_of_chunk(pair) == 0);
    pair_free(pair);
}

/* A long pause between two searches would be a long time of small frames after a short one. */
static void test_growth_waits_longer_each_time_but_not_for_ever(void)
{
    struct pair *pair = with_paths(1, 1, FULL - 1);
    pair_pass(pair, 600 * S);
    uint64_t probes = pair->frames[1][HARP_PROBE];
    pair_pass(pair, 100 * S);
    assert(pair->frames[1][HARP_PROBE] - probes < 400); /* of these most are for signs of life */
    narrow_to(0, 0);
    pair_pass(pair, 33 * S);
    assert(info_of(pair, 0, 0).fragments == 1);
    pair_free(pair);
}

/* A route that takes next to nothing for a while ends nothing, whatever `dead_ns` is. */
static void test_nothing_of_use_passes_for_a_while(void)
{
    static const uint64_t patience_ns[] = {S, 30 * S};
    for (int i = 0; i < 2; i++) {
        struct pair *pair = make_pair(2, 0);
        pair->config[0].dead_ns = pair->config[1].dead_ns = patience_ns[i];
        pair_connect(pair);
        send_one(pair);
        narrow_to(3, LITTLE);
        begin_message(pair);
        pair_pass(pair, patience_ns[i] * 9 / 10);
        assert(!pair->closed[0].type && !pair->received[1] && info_of(pair, 0, 0).mtu_fails);
        narrow_to(0, 0);
        assert(pair_until(pair, 300 * MS, message_through));
        pair_pass(pair, 3 * S); /* wide again */
        narrow_to(3, LITTLE);
        begin_message(pair);
        pair_pass(pair, patience_ns[i] * 9 / 10);
        assert(!pair->closed[0].type);
        pair_pass(pair, patience_ns[i] / 5 + S / 2);
        assert(pair->closed[0].reason == HARP_REASON_MTU);
        pair_free(pair);
    }
}

static void test_nothing_of_use_passes_at_all(void)
{
    struct pair *pair = with_paths(3, 7, LITTLE);
    begin_message(pair);
    pair_pass(pair, 2 * S);
    char text[300];
    assert(pair->closed[0].reason == HARP_REASON_MTU && !pair->closed[0].by_peer);
    assert(pair->closed[1].reason == HARP_REASON_MTU && pair->closed[1].by_peer);
    harp_reason_explain(&pair->closed[0], text, sizeof text);
    assert(strstr(text, "MTU"));
    pair_free(pair);
}

static bool path_1_is_black(struct pair *pair, uint8_t to, const struct harp_frame *frame)
{
    return frame->path == 0 && drop_too_long(pair, to, frame);
}

/* A dead path is no hope. */
static void test_nothing_of_use_passes_on_the_last_living_path(void)
{
    struct pair *pair = make_pair(2, 0);
    narrow_to(1, LITTLE);
    pair->passes = path_1_is_black;
    pair_connect(pair);
    begin_message(pair);
    pair_pass(pair, 2 * S);
    assert(pair->closed[0].reason == HARP_REASON_MTU);
    pair_free(pair);
}

/* Loss that has nothing to do with size ends no connection, and bars no path for long. */
static void test_loss_is_not_mtu(void)
{
    for (int i = 0; i < 50; i++) {
        struct pair *pair = make_pair(1, 0);
        loss = 300;
        pair_begin(pair);
        pair_pass(pair, 3 * S);
        assert(pair->connected[0] && !pair->closed[0].type && !pair->closed[1].type);
        pair_pass(pair, 7 * S);
        loss = 0;
        pair_pass(pair, 33 * S);
        assert(info_of(pair, 0, 0).usable && info_of(pair, 1, 0).usable);
        assert(info_of(pair, 0, 0).fragments == 1 && info_of(pair, 1, 0).fragments == 1);
        pair_free(pair);
    }
}

/* Each lost fragment is a lost chunk, but what has come of it need not come in one go. */
static void test_fragments_that_are_lost(void)
{
    struct pair *pair = make_pair(2, 0);
    pair->config[0].pmtu.base_bytes = 300;
    narrow_to(3, 300);
    pair_connect(pair);
    pair_pass(pair, 100 * MS);
    assert(info_of(pair, 0, 0).fragments == 6);
    for (int i = 0; i < 30; i++) {
        loss = (uint32_t)(i % 4) * 100;
        send_one(pair);
        loss = 0;
        pair_pass(pair, 100 * MS);
    }
    assert(!pair->closed[0].type && !pair->closed[1].type);
    pair_free(pair);
}

/* A message that came before its buffer, and only in part when the buffer is posted. */
static bool no_second_fragment(struct pair *pair, uint8_t to, const struct harp_frame *frame)
{
    bool second = to == 1 && frame->header.type == HARP_DATA && frame->header.offset;
    return drop_too_long(pair, to, frame) && !second;
}

static void test_a_buffer_is_posted_between_two_fragments(void)
{
    static uint8_t to[PAIR_SEGMENT];
    int eager;
    struct pair *pair = with_paths(1, 1, FULL - 1);
    pair_pass(pair, 100 * MS);
    pair->passes = no_second_fragment;
    assert(harp_session_message(pair->end[0], bytes, PAIR_SEGMENT, 0));
    pair_pass(pair, MS);
    assert(harp_session_post(pair->end[1], to, PAIR_SEGMENT, 0, &eager) && eager < 0);
    pair->passes = drop_too_long;
    assert(pair_until(pair, S, message_through));
    assert(memcmp(to, bytes, PAIR_SEGMENT) == 0);
    assert(harp_session_message(pair->end[0], bytes, PAIR_SEGMENT, 0)); /* and wholly before */
    pair_pass(pair, 10 * MS);
    assert(harp_session_post(pair->end[1], to, PAIR_SEGMENT, 0, &eager) && eager >= 0);
    assert(memcmp(pair->eager[1][eager], bytes, PAIR_SEGMENT) == 0);
    pair_free(pair);
}

/* Lent frames hold whole chunks, however these came; and no more are lent than there are. */
static void test_streamed(void)
{
    enum { FRAMES = 24 };
    struct pair *pair = make_pair(1, FRAMES);
    pair_connect(pair);
    for (int round = 0; round < 40; round++) {
        narrow_to(1, (uint16_t[]){0, FULL - 1, 700, 1000}[round / 2 % 4]);
        loss = round % 3 ? 0 : 100;
        pair->received[1] = pair->sent[0] = pair->lent_n[1] = 0;
        assert(harp_session_message(pair->end[0], bytes, SIZE, 0));
        assert(pair_until(pair, 4 * S, message_through));
        assert(pair->lent_n[1] == 21);
        uint64_t sum = 0;
        for (uint32_t i = 0; i < pair->lent_n[1]; i++) {
            const struct pair_lent *lent = &pair->lent[1][i];
            assert(lent->first == bytes[lent->header.offset]);
            assert(lent->last == bytes[lent->header.offset + lent->header.length - 1u]);
            assert(lent->header.offset % PAIR_SEGMENT == 0);
            sum += lent->header.length;
        }
        assert(sum == SIZE);
        harp_session_returned(pair->end[1], pair->lent_n[1]);
        loss = 0;
        pair_pass(pair, 1100 * MS);
    }
    assert(harp_session_count(pair->end[0])->pmtu_grown > 5);
    pair_free(pair);
}

/* A hint is checked: true, it is known before any data is lost; forged, it costs one PROBE. */
static void test_a_hint_that_a_path_is_narrow_is_checked(void)
{
    struct pair *pair = with_paths(2, 0, 0);
    pair_pass(pair, 100 * MS);
    uint64_t probes = pair->frames[1][HARP_PROBE];
    for (int i = 0; i < 1000; i++)
        harp_session_path_mtu(pair->end[0], pair->now_ns, 0, FULL - 1);
    pair_pass(pair, MS / 2);
    assert(info_of(pair, 0, 0).usable && info_of(pair, 0, 0).confirmed_bytes == FULL);
    assert(pair->frames[1][HARP_PROBE] <= probes + 2);
    narrow_to(1 << 0, FULL - 1);
    pair_pass(pair, 10 * MS);
    harp_session_path_mtu(pair->end[0], pair->now_ns, 0, FULL - 1);
    pair_pass(pair, 100 * MS);
    assert(info_of(pair, 0, 0).fragments == 2);
    assert(path_of_chunk(pair) == 1 && harp_session_count(pair->end[0])->data_again == 0);
    pair_free(pair);
}

/* So is one that it is wide again. */
static void test_a_hint_that_a_path_is_wide_is_checked(void)
{
    struct pair *pair = with_paths(1, 1, FULL - 1);
    pair_pass(pair, 600 * S);
    narrow_to(0, 0);
    harp_session_path_mtu(pair->end[0], pair->now_ns, 0, FULL);
    pair_pass(pair, 5 * MS);
    assert(info_of(pair, 0, 0).fragments == 1);
    pair_free(pair);
}

int main(void)
{
    test_a_narrow_path_comes_after_wide_ones_until_it_is_wide();
    test_a_narrow_path_carries_what_wide_ones_have_no_room_for();
    test_all_paths_are_narrow_from_the_start();
    test_the_search_finds_the_size();
    test_a_path_shrinks_and_grows_with_the_route();
    test_a_path_shrinks_below_what_most_take();
    test_fragments_of_one_length_go_in_a_row();
    test_of_two_paths_the_wide_one_is_taken();
    test_growth_waits_longer_each_time_but_not_for_ever();
    test_nothing_of_use_passes_for_a_while();
    test_nothing_of_use_passes_at_all();
    test_nothing_of_use_passes_on_the_last_living_path();
    test_loss_is_not_mtu();
    test_fragments_that_are_lost();
    test_a_buffer_is_posted_between_two_fragments();
    test_streamed();
    test_a_hint_that_a_path_is_narrow_is_checked();
    test_a_hint_that_a_path_is_wide_is_checked();
    return 0;
}
