#include "session/outbox.h"

#include <assert.h>
#include <stddef.h>
#include <string.h>

#include "base/sequence.h"

static struct harp_outgoing *slot_of(struct harp_outbox *outbox, uint32_t message)
{
    return &outbox->slots[message & (outbox->slots_n - 1)];
}

static bool is_open(const struct harp_outbox *outbox, uint32_t message)
{
    return !harp_before(message, outbox->base) && harp_before(message, outbox->end);
}

size_t harp_outbox_bytes(uint16_t messages, uint16_t words)
{
    return messages * (sizeof(struct harp_outgoing) + 2 * words * sizeof(uint64_t));
}

void harp_outbox_init(struct harp_outbox *outbox, void *memory, uint16_t messages, uint16_t words,
                      uint32_t first, uint16_t segment)
{
    memset(outbox, 0, sizeof *outbox);
    outbox->slots = memory;
    outbox->slots_n = messages;
    outbox->segment = segment;
    outbox->base = outbox->end = outbox->cursor = outbox->credit = first;
    outbox->chunk_end = outbox->chunk_credit = first;
    memset(outbox->slots, 0, messages * sizeof *outbox->slots);
    uint64_t *ring = (uint64_t *)(outbox->slots + messages);
    for (uint32_t i = 0; i < messages; i++, ring += 2 * words) {
        harp_chunks_init(&outbox->slots[i].done, ring, words);
        outbox->slots[i].lost_ring = ring + words;
    }
}

void harp_outbox_stream(struct harp_outbox *outbox, uint32_t frames)
{
    outbox->streamed = true;
    outbox->chunk_credit += frames;
}

bool harp_outbox_add(struct harp_outbox *outbox, const uint8_t *buffer,
                     const uint8_t *const *chunks, uint32_t size, uint64_t context)
{
    if (outbox->end - outbox->base >= outbox->slots_n)
        return false;
    struct harp_outgoing *message = slot_of(outbox, outbox->end);
    outbox->total_bytes += size;
    message->buffer = buffer;
    message->chunks = chunks;
    message->context = context;
    message->through = outbox->total_bytes;
    message->size = size;
    message->next = 0;
    message->lost_clear &= message->lost == 0;
    message->lost = 0;
    harp_chunks_start(&message->done, harp_chunks_of(size, outbox->segment));
    message->first_chunk = outbox->chunk_end;
    outbox->chunk_end += message->done.total;
    outbox->end++;
    return true;
}

static const uint8_t *payload_of(const struct harp_outgoing *message, uint32_t chunk,
                                 uint32_t offset)
{
    if (message->chunks)
        return message->size ? message->chunks[chunk] : NULL; /* the array may be empty */
    return message->buffer ? message->buffer + offset : NULL;
}

static void describe_chunk(struct harp_outbox *outbox, uint32_t number, uint32_t chunk, bool again,
                           struct harp_pick *pick)
{
    const struct harp_outgoing *message = slot_of(outbox, number);
    uint32_t offset = chunk * outbox->segment;
    *pick = (struct harp_pick){
        .message = number,
        .chunk = chunk,
        .offset = offset,
        .size = message->size,
        .length = (uint16_t)harp_min(outbox->segment, message->size - offset),
        .again = again,
        .payload = payload_of(message, chunk, offset),
    };
}

/* The first chunk of this message that is to be sent again; there is one. When the window begins
 * inside a word, its last chunks share that word, one turn later; they are looked at last. */
static uint32_t first_lost(const struct harp_outgoing *message)
{
    for (uint32_t chunk = message->done.low; chunk < message->next; chunk = (chunk | 63) + 1) {
        uint64_t word = message->lost_ring[harp_chunks_word(&message->done, chunk)] >> chunk % 64;
        if (word)
            return chunk + (uint32_t)__builtin_ctzll(word);
    }
    assert(!"a lost chunk lies inside the window");
    return message->next;
}

static void mark_lost(struct harp_outbox *outbox, uint32_t message, bool any)
{
    uint64_t *word = &outbox->lost_map[message % HARP_MESSAGES / 64];
    uint64_t bit = UINT64_C(1) << message % 64;
    *word = any ? *word | bit : *word & ~bit;
}

/* The oldest message with lost chunks; there is one. When the ring begins inside a word, its
 * youngest messages share that word, one turn later; they are looked at last. */
static uint32_t find_lost_message(const struct harp_outbox *outbox)
{
    for (uint32_t m = outbox->base; harp_before(m, outbox->end); m = (m | 63) + 1) {
        uint64_t word = outbox->lost_map[m % HARP_MESSAGES / 64] >> m % 64;
        if (word)
            return m + (uint32_t)__builtin_ctzll(word);
    }
    assert(!"a message with a lost chunk is open");
    return outbox->end;
}

static bool pick_lost(struct harp_outbox *outbox, struct harp_pick *pick)
{
    if (!outbox->lost)
        return false;
    uint32_t number = find_lost_message(outbox);
    describe_chunk(outbox, number, first_lost(slot_of(outbox, number)), true, pick);
    return true;
}

static bool may_travel(const struct harp_outbox *outbox, uint32_t number,
                       const struct harp_outgoing *message)
{
    uint32_t credit = (uint32_t)outbox->credit;
    if (outbox->streamed)
        return harp_before(number, credit) &&
               harp_before(message->first_chunk + message->next, (uint32_t)outbox->chunk_credit);
    if (harp_before(number, credit))
        return true;
    return message->done.total == 1 && harp_before(number, credit + HARP_EAGER);
}

