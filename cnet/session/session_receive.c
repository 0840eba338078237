#include <assert.h>

#include "session/fragment.h"
#include "session/session_state.h"

/* Whether a frame is for this connection in its present life. */
static bool is_for_connection(const struct harp_session *session, const struct harp_header *header)
{
    if (!session->agreed.known || header->connection != session->config.connection)
        return false;
    if (header->epoch != session->config.epoch)
        return false;
    return header->path < session->agreed.paths_n;
}

/* A frame under the connection's own keys: the listening end now knows that its ACCEPT arrived. */
static void confirm_connection(struct harp_session *session)
{
    if (session->state != HARP_ACCEPTING)
        return;
    session->state = HARP_OPEN;
    session->to_report.connected = true;
    harp_session_hears(session);
    session->liveness.keep_at_ns =
        session->now_ns + harp_session_spread_ns(session, harp_session_quiet_ns(session) / 2);
    if (session->handshake.answer_path < session->agreed.paths_n) {
        session->liveness.heard_path = session->handshake.answer_path;
        harp_session_path_heard(session, session->handshake.answer_path); /* FIRST came there */
    }
}

static void count_arrival(struct harp_session *session, const struct harp_header *header)
{
    struct harp_path *path = &session->paths[header->path];
    harp_session_wake(session, header->path);
    harp_path_arrived(path, harp_session_number(session, header), session->clock.came_ns,
                      session->now_ns, session->config.ack.every,
                      session->config.loss.ack_delay_ns);
    harp_session_hears(session);
    session->liveness.heard_path = header->path;
}

uint8_t *harp_session_where(const struct harp_session *session, const struct harp_header *header)
{
    bool open = session->state == HARP_OPEN || session->state == HARP_ACCEPTING;
    if (!open || header->flags || session->reassembly.busy || !is_for_connection(session, header) ||
        harp_sack_has(&session->paths[header->path].sack, harp_session_number(session, header)) ||
        harp_inbox_fit(&session->inbox, header) != HARP_FIT_BUFFER)
        return NULL;
    const struct harp_incoming *slot =
        &session->inbox.slots[header->message & (session->inbox.slots_n - 1)];
    return slot->buffer ? slot->buffer + header->offset : NULL;
}

static enum harp_verdict take_probe(struct harp_session *session, const struct harp_header *header)
{
    count_arrival(session, header);
    session->paths[header->path].ack.now = true;
    return HARP_TAKEN;
}

static enum harp_verdict place_into(struct harp_session *session, const struct harp_header *header,
                                    const struct harp_header *chunk, enum harp_fit fit,
                                    struct harp_place *place)
{
    session->placing.pending = true;
    session->placing.fit = fit;
    session->placing.header = *chunk;
    *place = (struct harp_place){.offset = header->offset, .entry = -1, .eager = -1};
    if (fit == HARP_FIT_STREAM) {
        place->streamed = true;
        place->offset = chunk->offset;
    } else if (fit == HARP_FIT_EAGER) {
        place->eager = (int)(header->message % HARP_EAGER);
    } else {
        place->buffer = harp_inbox_slot(&session->inbox, header->message)->buffer;
    }
    return HARP_PLACE;
}

/* Frames that are lent, and that chunks in fragments are put together in, are no more than there
 * are. */
static bool has_frame(const struct harp_session *session, int entry)
{
    const struct harp_inbox *inbox = &session->inbox;
    return entry >= 0 || inbox->lent - inbox->placed > harp_reassembly_count(&session->reassembly);
}

/* Add a frame to the entry of its chunk. False if it is there already. */
static bool add_to_entry(struct harp_session *session, const struct harp_header *header,
                         const struct harp_header *chunk, int entry)
{
    uint8_t fragments = header->flags ? header->flags : 1;
    uint32_t step = harp_fragment_bytes(session->agreed.segment, fragments);
    uint64_t all = UINT64_MAX >> (63 - (chunk->length - 1u) / step);
    uint64_t come = session->reassembly.entries[entry].come;
    session->placing.entry = entry;
    session->placing.come = come | UINT64_C(1) << (header->offset - chunk->offset) / step;
    session->placing.completes = session->placing.come == all;
    return session->placing.come != come;
}

/* A fragment, or a chunk in one frame while fragments of some have come. */
static enum harp_verdict place_in_entry(struct harp_session *session,
                                        const struct harp_header *header,
                                        const struct harp_header *chunk, enum harp_fit fit,
                                        struct harp_place *place)
{
    struct harp_reassembly *table = &session->reassembly;
    uint32_t number = chunk->offset / session->agreed.segment;
    int entry = harp_reassembly_find(table, header->message, number);
    bool contradicts = entry >= 0 && table->entries[entry].size != header->size;
    if (contradicts || (fit == HARP_FIT_STREAM && !has_frame(session, entry))) {
        harp_session_part(session, HARP_REASON_PROTOCOL);
        return HARP_DROP;
    }
    if (entry < 0 && !header->flags)
        return place_into(session, header, chunk, fit, place);
    entry = harp_reassembly_begin(table, chunk, number, header->flags ? header->flags : 1);
    if (!add_to_entry(session, header, chunk, entry)) {
        session->counters.duplicates++;
        return HARP_DROP;
    }
    place_into(session, header, chunk, fit, place);
    place->entry = entry;
    place->within = header->offset - chunk->offset;
    place->completes = session->placing.completes;
    place->chunk_bytes = chunk->length;
    return HARP_PLACE;
}

