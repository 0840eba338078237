/* Swift against a virtual bottleneck: a line with a queue, or a policer without one.
 *
 *   flows --> [ queue, 10 Gb/s ] --> half a round trip --> receivers --> half a round trip --> ACKs
 *
 * Packets are events of their own; every flow has as many in flight as its window says.
 */
#include <assert.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "cc.h"
#include "rtt.h"
#include "sequence.h"

#define FLOWS 16
#define PACKET 1452
#define PACKET_NS 1162 /* 10 Gb/s */
#define BASE_NS 50000
#define RUN_NS UINT64_C(400000000)
#define MOST 20000

struct packet {
    uint64_t sent_ns, back_ns;
    uint32_t flow;
    bool lost;
};

struct scene {
    uint32_t flows;
    uint32_t random_loss; /* permille */
    bool policer;
};

struct outcome {
    double use, jain, queue_ns, loss;
};

static struct packet line[MOST]; /* in the order in which they come back */
static uint64_t state = 7;

static bool dropped(const struct scene *scene)
{
    state = state * UINT64_C(6364136223846793005) + 1442695040888963407u;
    return (uint32_t)(state >> 33) % 1000 < scene->random_loss;
}

struct sim {
    struct harp_cc cc[FLOWS];
    struct harp_rtt rtt[FLOWS];
    uint64_t flying[FLOWS], got[FLOWS], sent, lost, free_ns, queue_sum_ns, tokens_ns;
    size_t head, tail;
};

static void send(struct sim *sim, const struct scene *scene, uint32_t flow, uint64_t now_ns)
{
    struct packet *p = &line[sim->tail++ % MOST];
    assert(sim->tail - sim->head < MOST);
    uint64_t start_ns = harp_max(now_ns, sim->free_ns);
    bool police = scene->policer && start_ns - now_ns > 64 * PACKET_NS; /* its bucket is empty */
    *p = (struct packet){.sent_ns = now_ns, .flow = flow, .lost = police || dropped(scene)};
    if (!police)
        sim->free_ns = start_ns + PACKET_NS;
    uint64_t out_ns = scene->policer ? now_ns : sim->free_ns;
    p->back_ns = out_ns + BASE_NS;
    sim->queue_sum_ns += out_ns - now_ns;
    sim->flying[flow] += PACKET;
    sim->sent++;
    sim->lost += p->lost;
}

static void come_back(struct sim *sim, const struct packet *p, uint64_t now_ns)
{
    struct harp_cc *cc = &sim->cc[p->flow];
    struct harp_rtt *rtt = &sim->rtt[p->flow];
    if (p->lost) {
        const struct harp_cc_loss loss = {.now_ns = now_ns, .bytes = PACKET};
        cc->ops->on_loss(cc, &loss);
    } else {
        harp_rtt_sample(rtt, now_ns, now_ns - p->sent_ns, 0);
        const struct harp_cc_ack ack = {.now_ns = now_ns,
                                        .fabric_ns = rtt->latest_ns,
                                        .least_ns = harp_rtt_least_ns(rtt),
                                        .bytes = PACKET,
                                        .flying = sim->flying[p->flow]};
        cc->ops->on_ack(cc, &ack);
        sim->got[p->flow] += now_ns > RUN_NS / 2 ? PACKET : 0;
    }
    sim->flying[p->flow] -= PACKET;
}

static void fill(struct sim *sim, const struct scene *scene, uint32_t flow, uint64_t now_ns)
{
    const struct harp_cc *cc = &sim->cc[flow];
    while (sim->flying[flow] + PACKET <= cc->ops->window_bytes(cc))
        send(sim, scene, flow, now_ns);
}

static struct outcome run(struct scene scene)
{
    struct sim sim;
    memset(&sim, 0, sizeof sim);
    const struct harp_cc_config config = {.initial_bytes = 16 * PACKET,
                                          .min_bytes = PACKET,
                                          .max_bytes = 1024 * PACKET,
                                          .segment_bytes = PACKET,
                                          .base_ns = BASE_NS + PACKET_NS,
                                          .target_ns = 25000,
                                          .host_target_ns = 100000};
    for (uint32_t f = 0; f < scene.flows; f++) {
        sim.cc[f] = (struct harp_cc){.ops = &harp_cc_swift, .config = config};
        sim.cc[f].ops->init(&sim.cc[f]);
        harp_rtt_init(&sim.rtt[f]);
        fill(&sim, &scene, f, f * 1000);
    }
    uint64_t now_ns = 0;
    while (now_ns < RUN_NS) {
        assert(sim.head != sim.tail);
        struct packet p = line[sim.head++ % MOST];
        now_ns = harp_max(now_ns, p.back_ns);
        come_back(&sim, &p, now_ns);
        fill(&sim, &scene, p.flow, now_ns);
    }
    double sum = 0, squares = 0;
    for (uint32_t f = 0; f < scene.flows; f++) {
        sum += (double)sim.got[f];
        squares += (double)sim.got[f] * (double)sim.got[f];
    }
    struct outcome out = {.use = sum / PACKET * PACKET_NS / (double)(RUN_NS / 2),
                          .jain = sum * sum / (scene.flows * squares),
                          .queue_ns = (double)sim.queue_sum_ns / (double)sim.sent,
                          .loss = (double)sim.lost / (double)sim.sent};
    printf("%2u flows, %u/1000 lost, %s: use %.3f, Jain %.3f, queue %.0f ns, lost %.4f\n",
           scene.flows, scene.random_loss, scene.policer ? "policer" : "queue", out.use, out.jain,
           out.queue_ns, out.loss);
    return out;
}

int main(void)
{
    for (uint32_t flows = 1; flows <= FLOWS; flows *= 2) {
        struct outcome out = run((struct scene){.flows = flows});
        assert(out.use >= 0.95 && out.jain >= 0.95 && out.queue_ns < 50000);
    }
    struct outcome random = run((struct scene){.flows = 2, .random_loss = 10});
    assert(random.use >= 0.9 && random.jain >= 0.95);
    struct outcome policed = run((struct scene){.flows = 1, .policer = true});
    assert(policed.use >= 0.9 && policed.loss <= 0.05);
    return 0;
}
