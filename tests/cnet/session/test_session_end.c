/* Ends of connections: closing with words, other versions, silence, long quiet. */
#include <assert.h>
#include <string.h>

#include "session_pair.h"

static char words[400];

static const char *explain_end(const struct harp_event *closed)
{
    harp_reason_explain(closed, words, sizeof words);
    return words;
}

static void test_closing_with_words(void)
{
    struct pair *pair = pair_make(2);
    pair_connect(pair);
    harp_session_close(pair->end[0], pair->now_ns, HARP_REASON_MEMORY, "no \x1b[1m frames left");
    pair_pass(pair, MS);
    const struct harp_event *here = &pair->closed[0], *there = &pair->closed[1];
    assert(here->reason == HARP_REASON_MEMORY && !here->by_peer && here->text_bytes == 0);
    assert(there->reason == HARP_REASON_MEMORY && there->by_peer);
    assert(there->text_bytes == 19 && memcmp(there->text, "no \x1b[1m frames left", 19) == 0);
    assert(strstr(explain_end(there), "memory") && strstr(words, "\"no ?[1m frames left\""));
    assert(strstr(explain_end(here), "memory") && !strstr(words, "\""));
    pair_free(pair);
}

static void test_too_many_words(void)
{
    char text[200];
    struct pair *pair = pair_make(1);
    memset(text, 'x', sizeof text);
    memcpy(text + HARP_CLOSE_TEXT - 1, "\xc3\xa4", 3); /* the cut would split it */
    pair_connect(pair);
    harp_session_close(pair->end[0], pair->now_ns, HARP_REASON_DONE, text);
    pair_pass(pair, MS);
    assert(pair->closed[1].text_bytes == HARP_CLOSE_TEXT - 1);
    assert(strlen(explain_end(&pair->closed[1])) < sizeof words);
    harp_reason_explain(&pair->closed[1], words, 8);
    assert(strlen(words) == 7);
    pair_free(pair);
}

static void test_no_words(void)
{
    struct pair *pair = pair_make(1);
    pair_connect(pair);
    harp_session_close(pair->end[1], pair->now_ns, HARP_REASON_DONE, NULL);
    pair_pass(pair, MS);
    assert(pair->closed[0].type && pair->closed[0].text_bytes == 0 && pair->closed[0].by_peer);
    pair_free(pair);
}

static bool has_received(const struct pair *pair)
{
    return pair->received[0] == 1;
}

/* An end that closes as soon as it has all leaves no doubt at the other end that it has. */
static void test_arrivals_are_acknowledged_before_the_end(void)
{
    static uint8_t bytes[100], to[100];
    struct pair *pair = pair_make(1);
    int eager;
    pair_connect(pair);
    assert(harp_session_post(pair->end[0], to, sizeof to, 0, &eager));
    assert(harp_session_message(pair->end[1], bytes, sizeof bytes, 0));
    assert(pair_until(pair, MS, has_received));
    harp_session_close(pair->end[0], pair->now_ns, HARP_REASON_DONE, NULL);
    pair_pass(pair, MS);
    assert(pair->sent[1] == 1 && pair->closed[1].reason == HARP_REASON_DONE);
    pair_free(pair);
}

static bool deliver_overtaken(struct pair *pair, uint8_t to, const struct harp_frame *frame)
{
    (void)pair;
    return to != 1 || frame->header.type != HARP_ACK || frame->path == 0;
}

/* Likewise where CLOSE overtakes what went on other paths. */
static void test_the_last_acknowledgement_takes_the_path_of_the_end(void)
{
    static uint8_t bytes[100], to[100];
    uint32_t elsewhere = 0;
    for (uint64_t seed = 0; seed < 16; seed++) {
        struct pair *pair = pair_make(4);
        int eager;
        pair->config[1].seed = seed;
        pair_connect(pair);
        pair->passes = deliver_overtaken;
        assert(harp_session_post(pair->end[0], to, sizeof to, 0, &eager));
        assert(harp_session_message(pair->end[1], bytes, sizeof bytes, 0));
        assert(pair_until(pair, MS, has_received));
        pair_pass(pair, 100 * US);
        elsewhere += pair->sent[1] == 0;
        harp_session_close(pair->end[0], pair->now_ns, HARP_REASON_DONE, NULL);
        pair_pass(pair, 100 * US);
        assert(pair->sent[1] == 1 && pair->closed[1].reason == HARP_REASON_DONE);
        pair_free(pair);
    }
    assert(elsewhere > 0);
}

static void test_every_reason_has_a_sentence(void)
{
    struct harp_event event = {.type = HARP_EVENT_CLOSED};
    char last[400] = "";
    for (event.reason = 0; event.reason <= HARP_REASON_REFUSED; event.reason++) {
        assert(strlen(explain_end(&event)) > 20 && strcmp(words, last) != 0);
        strcpy(last, words);
    }
    event.reason = 123456;
    assert(strstr(explain_end(&event), "123456"));
}