static enum harp_verdict take_data(struct harp_session *session, const struct harp_header *header,
                                   struct harp_place *place)
{
    struct harp_header whole;
    const struct harp_header *chunk = header;
    enum harp_fit fit = HARP_FIT_BROKEN;
    if (header->flags)
        chunk = harp_fragment_chunk(header, session->agreed.segment, &whole) ? &whole : NULL;
    if (chunk)
        fit = harp_inbox_fit(&session->inbox, chunk);
    switch (fit) {
    case HARP_FIT_BUFFER:
    case HARP_FIT_STREAM:
    case HARP_FIT_EAGER:
        session->placing.entry = -1;
        if (header->flags || session->reassembly.busy)
            return place_in_entry(session, header, chunk, fit, place);
        return place_into(session, header, chunk, fit, place);
    case HARP_FIT_DUPLICATE:
        session->counters.duplicates++;
        count_arrival(session, header);
        return HARP_DROP;
    case HARP_FIT_BEYOND:
        return HARP_DROP;
    case HARP_FIT_TOO_LONG:
        harp_session_part(session, HARP_REASON_TOO_LONG);
        return HARP_DROP;
    case HARP_FIT_BROKEN:
        break;
    }
    harp_session_part(session, HARP_REASON_PROTOCOL);
    return HARP_DROP;
}

/* DATA and PROBE: numbered, so that one that was there before is known by its number. */
static enum harp_verdict take_numbered(struct harp_session *session,
                                       const struct harp_header *header, bool marked,
                                       struct harp_place *place)
{
    struct harp_path *path = &session->paths[header->path];
    if (harp_sack_has(&path->sack, harp_session_number(session, header))) {
        session->counters.duplicates++;
        return HARP_DROP;
    }
    path->marked += marked && !header->flags;
    session->placing.marked = marked && header->flags; /* a packet counts once */
    return header->type == HARP_PROBE ? take_probe(session, header)
                                      : take_data(session, header, place);
}

enum harp_verdict harp_session_receive(struct harp_session *session, uint64_t now_ns,
                                       uint64_t waited_ns, const struct harp_header *header,
                                       const uint8_t *body, bool marked, struct harp_place *place)
{
    harp_session_clock(session, now_ns);
    session->clock.came_ns = session->now_ns - harp_min(waited_ns, session->now_ns);
    if (header->type <= HARP_ACCEPT || header->type == HARP_VERSION_NOTICE)
        return harp_session_take_handshake(session, header, body);
    if (!is_for_connection(session, header)) {
        session->counters.strangers++;
        return HARP_DROP;
    }
    if (header->type == HARP_CLOSE)
        return harp_session_take_close(session, header, body);
    if (session->state > HARP_OPEN)
        return HARP_DROP;
    confirm_connection(session);
    if (header->type == HARP_ACK)
        return harp_session_take_ack(session, header, body);
    if (!session->path_state[header->path].heard)
        harp_session_path_heard(session, header->path);
    if (header->type == HARP_DATA || header->type == HARP_PROBE)
        return take_numbered(session, header, marked, place);
    session->counters.strangers++;
    return HARP_DROP;
}

/* The frame adds to what has come of its chunk. Whether that is whole now. */
static bool complete_entry(struct harp_session *session)
{
    struct harp_reassembly_entry *entry = &session->reassembly.entries[session->placing.entry];
    entry->come = session->placing.come;
    entry->marked |= session->placing.marked;
    if (!session->placing.completes)
        return false;
    session->paths[session->placing.header.path].marked += entry->marked;
    harp_reassembly_end(&session->reassembly, session->placing.entry);
    return true;
}

void harp_session_placed(struct harp_session *session, bool holds)
{
    assert(session->placing.pending);
    session->placing.pending = false;
    const struct harp_header *header = &session->placing.header;
    if (!holds) {
        session->counters.bad_payloads++;
        session->path_state[header->path].bad_payloads++;
        return;
    }
    if (session->placing.entry >= 0 && !complete_entry(session))
        return;
    session->counters.placed++;
    session->placed_ns = session->now_ns;
    count_arrival(session, header);
    struct harp_path *path = &session->paths[header->path];
    if (!harp_inbox_placed(&session->inbox, header, session->placing.fit))
        return;
    session->ack.patient =
        session->config.ack.patient_bytes && header->size <= session->config.ack.patient_bytes;
    uint64_t soon_ns =
        session->ack.patient ? session->config.ack.patient_ns : session->config.ack.soon_ns;
    uint64_t latest_ns = session->config.ack.after_last ? path->ack.latest_ns : path->ack.at_ns;
    path->ack.at_ns = harp_min(latest_ns, session->now_ns + soon_ns);
    if (session->ack.goes_quiet && !harp_before(session->inbox.complete, session->inbox.posted)) {
        path->ack.now = true;
        session->ack.at_once_ns = session->now_ns;
    }
}
