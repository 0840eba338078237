#include "link.h"

#include <stdlib.h>
#include <string.h>

#include "base/sequence.h"
#include "forge.h"

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

void dst_link_free(struct dst_link *link)
{
    while (link->heap_n)
        free(link->heap[--link->heap_n]);
    free(link->heap);
    for (int to = 0; to < 2; to++)
        for (int i = 0; i < DST_MEMORY; i++)
            free(link->memory[to][i]);
}

/* In memory of exactly its size, so that the sanitizer sees a read behind it. */
static struct dst_flight *flight_of(const uint8_t *bytes, size_t bytes_n, uint8_t to, uint8_t path)
{
    struct dst_flight *flight = malloc(offsetof(struct dst_flight, bytes) + bytes_n);
    *flight = (struct dst_flight){.to = to, .path = path, .bytes_n = (uint16_t)bytes_n};
    memcpy(flight->bytes, bytes, bytes_n);
    return flight;
}

static void mix(uint64_t *hash, uint64_t value)
{
    *hash = (*hash ^ value) * UINT64_C(0x100000001b3);
    *hash ^= *hash >> 29;
}

/* Payload, CRC and tag are left out: the trace must be the same without payload. */
static void trace(struct dst_link *link, uint64_t now_ns, uint8_t path, const uint8_t *bytes,
                  size_t bytes_n)
{
    mix(&link->trace, now_ns);
    mix(&link->trace, bytes_n << 8 | path);
    for (size_t i = 0; i < 32; i += 8) {
        uint64_t word;
        memcpy(&word, bytes + i, sizeof word);
        mix(&link->trace, word);
    }
    for (size_t i = HARP_HEADER_BYTES; bytes[1] != HARP_DATA && i < bytes_n; i++)
        mix(&link->trace, bytes[i]);
}

const struct dst_flight *dst_link_recall(struct dst_link *link, uint8_t to)
{
    return link->memory[to][dst_below(&link->random, DST_MEMORY)];
}

/* Put an old frame on the way again, as it was or forged. */
static void haunt(struct dst_link *link, uint64_t now_ns, uint8_t to, const struct dst_faults *f)
{
    const struct dst_flight *old = dst_link_recall(link, to);
    bool replay = dst_chance(&link->random, f->replay);
    bool forge = dst_chance(&link->random, f->forge);
    if (!old || !(replay || forge))
        return;
    uint8_t bytes[DST_FRAME_MAX];
    size_t bytes_n = old->bytes_n;
    memcpy(bytes, old->bytes, bytes_n);
    if (forge)
        dst_forge(&link->random, bytes, &bytes_n, sizeof bytes);
    struct dst_flight *twin = flight_of(bytes, bytes_n, to, old->path);
    dst_compare(old, twin);
    twin->forged |= old->forged;
    /* An old frame comes after it came first: overtaking is what `late` is for. */
    twin->at_ns = harp_max(now_ns, old->at_ns) + dst_below(&link->random, 20000000);
    push(link, twin);
}

static void remember(struct dst_link *link, const struct dst_flight *flight)
{
    struct dst_flight **place = &link->memory[flight->to][dst_below(&link->random, DST_MEMORY)];
    free(*place);
    *place = flight_of(flight->bytes, flight->bytes_n, flight->to, flight->path);
    (*place)->at_ns = flight->at_ns;
}

static bool within(uint64_t now_ns, uint64_t from_ns, uint64_t to_ns)
{
    return now_ns >= from_ns && now_ns < to_ns;
}

static void note_late(struct dst_link *link, uint8_t type)
{
    link->late_data += type == HARP_DATA;
    link->late_acks += type == HARP_ACK;
}