static void advance_cursor(struct harp_outbox *outbox)
{
    while (outbox->cursor != outbox->end &&
           slot_of(outbox, outbox->cursor)->next == slot_of(outbox, outbox->cursor)->done.total)
        outbox->cursor++;
}

bool harp_outbox_pick(struct harp_outbox *outbox, struct harp_pick *pick)
{
    if (pick_lost(outbox, pick))
        return true;
    advance_cursor(outbox);
    uint32_t stop = (uint32_t)outbox->credit + HARP_EAGER;
    for (uint32_t m = outbox->cursor; m != outbox->end && harp_before(m, stop); m++) {
        const struct harp_outgoing *message = slot_of(outbox, m);
        bool may = may_travel(outbox, m, message);
        if (!may && outbox->streamed)
            return false; /* younger chunks have higher numbers */
        if (!may || !harp_chunks_within(&message->done, message->next))
            continue;
        describe_chunk(outbox, m, message->next, false, pick);
        return true;
    }
    return false;
}

static bool take_back_loss(struct harp_outbox *outbox, uint32_t number, uint32_t chunk)
{
    struct harp_outgoing *message = slot_of(outbox, number);
    uint64_t *word = &message->lost_ring[harp_chunks_word(&message->done, chunk)];
    uint64_t bit = UINT64_C(1) << chunk % 64;
    if (!message->lost || !(*word & bit))
        return false;
    *word &= ~bit;
    message->lost--;
    outbox->lost--;
    if (!message->lost)
        mark_lost(outbox, number, false);
    return true;
}

void harp_outbox_take(struct harp_outbox *outbox, const struct harp_pick *pick)
{
    struct harp_outgoing *message = slot_of(outbox, pick->message);
    if (pick->again) {
        take_back_loss(outbox, pick->message, pick->chunk);
    } else {
        assert(pick->chunk == message->next);
        message->next++;
    }
}

bool harp_outbox_repeat(struct harp_outbox *outbox, uint32_t message, uint32_t chunk,
                        struct harp_pick *pick)
{
    if (!is_open(outbox, message) || harp_chunks_has(&slot_of(outbox, message)->done, chunk))
        return false;
    describe_chunk(outbox, message, chunk, true, pick);
    return true;
}

void harp_outbox_acked(struct harp_outbox *outbox, uint32_t message, uint32_t chunk)
{
    if (!is_open(outbox, message))
        return;
    struct harp_outgoing *slot = slot_of(outbox, message);
    if (harp_chunks_add(&slot->done, chunk))
        take_back_loss(outbox, message, chunk);
}

void harp_outbox_lost(struct harp_outbox *outbox, uint32_t message, uint32_t chunk)
{
    if (!is_open(outbox, message) || harp_chunks_has(&slot_of(outbox, message)->done, chunk))
        return;
    struct harp_outgoing *slot = slot_of(outbox, message);
    uint64_t *word = &slot->lost_ring[harp_chunks_word(&slot->done, chunk)];
    uint64_t bit = UINT64_C(1) << chunk % 64;
    if (!slot->lost_clear)
        memset(slot->lost_ring, 0, slot->done.words * sizeof *slot->lost_ring);
    slot->lost_clear = true;
    if (*word & bit)
        return;
    *word |= bit;
    if (!slot->lost)
        mark_lost(outbox, message, true);
    slot->lost++;
    outbox->lost++;
}

bool harp_outbox_found(struct harp_outbox *outbox, uint32_t message, uint32_t chunk)
{
    struct harp_outgoing *slot = slot_of(outbox, message);
    return is_open(outbox, message) && !harp_chunks_has(&slot->done, chunk) &&
           take_back_loss(outbox, message, chunk);
}

/* Only a misbehaving peer grants more than message numbers can distinguish. */
static bool raise_credit(uint64_t *credit, uint64_t to)
{
    if (to <= *credit || to - *credit > INT32_MAX)
        return false;
    *credit = to;
    return true;
}

bool harp_outbox_credit(struct harp_outbox *outbox, uint64_t credit, uint64_t chunk_credit)
{
    bool more = raise_credit(&outbox->credit, credit);
    return (outbox->streamed && raise_credit(&outbox->chunk_credit, chunk_credit)) || more;
}

uint64_t harp_outbox_bytes_before(const struct harp_outbox *outbox, uint32_t credit)
{
    if (!harp_before(outbox->base, credit) || outbox->base == outbox->end)
        return 0;
    uint32_t last = (harp_before(credit, outbox->end) ? credit : outbox->end) - 1;
    return outbox->slots[last & (outbox->slots_n - 1)].through;
}

bool harp_outbox_starved(struct harp_outbox *outbox)
{
    struct harp_pick pick;
    advance_cursor(outbox);
    return outbox->cursor != outbox->end &&
           !may_travel(outbox, outbox->cursor, slot_of(outbox, outbox->cursor)) &&
           !harp_outbox_pick(outbox, &pick);
}

const struct harp_outgoing *harp_outbox_pop(struct harp_outbox *outbox)
{
    if (outbox->base == outbox->end)
        return NULL;
    struct harp_outgoing *message = slot_of(outbox, outbox->base);
    if (!harp_chunks_complete(&message->done))
        return NULL;
    if (outbox->cursor == outbox->base)
        outbox->cursor++;
    outbox->lost -= message->lost;
    mark_lost(outbox, outbox->base, false);
    outbox->base++;
    return message;
}
