#include <assert.h>

#include "session/fragment.h"
#include "session/session_state.h"

/* Frames that go the same way in a row, so that segmentation offload has work: what a super-packet
 * holds at an MTU of 1500; but no more than a quarter of the window. */
#define BURST 44
/* Most bytes of a burst over a port that holds back: four frames of 64 KiB, which leave as one.
 * Both ends find them in their caches once the CRC has been made, and a slow path is not in for
 * much. */
#define HELD_BURST_BYTES 262144u

/* Give the next number of its path to a packet. */
static struct harp_sent *number_packet(struct harp_session *session, uint8_t path, uint32_t bytes,
                                       uint16_t longest)
{
    struct harp_path *on = &session->paths[path];
    struct harp_sent *sent = harp_sent_add(&on->sent, session->now_ns, bytes, longest);
    if (on->sent.in_flight == 1)
        harp_service_begin(&on->service, session->now_ns);
    harp_loss_sent(&on->loss, session->now_ns);
    harp_session_wake(session, path);
    return sent;
}

static void write_number(struct harp_frame *frame, uint64_t packet)
{
    frame->header.packet = (uint32_t)packet;
    frame->lap = (uint32_t)(packet >> 32) & HARP_LAP_MAX;
}

static void write_data(const struct harp_session *session, struct harp_frame *frame, uint8_t path,
                       const struct harp_pick *pick, uint64_t packet)
{
    harp_session_header(session, frame, HARP_DATA, path);
    write_number(frame, packet);
    frame->header.message = pick->message;
    frame->header.offset = pick->offset;
    frame->header.size = pick->size;
    frame->header.length = pick->length;
    frame->payload = pick->payload;
    frame->again = pick->again;
}

/* One fragment. Its chunk may have been acknowledged meanwhile, or the packet given up: then it is
 * of no use. */
static size_t write_fragment(struct harp_session *session, struct harp_frame *frame, uint16_t step)
{
    const struct harp_cut *cut = &session->sending.cut;
    uint64_t packet = cut->packet + cut->next;
    const struct harp_sent *sent = harp_sent_at(&session->paths[cut->path].sent, packet);
    struct harp_pick pick;
    if (!sent || sent->state != HARP_IN_FLIGHT ||
        !harp_outbox_repeat(&session->outbox, sent->message, sent->chunk, &pick))
        return 0;
    write_data(session, frame, cut->path, &pick, packet);
    frame->again = cut->again >> cut->next & 1;
    frame->header.flags = cut->fragments;
    frame->header.offset += cut->at;
    frame->header.length = (uint16_t)harp_min(step, pick.length - cut->at);
    if (frame->payload)
        frame->payload += cut->at;
    return 1;
}

/* Fragments of the packets that are being cut, as many as there is room for. */
static size_t send_fragments(struct harp_session *session, struct harp_frame *frames, size_t room)
{
    struct harp_cut *cut = &session->sending.cut;
    size_t n = 0;
    while (cut->packets_n && n < room) {
        uint16_t step = harp_fragment_bytes(session->agreed.segment, cut->fragments);
        n += write_fragment(session, &frames[n], step);
        if (++cut->next < cut->packets_n)
            continue;
        cut->next = 0;
        cut->at += step;
        if (cut->at >= cut->length)
            cut->packets_n = 0;
    }
    return n;
}

static void cut_packet(struct harp_session *session, uint8_t path, const struct harp_pick *pick,
                       uint64_t packet)
{
    struct harp_cut *cut = &session->sending.cut;
    if (!cut->packets_n)
        *cut = (struct harp_cut){.packet = packet,
                                 .length = pick->length,
                                 .path = path,
                                 .fragments = session->path_state[path].pmtu.fragments};
    cut->again |= (uint64_t)pick->again << cut->packets_n;
    cut->packets_n++;
}

/* Whether what is being cut is enough for now: the far end has only so much room for chunks that
 * are not whole, all paths together. */