static void note_destroyed(struct dst_link *link, uint8_t type)
{
    link->destroyed_data += type == HARP_DATA;
    link->destroyed_acks += type == HARP_ACK;
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
static uint64_t arrival(struct dst_link *link, struct dst_way *way, uint64_t now_ns, uint8_t type,
                        size_t bytes_n)
{
    const struct dst_faults *f = &way->faults;
    uint64_t start_ns = harp_max(now_ns, way->free_ns);
    if (start_ns - now_ns > f->queue_ns)
        return HARP_NEVER;
    way->free_ns = start_ns + bytes_n * f->byte_ps / 1000;
    uint64_t at_ns = way->free_ns + f->delay_ns + dst_below(&link->random, f->jitter_ns + 1);
    bool spike = within(now_ns, f->spike_from_ns, f->spike_to_ns);
    bool late = now_ns < link->heal_ns && dst_chance(&link->random, f->late);
    if (spike)
        at_ns += f->spike_ns;
    if (late)
        at_ns += dst_below(&link->random, 4 * f->delay_ns);
    if (spike || late || f->jitter_ns)
        note_late(link, type);
    return at_ns;
}

/* Flip a bit, or cut the end off. */
static struct dst_flight *spoil(struct dst_link *link, const struct dst_faults *f,
                                struct dst_flight *flight)
{
    bool flip = dst_chance(&link->random, f->flip), cut = dst_chance(&link->random, f->cut);
    if (!flip && !cut)
        return flight;
    uint8_t bytes[DST_FRAME_MAX];
    size_t bytes_n = flight->bytes_n;
    memcpy(bytes, flight->bytes, bytes_n);
    if (flip)
        dst_flip(&link->random, bytes, bytes_n);
    if (cut)
        bytes_n = dst_below(&link->random, bytes_n);
    struct dst_flight *spoilt = flight_of(bytes, bytes_n, flight->to, flight->path);
    spoilt->at_ns = flight->at_ns;
    dst_compare(flight, spoilt);
    note_destroyed(link, flight->bytes[1]);
    free(flight);
    return spoilt;
}

static void deliver(struct dst_link *link, uint64_t now_ns, const struct dst_faults *f,
                    struct dst_flight *flight)
{
    if (now_ns < link->heal_ns) {
        if (dst_chance(&link->random, f->twice)) {
            struct dst_flight *other =
                flight_of(flight->bytes, flight->bytes_n, flight->to, flight->path);
            other->at_ns = flight->at_ns + dst_below(&link->random, 2 * f->delay_ns);
            push(link, other);
        }
        flight = spoil(link, f, flight);
    }
    push(link, flight);
}

void dst_link_send(struct dst_link *link, uint64_t now_ns, uint8_t to, uint8_t path,
                   const uint8_t *bytes, size_t bytes_n)
{
    struct dst_way *way = &link->ways[to][path];
    const struct dst_faults *f = &way->faults;
    trace(link, now_ns, path, bytes, bytes_n);
    if (now_ns < link->heal_ns)
        haunt(link, now_ns, to, f);
    bool gone = swallowed(link, way, now_ns);
    struct dst_flight *flight = flight_of(bytes, bytes_n, to, path);
    flight->at_ns = arrival(link, way, now_ns, bytes[1], bytes_n);
    bool narrow = within(now_ns, f->narrow_from_ns, f->narrow_to_ns);
    bool too_long =
        (f->most_bytes && bytes_n > f->most_bytes) || (narrow && bytes_n > f->narrow_bytes);
    if (flight->at_ns != HARP_NEVER && !too_long)
        remember(link, flight);
    if (!gone && !too_long && flight->at_ns != HARP_NEVER) {
        deliver(link, now_ns, f, flight);
        return;
    }
    note_destroyed(link, bytes[1]);
    free(flight);
}

static bool is_numbered(const struct dst_flight *flight)
{
    return flight->bytes_n > 1 && flight->bytes[1] >= HARP_DATA && flight->bytes[1] <= HARP_PROBE;
}

void dst_link_age(struct dst_link *link)
{
    for (size_t i = 0; i < link->heap_n; i++) {
        if (!is_numbered(link->heap[i]))
            continue;
        link->heap[i]->forged = true;
        note_destroyed(link, link->heap[i]->bytes[1]);
    }
    for (int i = 0; i < 2 * DST_MEMORY; i++) {
        struct dst_flight *old = link->memory[i % 2][i / 2];
        if (old && is_numbered(old))
            old->forged = true;
    }
}

void dst_link_inject(struct dst_link *link, uint64_t at_ns, uint8_t to, uint8_t path, uint32_t from,
                     const uint8_t *bytes, size_t bytes_n, bool forged)
{
    struct dst_flight *flight = flight_of(bytes, bytes_n, to, path);
    flight->at_ns = at_ns;
    flight->from = from;
    flight->forged = forged;
    push(link, flight);
}
