#include "ports/port_chaos.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/splitmix.h"
#include "ports/headers.h"

#define BURST_LENGTH 8u
#define REORDER_DELAY_NS 200000u
#define BUCKET_BYTES (128u << 10)
#define LIMIT_BYTES (1u << 30) /* bits of it in ns at 1 bit/s fit 64 bits */
#define HELD_BYTES (32u << 20) /* of memory for datagrams that wait, about */
#define HELD_LEAST HARP_BATCH
#define HELD_MOST 16384u
#define RETRY_NS 100000u /* after the inner port had no room */

struct held {
    uint64_t due_ns;
    uint64_t order; /* those that are due at the same time leave in this order */
    uint32_t buffer;
    uint32_t bytes;
    int hop; /* -1: there is no such hop any more */
};

struct chaos_port {
    struct harp_port port; /* first: the two are cast into one another */
    struct harp_port *inner;
    struct harp_chaos faults;
    struct harp_chaos_counters counters;
    bool direct; /* drop and burst only: the living are written into the inner port's memory */
    uint64_t random;
    uint64_t burst_left;
    uint64_t free_at_ns; /* rate: when all that has passed would have passed without a bucket */
    uint64_t cost_rest;  /* of free_at_ns, less than a nanosecond, in rate_bps-ths */
    uint64_t orders;
    uint64_t blocked_ns; /* the inner port had no room: try again then; else UINT64_MAX */

    uint8_t *memory; /* `buffers` of buffer_bytes each */
    uint32_t buffer_bytes, buffers;
    uint32_t *free; /* stack; the others are in `held` or `written`, or take what is lost */
    uint32_t free_n;
    struct held *held;    /* binary heap, the first due on top */
    struct held *written; /* since the last flush, in order */
    uint32_t held_n, written_n;
};

/* Evenly from 0 to below `below`; a bias of at most below / 2^32 does not matter. */
static uint64_t draw_below(struct chaos_port *chaos, uint64_t below)
{
    return (uint64_t)(((unsigned __int128)harp_splitmix(&chaos->random) * below) >> 64);
}

static bool is_drawn(struct chaos_port *chaos, uint64_t ppm)
{
    return ppm && draw_below(chaos, 1000000) < ppm;
}

static bool is_lost(struct chaos_port *chaos)
{
    bool lost = is_drawn(chaos, chaos->faults.drop_ppm);
    if (chaos->burst_left) {
        chaos->burst_left--;
        lost = true;
    } else if (is_drawn(chaos, chaos->faults.burst_ppm)) {
        chaos->burst_left = chaos->faults.burst_length - 1;
        lost = true;
    }
    chaos->counters.dropped += lost;
    return lost;
}

static uint8_t *buffer_at(const struct chaos_port *chaos, uint32_t buffer)
{
    return chaos->memory + (size_t)buffer * chaos->buffer_bytes + HARP_DATAGRAM_AT;
}

/* The heap. */

static bool is_due_before(const struct held *a, const struct held *b)
{
    return a->due_ns != b->due_ns ? a->due_ns < b->due_ns : a->order < b->order;
}

static void push_held(struct chaos_port *chaos, struct held item)
{
    uint32_t at = chaos->held_n++;
    for (; at > 0 && is_due_before(&item, &chaos->held[(at - 1) / 2]); at = (at - 1) / 2)
        chaos->held[at] = chaos->held[(at - 1) / 2];
    chaos->held[at] = item;
}

static void pop_held(struct chaos_port *chaos)
{
    struct held item = chaos->held[--chaos->held_n];
    uint32_t at = 0;
    for (uint32_t child; (child = 2 * at + 1) < chaos->held_n; at = child) {
        if (child + 1 < chaos->held_n &&
            is_due_before(&chaos->held[child + 1], &chaos->held[child]))
            child++;
        if (is_due_before(&item, &chaos->held[child]))
            break;
        chaos->held[at] = chaos->held[child];
    }
    chaos->held[at] = item;
}

/* Sending. */

static size_t chaos_room(struct harp_port *port, int hop)
{
    struct chaos_port *chaos = (struct chaos_port *)port;
    return chaos->direct ? chaos->inner->ops->room(chaos->inner, hop) : chaos->free_n;
}