static bool has_cut_enough(const struct harp_session *session)
{
    uint32_t packets_n = session->sending.cut.packets_n;
    return packets_n && packets_n * session->agreed.paths_n >= HARP_REASSEMBLIES / 2;
}

/* A packet with a chunk: it is written in one frame, or waits to be cut. Returns how many frames it
 * makes. */
static uint32_t send_chunk(struct harp_session *session, struct harp_frame *frame, uint8_t path,
                           const struct harp_pick *pick)
{
    uint8_t fragments = session->path_state[path].pmtu.fragments;
    uint16_t step = session->agreed.segment;
    if (fragments > 1)
        step = harp_fragment_bytes(session->agreed.segment, fragments);
    uint32_t frames_n = pick->length > step ? (pick->length - 1u) / step + 1 : 1;
    struct harp_sent *sent =
        number_packet(session, path, frames_n * HARP_HEADER_BYTES + pick->length,
                      (uint16_t)(HARP_HEADER_BYTES + harp_min(step, pick->length)));
    sent->message = pick->message;
    sent->chunk = pick->chunk;
    session->counters.data_sent++;
    session->counters.data_again += pick->again;
    if (frames_n == 1)
        write_data(session, frame, path, pick, sent->packet);
    else
        cut_packet(session, path, pick, sent->packet);
    return frames_n;
}

/* The youngest chunk in flight on this path; sending it once more may repair the loss of the tail,
 * and its ACK covers all before. */
static bool find_tail(struct harp_session *session, struct harp_path *path, struct harp_pick *pick)
{
    for (uint64_t packet = path->sent.next; packet != path->sent.tail;) {
        const struct harp_sent *sent = harp_sent_at(&path->sent, --packet);
        if (sent->state == HARP_IN_FLIGHT && !sent->probe)
            return harp_outbox_repeat(&session->outbox, sent->message, sent->chunk, pick);
    }
    return false;
}

static void write_probe(struct harp_session *session, struct harp_frame *frame, uint8_t path,
                        uint16_t padding)
{
    uint16_t bytes = (uint16_t)(HARP_HEADER_BYTES + padding);
    struct harp_sent *sent = number_packet(session, path, bytes, bytes);
    sent->probe = true;
    harp_session_header(session, frame, HARP_PROBE, path);
    write_number(frame, sent->packet);
    frame->header.length = padding;
}

static size_t send_size_probe(struct harp_session *session, struct harp_frame *frame, uint8_t path)
{
    struct harp_path_state *path_state = &session->path_state[path];
    if (path_state->size != HARP_SIZE_DUE || session->paths[path].dead ||
        !harp_sent_has_room(&session->paths[path].sent))
        return 0;
    write_probe(session, frame, path, (uint16_t)(path_state->size_bytes - HARP_HEADER_BYTES));
    path_state->size = HARP_SIZE_IN_FLIGHT;
    return 1;
}

static size_t send_probes(struct harp_session *session, struct harp_frame *frames, size_t room)
{
    size_t n = 0;
    for (uint64_t set = session->awake; set && n < room;) {
        uint8_t p = harp_session_next_path(&set);
        struct harp_path *path = &session->paths[p];
        struct harp_pick pick;
        n += send_size_probe(session, &frames[n], p);
        if (n == room)
            break;
        if (path->probe.due == HARP_PROBE_NONE || !harp_sent_has_room(&path->sent))
            continue;
        bool confirming = session->path_state[p].pmtu.state == HARP_PMTU_CONFIRMING;
        if (path->probe.due == HARP_PROBE_TAIL && !confirming && find_tail(session, path, &pick)) {
            bool whole = send_chunk(session, &frames[n], p, &pick) == 1;
            n += whole ? 1 : send_fragments(session, frames + n, room - n);
        } else {
            write_probe(session, &frames[n++], p, 0);
        }
        path->probe.due = HARP_PROBE_NONE;
    }
    return n;
}

