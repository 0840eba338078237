#include "session/sent.h"

#include <assert.h>
#include <stddef.h>

#include "base/sequence.h"

static void enter_flight(struct harp_sent_ring *ring, uint64_t packet, uint32_t bytes)
{
    if (ring->far)
        harp_far_buffer_fill(ring->far, ring->in_flight, bytes);
    ring->in_flight++;
    ring->bytes_in_flight += bytes;
    harp_bit_ring_set(&ring->in_flight_map, packet);
}

static struct harp_sent *slot_of(struct harp_sent_ring *ring, uint64_t packet)
{
    return &ring->slots[packet & (ring->slots_n - 1)];
}

void harp_sent_init(struct harp_sent_ring *ring, struct harp_sent *slots, uint32_t slots_n,
                    uint64_t first)
{
    *ring =
        (struct harp_sent_ring){.slots = slots, .slots_n = slots_n, .tail = first, .next = first};
}

/* The oldest packet, which is not in flight, gives its slot up. */
static void pass_tail(struct harp_sent_ring *ring)
{
    harp_bit_ring_clear(&ring->open_map, ring->tail);
    ring->tail++;
}

bool harp_sent_has_room(struct harp_sent_ring *ring)
{
    if (harp_sent_has_free_slot(ring))
        return true;
    if (slot_of(ring, ring->tail)->state == HARP_IN_FLIGHT)
        return false;
    pass_tail(ring);
    return true;
}

struct harp_sent *harp_sent_add(struct harp_sent_ring *ring, uint64_t now_ns, uint32_t bytes,
                                uint16_t longest)
{
    assert(harp_sent_has_free_slot(ring));
    struct harp_sent *sent = slot_of(ring, ring->next);
    *sent = (struct harp_sent){.time_ns = now_ns,
                               .packet = ring->next,
                               .bytes = bytes,
                               .longest = longest,
                               .state = HARP_IN_FLIGHT};
    enter_flight(ring, ring->next, bytes);
    harp_bit_ring_set(&ring->open_map, ring->next);
    ring->next++;
    return sent;
}

struct harp_sent *harp_sent_at(struct harp_sent_ring *ring, uint64_t packet)
{
    if (harp_packet_before(packet, ring->tail) || !harp_packet_before(packet, ring->next))
        return NULL;
    struct harp_sent *sent = slot_of(ring, packet);
    assert(sent->packet == packet);
    return sent;
}

uint64_t harp_sent_next_in_flight(const struct harp_sent_ring *ring, uint64_t from)
{
    for (uint64_t packet = from; harp_packet_before(packet, ring->next);
         packet = (packet | 63) + 1) {
        uint64_t word = ring->in_flight_map.words[packet / 64 % HARP_BIT_RING_WORDS] >> packet % 64;
        if (word) /* in a full ring the youngest packets share a word with the oldest */
            return harp_min(packet + (uint64_t)__builtin_ctzll(word), ring->next);
    }
    return ring->next;
}

static void leave_flight(struct harp_sent_ring *ring, struct harp_sent *sent)
{
    assert(ring->in_flight > 0 && ring->bytes_in_flight >= sent->bytes);
    ring->in_flight--;
    ring->bytes_in_flight -= sent->bytes;
    harp_bit_ring_clear(&ring->in_flight_map, sent->packet);
    if (ring->far)
        harp_far_buffer_drain(ring->far, ring->in_flight, sent->bytes);
}

void harp_sent_acked(struct harp_sent_ring *ring, struct harp_sent *sent)
{
    assert(sent->state != HARP_ACKED);
    if (sent->state == HARP_IN_FLIGHT)
        leave_flight(ring, sent);
    harp_bit_ring_clear(&ring->open_map, sent->packet);
    sent->state = HARP_ACKED;
}

void harp_sent_lost(struct harp_sent_ring *ring, struct harp_sent *sent)
{
    assert(sent->state == HARP_IN_FLIGHT);
    leave_flight(ring, sent);
    sent->state = HARP_LOST;
}

void harp_sent_found(struct harp_sent_ring *ring, struct harp_sent *sent)
{
    assert(sent->state == HARP_LOST);
    enter_flight(ring, sent->packet, sent->bytes);
    sent->state = HARP_IN_FLIGHT;
}

void harp_sent_lands_in(struct harp_sent_ring *ring, struct harp_far_buffer *far)
{
    if (ring->far && ring->in_flight)
        harp_far_buffer_drain(ring->far, 0, ring->bytes_in_flight);
    if (ring->in_flight)
        harp_far_buffer_fill(far, 0, ring->bytes_in_flight);
    ring->far = far;
}

void harp_sent_trim(struct harp_sent_ring *ring, uint64_t before_ns)
{
    while (ring->tail != ring->next) {
        const struct harp_sent *sent = slot_of(ring, ring->tail);
        bool old = sent->state == HARP_LOST && sent->time_ns < before_ns;
        if (sent->state != HARP_ACKED && !old)
            return;
        pass_tail(ring);
    }
}
