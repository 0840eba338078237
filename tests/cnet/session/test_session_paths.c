/* Choice of paths for data: where they lead, and the queues that they arrive on. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "session_pair.h"

#define FULL (PAIR_SEGMENT + HARP_HEADER_BYTES)
#define SIZE (20 * PAIR_SEGMENT)

static uint8_t bytes[SIZE];
static uint64_t data_on[HARP_PATHS_MAX]; /* whole frames of data towards end 1 */

static bool count_frame(struct pair *pair, uint8_t to, const struct harp_frame *frame)
{
    (void)pair;
    if (to == 1 && frame->header.type == HARP_DATA)
        data_on[frame->path]++;
    return true;
}

static struct pair *with_paths(uint16_t paths)
{
    struct pair *pair = pair_make(paths);
    pair->passes = count_frame;
    pair_connect(pair);
    return pair;
}

static bool message_through(const struct pair *pair)
{
    return pair->received[1] == pair->sent[0] && pair->sent[0];
}

/* One message from end 0 to end 1. */
static void send_one(struct pair *pair)
{
    static uint8_t to[SIZE];
    int eager;
    memset(data_on, 0, sizeof data_on);
    pair->sent[0] = pair->received[1] = 0;
    assert(harp_session_post(pair->end[1], to, SIZE, 0, &eager));
    assert(harp_session_message(pair->end[0], bytes, SIZE, 0));
    assert(pair_until(pair, S, message_through));
}

static struct harp_path_info path_info(const struct pair *pair, uint8_t side, uint8_t path)
{
    struct harp_path_info out;
    bool exists = harp_session_path_info(pair->end[side], path, &out);
    assert(exists);
    return out;
}

static void test_information(void)
{
    struct pair *pair = pair_make(3);
    struct harp_path_info seen;
    pair_begin(pair);
    assert(!harp_session_path_info(pair->end[0], 0, &seen));
    pair_free(pair);
    pair = with_paths(3);
    for (uint8_t side = 0; side < 2; side++)
        for (uint8_t path = 0; path < 3; path++) {
            seen = path_info(pair, side, path);
            assert(seen.alive && seen.usable && seen.heard && !seen.mtu_fails);
            assert(seen.confirmed_bytes == FULL);
            assert(seen.least_ns == 20 * US && seen.smoothed_ns == 20 * US);
            assert(seen.window_bytes == 64 * FULL && seen.bytes_in_flight == 0);
            assert(seen.sent == 2 && seen.lost == 0);
        }
    assert(!harp_session_path_info(pair->end[0], 3, &seen));
    send_one(pair);
    assert(path_info(pair, 0, 0).sent + path_info(pair, 0, 1).sent + path_info(pair, 0, 2).sent ==
           6 + 20);
    pair_free(pair);
}

/* Lengths of the bursts of a message, which take paths in turn. */
static uint32_t bursts[SIZE / PAIR_SEGMENT], bursts_n;

static bool note_burst(struct pair *pair, uint8_t to, const struct harp_frame *frame)
{
    static uint8_t last;
    if (to == 1 && frame->header.type == HARP_DATA) {
        bursts_n += !bursts_n || frame->path != last;
        bursts[bursts_n - 1]++;
        last = frame->path;
    }
    return count_frame(pair, to, frame);
}

/* Where ports hold back bursts are long at the beginning of a message and short at its end, so that
 * no path is done long before the others. */
static void test_a_message_is_shared_out_where_ports_hold_back(void)
{
    struct pair *pair = pair_make(2);
    for (int side = 0; side < 2; side++) {
        pair->config[side].cc = &harp_cc_none;
        pair->config[side].window.initial_bytes = UINT64_C(1) << 30;
    }
    pair_connect(pair);
    for (int m = 0; m < 20; m++) {
        pair->passes = note_burst;
        memset(bursts, 0, sizeof bursts);
        bursts_n = 0;
        send_one(pair);
        assert(data_on[0] + data_on[1] == 20 && data_on[0] >= 7 && data_on[1] >= 7);
        assert(bursts[0] == 4 && bursts[bursts_n - 1] <= 2 && bursts_n <= 12);
    }
    pair_free(pair);
}

static bool only_path_0(struct pair *pair, uint8_t to, const struct harp_frame *frame)
{
    return count_frame(pair, to, frame) && frame->path == 0;
}