/* Bytes of a burst on one of several paths where ports hold back: each path's part of half of what
 * is left of the message. So bursts become shorter towards its end, and no path is done long before
 * the others, though some are slower (factoring: Hummel, Schonberg and Flynn, Communications of the
 * ACM 35(8), 1992). Elsewhere a frame's: the window bounds bursts. */
static uint32_t share_of_path(const struct harp_session *session, const struct harp_pick *pick)
{
    uint32_t frame_bytes = HARP_HEADER_BYTES + (uint32_t)pick->length;
    if (session->config.cc->follows_path)
        return frame_bytes;
    uint32_t share = (pick->size - pick->offset) / (2u * session->agreed.paths_n);
    return (uint32_t)harp_max(frame_bytes, harp_min(share, HELD_BURST_BYTES));
}

/* Chunks of one length in a row on one path, as far as its window goes. */
static size_t send_burst(struct harp_session *session, uint8_t number_of_path, uint32_t share,
                         struct harp_frame *frames, size_t room)
{
    struct harp_path *path = &session->paths[number_of_path];
    uint64_t window_bytes = path->cc.ops->window_bytes(&path->cc);
    struct harp_pick pick;
    size_t n = 0, most = harp_min(room, BURST);
    uint64_t bytes = 0, most_bytes = window_bytes / 4;
    if (!path->cc.ops->follows_path && session->agreed.paths_n > 1)
        most_bytes = harp_min(most_bytes, share);
    uint16_t length = 0;
    while (n < most && !has_cut_enough(session) && harp_outbox_pick(&session->outbox, &pick)) {
        uint32_t frame_bytes = HARP_HEADER_BYTES + (uint32_t)pick.length;
        bool too_much = n && (pick.length != length || bytes + frame_bytes > most_bytes);
        if (too_much || !harp_path_has_room(path, frame_bytes))
            break;
        length = pick.length;
        harp_outbox_take(&session->outbox, &pick);
        n += send_chunk(session, &frames[n], number_of_path, &pick);
        bytes += frame_bytes;
    }
    if (session->sending.cut.packets_n)
        n = send_fragments(session, frames, room);
    if (!path->cc.ops->follows_path)
        return n; /* such a window over the round trip is no rate to pace by */
    uint64_t rtt_ns = harp_rtt_smoothed_ns(&path->rtt) + path->rtt.host_x8_ns / 8;
    harp_pacer_spend(&path->pacer, session->now_ns, bytes, window_bytes,
                     harp_rtt_known(&path->rtt) ? rtt_ns : 0);
    return n;
}

static size_t send_data(struct harp_session *session, struct harp_frame *frames, size_t room)
{
    size_t n = 0;
    struct harp_pick pick;
    session->sending.pacer_at_ns = HARP_NEVER;
    while (n < room && harp_outbox_pick(&session->outbox, &pick)) {
        uint32_t share = share_of_path(session, &pick);
        int path = harp_path_choose(
            session->paths, session->agreed.paths_n, HARP_HEADER_BYTES + (uint32_t)pick.length,
            share, session->now_ns, &session->sending.random, &session->sending.pacer_at_ns);
        if (path < 0)
            return n;
        n += send_burst(session, (uint8_t)path, share, frames + n, room - n);
    }
    session->sending.pacer_at_ns = HARP_NEVER;
    return n;
}

size_t harp_session_send(struct harp_session *session, uint64_t now_ns, struct harp_frame *frames,
                         size_t room)
{
    harp_session_clock(session, now_ns);
    session->clock.asked_ns = HARP_NEVER;
    harp_session_timers(session);
    if (room == 0)
        return 0;
    size_t n = 0;
    if (session->state == HARP_CLOSING) /* the peer learns what arrived before it learns the end */
        n = harp_session_send_acks(session, frames, room - 1);
    n += harp_session_send_handshake(session, frames + n);
    if (session->state != HARP_OPEN)
        return n;
    n += send_fragments(session, frames + n, room - n);
    n += harp_session_send_acks(session, frames + n, room - n);
    n += send_probes(session, frames + n, room - n);
    n += send_data(session, frames + n, room - n);
    assert(n <= room);
    return n;
}
