/* Congestion control of TCP against the formulas that define it: the cubic's curve, the law of the
 * Reno-friendly region, DCTCP's estimate, BBR's window on an ideal pipe. */
#include <math.h>

#include "check.h"
#include "virtual/tcp_cc.h"

#define MS UINT64_C(1000000)
#define MSS 1448

struct flow {
    struct tcp_cc cc;
    uint64_t now_ns, rtt_ns, acked;
};

static void begin_flow(struct flow *flow, enum tcp_cc_kind kind, uint64_t rtt_ns)
{
    *flow = (struct flow){.now_ns = 1000 * MS, .rtt_ns = rtt_ns};
    tcp_cc_begin(&flow->cc, kind, MSS, flow->now_ns, 1);
}

/* One segment is acknowledged, and the window is full; time goes on by its share of a round. */
static void ack_one(struct flow *flow, bool marked)
{
    flow->now_ns += flow->rtt_ns / flow->cc.window;
    flow->acked++;
    const struct tcp_ack ack = {.now_ns = flow->now_ns,
                                .acked_to = flow->acked,
                                .next = flow->acked + flow->cc.window,
                                .acked = 1,
                                .delivered = 1,
                                .marked = marked,
                                .in_flight = flow->cc.window,
                                .rtt_ns = flow->rtt_ns,
                                .smoothed_ns = flow->rtt_ns,
                                .delivered_total = flow->acked,
                                .window_full = true};
    tcp_cc_acked(&flow->cc, &ack);
}

static void lose_one(struct flow *flow)
{
    tcp_cc_lost(&flow->cc);
    flow->cc.window = flow->cc.threshold;
}

/* RFC 9438, figure 1 and equation 2: W(t) = C (t - K)^3 + W_max, K = cbrt(W_max (1 - beta) / C). */
static void test_cubic_follows_its_curve(void)
{
    struct flow flow;
    begin_flow(&flow, TCP_CUBIC, 100 * MS);
    flow.cc.window = 2000;
    lose_one(&flow);
    CHECK(flow.cc.window == 1400, "window %u, not 0.7 of 2000", flow.cc.window);
    double k = cbrt(2000 * 0.3 / 0.4);
    uint64_t from_ns = flow.now_ns;
    while (flow.now_ns - from_ns < 18000 * MS) {
        ack_one(&flow, false);
        double t = (double)(flow.now_ns - from_ns) / 1e9;
        double wanted = 0.4 * pow(t - k, 3) + 2000;
        CHECK(fabs(flow.cc.window / wanted - 1) < 0.02, "%.1f s: window %u, not %.0f", t,
              flow.cc.window, wanted);
    }
}

/* A flow that finds less than it had leaves room for others (RFC 9438, section 4.7). */
static void test_cubic_gives_way_to_newcomers(void)
{
    struct flow flow;
    begin_flow(&flow, TCP_CUBIC, 10 * MS);
    flow.cc.window = 1000;
    lose_one(&flow);
    lose_one(&flow);
    CHECK(flow.cc.cubic.most == 595, "plateau at %u, not at 0.85 of 700", flow.cc.cubic.most);
}

/* Where round trips are short CUBIC is as fast as Reno: the mean window is sqrt(3 / (2 p)) at one
 * loss in 1/p segments (RFC 9438, section 4.3; Floyd, Handley and Padhye, 2000). */
static void test_cubic_is_friendly_to_reno(void)
{
    static const int every[] = {1000, 4000, 16000};
    for (int i = 0; i < 3; i++) {
        struct flow flow;
        begin_flow(&flow, TCP_CUBIC, 1 * MS);
        flow.cc.threshold = 10;
        double sum = 0, n = 0;
        for (int segment = 1; segment <= 40 * every[i]; segment++) {
            ack_one(&flow, false);
            if (segment % every[i] == 0)
                lose_one(&flow);
            if (segment > 10 * every[i]) { /* the mean over time: a segment lasts 1 / window */
                sum += 1;
                n += 1.0 / flow.cc.window;
            }
        }
        double wanted = sqrt(1.5 * every[i]), mean = sum / n;
        CHECK(fabs(mean / wanted - 1) < 0.1, "1/p of %d: %.1f, not %.1f", every[i], mean, wanted);
    }
}

/* HyStart leaves slow start when ACKs of a round come for longer than half a round trip. */
static void test_slow_start_ends_before_the_queue_is_full(void)
{
    struct flow flow;
    begin_flow(&flow, TCP_CUBIC, 10 * MS);
    for (int i = 0; i < 100000 && flow.cc.window < flow.cc.threshold; i++)
        ack_one(&flow, false);
    CHECK(flow.cc.threshold < 64, "left at a window of %u", flow.cc.threshold);
}

/* RFC 8257, section 3.3: alpha is (1 - g)^n of what it was and the share of marks for the rest, and
 * a reduction takes half of it from the window. */
