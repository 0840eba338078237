#include "bottleneck_queue.h"

#include "base/sequence.h"

void bn_queue_init(struct bn_queue *queue, const struct bn_scene *scene)
{
    uint64_t whole_ns = scene->line.buffer_bytes * 8000 / scene->line.rate_mbps;
    queue->wait_bin_ns = harp_max(whole_ns / (BN_QUEUE_BINS - 1), 1);
}

static void note_wait(struct bn_queue *queue, uint64_t wait_ns)
{
    queue->waits++;
    queue->wait_sum_ns += wait_ns;
    queue->wait_max_ns = harp_max(queue->wait_max_ns, wait_ns);
    queue->bins[harp_min(wait_ns / queue->wait_bin_ns, BN_QUEUE_BINS - 1)]++;
}

size_t bn_queue_joins(const struct harp_frame *frames, size_t n)
{
    size_t whole = 1;
    while (whole < harp_min(n, CROSS_SUPER) && frames[whole].header.type == HARP_DATA &&
           frames[whole].header.length == frames[0].header.length)
        whole++;
    return whole;
}

static uint64_t pass_policer(struct bn_queue *queue, const struct bn_scene *s, uint64_t now_ns,
                             uint64_t cost_ps)
{
    uint64_t now_ps = now_ns * 1000,
             depth_ps = virtual_line_cost_ps(s->line.police_bytes, s->line.rate_mbps);
    queue->tokens_ps = harp_max(queue->tokens_ps, now_ps > depth_ps ? now_ps - depth_ps : 0);
    if (queue->tokens_ps + cost_ps > now_ps)
        return HARP_NEVER;
    queue->tokens_ps += cost_ps;
    return now_ns;
}

/* How far a shaper is ahead of its line, as the time that its saved tokens are worth. */
static uint64_t saved_ps(const struct virtual_line *line, const struct bn_scene *s, uint64_t now_ps)
{
    uint64_t idle_ps = now_ps - harp_min(line->free_ps, now_ps);
    return harp_min(idle_ps, virtual_line_cost_ps(s->line.bucket_bytes, s->line.rate_mbps));
}

uint64_t bn_queue_pass(struct bn_queue *queue, const struct bn_scene *s, uint32_t way,
                       uint64_t now_ns, uint64_t bytes, bool *marked)
{
    uint64_t now_ps = now_ns * 1000, cost_ps = virtual_line_cost_ps(bytes, s->line.rate_mbps);
    if (s->line.police_bytes)
        return pass_policer(queue, s, now_ns, cost_ps);
    struct virtual_line *line = &queue->lines[way];
    uint64_t start_ps = now_ps + virtual_line_wait_ps(line, now_ns);
    if (s->line.away_ns) {
        uint64_t phase_ps = start_ps % ((s->line.away_ns + s->line.open_ns) * 1000);
        start_ps += s->line.away_ns * 1000 - harp_min(phase_ps, s->line.away_ns * 1000);
    }
    uint64_t queue_bytes = (start_ps - now_ps) / 8000000 * s->line.rate_mbps +
                           (start_ps - now_ps) % 8000000 * s->line.rate_mbps / 8000000;
    if (queue_bytes + bytes > s->line.buffer_bytes)
        return HARP_NEVER;
    *marked = s->line.mark_bytes && queue_bytes > s->line.mark_bytes;
    if (now_ns >= s->from_ns && (!way || s->both))
        note_wait(queue, (start_ps - now_ps) / 1000);
    if (start_ps == now_ps)
        start_ps -= saved_ps(line, s, now_ps);
    return harp_max(virtual_line_send(line, start_ps, cost_ps) / 1000, now_ns);
}

double bn_queue_p99_ns(const struct bn_queue *queue)
{
    uint64_t below = 0, bin = 0;
    while (bin < BN_QUEUE_BINS && below + queue->bins[bin] < queue->waits * 99 / 100)
        below += queue->bins[bin++];
    return (double)((bin + 1) * queue->wait_bin_ns);
}
