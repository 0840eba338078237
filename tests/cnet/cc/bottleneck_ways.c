/* Tests of test_swift_bottleneck where the paths there and back, or the clocks at their ends,
 * differ or change. */
#include "bottleneck_demands.h"

/* Data both ways: ACKs stand in a queue, too, and go along with data. */
void test_both_ways(void)
{
    for (uint64_t rtt_ns = 100 * US; rtt_ns <= 800 * US; rtt_ns *= 8)
        for (uint32_t flows = 1; flows <= 4; flows *= 4) {
            struct bn_result r = run_scene((struct bn_scene){.name = "both ways",
                                                             .flows = flows,
                                                             .line.rate_mbps = 10000,
                                                             .line.buffer_bytes = 2000000,
                                                             .rtt_ns = rtt_ns,
                                                             .both = true,
                                                             .to_ns = 200 * MS});
            DEMAND(r.use >= 0.95 && r.jain >= 0.95 && r.lost == 0);
            DEMAND(is_bounded(r.queue_ns, flows, 10000));
        }
}

/* The same through the shapers of virtual cards, which saw no burst for a while: these let a part
 * of one out at once. Rests leave 0.7 of the line. */
void test_shapers_both_ways(void)
{
    for (int i = 0; i < 8; i++) {
        uint64_t rest_ns = i & 1 ? 50 * MS : 0;
        uint32_t flows = i & 2 ? 4 : 1;
        struct bn_result r = run_scene((struct bn_scene){.name = "shapers both ways",
                                                         .flows = flows,
                                                         .line.rate_mbps = 400,
                                                         .line.buffer_bytes = 4 << 20,
                                                         .line.bucket_bytes = 64 << 10,
                                                         .supers = !(i & 4),
                                                         .rest_ns = rest_ns,
                                                         .rtt_ns = 20 * US,
                                                         .both = true,
                                                         .from_ns = 1000 * MS,
                                                         .to_ns = 6000 * MS});
        DEMAND(r.use >= (rest_ns ? 0.6 : 0.8) && r.lost == 0 && r.queue_ns <= 2 * MS);
        DEMAND(r.jain >= 0.95);
    }
}

/* And between hosts whose turns take a while, and which lose their cores now and then: what that
 * adds to the delay is no reason for a long queue. In a ring no connection has data both ways, but
 * ACKs go along with data of another one all the same. */
void test_shapers_of_busy_hosts(void)
{
    const struct bn_host slow = {.frame_ns = 500, .turn_ns = 50000};
    const struct bn_host steal = {500, 50000, .hiccup_gap_ns = 20 * MS, .hiccup_ns = 2 * MS};
    const struct {
        const char *name;
        struct bn_host host;
        uint32_t flows;
        bool ring;
        double use;
    } of[] = {{"shapers of busy hosts", slow, 1, false, 0.96},
              {"shapers of busy hosts", slow, 2, false, 0.95},
              {"shapers of busy hosts, a ring", slow, 2, true, 0.96},
              {"shapers of hosts with steal", steal, 1, false, 0.91},
              {"shapers of hosts with steal", steal, 2, false, 0.92},
              {"shapers of hosts with steal, a ring", steal, 2, true, 0.88},
              {"shapers of hosts with steal, a ring", steal, 4, true, 0.9}};
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        struct bn_result r = run_scene((struct bn_scene){.name = of[i].name,
                                                         .flows = of[i].flows,
                                                         .line.rate_mbps = 400,
                                                         .line.buffer_bytes = 4 << 20,
                                                         .line.bucket_bytes = 64 << 10,
                                                         .supers = true,
                                                         .host = of[i].host,
                                                         .rtt_ns = 20 * US,
                                                         .both = !of[i].ring,
                                                         .ring = of[i].ring,
                                                         .from_ns = 1000 * MS,
                                                         .to_ns = 6000 * MS});
        DEMAND(r.use >= of[i].use && r.jain >= 0.95 && r.lost == 0);
        DEMAND(r.queue_ns <= 500 * US);
    }
}

/* Where they lose them for longer, queues are longer, too, and what comes of it is much a matter of
 * chance, so some runs are judged together. But whose ACKs wait in a queue, and whose own way is
 * empty, must not give way to it: over 24 seeds these rings used 0.70 to 0.76, at Jain indexes of
 * 0.70 to 0.88. */
