#include "session/path.h"

#include <string.h>

#include "base/sequence.h"
#include "base/splitmix.h"

void harp_path_init(struct harp_path *path, struct harp_sent *slots, uint32_t slots_n,
                    uint64_t first, uint64_t peer_first, const struct harp_cc_ops *cc,
                    const struct harp_cc_config *window)
{
    memset(path, 0, sizeof *path);
    harp_sent_init(&path->sent, slots, slots_n, first);
    harp_rtt_init(&path->rtt);
    harp_loss_init(&path->loss, first);
    path->cc.ops = cc;
    path->cc.config = *window;
    cc->init(&path->cc);
    path->episode.end = first;
    harp_sack_init(&path->sack, peer_first);
    path->ack.at_ns = HARP_NEVER;
    path->probe.at_ns = HARP_NEVER;
    for (uint32_t i = 0; i < HARP_PATH_REPEATS; i++)
        path->ack.reported[i] = peer_first;
    path->ack.fresh = peer_first;
}

void harp_path_arrived(struct harp_path *path, uint64_t packet, uint64_t came_ns, uint64_t now_ns,
                       uint32_t ack_every, uint64_t ack_delay_ns)
{
    bool gap = packet != path->sack.largest + 1;
    if (harp_packet_before(path->sack.largest, packet))
        path->largest_ns = came_ns;
    if (harp_packet_before(packet, path->ack.fresh))
        path->ack.fresh = packet;
    path->arrived += harp_sack_add(&path->sack, packet);
    if (!path->ack.packets)
        path->ack.latest_ns = now_ns + ack_delay_ns;
    path->ack.at_ns = harp_min(path->ack.at_ns, path->ack.latest_ns);
    if (++path->ack.packets >= ack_every || gap)
        path->ack.now = true;
}

uint32_t harp_path_marks(struct harp_path *path, uint32_t marked)
{
    if (!harp_before(path->marks, marked))
        return 0; /* an ACK that was overtaken */
    uint32_t news = marked - path->marks;
    path->marks = marked;
    return news;
}

uint64_t harp_path_tell_since(struct harp_path *path)
{
    path->ack.reported[path->ack.oldest] = path->ack.fresh;
    path->ack.oldest = (path->ack.oldest + 1) % HARP_PATH_REPEATS;
    path->ack.fresh = path->sack.largest + 1;
    uint64_t since = path->ack.fresh;
    for (uint32_t i = 0; i < HARP_PATH_REPEATS; i++)
        since = harp_packet_before(path->ack.reported[i], since) ? path->ack.reported[i] : since;
    return since;
}

bool harp_path_has_room(struct harp_path *path, uint32_t bytes)
{
    if (!harp_sent_has_room(&path->sent))
        return false;
    uint64_t window_bytes = path->cc.ops->window_bytes(&path->cc);
    if (!path->sent.in_flight)
        return true;
    const struct harp_far_buffer *far = path->sent.far;
    return path->sent.bytes_in_flight + bytes <= window_bytes &&
           (!far || harp_far_buffer_has_room(far, path->sent.bytes_in_flight, bytes));
}

/* Whether the pacer lets a burst go. With nothing in flight there is nothing to space it from, but
 * for a window that is less than a frame and means a pause. */
static bool is_paced(const struct harp_path *path, uint32_t bytes, uint64_t now_ns)
{
    if (path->pacer.next_ns <= now_ns)
        return false;
    return path->sent.in_flight || path->cc.ops->window_bytes(&path->cc) < bytes;
}

/* The time that the next burst will take there: the empty path's delay, and the time in which the
 * path delivers what is in flight now, at the rate of its window. Where the kernel finds the rate,
 * as for TCP, our window says nothing about it, and the least delay is that of a queue. */
static uint64_t expect_delay_ns(const struct harp_path *path, uint32_t bytes)
{
    if (!path->cc.ops->follows_path)
        return harp_service_ns(&path->service, path->sent.bytes_in_flight + bytes);
    uint64_t waiting_ns = path->sent.bytes_in_flight * harp_rtt_smoothed_ns(&path->rtt) /
                          path->cc.ops->window_bytes(&path->cc);
    return harp_rtt_least_ns(&path->rtt) + waiting_ns;
}

/* List the paths, spare ones or others, that can take `bytes` now; returns how many. *ready_ns
 * becomes when one of them may be ready, if that is earlier. */
static uint32_t list_ready(struct harp_path *paths, uint32_t count, bool spare, uint32_t bytes,
                           uint64_t now_ns, uint8_t ready[256], uint64_t *ready_ns)
{
    uint32_t n = 0;
    for (uint32_t p = 0; p < count; p++) {
        if (paths[p].dead || paths[p].no_data || paths[p].spare != spare ||
            !harp_path_has_room(&paths[p], bytes))
            continue;
        if (paths[p].full_until_ns > now_ns)
            *ready_ns = harp_min(*ready_ns, paths[p].full_until_ns);
        else if (is_paced(&paths[p], bytes, now_ns))
            *ready_ns = harp_min(*ready_ns, paths[p].pacer.next_ns);
        else
            ready[n++] = (uint8_t)p;
    }
    return n;
}

int harp_path_choose(struct harp_path *paths, uint32_t count, uint32_t bytes, uint32_t burst_bytes,
                     uint64_t now_ns, uint64_t *random, uint64_t *ready_ns)
{
    uint8_t ready[256];
    *ready_ns = HARP_NEVER;
    uint32_t n = list_ready(paths, count, false, bytes, now_ns, ready, ready_ns);
    if (!n)
        n = list_ready(paths, count, true, bytes, now_ns, ready, ready_ns);
    if (n < 2)
        return n ? ready[0] : -1;
    uint64_t bits = harp_splitmix(random);
    uint32_t one = (uint32_t)(bits & 0xffffffff) % n;
    uint32_t other = (one + 1 + (uint32_t)(bits >> 32) % (n - 1)) % n;
    bool second = expect_delay_ns(&paths[ready[other]], burst_bytes) <
                  expect_delay_ns(&paths[ready[one]], burst_bytes);
    return ready[second ? other : one];
}
