#include "link.h"

#include <stdlib.h>
#include <string.h>

#include "sequence.h"

static bool earlier(const struct dst_flight *a, const struct dst_flight *b)
{
    return a->at_ns != b->at_ns ? a->at_ns < b->at_ns : a->order < b->order;
}

static void push(struct dst_link *link, struct dst_flight *flight)
{
    if (link->heap_n == link->heap_room) {
        link->heap_room = link->heap_room ? 2 * link->heap_room : 64;
        link->heap = realloc(link->heap, link->heap_room * sizeof(struct dst_flight *));
    }
    flight->order = link->order++;
    size_t i = link->heap_n++;
    for (; i && earlier(flight, link->heap[(i - 1) / 2]); i = (i - 1) / 2)
        link->heap[i] = link->heap[(i - 1) / 2];
    link->heap[i] = flight;
}

uint64_t dst_link_next_ns(const struct dst_link *link)
{
    return link->heap_n ? link->heap[0]->at_ns : HARP_NEVER;
}

struct dst_flight *dst_link_take(struct dst_link *link)
{
    struct dst_flight *top = link->heap[0];
    struct dst_flight *last = link->heap[--link->heap_n];
    size_t i = 0;
    for (size_t child; (child = 2 * i + 1) < link->heap_n; i = child) {
        if (child + 1 < link->heap_n && earlier(link->heap[child + 1], link->heap[child]))
            child++;
        if (!earlier(link->heap[child], last))
            break;
        link->heap[i] = link->heap[child];
    }
    link->heap[i] = last;
    return top;
}

void dst_flight_free(struct dst_flight *flight)
{
    if (flight)
        free(flight->payload);
    free(flight);
}

void dst_link_free(struct dst_link *link)
{
    while (link->heap_n)
        dst_flight_free(link->heap[--link->heap_n]);
    free(link->heap);
    for (int to = 0; to < 2; to++)
        for (int i = 0; i < DST_MEMORY; i++)
            dst_flight_free(link->memory[to][i]);
}

static struct dst_flight *copy(const struct dst_flight *flight)
{
    struct dst_flight *twin = malloc(sizeof *twin);
    *twin = *flight;
    if (flight->payload) {
        twin->payload = malloc(flight->frame.header.length + 1u);
        memcpy(twin->payload, flight->payload, flight->frame.header.length);
    }
    return twin;
}

static void mix(uint64_t *hash, uint64_t value)
{
    *hash = (*hash ^ value) * UINT64_C(0x100000001b3);
    *hash ^= *hash >> 29;
}

static void trace(struct dst_link *link, uint64_t now_ns, const struct harp_frame *frame)
{
    const struct harp_header *h = &frame->header;
    mix(&link->trace, now_ns);
    mix(&link->trace, h->connection ^ (uint64_t)h->type << 56 ^ (uint64_t)frame->path << 48);
    mix(&link->trace, (uint64_t)h->packet << 32 | h->message);
    mix(&link->trace, (uint64_t)h->offset << 32 | h->length);
    if (h->type != HARP_DATA && h->type != HARP_PROBE)
        for (uint16_t i = 0; i < h->length; i++)
            mix(&link->trace, frame->body[i]);
}

/* Put an old frame on the way again; or one as if from an earlier life of the same connection: its
 * tag holds, its epoch is past, its payload another. */
static void haunt(struct dst_link *link, uint64_t now_ns, uint8_t to, const struct dst_faults *f)
{
    struct dst_flight *old = link->memory[to][dst_below(&link->random, DST_MEMORY)];
    bool replay = dst_chance(&link->random, f->replay);
    bool stale = dst_chance(&link->random, f->stale);
    if (!old || !(replay || stale))
        return;
    struct dst_flight *twin = copy(old);
    /* An old frame comes after it came first: overtaking is what `late` is for. */
    twin->at_ns = harp_max(now_ns, old->at_ns) + dst_below(&link->random, 20000000);
    if (stale) {
        twin->frame.header.epoch--;
        twin->frame.header.packet += 40;
        twin->tag_holds = twin->payload_holds = true;
        if (twin->payload)
            memset(twin->payload, 0xee, twin->frame.header.length);
    }
    push(link, twin);
}

