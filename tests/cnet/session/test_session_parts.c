/* The small parts of the session, each against a plain model or by its own rules. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/chunks.h"
#include "base/sequence.h"
#include "session/loss.h"
#include "session/outbox.h"
#include "session/pacer.h"
#include "session/sack.h"
#include "virtual/random.h"

static uint64_t state = 1;

static uint32_t draw_below(uint32_t n)
{
    return (uint32_t)virtual_below(&state, n);
}

static void test_sack_against_a_list(uint64_t first)
{
    enum { N = 6000 };
    static bool seen[N];
    struct harp_sack sack;
    memset(seen, 0, sizeof seen);
    harp_sack_init(&sack, first);
    uint32_t top = 0;
    for (int turn = 0; turn < 20000; turn++) {
        uint32_t p =
            draw_below(100) == 0 ? draw_below(N) : (top > 50 ? top - 50 : 0) + draw_below(80);
        if (p >= N)
            break;
        bool old = p + HARP_SACK_BITS <= top;
        assert(harp_sack_add(&sack, first + p) == (!old && !seen[p]));
        seen[p] = true;
        top = p > top ? p : top;
        assert(sack.largest == first + top);
    }
    uint8_t map[HARP_SACK_BYTES];
    uint16_t bits = harp_sack_write(&sack, sack.largest - HARP_SACK_BITS, map);
    for (uint32_t bit = 0; bit < bits && bit < HARP_SACK_BITS - 1 && bit < top; bit++)
        assert((harp_sack_word(map, bit / 64) >> bit % 64 & 1) == seen[top - 1 - bit]);
    for (uint32_t bit = bits; bit < HARP_SACK_BITS - 1 && bit < top; bit++)
        assert(!seen[top - 1 - bit]);
}

static void test_chunks_slide(void)
{
    static uint64_t ring[HARP_CHUNK_WORDS];
    struct harp_chunks chunks;
    enum { N = 3 * HARP_CHUNK_WINDOW + 17 };
    memset(ring, 0xff, sizeof ring);
    harp_chunks_init(&chunks, ring, HARP_CHUNK_WORDS);
    harp_chunks_start(&chunks, 9);
    for (uint32_t chunk = 0; chunk < 7; chunk += 2) /* left incomplete */
        harp_chunks_add(&chunks, chunk);
    harp_chunks_start(&chunks, N);
    while (!harp_chunks_complete(&chunks)) {
        uint32_t chunk = chunks.low + draw_below(HARP_CHUNK_WINDOW);
        if (draw_below(4) == 0)
            chunk = chunks.low;
        if (!harp_chunks_within(&chunks, chunk))
            continue;
        bool had = harp_chunks_has(&chunks, chunk);
        assert(harp_chunks_add(&chunks, chunk) == !had);
        assert(harp_chunks_has(&chunks, chunk));
    }
    assert(chunks.low == N && !harp_chunks_within(&chunks, N));
    assert(harp_chunks_of(0, 128) == 1 && harp_chunks_of(128, 128) == 1);
    assert(harp_chunks_of(129, 128) == 2 && harp_chunks_of(HARP_MESSAGE_MAX, 128) == 1u << 23);
}

static void test_sent_ring(void)
{
    static struct harp_sent slots[HARP_SENT_SLOTS];
    struct harp_sent_ring ring;
    uint64_t first = UINT32_MAX - 5;
    harp_sent_init(&ring, slots, HARP_SENT_SLOTS, first);
    for (int i = 0; i < HARP_SENT_SLOTS; i++) {
        assert(harp_sent_has_room(&ring));
        harp_sent_add(&ring, (uint64_t)i, 100, 100);
    }
    assert(!harp_sent_has_room(&ring) && ring.in_flight == HARP_SENT_SLOTS);
    assert(!harp_sent_at(&ring, first - 1) && !harp_sent_at(&ring, first + HARP_SENT_SLOTS));
    harp_sent_lost(&ring, harp_sent_at(&ring, first));
    assert(harp_sent_has_room(&ring) && !harp_sent_at(&ring, first));
    harp_sent_acked(&ring, harp_sent_at(&ring, first + 1));
    harp_sent_lost(&ring, harp_sent_at(&ring, first + 2));
    harp_sent_trim(&ring, 2);
    assert(ring.tail == first + 2);
    harp_sent_acked(&ring, harp_sent_at(&ring, first + 2)); /* late: the loss was spurious */
    harp_sent_trim(&ring, 0);
    assert(ring.tail == first + 3 && ring.bytes_in_flight == 100 * (HARP_SENT_SLOTS - 3));
}