static uint8_t *chaos_slot(struct harp_port *port, int hop, uint32_t bytes)
{
    struct chaos_port *chaos = (struct chaos_port *)port;
    assert(bytes > 0 && bytes <= port->payload_max);
    if (chaos->direct) {
        /* Whether there is room must not depend on fates: they are drawn in order. */
        if (chaos->inner->ops->room(chaos->inner, hop) == 0)
            return NULL;
        if (!is_lost(chaos))
            return chaos->inner->ops->slot(chaos->inner, hop, bytes);
        return buffer_at(chaos, (uint32_t)(chaos->counters.dropped % chaos->buffers));
    }
    if (chaos->free_n == 0)
        return NULL;
    uint32_t buffer = chaos->free[--chaos->free_n];
    chaos->written[chaos->written_n++] =
        (struct held){.buffer = buffer, .bytes = bytes, .hop = hop};
    return buffer_at(chaos, buffer);
}

static void let_go(struct chaos_port *chaos, uint32_t buffer)
{
    chaos->free[chaos->free_n++] = buffer;
}

/* The rate's part: false if it loses this datagram; else when it is through. */
static bool draw_delay(struct chaos_port *chaos, uint64_t now_ns, uint32_t bytes, uint64_t *due_ns)
{
    const struct harp_chaos *faults = &chaos->faults;
    uint64_t backlog_ns = chaos->free_at_ns > now_ns ? chaos->free_at_ns - now_ns : 0;
    uint64_t limit = faults->queue_bytes ? faults->queue_bytes : faults->bucket_bytes;
    uint64_t cost = bytes * UINT64_C(8000000000) + chaos->cost_rest;
    if (backlog_ns && backlog_ns + cost / faults->rate_bps > limit * 8000000000 / faults->rate_bps)
        return false;
    chaos->cost_rest = cost % faults->rate_bps;
    chaos->free_at_ns = now_ns + backlog_ns + cost / faults->rate_bps;
    if (faults->queue_bytes)
        *due_ns = chaos->free_at_ns;
    return true;
}

/* Change the bytes of a datagram as its fate will have it. */
static void damage_item(struct chaos_port *chaos, struct held *item)
{
    if (is_drawn(chaos, chaos->faults.truncate_ppm) && item->bytes > 1) {
        item->bytes = 1 + (uint32_t)draw_below(chaos, item->bytes - 1);
        chaos->counters.truncated++;
    }
    if (is_drawn(chaos, chaos->faults.corrupt_ppm)) {
        uint32_t bit = (uint32_t)draw_below(chaos, (uint64_t)item->bytes * 8);
        buffer_at(chaos, item->buffer)[bit / 8] ^= (uint8_t)(1u << bit % 8);
        chaos->counters.corrupted++;
    }
}

static void hold_item(struct chaos_port *chaos, uint64_t now_ns, struct held item)
{
    item.due_ns += chaos->faults.delay_ns;
    if (chaos->faults.jitter_ns)
        item.due_ns += draw_below(chaos, chaos->faults.jitter_ns);
    if (is_drawn(chaos, chaos->faults.reorder_ppm)) {
        item.due_ns += chaos->faults.reorder_delay_ns;
        chaos->counters.reordered++;
    }
    item.order = chaos->orders++;
    chaos->counters.delayed += item.due_ns > now_ns;
    push_held(chaos, item);
}

static void meet_fate(struct chaos_port *chaos, uint64_t now_ns, struct held item)
{
    item.due_ns = now_ns;
    bool doubled = is_drawn(chaos, chaos->faults.duplicate_ppm) && chaos->free_n > 0;
    if (is_lost(chaos)) {
        let_go(chaos, item.buffer);
        return;
    }
    damage_item(chaos, &item);
    if (chaos->faults.rate_bps && !draw_delay(chaos, now_ns, item.bytes, &item.due_ns)) {
        chaos->counters.limited++;
        let_go(chaos, item.buffer);
        return;
    }
    hold_item(chaos, now_ns, item);
    if (doubled) {
        struct held twin = item;
        twin.buffer = chaos->free[--chaos->free_n];
        memcpy(buffer_at(chaos, twin.buffer), buffer_at(chaos, item.buffer), item.bytes);
        hold_item(chaos, now_ns, twin);
        chaos->counters.duplicated++;
    }
}

/* Hand what is due to the inner port. */
static void release_due(struct chaos_port *chaos, uint64_t now_ns)
{
    struct harp_port *inner = chaos->inner;
    bool flushed = false;
    chaos->blocked_ns = UINT64_MAX;
    while (chaos->held_n > 0 && chaos->held[0].due_ns <= now_ns) {
        const struct held *item = &chaos->held[0];
        uint8_t *slot = item->hop < 0 ? NULL : inner->ops->slot(inner, item->hop, item->bytes);
        if (!slot && item->hop >= 0) {
            if (flushed) {
                chaos->blocked_ns = now_ns + RETRY_NS;
                break;
            }
            inner->ops->flush(inner, now_ns);
            flushed = true;
            continue;
        }
        if (slot)
            memcpy(slot, buffer_at(chaos, item->buffer), item->bytes);
        flushed = false;
        let_go(chaos, item->buffer);
        pop_held(chaos);
    }
}

