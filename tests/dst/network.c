/* Faults of a network, drawn from the seed. */
#include "base/sequence.h"
#include "common.h"
#include "link.h"
#include "wire/body.h"

static void draw_span(uint64_t *random, uint64_t now_ns, struct dst_span *span)
{
    span->from_ns = now_ns + virtual_below(random, virtual_chance(random, 500) ? 5 * DST_MS
                                                                               : DST_FAULTS_NS / 2);
    span->to_ns = span->from_ns + virtual_below(random, DST_FAULTS_NS / 2);
}

static void draw_way(uint64_t *random, uint64_t now_ns, enum dst_weather weather,
                     struct dst_way *way)
{
    struct dst_faults *f = &way->link.faults;
    way->replay = way->forge = 0;
    *f = (struct dst_faults){.delay_ns = 5 * DST_US + virtual_below(random, 95 * DST_US),
                             .queue_ns = DST_S};
    f->byte_ps = 80 + virtual_below(random, 800); /* 100 down to 9 Gb/s */
    if (virtual_chance(random, 500))
        f->queue_ns = 10 * DST_US + virtual_below(random, 500 * DST_US);
    if (weather == DST_CALM) {
        f->queue_ns = DST_S;
        return;
    }
    f->jitter_ns = virtual_chance(random, 300) ? f->delay_ns / 8 : 0;
    f->loss = dst_rate(random, 500, virtual_chance(random, 200) ? 300 : 30);
    f->burst = dst_rate(random, 200, 10);
    f->burst_length = 1 + (uint32_t)virtual_below(random, 60);
    f->twice = dst_rate(random, 300, 100);
    f->late = dst_rate(random, 300, 100);
    f->flip = dst_rate(random, 400, 60);
    f->cut = dst_rate(random, 200, 40);
    way->replay = dst_rate(random, 300, 200);
    way->forge = dst_rate(random, 300, 200);
    if (virtual_chance(random, 150))
        draw_span(random, now_ns, &f->black);
    if (virtual_chance(random, 150)) {
        draw_span(random, now_ns, &f->spike);
        f->spike_ns = virtual_below(random, 5 * DST_MS);
    }
}

/* All paths of one direction, or of both, go black together for a while. */
static void draw_partition(uint64_t *random, uint64_t now_ns, struct dst_link *link)
{
    struct dst_span span;
    uint64_t which = 1 + virtual_below(random, 3);
    draw_span(random, now_ns, &span);
    for (int to = 0; to < 2; to++)
        for (int p = 0; p < DST_PATHS && which >> to & 1; p++)
            link->ways[to][p].link.faults.black = span;
}

/* Some paths get longer in the middle of the run, and stay so; by 300 us at most: a receiver that
 * streams with a single frame gives credit for one chunk a round trip, and some runs then have a
 * thousand chunks to go (with 4 ms more seed 892 needs 5 s after healing, a chunk each 4.2 ms).
 * From a generator of its own, so that seeds mean what they meant before. */
static void draw_longer(uint64_t random, uint64_t now_ns, struct dst_link *link)
{
    random ^= UINT64_C(0x6c6f6e676572);
    for (int i = 0; i < 2 * DST_PATHS; i++) {
        struct dst_faults *f = &link->ways[i % 2][i / 2].link.faults;
        if (!virtual_chance(&random, 150))
            continue;
        f->longer_at_ns = now_ns + virtual_below(&random, DST_FAULTS_NS / 2);
        f->longer_ns = 1 + virtual_below(&random, 300 * DST_US);
    }
}

void dst_network_draw(struct dst_link *link, uint64_t *random, uint64_t now_ns,
                      enum dst_weather weather)
{
    link->heal_ns = weather == DST_CALM ? 0 : now_ns + DST_FAULTS_NS;
    for (int to = 0; to < 2; to++)
        for (int p = 0; p < DST_PATHS; p++)
            draw_way(random, now_ns, weather, &link->ways[to][p]);
    if (weather == DST_ROUGH || weather == DST_STORM)
        draw_longer(*random, now_ns, link);
    if (weather == DST_STORM && virtual_chance(random, 200))
        draw_partition(random, now_ns, link);
    if (weather == DST_DARK) {
        uint64_t from_ns =
            now_ns + (virtual_chance(random, 300) ? 0 : virtual_below(random, 10 * DST_MS));
        for (int i = 0; i < 2 * DST_PATHS; i++)
            link->ways[i % 2][i / 2].link.faults.black = (struct dst_span){from_ns, HARP_NEVER};
    }
}

void dst_network_draw_mtu(struct dst_link *link, uint64_t *random, uint64_t now_ns,
                          size_t least_bytes, size_t whole_bytes)
{
    size_t ack_bytes = HARP_HEADER_BYTES + HARP_BODY_MAX;
    uint32_t most = dst_rate(random, 400, 1000), narrow = dst_rate(random, 400, 1000);
    if (virtual_chance(random, 150))
        most = 1000;
    for (int i = 0; i < 2 * DST_PATHS; i++) {
        struct dst_faults *f = &link->ways[i % 2][i / 2].link.faults;
        if (virtual_chance(random, most) && least_bytes >= ack_bytes)
            f->most_bytes = least_bytes + virtual_below(random, whole_bytes - least_bytes + 1);
        if (!virtual_chance(random, narrow) || whole_bytes <= ack_bytes)
            continue;
        draw_span(random, now_ns, &f->narrow);
        f->narrow_bytes = ack_bytes + virtual_below(random, whole_bytes - ack_bytes);
    }
}