static void test_dctcp_estimates_the_share_of_marks(void)
{
    struct flow flow;
    begin_flow(&flow, TCP_DCTCP, 1 * MS);
    flow.cc.window = flow.cc.threshold = 100;
    for (int segment = 0; segment < 40000; segment++) {
        ack_one(&flow, segment % 4 == 0);
        flow.cc.window = 100;
    }
    double alpha = flow.cc.dctcp.alpha_q10 / 1024.0;
    CHECK(fabs(alpha - 0.25) < 0.02, "alpha %.3f of a quarter marked", alpha);
    CHECK(tcp_cc_marked(&flow.cc), "DCTCP takes notice of marks");
    CHECK(flow.cc.threshold >= 87 && flow.cc.threshold <= 88, "window %u", flow.cc.threshold);
    for (int segment = 0; segment < 400; segment++) {
        ack_one(&flow, true);
        flow.cc.window = 100;
    }
    double grown = 1 - pow(15.0 / 16, 4) * (1 - 0.25);
    alpha = flow.cc.dctcp.alpha_q10 / 1024.0;
    CHECK(fabs(alpha - grown) < 0.03, "alpha %.3f after four rounds of marks, not %.3f", alpha,
          grown);
}

/* A pipe of one segment in 10 us and a round trip of 1 ms: BBR finds a rate of 0.1 segments/us, and
 * keeps twice the 100 segments that it holds, and what bursts need, in flight. */
static void test_bbr_finds_rate_and_round_trip(void)
{
    struct flow flow;
    begin_flow(&flow, TCP_BBR, 1 * MS);
    uint64_t start_ns = flow.now_ns;
    static uint64_t sent_at[1 << 16], delivered_at_sending[1 << 16], stamp[1 << 16];
    uint64_t sent = 0, acked = 0, free_ns = start_ns, last_ns = start_ns, pace_ns = start_ns;
    static uint64_t arrives[1 << 16];
    while (acked < 20000) {
        uint64_t due = sent > acked ? arrives[acked & 0xffff] : UINT64_MAX;
        if (sent - acked < flow.cc.window && pace_ns <= due) {
            flow.now_ns = flow.now_ns > pace_ns ? flow.now_ns : pace_ns;
            free_ns = (free_ns > flow.now_ns ? free_ns : flow.now_ns) + 10000;
            sent_at[sent & 0xffff] = flow.now_ns;
            delivered_at_sending[sent & 0xffff] = acked;
            stamp[sent & 0xffff] = last_ns;
            arrives[sent++ & 0xffff] = free_ns + 1 * MS - 10000;
            pace_ns = flow.now_ns + MSS * UINT64_C(1000000000) / flow.cc.pace;
            continue;
        }
        flow.now_ns = due > flow.now_ns ? due : flow.now_ns;
        uint64_t at = acked++ & 0xffff;
        last_ns = flow.now_ns;
        const struct tcp_ack ack = {.now_ns = flow.now_ns,
                                    .acked_to = acked,
                                    .next = sent,
                                    .acked = 1,
                                    .delivered = 1,
                                    .in_flight = (uint32_t)(sent - acked),
                                    .rtt_ns = flow.now_ns - sent_at[at],
                                    .smoothed_ns = MS,
                                    .sample = acked - delivered_at_sending[at],
                                    .interval_ns = flow.now_ns - stamp[at],
                                    .delivered_before = delivered_at_sending[at],
                                    .delivered_total = acked,
                                    .window_full = true};
        tcp_cc_acked(&flow.cc, &ack);
    }
    const struct tcp_bbr *bbr = &flow.cc.bbr;
    CHECK(bbr->state == BBR_PROBE_BW, "state %d", (int)bbr->state);
    CHECK(bbr->least_rtt_ns >= 1 * MS - 10000 && bbr->least_rtt_ns <= MS * 11 / 10, "rtt");
    double use = (double)acked * 10000 / (double)(flow.now_ns - start_ns);
    CHECK(use > 0.95, "uses %.2f of the pipe", use);
    CHECK(flow.cc.window >= 200 && flow.cc.window <= 200 + 3 * 45 + 40, "window %u",
          flow.cc.window);
}

/* A window that rests for two timeouts is a quarter of itself. */
static void test_window_shrinks_in_a_pause(void)
{
    struct flow flow;
    begin_flow(&flow, TCP_CUBIC, 1 * MS);
    flow.cc.window = 400;
    tcp_cc_resumed(&flow.cc, flow.now_ns, 500 * MS, 200 * MS);
    CHECK(flow.cc.window == 100, "window %u", flow.cc.window);
    tcp_cc_resumed(&flow.cc, flow.now_ns, 100 * MS, 200 * MS);
    CHECK(flow.cc.window == 100, "window %u", flow.cc.window);
}

int main(void)
{
    test_cubic_follows_its_curve();
    test_cubic_gives_way_to_newcomers();
    test_cubic_is_friendly_to_reno();
    test_slow_start_ends_before_the_queue_is_full();
    test_dctcp_estimates_the_share_of_marks();
    test_bbr_finds_rate_and_round_trip();
    test_window_shrinks_in_a_pause();
    return 0;
}