static void sum_counters(struct chaos_port *chaos)
{
    chaos->port.counters = chaos->inner->counters;
    chaos->port.counters.dropped += chaos->counters.dropped + chaos->counters.limited;
}

static void chaos_flush(struct harp_port *port, uint64_t now_ns)
{
    struct chaos_port *chaos = (struct chaos_port *)port;
    for (uint32_t i = 0; i < chaos->written_n; i++)
        meet_fate(chaos, now_ns, chaos->written[i]);
    chaos->written_n = 0;
    release_due(chaos, now_ns);
    chaos->inner->ops->flush(chaos->inner, now_ns);
    sum_counters(chaos);
}

/* Calls that merely go through. */

static size_t chaos_receive(struct harp_port *port, uint64_t now_ns, struct harp_arrival *arrivals,
                            size_t room)
{
    struct chaos_port *chaos = (struct chaos_port *)port;
    size_t n = chaos->inner->ops->receive(chaos->inner, now_ns, arrivals, room);
    sum_counters(chaos);
    return n;
}

static void chaos_release(struct harp_port *port, struct harp_arrival *arrivals, size_t n)
{
    struct harp_port *inner = ((struct chaos_port *)port)->inner;
    inner->ops->release(inner, arrivals, n);
}

static void chaos_tend(struct harp_port *port, uint64_t now_ns)
{
    struct chaos_port *chaos = (struct chaos_port *)port;
    chaos->inner->ops->tend(chaos->inner, now_ns);
    sum_counters(chaos);
}

static bool chaos_notice(struct harp_port *port, struct harp_notice *notice)
{
    struct harp_port *inner = ((struct chaos_port *)port)->inner;
    return inner->ops->notice(inner, notice);
}

static int chaos_hop(struct harp_port *port, const struct harp_address *to, uint16_t local,
                     char *why)
{
    struct harp_port *inner = ((struct chaos_port *)port)->inner;
    return inner->ops->hop(inner, to, local, why);
}

static void chaos_unhop(struct harp_port *port, int hop)
{
    struct chaos_port *chaos = (struct chaos_port *)port;
    for (uint32_t i = 0; i < chaos->held_n; i++)
        if (chaos->held[i].hop == hop)
            chaos->held[i].hop = -1;
    for (uint32_t i = 0; i < chaos->written_n; i++)
        if (chaos->written[i].hop == hop)
            chaos->written[i].hop = -1;
    chaos->inner->ops->unhop(chaos->inner, hop);
}

static void chaos_set_traffic_class(struct harp_port *port, int hop, uint8_t traffic_class)
{
    struct harp_port *inner = ((struct chaos_port *)port)->inner;
    if (inner->ops->set_traffic_class)
        inner->ops->set_traffic_class(inner, hop, traffic_class);
}

static int chaos_add_local(struct harp_port *port, uint16_t udp_port, char *why)
{
    struct harp_port *inner = ((struct chaos_port *)port)->inner;
    if (!inner->ops->add_local)
        return snprintf(why, HARP_WHY_BYTES, "its addresses are fixed"), -EOPNOTSUPP;
    int local = inner->ops->add_local(inner, udp_port, why);
    port->locals_n = inner->locals_n;
    return local;
}

static uint32_t chaos_hop_payload_max(const struct harp_port *port, int hop)
{
    const struct harp_port *inner = ((const struct chaos_port *)port)->inner;
    return inner->ops->hop_payload_max(inner, hop);
}

static int chaos_fd(const struct harp_port *port)
{
    const struct harp_port *inner = ((const struct chaos_port *)port)->inner;
    return inner->ops->fd(inner);
}

static bool chaos_sleep(struct harp_port *port)
{
    struct harp_port *inner = ((struct chaos_port *)port)->inner;
    return inner->ops->sleep(inner);
}

static uint64_t chaos_deadline_ns(const struct harp_port *port)
{
    const struct chaos_port *chaos = (const struct chaos_port *)port;
    const struct harp_port *inner = chaos->inner;
    uint64_t first = inner->ops->deadline_ns ? inner->ops->deadline_ns(inner) : UINT64_MAX;
    uint64_t own = chaos->blocked_ns;
    if (own == UINT64_MAX && chaos->held_n > 0)
        own = chaos->held[0].due_ns;
    return own < first ? own : first;
}

