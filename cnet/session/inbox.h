/* Inbox: messages that arrive.
 *
 * The application posts a buffer per message, in order: the n-th buffer takes the n-th message. A
 * ring of them by message number, 256 at most, and HARP_EAGER slots beside for small messages that
 * come before their buffer is posted.
 *
 *        base                    posted            posted + 8
 *  reported | buffers, to be filled | eager slots      | nobody sends here
 *
 *               post                first chunk              last chunk           pop
 *  (unknown) ----------> POSTED ---------------> FILLING ------------> COMPLETE -----> (gone)
 *      |                                                                  ^
 *      |  whole message, one chunk                post                    |
 *      +---------------------------> EAGER ------------------------------ +
 *                                         the caller copies slot to buffer
 *
 * Or the inbox is streamed. Then nothing is posted and there are no eager slots: each chunk stays
 * in its frame, the application holds up to `lent` frames, and 256 messages from `base` on may
 * come.
 *
 * Memory of the eager slots is the caller's, HARP_EAGER slots of one segment each; message n uses
 * slot n mod HARP_EAGER, which is free whenever n is at most HARP_EAGER - 1 beyond what is posted.
 *
 * Owner: the session. No function allocates.
 */
#ifndef HARP_INBOX_H
#define HARP_INBOX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/chunks.h"
#include "session/outbox.h"
#include "wire/wire.h"

struct harp_incoming {
    uint8_t *buffer; /* NULL if the caller simulates without payload */
    uint64_t context;
    uint32_t capacity;
    uint32_t size; /* known from the first chunk on */
    bool started;
    struct harp_chunks got;
};

struct harp_eager {
    uint32_t message;
    uint32_t size;
    bool full;
};

struct harp_inbox {
    struct harp_incoming *slots;
    struct harp_eager eager[HARP_EAGER];
    uint16_t slots_n;
    uint16_t segment;
    uint32_t base;
    uint32_t
        complete;    /* how many messages have arrived whole, counted on from the first's number */
    uint32_t posted; /* streamed: base + slots_n */
    uint64_t posted_bytes;
    bool streamed;
    uint32_t frames; /* that can be lent at once */
    uint32_t lent;   /* frames lent since the beginning, returned ones counted again */
    uint32_t placed; /* of these, filled */
};

enum harp_fit {
    HARP_FIT_BUFFER,    /* belongs into a posted buffer */
    HARP_FIT_STREAM,    /* stays in its frame */
    HARP_FIT_EAGER,     /* belongs into an eager slot */
    HARP_FIT_DUPLICATE, /* is there already */
    HARP_FIT_TOO_LONG,  /* its message exceeds the posted buffer */
    HARP_FIT_BEYOND,    /* the sender may, but our ring does not reach so far: as if it were lost */
    HARP_FIT_BROKEN,    /* no sender that keeps the protocol sends this */
};

/* Memory for up to `messages` at once, each with a window of 64 * `words` chunks; both powers of
 * two. */
size_t harp_inbox_bytes(uint16_t messages, uint16_t words);

/* `memory` has as many bytes; the peer's first message has number `first`. */
void harp_inbox_init(struct harp_inbox *inbox, void *memory, uint16_t messages, uint16_t words,
                     uint32_t first, uint16_t segment);

/* Receive streamed from now on, with `frames` to lend, before anything has arrived. */
void harp_inbox_stream(struct harp_inbox *inbox, uint32_t frames);

/* `frames` that were filled are free again; no more than were filled and not returned. */
void harp_inbox_returned(struct harp_inbox *inbox, uint32_t frames);

/* Whether another buffer can be posted. */
bool harp_inbox_has_room(const struct harp_inbox *inbox);

/* Post the next buffer; there must be room. Returns the eager slot in which the message lies
 * already, to be copied to the buffer by the caller, or -1. A message in a slot that is longer than
 * `capacity` is not taken: then *too_long is set. */
int harp_inbox_post(struct harp_inbox *inbox, uint8_t *buffer, uint32_t capacity, uint64_t context,
                    bool *too_long);

/* Where the payload of this DATA header belongs. Changes nothing. */
enum harp_fit harp_inbox_fit(const struct harp_inbox *inbox, const struct harp_header *header);

/* The payload is in its place. True if that completed its message. */
bool harp_inbox_placed(struct harp_inbox *inbox, const struct harp_header *header,
                       enum harp_fit fit);

/* Posted buffer of a message. */
struct harp_incoming *harp_inbox_slot(struct harp_inbox *inbox, uint32_t message);

/* The oldest message, number `base`, if it is complete, which then leaves; NULL otherwise. */
const struct harp_incoming *harp_inbox_pop(struct harp_inbox *inbox);

#endif