static void test_off_its_queue_but_the_last_to_live(void)
{
    struct pair *pair = with_paths(2);
    harp_session_path_off_queue(pair->end[1], 0, true);
    pair_pass(pair, MS);
    assert(!path_info(pair, 0, 0).usable);
    pair->passes = only_path_0;
    send_one(pair); /* path 1 dies on the way */
    assert(data_on[0] == 20 && !path_info(pair, 0, 1).alive);
    pair_free(pair);
}

static void test_off_its_queue(void)
{
    struct pair *pair = with_paths(2);
    harp_session_path_off_queue(pair->end[1], 1, true);
    pair_pass(pair, MS);
    assert(path_info(pair, 0, 1).off_queue && !path_info(pair, 0, 1).usable &&
           !path_info(pair, 1, 1).off_queue);
    for (int i = 0; i < 5; i++) {
        send_one(pair);
        assert(data_on[1] == 0);
    }
    harp_session_path_off_queue(pair->end[1], 1, false);
    pair_pass(pair, MS);
    assert(!path_info(pair, 0, 1).off_queue && path_info(pair, 0, 1).usable);
    for (uint8_t path = 0; path < 2; path++)
        harp_session_path_off_queue(pair->end[1], path, true);
    pair_pass(pair, MS); /* no other is left: both carry again */
    assert(path_info(pair, 0, 0).usable && path_info(pair, 0, 1).usable);
    pair_free(pair);
}

/* The peer's word on the old route no longer holds; a PROBE finds out about the new one. */
static void test_a_path_that_is_rerouted(void)
{
    struct pair *pair = with_paths(2);
    harp_session_path_off_queue(pair->end[1], 1, true);
    pair_pass(pair, MS);
    uint64_t sent = path_info(pair, 0, 1).sent;
    assert(path_info(pair, 0, 1).off_queue);
    harp_session_path_rerouted(pair->end[0], 1);
    assert(!path_info(pair, 0, 1).off_queue && path_info(pair, 0, 1).usable);
    pair_pass(pair, 100 * MS);
    assert(path_info(pair, 0, 1).sent > sent && path_info(pair, 0, 1).off_queue);
    pair_free(pair);
}

static uint32_t listening_end_used;

static bool path_1_is_lost_upwards(struct pair *pair, uint8_t to, const struct harp_frame *frame)
{
    (void)pair;
    if (to == 0)
        listening_end_used |= 1u << frame->path;
    return !(to == 1 && frame->path == 1);
}

/* The listening end does not know where a path leads on which nothing has come. */
static void test_a_path_that_was_not_heard_is_not_used(void)
{
    struct pair *pair = pair_make(2);
    static uint8_t to[SIZE];
    int eager;
    pair->passes = path_1_is_lost_upwards;
    pair_connect(pair);
    assert(harp_session_post(pair->end[0], to, SIZE, 0, &eager));
    assert(harp_session_message(pair->end[1], bytes, SIZE, 0));
    pair_pass(pair, 200 * MS);
    assert(pair->received[0] == 1 && listening_end_used == 1 && !path_info(pair, 1, 1).heard);
    pair->passes = NULL;
    pair_pass(pair, 200 * MS);
    assert(path_info(pair, 1, 1).usable);
    pair_free(pair);
}

/* Each tenth packet that path 1 carries upwards is lost. */
static bool path_1_loses_a_tenth(struct pair *pair, uint8_t to, const struct harp_frame *frame)
{
    (void)pair;
    return to != 1 || frame->path != 1 || frame->header.type != HARP_DATA ||
           frame->header.packet % 10 != 0;
}

/* A receiver alone can count what is lost on the way to it: packets are numbered. */
static void test_the_receiver_counts_what_is_missing(void)
{
    struct pair *pair = with_paths(2);
    static uint8_t to[SIZE];
    int eager;
    pair->passes = path_1_loses_a_tenth;
    for (int i = 0; i < 20; i++) {
        assert(harp_session_post(pair->end[1], to, SIZE, 0, &eager));
        assert(harp_session_message(pair->end[0], bytes, SIZE, 0));
        pair_pass(pair, 50 * MS);
    }
    struct harp_path_info well = path_info(pair, 1, 0), bad = path_info(pair, 1, 1);
    struct harp_path_info sender = path_info(pair, 0, 1);
    assert(well.due > 20 && well.arrived == well.due);
    assert(bad.due > 20 && bad.arrived < bad.due);
    uint64_t missing = bad.due - bad.arrived;
    assert(missing * 20 >= bad.due && missing * 5 <= bad.due);
    assert(bad.due <= sender.sent && sender.lost + sender.spurious >= missing);
    pair_free(pair);
}