static void remember(struct dst_link *link, const struct dst_flight *flight)
{
    struct dst_flight **place = &link->memory[flight->to][dst_below(&link->random, DST_MEMORY)];
    dst_flight_free(*place);
    *place = copy(flight);
}

static bool within(uint64_t now_ns, uint64_t from_ns, uint64_t to_ns)
{
    return now_ns >= from_ns && now_ns < to_ns;
}

static void disturb(struct dst_link *link, const struct harp_frame *frame)
{
    link->disturbed += frame->header.type == HARP_ACK ? 16 : 1;
}

/* Whether the network swallows this frame. */
static bool swallowed(struct dst_link *link, struct dst_way *way, uint64_t now_ns)
{
    const struct dst_faults *f = &way->faults;
    if (within(now_ns, f->black_from_ns, f->black_to_ns))
        return true;
    if (now_ns >= link->heal_ns)
        return false;
    if (way->burst_left) {
        way->burst_left--;
        return true;
    }
    if (dst_chance(&link->random, f->burst))
        way->burst_left = 1 + (uint32_t)dst_below(&link->random, f->burst_length);
    return dst_chance(&link->random, f->loss);
}

/* Time of arrival, or HARP_NEVER if the queue is full. */
static uint64_t arrival(struct dst_link *link, struct dst_way *way, uint64_t now_ns,
                        const struct harp_frame *frame)
{
    const struct dst_faults *f = &way->faults;
    uint64_t start_ns = harp_max(now_ns, way->free_ns);
    if (start_ns - now_ns > f->queue_ns)
        return HARP_NEVER;
    uint64_t bytes = HARP_HEADER_BYTES + frame->header.length;
    way->free_ns = start_ns + bytes * f->byte_ps / 1000;
    uint64_t at_ns = way->free_ns + f->delay_ns + dst_below(&link->random, f->jitter_ns + 1);
    if (within(now_ns, f->spike_from_ns, f->spike_to_ns)) {
        at_ns += f->spike_ns;
        disturb(link, frame);
    }
    if (now_ns < link->heal_ns && dst_chance(&link->random, f->late)) {
        at_ns += dst_below(&link->random, 4 * f->delay_ns);
        disturb(link, frame);
    }
    return at_ns;
}

static void spoil(struct dst_link *link, const struct dst_faults *f, struct dst_flight *flight)
{
    flight->tag_holds &= !dst_chance(&link->random, f->flip_header);
    bool flip = dst_chance(&link->random, f->flip_payload) && flight->frame.header.length;
    flight->payload_holds &= !flip;
    uint64_t where = flip ? dst_below(&link->random, flight->frame.header.length) : 0;
    if (flip && flight->payload)
        flight->payload[where] ^= 0x40;
    if (!flight->tag_holds || !flight->payload_holds)
        disturb(link, &flight->frame);
}

void dst_link_send(struct dst_link *link, uint64_t now_ns, uint8_t to, uint64_t key,
                   const struct harp_frame *frame)
{
    struct dst_way *way = &link->ways[to][frame->path];
    const struct dst_faults *f = &way->faults;
    trace(link, now_ns, frame);
    if (now_ns < link->heal_ns)
        haunt(link, now_ns, to, f);
    struct dst_flight flight = {
        .to = to, .key = key, .tag_holds = true, .payload_holds = true, .frame = *frame};
    flight.payload = (uint8_t *)frame->payload;
    bool gone = swallowed(link, way, now_ns);
    flight.at_ns = arrival(link, way, now_ns, frame);
    if (flight.at_ns != HARP_NEVER)
        remember(link, &flight);
    if (gone || flight.at_ns == HARP_NEVER) {
        disturb(link, frame);
        return;
    }
    struct dst_flight *one = copy(&flight);
    if (now_ns < link->heal_ns) {
        if (dst_chance(&link->random, f->twice)) {
            struct dst_flight *other = copy(&flight);
            other->at_ns += dst_below(&link->random, 2 * f->delay_ns);
            push(link, other);
        }
        spoil(link, f, one);
    }
    push(link, one);
}