void test_shapers_of_robbed_hosts(void)
{
    for (uint32_t hiccup_ms = 5; hiccup_ms <= 10; hiccup_ms *= 2)
        for (uint32_t flows = 2; flows <= 4; flows *= 2) {
            const struct bn_host host = {500, 50000, 20 * MS, hiccup_ms * MS};
            struct bn_result r =
                run_scenes((struct bn_scene){.name = "shapers of robbed hosts, a ring",
                                             .flows = flows,
                                             .line.rate_mbps = 400,
                                             .line.buffer_bytes = 4 << 20,
                                             .line.bucket_bytes = 64 << 10,
                                             .supers = true,
                                             .host = host,
                                             .rtt_ns = 20 * US,
                                             .ring = true,
                                             .from_ns = 1000 * MS,
                                             .to_ns = 6000 * MS},
                           6);
            DEMAND(r.use >= 0.8 && r.jain >= (flows == 2 ? 0.95 : 0.75) && r.lost == 0);
            DEMAND(r.queue_ns <= 12 * MS);
        }
}

static struct bn_scene empty_path(const char *name)
{
    return (struct bn_scene){.name = name,
                             .flows = 1,
                             .line.rate_mbps = 10000,
                             .line.buffer_bytes = 2000000,
                             .rtt_ns = 100 * US,
                             .from_ns = 600 * MS,
                             .to_ns = 700 * MS};
}

/* Data both ways between hosts whose clocks run apart, or are set while it flows. */
void test_clocks(void)
{
    const int32_t fast_ppm[] = {200, -200, 0, 0, 0, 0};
    const int64_t set_by_us[] = {0, 0, 300, -300, 500000, -500000};
    for (size_t i = 0; i < sizeof fast_ppm / sizeof *fast_ppm; i++) {
        struct bn_scene scene = empty_path("both ways, clocks apart");
        scene.both = true;
        scene.clock.fast_ppm = fast_ppm[i];
        scene.clock.set_by_ns = set_by_us[i] * 1000;
        scene.clock.set_at_ns = 500 * MS;
        struct bn_result r = run_scene(scene);
        DEMAND(r.use >= 0.95 && r.lost == 0 && is_bounded(r.queue_ns, 1, 10000));
    }
}

/* ACKs wait behind data of TCP, which fills its buffer; nobody else uses the way there. */
void test_loaded_way_back(void)
{
    for (int32_t fast_ppm = -200; fast_ppm <= 200; fast_ppm += 200) {
        struct bn_scene scene = empty_path("ACKs behind CUBIC");
        scene.line.buffer_bytes = 1000000;
        scene.clock.fast_ppm = fast_ppm;
        scene.cross.kind = TCP_CUBIC;
        scene.cross.flows = 2;
        scene.cross.back = true;
        scene.to_ns = 1500 * MS;
        DEMAND(run_scene(scene).use >= 0.6);
    }
}

/* Data and ACKs take paths of different length and load, as routers that hash choose them. */
void test_ways_differ(void)
{
    for (int longer = BN_THERE; longer <= BN_BACK; longer++)
        for (uint32_t flows = 1; flows <= 4; flows *= 4)
            for (int loaded = 0; loaded < 2; loaded++) {
                struct bn_scene scene =
                    empty_path(loaded ? "one way longer, both loaded" : "one way longer");
                scene.flows = flows;
                scene.longer.way = (enum bn_ways)longer;
                scene.longer.by_ns = 300 * US;
                scene.both = loaded;
                scene.from_ns = 100 * MS;
                scene.to_ns = 200 * MS;
                struct bn_result r = run_scene(scene);
                DEMAND(r.use >= 0.95 && r.jain >= 0.95 && r.lost == 0);
                DEMAND(is_bounded(r.queue_ns, flows, 10000));
            }
}

/* Half a second after a route has changed the flow fills the longer path, and no more. */
void test_longer_paths(void)
{
    const uint64_t longer_ns[] = {100 * US, 300 * US, 1 * MS};
    for (size_t i = 0; i < 9; i++)
        for (uint32_t flows = 1; flows <= 4; flows *= 4) {
            struct bn_scene scene = empty_path("a path that gets longer");
            scene.flows = flows;
            scene.longer.at_ns = 100 * MS;
            scene.longer.by_ns = longer_ns[i % 3];
            scene.longer.way = (enum bn_ways)(i / 3);
            struct bn_result r = run_scene(scene);
            DEMAND(r.use >= 0.9 && r.jain >= 0.9);
            DEMAND(is_bounded(r.queue_ns, flows, 10000) && r.lost == 0);
        }
}

/* One sample that makes the path look shorter than it is, or that cannot be: its ACK seems to have
 * come before what it acknowledges was sent. */
void test_odd_samples(void)
{
    const uint64_t odd_ns[] = {20 * US, 50 * US, 90 * US, 98 * US, 1 * MS, 1000 * MS};
    for (size_t i = 0; i < sizeof odd_ns / sizeof *odd_ns; i++) {
        struct bn_scene scene = empty_path("one wrong time stamp");
        scene.clock.odd_at_ns = 100 * MS;
        scene.clock.odd_ns = odd_ns[i];
        struct bn_result r = run_scene(scene);
        DEMAND(r.use >= 0.9 && is_bounded(r.queue_ns, 1, 10000));
    }
}
