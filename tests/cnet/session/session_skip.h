/* Two ends of a connection as they would be many packets and messages later.
 *
 * Numbers wrap after 2^31 and 2^32 packets or messages, which no test can send. All numbers of
 * a path are compared with one another only, so moving all of them at both ends by the same
 * distance has the effect of sending them. Frames on their way belong to the past afterwards. */
#ifndef SESSION_SKIP_H
#define SESSION_SKIP_H

#include <assert.h>

#include "session/session_state.h"

static inline void skip_packets_of_path(struct harp_path *path, uint64_t packets)
{
    for (uint64_t packet = path->sent.tail; packet != path->sent.next; packet++)
        path->sent.slots[packet & (path->sent.slots_n - 1)].packet += packets;
    path->sent.tail += packets;
    path->sent.next += packets;
    path->episode.end += packets;
    path->loss.rack_packet += packets;
    path->sack.largest += packets;
    path->ack.fresh += packets;
    for (uint32_t i = 0; i < HARP_PATH_REPEATS; i++)
        path->ack.reported[i] += packets;
}

/* Move one end by `packets`, a multiple of 1,024, on every path; then move the other. */
static inline void skip_packets(struct harp_session *session, uint64_t packets)
{
    assert(packets % HARP_SENT_SLOTS == 0 && session->agreed.known);
    for (uint32_t p = 0; p < session->agreed.paths_n; p++) {
        skip_packets_of_path(&session->paths[p], packets);
        session->path_state[p].flag_largest += packets;
    }
}

/* The same for messages, a multiple of 256, while none is under way in either direction. */
static inline void skip_messages(struct harp_session *session, uint64_t messages)
{
    struct harp_outbox *out = &session->outbox;
    struct harp_inbox *in = &session->inbox;
    uint32_t by = (uint32_t)messages;
    assert(messages % HARP_MESSAGES == 0 && out->base == out->end && in->base == in->complete);
    out->base += by, out->end += by, out->cursor += by, out->chunk_end += by;
    out->credit += messages, out->chunk_credit += messages;
    in->base += by, in->complete += by, in->posted += by;
    in->lent += by, in->placed += by;
    session->credit.granted_messages += messages, session->credit.granted_frames += messages;
}

#endif
