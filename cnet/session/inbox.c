#include "session/inbox.h"

#include <assert.h>
#include <stddef.h>
#include <string.h>

#include "base/sequence.h"

size_t harp_inbox_bytes(uint16_t messages, uint16_t words)
{
    return messages * (sizeof(struct harp_incoming) + words * sizeof(uint64_t));
}

void harp_inbox_init(struct harp_inbox *inbox, void *memory, uint16_t messages, uint16_t words,
                     uint32_t first, uint16_t segment)
{
    memset(inbox, 0, sizeof *inbox);
    inbox->slots = memory;
    inbox->slots_n = messages;
    inbox->segment = segment;
    inbox->base = inbox->posted = inbox->complete = first;
    memset(inbox->slots, 0, messages * sizeof *inbox->slots);
    uint64_t *ring = (uint64_t *)(inbox->slots + messages);
    for (uint32_t i = 0; i < messages; i++, ring += words)
        harp_chunks_init(&inbox->slots[i].got, ring, words);
}

struct harp_incoming *harp_inbox_slot(struct harp_inbox *inbox, uint32_t message)
{
    return &inbox->slots[message & (inbox->slots_n - 1)];
}

bool harp_inbox_has_room(const struct harp_inbox *inbox)
{
    return inbox->posted - inbox->base < inbox->slots_n;
}

void harp_inbox_stream(struct harp_inbox *inbox, uint32_t frames)
{
    inbox->streamed = true;
    inbox->lent = inbox->frames = frames;
    inbox->posted = inbox->base + inbox->slots_n;
}

void harp_inbox_returned(struct harp_inbox *inbox, uint32_t frames)
{
    assert(inbox->streamed && inbox->lent + frames - inbox->placed <= inbox->frames);
    inbox->lent += frames;
}

static void start_message(struct harp_inbox *inbox, struct harp_incoming *slot, uint32_t size)
{
    slot->started = true;
    slot->size = size;
    harp_chunks_start(&slot->got, harp_chunks_of(size, inbox->segment));
}

int harp_inbox_post(struct harp_inbox *inbox, uint8_t *buffer, uint32_t capacity, uint64_t context,
                    bool *too_long)
{
    assert(harp_inbox_has_room(inbox));
    uint32_t number = inbox->posted;
    struct harp_incoming *slot = harp_inbox_slot(inbox, number);
    struct harp_eager *eager = &inbox->eager[number % HARP_EAGER];
    bool early = eager->full && eager->message == number;
    *too_long = early && eager->size > capacity;
    if (*too_long)
        return -1;
    slot->buffer = buffer;
    slot->context = context;
    slot->capacity = capacity;
    slot->started = false;
    inbox->posted++;
    inbox->posted_bytes += capacity;
    if (!early)
        return -1;
    start_message(inbox, slot, eager->size);
    harp_chunks_add(&slot->got, 0);
    eager->full = false;
    return (int)(number % HARP_EAGER);
}

/* Whether offset, length and size are those of one chunk of a message. */
static bool is_chunk(const struct harp_inbox *inbox, const struct harp_header *header)
{
    if (header->size > HARP_MESSAGE_MAX || header->offset % inbox->segment != 0)
        return false;
    if (header->offset >= header->size && header->offset != 0)
        return false;
    return header->length == harp_min(inbox->segment, header->size - header->offset);
}

/* More chunks than frames were lent come only from a sender that passes over its credit. */
static enum harp_fit fit_new(const struct harp_inbox *inbox)
{
    if (!inbox->streamed)
        return HARP_FIT_BUFFER;
    return inbox->placed != inbox->lent ? HARP_FIT_STREAM : HARP_FIT_BROKEN;
}

static enum harp_fit fit_eager(const struct harp_inbox *inbox, const struct harp_header *header)
{
    const struct harp_eager *eager = &inbox->eager[header->message % HARP_EAGER];
    if (!harp_before(header->message, inbox->posted + HARP_EAGER) || header->size > inbox->segment)
        return HARP_FIT_BROKEN;
    if (!eager->full)
        return HARP_FIT_EAGER;
    assert(eager->message == header->message);
    return eager->size == header->size ? HARP_FIT_DUPLICATE : HARP_FIT_BROKEN;
}

enum harp_fit harp_inbox_fit(const struct harp_inbox *inbox, const struct harp_header *header)
{
    if (!is_chunk(inbox, header))
        return HARP_FIT_BROKEN;
    if (harp_before(header->message, inbox->base))
        return HARP_FIT_DUPLICATE;
    if (!harp_before(header->message, inbox->posted))
        return inbox->streamed ? HARP_FIT_BROKEN : fit_eager(inbox, header);
    const struct harp_incoming *slot = &inbox->slots[header->message & (inbox->slots_n - 1)];
    uint32_t chunk = header->offset / inbox->segment;
    if (!slot->started && !inbox->streamed && header->size > slot->capacity)
        return HARP_FIT_TOO_LONG;
    if (slot->started && slot->size != header->size)
        return HARP_FIT_BROKEN;
    uint32_t low = slot->started ? slot->got.low : 0;
    if (chunk >= low + HARP_CHUNK_WINDOW)
        return HARP_FIT_BROKEN;
    if (chunk >= low + 64u * slot->got.words)
        return HARP_FIT_BEYOND;
    return slot->started && harp_chunks_has(&slot->got, chunk) ? HARP_FIT_DUPLICATE
                                                               : fit_new(inbox);
}

bool harp_inbox_placed(struct harp_inbox *inbox, const struct harp_header *header,
                       enum harp_fit fit)
{
    if (fit == HARP_FIT_EAGER) {
        inbox->eager[header->message % HARP_EAGER] =
            (struct harp_eager){.message = header->message, .size = header->size, .full = true};
        inbox->complete++;
        return true;
    }
    assert(fit == HARP_FIT_BUFFER || fit == HARP_FIT_STREAM);
    inbox->placed += inbox->streamed;
    struct harp_incoming *slot = harp_inbox_slot(inbox, header->message);
    if (!slot->started)
        start_message(inbox, slot, header->size);
    harp_chunks_add(&slot->got, header->offset / inbox->segment);
    bool complete = harp_chunks_complete(&slot->got);
    inbox->complete += complete;
    return complete;
}

const struct harp_incoming *harp_inbox_pop(struct harp_inbox *inbox)
{
    if (inbox->base == inbox->posted)
        return NULL;
    struct harp_incoming *slot = harp_inbox_slot(inbox, inbox->base);
    if (!slot->started || !harp_chunks_complete(&slot->got))
        return NULL;
    inbox->base++;
    if (inbox->streamed) {
        slot->started = false; /* its ring place is the next message's at once */
        inbox->posted++;
    }
    return slot;
}