static void test_another_version(void)
{
    struct pair *pair = pair_make(1);
    pair_begin(pair);
    struct harp_place where;
    struct harp_event event;
    struct harp_frame frame;
    const struct harp_versions spoken = {.lowest = 4, .highest = 7};
    assert(harp_session_send(pair->end[0], pair->now_ns, &frame, 1) == 1);
    struct harp_header header = {
        .version = 7,
        .type = HARP_VERSION_NOTICE,
        .connection = pair->config[0].connection,
        .length = (uint16_t)harp_versions_encode(&spoken, frame.body),
    };
    assert(harp_session_receive(pair->end[0], pair->now_ns, 0, &header, frame.body, false,
                                &where) == HARP_TAKEN);
    harp_session_poll(pair->end[0], &event);
    assert(event.type == HARP_EVENT_CLOSED && event.reason == HARP_REASON_VERSION && event.by_peer);
    assert(event.lowest == 4 && event.highest == 7);
    assert(strstr(explain_end(&event), "4 to 7") && strstr(words, "speaks 3"));
    pair_free(pair);
}

static bool nothing_passes(struct pair *pair, uint8_t to, const struct harp_frame *frame)
{
    (void)pair, (void)to, (void)frame;
    return false;
}

static void test_nobody_answers(void)
{
    struct pair *pair = pair_make(2);
    pair->passes = nothing_passes;
    pair_begin(pair);
    pair_pass(pair, S - MS);
    assert(!pair->closed[0].type && pair->frames[1][HARP_FIRST] >= 4);
    pair_pass(pair, 20 * MS);
    assert(pair->closed[0].reason == HARP_REASON_NO_ANSWER && !pair->closed[0].by_peer);
    assert(strstr(explain_end(&pair->closed[0]), "listens"));
    pair_free(pair);
}

static void test_a_silent_peer_is_gone_in_time(void)
{
    static const uint64_t patience_ns[] = {S, 30 * S};
    for (int i = 0; i < 2; i++) {
        struct pair *pair = pair_make(2);
        pair->config[0].dead_ns = patience_ns[i];
        pair_connect(pair);
        pair_pass(pair, 3 * S);
        pair->stopped[1] = true;
        uint64_t from_ns = pair->now_ns;
        while (!pair->closed[0].type && pair->now_ns < from_ns + 40 * S)
            pair_pass(pair, 10 * MS);
        uint64_t took_ns = pair->now_ns - from_ns;
        assert(pair->closed[0].reason == HARP_REASON_SILENT && !pair->closed[0].by_peer);
        assert(took_ns >= patience_ns[i] / 2 && took_ns <= patience_ns[i] + 20 * MS);
        pair_free(pair);
    }
}

static bool passes_one_way(struct pair *pair, uint8_t to, const struct harp_frame *frame)
{
    (void)pair, (void)frame;
    return to == 1;
}

/* The other end, which still hears, learns it at once instead of waiting as long itself. */
static void test_an_end_that_gives_up_a_silent_peer_sends_it_the_reason(void)
{
    struct pair *pair = pair_make(2);
    pair->config[1].dead_ns = 30 * S;
    pair_connect(pair);
    pair->passes = passes_one_way;
    pair_pass(pair, 2 * S);
    assert(pair->closed[0].reason == HARP_REASON_SILENT && !pair->closed[0].by_peer);
    assert(pair->closed[1].reason == HARP_REASON_UNHEARD && pair->closed[1].by_peer);
    assert(strstr(explain_end(&pair->closed[1]), "one end heard nothing"));
    assert(pair->frames[1][HARP_CLOSE] == 1);
    pair_free(pair);
}

static void test_quiet_is_not_silence(void)
{
    struct pair *pair = pair_make(4);
    pair_connect(pair);
    uint64_t frames = pair->frames[1][HARP_PROBE];
    pair_pass(pair, 60 * S);
    assert(!pair->closed[0].type && !pair->closed[1].type);
    assert(harp_session_count(pair->end[0])->paths_died == 0);
    frames = pair->frames[1][HARP_PROBE] - frames;
    assert(frames > 60 && frames < 1000); /* a few in each dead_ns */
    pair_free(pair);
}

/* An end whose host hardly ever lets it run learns it, too, if after more turns. */
static void test_pause_after_pause_a_peer_is_gone(void)
{
    struct harp_frame frames[64];
    struct harp_event event = {0};
    struct pair *pair = pair_make(1);
    pair->config[0].dead_ns = S;
    pair_connect(pair);
    uint64_t now_ns = pair->now_ns;
    for (int pauses = 0; event.type != HARP_EVENT_CLOSED; pauses++) {
        assert(pauses <= 9);
        harp_session_send(pair->end[0], now_ns += 10 * S, frames, 64);
        harp_session_deadline_ns(pair->end[0]);
        harp_session_poll(pair->end[0], &event);
    }
    assert(event.reason == HARP_REASON_SILENT);
    pair_free(pair);
}

int main(void)
{
    test_closing_with_words();
    test_too_many_words();
    test_no_words();
    test_arrivals_are_acknowledged_before_the_end();
    test_the_last_acknowledgement_takes_the_path_of_the_end();
    test_every_reason_has_a_sentence();
    test_another_version();
    test_nobody_answers();
    test_a_silent_peer_is_gone_in_time();
    test_an_end_that_gives_up_a_silent_peer_sends_it_the_reason();
    test_quiet_is_not_silence();
    test_pause_after_pause_a_peer_is_gone();
    return 0;
}