static void forget_all(struct chaos_port *chaos)
{
    free(chaos->memory);
    free(chaos->free);
    free(chaos->held);
    free(chaos->written);
    free(chaos);
}

static void chaos_close(struct harp_port *port)
{
    struct chaos_port *chaos = (struct chaos_port *)port;
    chaos->inner->ops->close(chaos->inner);
    forget_all(chaos);
}

static const struct harp_port_ops chaos_ops = {
    .name = "chaos",
    .receive = chaos_receive,
    .release = chaos_release,
    .room = chaos_room,
    .slot = chaos_slot,
    .flush = chaos_flush,
    .tend = chaos_tend,
    .notice = chaos_notice,
    .hop = chaos_hop,
    .unhop = chaos_unhop,
    .set_traffic_class = chaos_set_traffic_class,
    .add_local = chaos_add_local,
    .hop_payload_max = chaos_hop_payload_max,
    .fd = chaos_fd,
    .sleep = chaos_sleep,
    .deadline_ns = chaos_deadline_ns,
    .close = chaos_close,
};

static bool allocate_memory(struct chaos_port *chaos, uint32_t payload_max)
{
    chaos->buffer_bytes = (HARP_DATAGRAM_AT + payload_max + 63) / 64 * 64;
    chaos->buffers = HELD_BYTES / chaos->buffer_bytes;
    if (chaos->direct || chaos->buffers < HELD_LEAST)
        chaos->buffers = HELD_LEAST;
    if (chaos->buffers > HELD_MOST)
        chaos->buffers = HELD_MOST;
    chaos->memory = malloc((size_t)chaos->buffers * chaos->buffer_bytes);
    chaos->free = malloc(chaos->buffers * sizeof *chaos->free);
    chaos->held = malloc(chaos->buffers * sizeof *chaos->held);
    chaos->written = malloc(chaos->buffers * sizeof *chaos->written);
    if (!chaos->memory || !chaos->free || !chaos->held || !chaos->written)
        return false;
    memset(chaos->memory, 0, (size_t)chaos->buffers * chaos->buffer_bytes); /* no fault later */
    while (chaos->free_n < chaos->buffers) {
        chaos->free[chaos->free_n] = chaos->buffers - 1 - chaos->free_n;
        chaos->free_n++;
    }
    return true;
}

static void fill_in(struct harp_chaos *faults)
{
    if (faults->burst_length == 0)
        faults->burst_length = BURST_LENGTH;
    if (faults->reorder_delay_ns == 0)
        faults->reorder_delay_ns = REORDER_DELAY_NS;
    if (faults->bucket_bytes == 0)
        faults->bucket_bytes = BUCKET_BYTES;
}

static bool only_loses(const struct harp_chaos *faults)
{
    return !(faults->delay_ns | faults->jitter_ns | faults->reorder_ppm | faults->duplicate_ppm |
             faults->truncate_ppm | faults->corrupt_ppm | faults->rate_bps);
}

int harp_port_chaos_open(struct harp_port **port, struct harp_port *inner,
                         const struct harp_chaos *faults, char *why)
{
    if (faults->bucket_bytes > LIMIT_BYTES || faults->queue_bytes > LIMIT_BYTES) {
        snprintf(why, HARP_WHY_BYTES, "a bucket or queue of chaos has at most %u bytes",
                 LIMIT_BYTES);
        return -EINVAL;
    }
    struct chaos_port *chaos = calloc(1, sizeof *chaos);
    if (chaos)
        chaos->direct = only_loses(faults);
    if (!chaos || !allocate_memory(chaos, inner->payload_max)) {
        snprintf(why, HARP_WHY_BYTES, "no memory for a chaos port's buffers");
        if (chaos)
            forget_all(chaos);
        return -ENOMEM;
    }
    chaos->inner = inner;
    chaos->faults = *faults;
    fill_in(&chaos->faults);
    chaos->random = faults->seed;
    chaos->blocked_ns = UINT64_MAX;
    chaos->port.ops = &chaos_ops;
    chaos->port.locals = inner->locals;
    chaos->port.locals_n = inner->locals_n;
    chaos->port.payload_max = inner->payload_max;
    chaos->port.holds_bytes = inner->holds_bytes;
    snprintf(chaos->port.line, sizeof chaos->port.line, "chaos of seed %" PRIu64 " over %.160s",
             faults->seed, inner->line);
    *port = &chaos->port;
    return 0;
}

const struct harp_chaos_counters *harp_port_chaos_count(const struct harp_port *port)
{
    assert(port->ops == &chaos_ops);
    return &((const struct chaos_port *)port)->counters;
}