static void test_rtt(void)
{
    struct harp_rtt rtt;
    harp_rtt_init(&rtt);
    assert(!harp_rtt_known(&rtt) && harp_rtt_timeout_ns(&rtt, 0, 5, 77) == 77);
    harp_rtt_sample(&rtt, 0, 1000, 200);
    assert(harp_rtt_smoothed_ns(&rtt) == 800 && harp_rtt_timeout_ns(&rtt, 10, 0, 0) == 3010);
    for (int i = 0; i < 200; i++)
        harp_rtt_sample(&rtt, 1, 1600, 0);
    assert(harp_rtt_smoothed_ns(&rtt) >= 1590 && harp_rtt_smoothed_ns(&rtt) <= 1600);
    assert(harp_rtt_least_ns(&rtt) == 800);
    harp_rtt_sample(&rtt, HARP_RTT_MEMORY_NS + 1, 1600, 0);
    harp_rtt_sample(&rtt, 2 * HARP_RTT_MEMORY_NS + 2, 1600, 0);
    assert(harp_rtt_least_ns(&rtt) == 1600);
}

static const struct harp_loss_limits limits = {20000, 1000000, 10000000, 50000000, 8};

/* A path with a round trip of 100 us and ten packets in flight, from 7 on, that were sent at 0. */
static void send_ten(struct harp_loss *loss, struct harp_sent_ring *ring, struct harp_rtt *rtt)
{
    static struct harp_sent slots[HARP_SENT_SLOTS];
    uint64_t at_ns;
    harp_sent_init(ring, slots, HARP_SENT_SLOTS, 7);
    harp_loss_init(loss, 7);
    harp_rtt_init(rtt);
    harp_rtt_sample(rtt, 0, 100000, 0);
    assert(harp_loss_alarm(loss, ring, rtt, &limits, 0, &at_ns) == HARP_ALARM_NONE);
    for (int i = 0; i < 10; i++) {
        harp_sent_add(ring, 0, 100, 100);
        harp_loss_sent(loss, 0);
    }
}

static void test_alarms_come_in_order(void)
{
    struct harp_sent_ring ring;
    struct harp_loss loss;
    struct harp_rtt rtt;
    uint64_t at_ns, heard_ns = 2900000; /* on other paths, all the time */
    send_ten(&loss, &ring, &rtt);
    assert(harp_loss_alarm(&loss, &ring, &rtt, &limits, heard_ns, &at_ns) == HARP_ALARM_PROBE);
    assert(at_ns == 2 * 100000 + 200000 + 20000);
    harp_loss_probed(&loss);
    assert(harp_loss_alarm(&loss, &ring, &rtt, &limits, heard_ns, &at_ns) == HARP_ALARM_TIMEOUT);
    assert(at_ns == 1000000);
    harp_loss_timed_out(&loss, at_ns);
    assert(harp_loss_alarm(&loss, &ring, &rtt, &limits, heard_ns, &at_ns) == HARP_ALARM_DEAD);
    assert(at_ns == 3000000);
    /* Packet 12 arrives: 7 to 11 are overdue a quarter of a round trip after it. */
    struct harp_sent *sent = harp_sent_at(&ring, 12);
    harp_loss_delivered(&loss, sent, 100000);
    harp_sent_acked(&ring, sent);
    harp_loss_news(&loss, true, 100000);
    uint64_t cursor = ring.tail;
    assert(!harp_loss_next(&loss, &ring, &rtt, &cursor, 100000) && loss.reorder_at_ns == 125000);
    for (uint32_t p = 7; p < 12; p++)
        assert(harp_loss_next(&loss, &ring, &rtt, &cursor, 125000)->packet == p);
    assert(!harp_loss_next(&loss, &ring, &rtt, &cursor, 125000));
}

/* Nobody is heard: the path is asked, ever more rarely, and nothing is given up before dead_ns. */
static void test_silence_of_the_peer_is_no_loss(void)
{
    struct harp_sent_ring ring;
    struct harp_loss loss;
    struct harp_rtt rtt;
    uint64_t at_ns, heard_ns = 299999; /* an answer was due at 300 us */
    send_ten(&loss, &ring, &rtt);
    harp_loss_probed(&loss);
    for (uint64_t due_ns = 1000000; due_ns < 50000000; due_ns += due_ns + 1000000) {
        assert(harp_loss_alarm(&loss, &ring, &rtt, &limits, heard_ns, &at_ns) == HARP_ALARM_ASK);
        assert(at_ns == due_ns);
        harp_loss_timed_out(&loss, at_ns);
    }
    assert(harp_loss_alarm(&loss, &ring, &rtt, &limits, heard_ns, &at_ns) == HARP_ALARM_DEAD);
    assert(at_ns == 50000000);
    /* It is heard elsewhere after 40 ms: this path has as long again, and then times out. */
    harp_loss_heard(&loss, &rtt, &limits, heard_ns, 40000000);
    assert(harp_loss_alarm(&loss, &ring, &rtt, &limits, 40400000, &at_ns) == HARP_ALARM_TIMEOUT);
    assert(at_ns == 41000000);
}