/* The time for which a message waits for nothing but a buffer at the other end. */
static void test_waiting_for_credit_is_counted(void)
{
    struct pair *pair = with_paths(2);
    static uint8_t to[SIZE];
    int eager;
    assert(harp_session_message(pair->end[0], bytes, SIZE, 0));
    pair_pass(pair, 100 * MS);
    assert(harp_session_post(pair->end[1], to, SIZE, 0, &eager));
    pair_pass(pair, 100 * MS);
    uint64_t starved_ns = harp_session_count(pair->end[0])->starved_ns;
    assert(pair->received[1] == 1 && starved_ns >= 90 * MS && starved_ns <= 110 * MS);
    assert(harp_session_count(pair->end[1])->starved_ns == 0);
    pair_free(pair);
}

static void test_unreachable_probes_and_no_more(void)
{
    struct pair *pair = with_paths(2);
    uint64_t before = pair->frames[1][HARP_PROBE];
    for (int i = 0; i < 1000; i++) /* a flood within one timeout */
        harp_session_unreachable(pair->end[0], pair->now_ns, 1);
    harp_session_unreachable(pair->end[0], pair->now_ns, 63);
    pair_pass(pair, MS / 2);
    assert(pair->frames[1][HARP_PROBE] == before + 1);
    assert(path_info(pair, 0, 1).alive);
    pair_pass(pair, 2 * MS);
    harp_session_unreachable(pair->end[0], pair->now_ns, 1);
    pair_pass(pair, MS);
    assert(pair->frames[1][HARP_PROBE] == before + 2);
    pair_free(pair);
}

static bool path_1_is_never_heard(struct pair *pair, uint8_t to, const struct harp_frame *frame)
{
    (void)pair;
    return to != 1 || frame->path != 1;
}

/* The listening end knows no way back on such a path. */
static void test_unreachable_on_a_path_never_heard(void)
{
    struct pair *pair = pair_make(2);
    pair->passes = path_1_is_never_heard;
    pair_connect(pair);
    uint64_t before = pair->frames[0][HARP_PROBE];
    harp_session_unreachable(pair->end[1], pair->now_ns, 1);
    pair_pass(pair, MS);
    assert(!path_info(pair, 1, 1).heard && pair->frames[0][HARP_PROBE] == before);
    pair_free(pair);
}

static bool path_0_is_black(struct pair *pair, uint8_t to, const struct harp_frame *frame)
{
    (void)pair, (void)to;
    return frame->path != 0;
}

static bool nothing_passes(struct pair *pair, uint8_t to, const struct harp_frame *frame)
{
    (void)pair, (void)to, (void)frame;
    return false;
}

static void test_unreachable_while_connecting(void)
{
    struct pair *pair = pair_make(2);
    pair->passes = path_0_is_black;
    pair_begin(pair);
    pair_pass(pair, US);
    assert(pair->frames[1][HARP_FIRST] == 1);
    for (int i = 0; i < 1000; i++)
        harp_session_unreachable(pair->end[0], pair->now_ns, 0);
    pair_pass(pair, MS);
    assert(pair->frames[1][HARP_FIRST] == 2); /* at once, on the other path */
    assert(pair->connected[0] && !pair->closed[0].type);
    pair_free(pair);
}

static struct harp_event refused_for(uint64_t between_ns, bool heard, bool certain)
{
    struct pair *pair = with_paths(1);
    pair->passes = certain ? NULL : nothing_passes;
    harp_session_refused(pair->end[0], pair->now_ns, 0, certain);
    pair_pass(pair, between_ns / 2);
    if (heard) {
        pair->passes = NULL;
        harp_session_unreachable(pair->end[0], pair->now_ns, 0);
        pair_pass(pair, 50 * MS);
        pair->passes = nothing_passes;
    }
    pair_pass(pair, between_ns / 2);
    if (!pair->closed[0].type)
        harp_session_refused(pair->end[0], pair->now_ns, 0, certain);
    pair_pass(pair, MS);
    struct harp_event closed = pair->closed[0];
    pair_free(pair);
    return closed;
}

