/* Outbox: messages to be sent.
 *
 * A ring of messages by number, 256 at most. States of a chunk:
 *
 *     harp_outbox_add        take                     acknowledged
 *    ---------------> WAITING ----> IN FLIGHT -------------------------> DONE
 *                        ^              | its packet counts as lost       ^
 *                        |              v                                 |
 *                        +--take-- TO SEND AGAIN --- acknowledged late ---+
 *
 *    base      cursor             credit     credit + 8         end
 *     | in flight | may be sent     | small ones | wait for credit |
 *
 * Lost chunks go before new ones, older messages before younger: messages are reported in order, so
 * the oldest holds up the rest. A message is done when all of its chunks are, and is reported
 * (popped) only after all before it; until then its buffer must not change.
 *
 * Credit is a number: messages before it are posted at the far end. Of those after it, the next
 * HARP_EAGER may be sent if they have one chunk only; the far end has no room for more.
 *
 * A peer that receives streamed lends frames instead of posting buffers. Then chunks have numbers
 * too, counted over all messages, and one may be sent if its message is below `credit` and its own
 * number below `chunk_credit`; nothing goes ahead of either.
 *
 * Owner: the session; rings of bits lie in the session's memory. No function allocates.
 */
#ifndef HARP_OUTBOX_H
#define HARP_OUTBOX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/chunks.h"

/* cdef: begin */
#define HARP_MESSAGES 256 /* in flight each way, at most */
/* cdef: end */
#define HARP_EAGER 8 /* small messages that may be sent before there is credit */

struct harp_outgoing {
    const uint8_t *buffer;        /* NULL if scattered, or simulated without payload */
    const uint8_t *const *chunks; /* scattered: where each chunk lies; else NULL */
    uint64_t context;             /* the application's */
    uint64_t through;             /* bytes of all messages up to and including this one */
    uint32_t size;
    uint32_t first_chunk; /* number of its first chunk, counted over all messages */
    uint32_t next;        /* first chunk that was never sent */
    uint32_t lost;        /* chunks to send again */
    struct harp_chunks done;
    uint64_t *lost_ring; /* which, by the same window as `done` */
    bool lost_clear;     /* that ring was cleared once; with `lost` 0 it is all zero since */
};

struct harp_outbox {
    struct harp_outgoing *slots;
    uint16_t slots_n;
    uint16_t segment;
    bool streamed;         /* the peer receives streamed */
    uint32_t base;         /* oldest message that was not reported */
    uint32_t end;          /* number of the next message */
    uint32_t cursor;       /* all messages before it have been sent once, whole */
    uint64_t credit;       /* messages and chunks below may be sent; in 64 bits, */
    uint64_t chunk_credit; /* so that old news never looks new; the latter if streamed */
    uint32_t chunk_end;    /* number of the next message's first chunk */
    uint32_t lost;         /* chunks to send again, all messages together */
    uint64_t lost_map[HARP_MESSAGES / 64]; /* by number modulo HARP_MESSAGES: whether it has any */
    uint64_t total_bytes;
};

/* The next thing to send. */
struct harp_pick {
    uint32_t message;
    uint32_t chunk;
    uint32_t offset;
    uint32_t size; /* of the message */
    uint16_t length;
    bool again;
    const uint8_t *payload; /* NULL without payload */
};

/* Memory for up to `messages` open at once, each with a window of 64 * `words` chunks; both powers
 * of two. */
size_t harp_outbox_bytes(uint16_t messages, uint16_t words);

/* `memory` has as many bytes; the first message will have number `first`. */
void harp_outbox_init(struct harp_outbox *outbox, void *memory, uint16_t messages, uint16_t words,
                      uint32_t first, uint16_t segment);

/* The peer receives streamed and lends `frames` to begin with. Chunks count from `first`. */
void harp_outbox_stream(struct harp_outbox *outbox, uint32_t frames);

/* Queue a message; `buffer` or `chunks` is not NULL unless there is no payload; false
 * while as many are open as there is room for. */
bool harp_outbox_add(struct harp_outbox *outbox, const uint8_t *buffer,
                     const uint8_t *const *chunks, uint32_t size, uint64_t context);

/* The chunk to be sent next; false if none may be. Changes nothing but the cursor. */
bool harp_outbox_pick(struct harp_outbox *outbox, struct harp_pick *pick);

/* The picked chunk is in flight. */
void harp_outbox_take(struct harp_outbox *outbox, const struct harp_pick *pick);

/* Describe a chunk that was taken before, to send it once more (tail-loss probe); false if it has
 * been acknowledged in the meantime. */
bool harp_outbox_repeat(struct harp_outbox *outbox, uint32_t message, uint32_t chunk,
                        struct harp_pick *pick);

void harp_outbox_acked(struct harp_outbox *outbox, uint32_t message, uint32_t chunk);
void harp_outbox_lost(struct harp_outbox *outbox, uint32_t message, uint32_t chunk);

/* Take harp_outbox_lost back: the chunk is still on its way. False if that comes too late, since it
 * has been acknowledged or is sent again. */
bool harp_outbox_found(struct harp_outbox *outbox, uint32_t message, uint32_t chunk);

/* New credit, in chunks only if the peer receives streamed; older news is passed over. True if it
 * was new. */
bool harp_outbox_credit(struct harp_outbox *outbox, uint64_t credit, uint64_t chunk_credit);

/* Posted: bytes of all messages before `credit` that were queued: more than the far end has posted
 * for them means that one is longer than its buffer. */
uint64_t harp_outbox_bytes_before(const struct harp_outbox *outbox, uint32_t credit);

/* Whether messages wait for credit and for nothing else. */
bool harp_outbox_starved(struct harp_outbox *outbox);

/* The oldest message, number `base`, if it is done, which then leaves; NULL otherwise. Its slot
 * stays readable until the next harp_outbox_add. */
const struct harp_outgoing *harp_outbox_pop(struct harp_outbox *outbox);

#endif
