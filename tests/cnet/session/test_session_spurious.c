/* Losses that prove to be none: what arrives late takes back what its loss has cost. */
#include <assert.h>

#include "session_pair.h"

#define CHUNKS 20
#define SIZE (CHUNKS * PAIR_SEGMENT)

static struct harp_cc_ops counting;
static uint32_t timeouts, taken_back;
static uint32_t drop;          /* frames of data to lose from now on ... */
static struct harp_frame late; /* ... of which the first is only late */
static bool keeps_first;
static bool dark; /* all frames to the receiver are lost */

static void count_timeout(struct harp_cc *cc, uint64_t now_ns)
{
    (void)cc, (void)now_ns;
    timeouts++;
}

static void count_taken_back(struct harp_cc *cc)
{
    (void)cc;
    taken_back++;
}

/* As controllers do, one segment from a timeout on until it proves to have been none. */
static uint64_t window_after_timeout(const struct harp_cc *cc)
{
    return timeouts > taken_back ? cc->config.segment_bytes : cc->config.initial_bytes;
}

static bool pass_or_drop(struct pair *pair, uint8_t to, const struct harp_frame *frame)
{
    (void)pair;
    if (to == 1 && dark)
        return false;
    if (to != 1 || frame->header.type != HARP_DATA || !drop)
        return true;
    drop--;
    if (keeps_first)
        late = *frame;
    keeps_first = false;
    return false;
}

static struct pair *connect_counting(void)
{
    struct pair *pair = pair_make(1);
    counting = harp_cc_fixed;
    counting.on_timeout = count_timeout;
    counting.on_spurious = count_taken_back;
    counting.window_bytes = window_after_timeout;
    pair->config[0].cc = &counting;
    pair->passes = pass_or_drop;
    timeouts = taken_back = 0;
    pair_connect(pair);
    return pair;
}

static bool message_through(const struct pair *pair)
{
    return pair->received[1] == pair->sent[0] && pair->sent[0];
}

static void begin_message(struct pair *pair)
{
    static uint8_t from[SIZE], to[SIZE];
    int eager;
    pair->sent[0] = pair->received[1] = 0;
    assert(harp_session_post(pair->end[1], to, SIZE, 0, &eager));
    assert(harp_session_message(pair->end[0], from, SIZE, 0));
}

static bool has_timed_out(const struct pair *pair)
{
    (void)pair;
    return timeouts > 0;
}

static const struct harp_session_counters *sender_counters(const struct pair *pair)
{
    return harp_session_count(pair->end[0]);
}

/* F-RTO (RFC 5682): the first packet that arrives late says that nothing was lost. */
static void test_a_timeout_that_was_none_costs_nothing(void)
{
    struct pair *pair = connect_counting();
    begin_message(pair);
    pair_pass(pair, pair->delay_ns); /* what it has credit for is on its way */
    pair->stopped[1] = true;
    assert(pair_until(pair, S, has_timed_out));
    pair->stopped[1] = false;
    assert(pair_until(pair, S, message_through));
    assert(taken_back == 1 && sender_counters(pair)->lost == 0);
    assert(sender_counters(pair)->data_again <= 8); /* what asked, after 1, 3, 7 ms and on */
    pair_free(pair);
}

/* After a timeout that was one, a packet that is late says nothing of those that are lost. */
static void test_a_late_packet_takes_no_later_loss_back(void)
{
    struct pair *pair = connect_counting();
    dark = true;
    begin_message(pair);
    assert(pair_until(pair, S, has_timed_out));
    dark = false;
    assert(pair_until(pair, S, message_through));
    assert(taken_back == 0);
    timeouts = 0;
    drop = CHUNKS / 2;
    keeps_first = true;
    begin_message(pair);
    assert(pair_until(pair, S, message_through));
    pair_deliver(pair, 1, &late);
    pair_pass(pair, MS);
    assert(sender_counters(pair)->spurious == 1 && taken_back == 0);
    pair_free(pair);
}

/* One packet that was overtaken and given up: the loss was none. */
static void test_a_loss_that_was_none_is_taken_back(void)
{
    struct pair *pair = connect_counting();
    drop = 1;
    keeps_first = true;
    begin_message(pair);
    assert(pair_until(pair, S, message_through));
    assert(sender_counters(pair)->lost == 1);
    pair_deliver(pair, 1, &late);
    pair_pass(pair, MS);
    assert(sender_counters(pair)->lost == 0 && sender_counters(pair)->spurious == 1 &&
           taken_back == 1);
    pair_free(pair);
}

int main(void)
{
    test_a_timeout_that_was_none_costs_nothing();
    test_a_late_packet_takes_no_later_loss_back();
    test_a_loss_that_was_none_is_taken_back();
    return 0;
}
