#include "link.h"

#include <stdlib.h>
#include <string.h>

#include "base/sequence.h"
#include "forge.h"

static void push_flight(struct dst_link *link, struct dst_flight *flight)
{
    bool done = virtual_events_push(&link->events, flight->at_ns, (uintptr_t)flight);
    DST_CHECK(done, "no memory", link->events.n, 0);
}

uint64_t dst_link_next_ns(const struct dst_link *link)
{
    return virtual_events_next_ns(&link->events);
}

struct dst_flight *dst_link_take(struct dst_link *link)
{
    return (struct dst_flight *)(uintptr_t)virtual_events_take(&link->events).what;
}

void dst_link_free(struct dst_link *link)
{
    while (link->events.n)
        free(dst_link_take(link));
    virtual_events_close(&link->events);
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

static void mix_hash(uint64_t *hash, uint64_t value)
{
    *hash = (*hash ^ value) * UINT64_C(0x100000001b3);
    *hash ^= *hash >> 29;
}

/* Payload, CRC and tag are left out: the trace must be the same without payload. */
static void trace_frame(struct dst_link *link, uint64_t now_ns, uint8_t path, const uint8_t *bytes,
                        size_t bytes_n)
{
    mix_hash(&link->trace, now_ns);
    mix_hash(&link->trace, bytes_n << 8 | path);
    for (size_t i = 0; i < 32; i += 8) {
        uint64_t word;
        memcpy(&word, bytes + i, sizeof word);
        mix_hash(&link->trace, word);
    }
    for (size_t i = HARP_HEADER_BYTES; bytes[1] != HARP_DATA && i < bytes_n; i++)
        mix_hash(&link->trace, bytes[i]);
}

const struct dst_flight *dst_link_recall(struct dst_link *link, uint8_t to)
{
    return link->memory[to][virtual_below(&link->random, DST_MEMORY)];
}

/* Put an old frame on the way again, as it was or forged. */
static void send_old_again(struct dst_link *link, uint64_t now_ns, uint8_t to,
                           const struct dst_way *way)
{
    const struct dst_flight *old = dst_link_recall(link, to);
    bool replay = virtual_chance(&link->random, way->replay);
    bool forge = virtual_chance(&link->random, way->forge);
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
    twin->at_ns = harp_max(now_ns, old->at_ns) + virtual_below(&link->random, 20000000);
    push_flight(link, twin);
}

static void remember_flight(struct dst_link *link, const struct dst_flight *flight)
{
    struct dst_flight **place = &link->memory[flight->to][virtual_below(&link->random, DST_MEMORY)];
    free(*place);
    *place = flight_of(flight->bytes, flight->bytes_n, flight->to, flight->path);
    (*place)->at_ns = flight->at_ns;
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

/* Flip a bit, or cut the end off. */
static struct dst_flight *spoil_flight(struct dst_link *link, const struct dst_faulty_link *way,
                                       struct dst_flight *flight)
{
    uint8_t bytes[DST_FRAME_MAX];
    bool any;
    memcpy(bytes, flight->bytes, flight->bytes_n);
    size_t bytes_n = dst_faults_spoil(way, &link->random, bytes, flight->bytes_n, &any);
    if (!any)
        return flight;
    struct dst_flight *spoilt = flight_of(bytes, bytes_n, flight->to, flight->path);
    spoilt->at_ns = flight->at_ns;
    dst_compare(flight, spoilt);
    note_destroyed(link, flight->bytes[1]);
    free(flight);
    return spoilt;
}

static void deliver_flight(struct dst_link *link, uint64_t now_ns,
                           const struct dst_faulty_link *way, struct dst_flight *flight)
{
    if (now_ns < link->heal_ns) {
        uint64_t twin_ns = dst_faults_twin_ns(way, &link->random, flight->at_ns);
        if (twin_ns != VIRTUAL_NEVER) {
            struct dst_flight *twin =
                flight_of(flight->bytes, flight->bytes_n, flight->to, flight->path);
            twin->at_ns = twin_ns;
            push_flight(link, twin);
        }
        flight = spoil_flight(link, way, flight);
    }
    push_flight(link, flight);
}

void dst_link_send(struct dst_link *link, uint64_t now_ns, uint8_t to, uint8_t path,
                   const uint8_t *bytes, size_t bytes_n)
{
    struct dst_way *way = &link->ways[to][path];
    bool faulty = now_ns < link->heal_ns;
    trace_frame(link, now_ns, path, bytes, bytes_n);
    if (faulty)
        send_old_again(link, now_ns, to, way);
    struct dst_fate fate = dst_faults_pass(&way->link, &link->random, now_ns, faulty, bytes_n);
    if (fate.late)
        note_late(link, bytes[1]);
    struct dst_flight *flight = flight_of(bytes, bytes_n, to, path);
    flight->at_ns = fate.at_ns;
    if (!fate.dropped)
        remember_flight(link, flight);
    if (!fate.dropped && !fate.lost) {
        deliver_flight(link, now_ns, &way->link, flight);
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
    for (size_t i = 0; i < link->events.n; i++) {
        struct dst_flight *flight = (struct dst_flight *)(uintptr_t)link->events.heap[i].what;
        if (!is_numbered(flight))
            continue;
        flight->forged = true;
        note_destroyed(link, flight->bytes[1]);
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
    push_flight(link, flight);
}
