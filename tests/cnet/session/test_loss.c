/* Alarms of a path, and the packets that are given up. */
#include "session/loss.h"

#include <assert.h>

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

int main(void)
{
    test_alarms_come_in_order();
    test_silence_of_the_peer_is_no_loss();
    test_a_path_is_excused_a_few_times_only();
    return 0;
}