/* A peer without a port is gone soon; a moment's refusal means nothing. */
static void test_refused(void)
{
    assert(!refused_for(400 * MS, false, false).type);
    assert(!refused_for(600 * MS, true, false).type);
    assert(refused_for(600 * MS, false, false).reason == HARP_REASON_REFUSED);
    assert(refused_for(0, false, true).reason == HARP_REASON_REFUSED);
}

static void test_refused_while_connecting(void)
{
    struct pair *pair = pair_make(1);
    pair->passes = nothing_passes;
    pair_begin(pair);
    for (int i = 0; i < 7 && !pair->closed[0].type; i++) {
        harp_session_refused(pair->end[0], pair->now_ns, 0, false);
        pair_pass(pair, 100 * MS);
    }
    assert(pair->closed[0].reason == HARP_REASON_REFUSED);
    pair_free(pair);
}

static bool new_address_answers;
static uint64_t data_before_the_answer;

static bool passes_to_new_address(struct pair *pair, uint8_t to, const struct harp_frame *frame)
{
    (void)pair;
    bool path_0 = to == 0 && frame->path == 0;
    data_before_the_answer += path_0 && !new_address_answers && frame->header.type == HARP_DATA;
    return !path_0 || new_address_answers;
}

static bool has_answered(const struct pair *pair)
{
    return pair->received[0] == 1;
}

/* To an address that only came with a frame, probes go and no data, until one is acknowledged. */
static void test_a_path_that_moved_is_validated_before_it_carries_data(void)
{
    static uint8_t to[SIZE];
    int eager;
    struct pair *pair = pair_make(1);
    pair_connect(pair);
    new_address_answers = false;
    data_before_the_answer = 0;
    pair->passes = passes_to_new_address;
    harp_session_path_moved(pair->end[1], 0);
    assert(path_info(pair, 1, 0).validating && !path_info(pair, 1, 0).usable);
    assert(harp_session_post(pair->end[0], to, SIZE, 0, &eager));
    assert(harp_session_message(pair->end[1], bytes, SIZE, 0));
    uint64_t probes = pair->frames[0][HARP_PROBE];
    pair_pass(pair, 300 * MS);
    assert(pair->frames[0][HARP_PROBE] > probes && data_before_the_answer == 0);
    assert(path_info(pair, 1, 0).validating && !pair->closed[1].type);
    new_address_answers = true;
    assert(pair_until(pair, 300 * MS, has_answered));
    assert(!path_info(pair, 1, 0).validating);
    pair_free(pair);
}

/* Only what the peer sent last shows where it is. */
static void test_only_the_newest_frame_of_a_path_moves_it(void)
{
    struct pair *pair = pair_make(1);
    pair_connect(pair);
    struct harp_header header = {.version = HARP_VERSION,
                                 .type = HARP_PROBE,
                                 .connection = pair->config[1].connection,
                                 .epoch = pair->config[1].epoch};
    uint64_t next = pair->config[0].first + path_info(pair, 0, 0).sent;
    header.packet = (uint32_t)next;
    assert(harp_session_is_newest(pair->end[1], &header));
    header.packet = (uint32_t)(next - 1);
    assert(!harp_session_is_newest(pair->end[1], &header));
    header.packet = (uint32_t)next;
    header.type = HARP_ACK;
    assert(!harp_session_is_newest(pair->end[1], &header));
    pair_free(pair);
}

int main(void)
{
    test_a_path_that_moved_is_validated_before_it_carries_data();
    test_only_the_newest_frame_of_a_path_moves_it();
    test_information();
    test_a_message_is_shared_out_where_ports_hold_back();
    test_off_its_queue();
    test_off_its_queue_but_the_last_to_live();
    test_a_path_that_is_rerouted();
    test_a_path_that_was_not_heard_is_not_used();
    test_the_receiver_counts_what_is_missing();
    test_waiting_for_credit_is_counted();
    test_unreachable_probes_and_no_more();
    test_unreachable_on_a_path_never_heard();
    test_unreachable_while_connecting();
    test_refused();
    test_refused_while_connecting();
    return 0;
}