/* One that is heard elsewhere now and then does not keep a broken path alive. */
static void test_a_path_is_excused_a_few_times_only(void)
{
    struct harp_sent_ring ring;
    struct harp_loss loss;
    struct harp_rtt rtt;
    uint64_t at_ns, now_ns = 0;
    enum harp_alarm alarm;
    send_ten(&loss, &ring, &rtt);
    do {
        harp_loss_heard(&loss, &rtt, &limits, now_ns, now_ns + 1000000);
        now_ns += 1000000;
        alarm = harp_loss_alarm(&loss, &ring, &rtt, &limits, now_ns, &at_ns);
        if (at_ns <= now_ns && alarm == HARP_ALARM_PROBE)
            harp_loss_probed(&loss);
        else if (at_ns <= now_ns)
            harp_loss_timed_out(&loss, now_ns);
    } while (alarm != HARP_ALARM_DEAD || at_ns > now_ns);
    assert(now_ns > 3000000 && now_ns <= 50000000);
}

static void test_pacer(void)
{
    struct harp_pacer pacer = {.next_ns = 1000};
    harp_pacer_spend(&pacer, 1000, 1000, 4000, 10000);
    assert(pacer.next_ns == 1000 + 2000);
    harp_pacer_spend(&pacer, 9000, 1000, 4000, 10000); /* late: may catch up by one burst */
    assert(pacer.next_ns == 9000 - 2000 + 2000);
    harp_pacer_spend(&pacer, 9000, 1000, 4000, 0);
    assert(pacer.next_ns <= 9000);
}

/* Whichever messages have lost a chunk: the oldest's goes first, wherever the ring begins. */
static void test_lost_chunks_go_from_the_oldest_message_on(uint32_t first)
{
    static struct harp_outbox outbox;
    static bool lost[HARP_MESSAGES];
    struct harp_pick pick;
    void *memory = malloc(harp_outbox_bytes(HARP_MESSAGES, HARP_CHUNK_WORDS));
    harp_outbox_init(&outbox, memory, HARP_MESSAGES, HARP_CHUNK_WORDS, first, 128);
    harp_outbox_credit(&outbox, (uint64_t)first + HARP_MESSAGES, 0);
    for (uint32_t m = 0; m < HARP_MESSAGES; m++)
        assert(harp_outbox_add(&outbox, NULL, NULL, 200, m));
    for (uint32_t i = 0; i < 2 * HARP_MESSAGES && harp_outbox_pick(&outbox, &pick); i++)
        harp_outbox_take(&outbox, &pick);
    for (int turn = 0; turn < 20000; turn++) {
        uint32_t m = draw_below(HARP_MESSAGES), oldest = 0;
        if (draw_below(2)) {
            harp_outbox_lost(&outbox, first + m, 1);
            lost[m] = true;
        } else if (draw_below(2)) {
            assert(harp_outbox_found(&outbox, first + m, 1) == lost[m]);
            lost[m] = false;
        }
        while (oldest < HARP_MESSAGES && !lost[oldest])
            oldest++;
        bool any = harp_outbox_pick(&outbox, &pick);
        assert(any == (oldest < HARP_MESSAGES));
        assert(!any || (pick.message == first + oldest && pick.chunk == 1 && pick.again));
        if (any && draw_below(2)) {
            harp_outbox_take(&outbox, &pick);
            lost[oldest] = false;
        }
    }
    memset(lost, 0, sizeof lost);
    free(memory);
}

int main(void)
{
    test_sack_against_a_list(0);
    test_sack_against_a_list(UINT32_MAX - 2000);
    test_sack_against_a_list((UINT64_C(1) << 31) - 2000);
    test_chunks_slide();
    test_sent_ring();
    test_rtt();
    test_alarms_come_in_order();
    test_silence_of_the_peer_is_no_loss();
    test_a_path_is_excused_a_few_times_only();
    test_pacer();
    test_lost_chunks_go_from_the_oldest_message_on(0);
    test_lost_chunks_go_from_the_oldest_message_on(UINT32_MAX - 100);
    return 0;
}
