#include "end.h"

#include <stdlib.h>
#include <string.h>

#include "../cnet/session/session_skip.h"
#include "base/bytes.h"
#include "base/sequence.h"
#include "forge.h"
#include "virtual/session_ends.h"
#include "wire/crc32c.h"
#include "wire/seal.h"

static uint64_t clock_of(const struct dst_end *end, uint64_t now_ns)
{
    int64_t fast_ns = (int64_t)(now_ns / 1000) * end->clock.fast_ppm / 1000;
    return now_ns + (uint64_t)(end->clock.off_ns + fast_ns);
}

/* The first true time, from now on, at which the end's clock shows `own_ns` or more. */
static uint64_t true_time_of(const struct dst_end *end, uint64_t now_ns, uint64_t own_ns)
{
    if (own_ns == HARP_NEVER)
        return HARP_NEVER;
    uint64_t at_ns = now_ns;
    for (uint64_t shown_ns; (shown_ns = clock_of(end, at_ns)) < own_ns;)
        at_ns += own_ns - shown_ns - (own_ns - shown_ns) / 1024; /* clocks are never so fast */
    return at_ns;
}

const struct harp_key dst_secret = {UINT64_C(0x0123456789abcdef), UINT64_C(0xfedcba9876543210)};

static bool find_key(struct dst_end *end, uint8_t type, bool sending, struct harp_key *key)
{
    return dst_keys_find(&end->keys, &end->config, end->session, type, sending, key);
}

void dst_end_start(struct dst_end *end, uint64_t now_ns)
{
    dst_app_start(&end->app, end->config.segment);
    end->wake_ns = HARP_NEVER;
    if (end->side == 0) {
        end->session = virtual_session_connect(&end->config, clock_of(end, now_ns));
        end->wake_ns = now_ns;
    }
}

void dst_end_stop(struct dst_end *end)
{
    free(end->session);
    end->session = NULL;
    for (int i = 0; i < DST_STRANGERS; i++) {
        free(end->strangers[i].session);
        end->strangers[i].session = NULL;
    }
    dst_app_stop(&end->app);
    end->wake_ns = HARP_NEVER;
}

uint32_t dst_end_strangers(const struct dst_end *end)
{
    uint32_t n = 0;
    for (int i = 0; i < DST_STRANGERS; i++)
        n += end->strangers[i].session != NULL;
    return n;
}

uint64_t dst_end_state(const struct dst_end *end)
{
    uint64_t state = (uint64_t)dst_end_strangers(end) << 32;
    if (end->session)
        state += UINT64_C(1) << 40 |
                 harp_crc32c((const uint8_t *)end->session, harp_session_size(&end->config));
    return state;
}

/* Out -------------------------------------------------------------------------------------- */

static void seal_frame(struct dst_end *end, uint8_t *bytes, size_t bytes_n, uint32_t lap)
{
    struct harp_key key;
    if (!find_key(end, bytes[1], true, &key))
        key = harp_key_hello(&dst_secret, DST_LISTENER);
    size_t payload_n = bytes_n - HARP_HEADER_BYTES;
    harp_seal_known(&key, bytes, lap, harp_crc32c(bytes + HARP_HEADER_BYTES, payload_n));
}

/* The one change: first by somebody without the key, who comes before the frame, then of the frame
 * itself. */
static void change_field(struct dst_end *end, uint64_t now_ns, uint8_t *bytes, size_t bytes_n,
                         uint32_t lap)
{
    struct dst_malice *malice = &end->malice;
    if (!malice->field || malice->type != bytes[1] ||
        malice->change >= dst_changes_of(malice->field, bytes_n) || malice->count--)
        return;
    malice->changed = true;
    uint8_t forged[DST_FRAME_MAX];
    seal_frame(end, bytes, bytes_n, lap);
    memcpy(forged, bytes, bytes_n);
    dst_change(malice->field, malice->change, forged, bytes_n);
    bool data = bytes[1] == HARP_DATA;
    bool differs = memcmp(forged, bytes, data ? HARP_HEADER_BYTES : bytes_n) != 0;
    dst_link_inject(end->link, now_ns, end->peer->side, 0, 0, forged, bytes_n, differs);
    dst_change(malice->field, malice->change, bytes, bytes_n);
}

/* Changes by this end, or by a thief of its keys, to a frame before it is sealed. */
static void spoil_frame(struct dst_end *end, uint8_t *bytes, size_t bytes_n)
{
    struct dst_malice *malice = &end->malice;
    if (bytes[1] == HARP_ACK && virtual_chance(&end->random, malice->optimistic))
        bytes[17] += 9; /* largest + 9 * 256 */
    if (virtual_chance(&end->random, malice->tamper))
        dst_tamper(&end->random, bytes, bytes_n);
    if (malice->old && bytes[1] == HARP_FIRST)
        bytes[0]++;
}

/* The same frame as if from an earlier life of the same connection: its tag holds, its epoch is
 * past, its payload another. */
static void send_stale(struct dst_end *end, uint64_t now_ns, uint8_t path, const uint8_t *frame,
                       size_t bytes_n, uint32_t lap)
{
    uint8_t bytes[DST_FRAME_MAX];
    if (frame[1] < HARP_DATA || !end->keys.known)
        return;
    memcpy(bytes, frame, bytes_n);
    harp_store16(bytes + 12, (uint16_t)(harp_load16(bytes + 12) - 1));
    if (bytes[1] == HARP_DATA || bytes[1] == HARP_PROBE) {
        lap += harp_load32(bytes + 16) > UINT32_MAX - 40;
        harp_store32(bytes + 16, harp_load32(bytes + 16) + 40);
        memset(bytes + HARP_HEADER_BYTES, 0xee, bytes_n - HARP_HEADER_BYTES);
    }
    harp_seal(&end->keys.out, bytes, lap, bytes + HARP_HEADER_BYTES, bytes_n - HARP_HEADER_BYTES);
    dst_link_inject(end->link, now_ns + virtual_below(&end->random, 20000000), end->peer->side,
                    path, 0, bytes, bytes_n, false);
}

static size_t write_frame(const struct harp_frame *frame, uint8_t *bytes)
{
    size_t length = frame->header.length;
    harp_header_encode(&frame->header, bytes); /* asserts that docs/inside/wire.md allows it */
    memset(bytes + HARP_TAGGED_BYTES, 0, HARP_HEADER_BYTES - HARP_TAGGED_BYTES);
    uint8_t type = frame->header.type;
    const uint8_t *from = type == HARP_DATA ? frame->payload : frame->body;
    if (from && type != HARP_PROBE)
        memcpy(bytes + HARP_HEADER_BYTES, from, length);
    else
        memset(bytes + HARP_HEADER_BYTES, 0, length);
    return HARP_HEADER_BYTES + length;
}

/* The listening end learns where paths lead by what comes on them. */
static bool knows_way(const struct dst_end *end, uint8_t path)
{
    uint32_t agreed = (1u << harp_min(end->config.paths, end->peer->config.paths)) - 1;
    bool none = (end->heard_paths & agreed) == 0; /* FIRST came on one that is not in use */
    return !end->app.trusts || end->side == 0 || none || end->heard_paths >> path & 1;
}

static void transmit_frame(struct dst_end *end, uint64_t now_ns, const struct harp_frame *frame)
{
    uint8_t bytes[DST_FRAME_MAX];
    size_t bytes_n = write_frame(frame, bytes);
    if (end->side == 1 && !end->app.connected) {
        end->answered_bytes += bytes_n;
        DST_CHECK(end->answered_bytes <= end->heard_bytes, "answers outweigh requests",
                  end->answered_bytes, end->heard_bytes);
    }
    DST_CHECK(knows_way(end, frame->path), "sent on a path on which nothing has come", frame->path,
              frame->header.type);
    if (virtual_chance(&end->random, end->malice.stale))
        send_stale(end, now_ns, frame->path, bytes, bytes_n, frame->lap);
    spoil_frame(end, bytes, bytes_n);
    change_field(end, now_ns, bytes, bytes_n, frame->lap);
    /* ACCEPT goes back the way of FIRST, which may be any that the other end says. */
    seal_frame(end, bytes, bytes_n, frame->lap);
    dst_link_send(end->link, now_ns, end->peer->side, frame->path % DST_PATHS, bytes, bytes_n);
}

/* In --------------------------------------------------------------------------------------- */

/* Where the payload goes; NULL where the frame itself is lent, or without payloads. */
static uint8_t *target_of(struct dst_end *end, const struct harp_place *place)
{
    if (!end->app.payloads)
        return NULL;
    if (place->entry >= 0 && place->streamed)
        return end->assembling[place->entry] + place->within;
    if (place->eager >= 0)
        return end->app.eager[place->eager] + place->offset;
    return place->buffer ? place->buffer + place->offset : NULL;
}

static void place_payload(struct dst_end *end, uint64_t now_ns, const struct dst_flight *flight,
                          const struct harp_header *h, const struct harp_place *place)
{
    const uint8_t *payload = flight->bytes + HARP_HEADER_BYTES;
    uint8_t *to = target_of(end, place);
    uint32_t message = h->message - harp_session_peer(end->session)->first;
    dst_app_write(&end->app, message);
    bool holds;
    if (to && end->one_pass && place->eager < 0) {
        holds = harp_open_crc(flight->bytes, harp_crc32c_copy(to, payload, h->length));
    } else {
        holds = harp_open_payload(flight->bytes, payload, h->length);
        if (holds && to)
            memcpy(to, payload, h->length);
    }
    DST_CHECK(!holds || !flight->spoilt, "the CRC of a spoilt payload holds", h->message,
              h->offset);
    struct harp_header chunk = *h;
    if (place->entry >= 0) {
        chunk.offset -= place->within;
        chunk.length = place->chunk_bytes;
        payload = end->assembling[place->entry];
    }
    bool counts = holds && (place->entry < 0 || place->completes);
    if (counts)
        dst_app_placed(&end->app, &chunk, message);
    if (counts && place->streamed)
        dst_app_lend(&end->app, &chunk, message, payload, now_ns);
    harp_session_placed(end->session, holds);
}

static struct harp_from address_of(uint32_t from)
{
    struct harp_from address = {.port = (uint16_t)(1 + from)};
    harp_store32(address.address, from);
    return address;
}

/* A spoofed address gets one session while it is calm, and no more. */
static void welcome_stranger(struct dst_end *end, uint64_t now_ns, const struct dst_flight *flight,
                             const struct harp_parameters *first)
{
    int i = 0;
    while (i < DST_STRANGERS && end->strangers[i].session)
        i++;
    DST_CHECK(i < DST_STRANGERS && dst_end_strangers(end) < end->listener.calm,
              "a flood made more sessions than the listener allows", i, end->listener.calm);
    struct harp_session *session =
        virtual_session_make(&end->config, clock_of(end, now_ns), first, 0);
    end->strangers[i] = (struct dst_stranger){
        .session = session, .heard_bytes = flight->bytes_n, .wake_ns = now_ns};
    end->wake_ns = now_ns;
}

static void make_session(struct dst_end *end, uint64_t now_ns, uint8_t path,
                         const struct harp_parameters *first)
{
    bool expected = first->connection == end->peer->config.connection;
    if (end->app.trusts && !expected)
        return; /* a FIRST of an earlier life: its session would not concern this test */
    end->session = virtual_session_make(&end->config, clock_of(end, now_ns), first, path);
    end->wake_ns = now_ns;
}

/* A FIRST whose tag holds reaches the listening end. */
static void greet_first(struct dst_end *end, uint64_t now_ns, const struct dst_flight *flight,
                        const struct harp_header *header)
{
    const uint8_t *body = flight->bytes + HARP_HEADER_BYTES;
    struct harp_from from = address_of(flight->from);
    struct harp_parameters first;
    struct harp_frame answer;
    uint32_t half_open = dst_end_strangers(end) + (end->session && !end->app.connected);
    enum harp_welcome welcome = harp_listener_judge(&end->listener, now_ns, &from, half_open,
                                                    header, body, &first, &answer);
    if (welcome == HARP_WELCOME_COOKIE) {
        DST_CHECK(answer.header.length <= header->length, "a cookie outweighs its request",
                  answer.header.length, header->length);
        end->cookies += flight->from != 0;
        if (!flight->from)
            transmit_frame(end, now_ns, &answer);
    }
    if (welcome != HARP_WELCOME_MAKE || end->app.closed ||
        (now_ns >= end->memory_from_ns && now_ns < end->memory_to_ns))
        return;
    if (flight->from)
        welcome_stranger(end, now_ns, flight, &first);
    else if (!end->session)
        make_session(end, now_ns, header->path, &first);
}

/* Whether the FIRST belongs to the session that there is. */
static bool is_known(const struct dst_end *end, const struct dst_flight *flight)
{
    return end->side == 0 || (end->session && flight->from == 0 &&
                              harp_load64(flight->bytes + HARP_HEADER_BYTES) ==
                                  harp_session_peer(end->session)->connection);
}

/* FIRST of another version is answered by the versions that there are. */
static void refuse_version(struct dst_end *end, uint64_t now_ns, const struct dst_flight *flight,
                           const struct harp_header *header)
{
    struct harp_frame answer;
    struct harp_key key = harp_key_hello(&dst_secret, DST_LISTENER);
    if (end->side == 0 || !harp_open_tag(&key, flight->bytes, 0) ||
        !harp_listener_refuse(&end->listener, header, flight->bytes, flight->bytes_n, &answer))
        return;
    end->heard_bytes += flight->bytes_n;
    end->heard_paths |= 1u << flight->path;
    answer.path = flight->path; /* it goes back where FIRST came from, whatever that calls it */
    transmit_frame(end, now_ns, &answer);
}

static void take_frame(struct dst_end *end, uint64_t now_ns, const struct dst_flight *flight)
{
    struct harp_header h;
    struct harp_key key;
    const uint8_t *body = flight->bytes + HARP_HEADER_BYTES;
    enum harp_wire_error error = harp_header_decode(flight->bytes, flight->bytes_n, &h);
    if (error == HARP_WIRE_VERSION)
        refuse_version(end, now_ns, flight, &h);
    if (error != HARP_WIRE_OK || !find_key(end, h.type, false, &key) ||
        !harp_open_tag(&key, flight->bytes, end->session ? harp_session_lap(end->session, &h) : 0))
        return;
    if (h.type != HARP_DATA && !harp_open_payload(flight->bytes, body, h.length))
        return;
    if (!flight->from) {
        end->heard_bytes += flight->bytes_n;
        end->heard_paths |= 1u << flight->path;
    }
    if (h.type == HARP_FIRST && !is_known(end, flight)) {
        greet_first(end, now_ns, flight, &h);
        return;
    }
    if (!end->session)
        return;
    if (now_ns >= end->full_from_ns && now_ns < end->full_to_ns)
        end->link->late_data += h.type == HARP_DATA; /* as if: its ACK must wait */
    struct harp_place where;
    bool odd = now_ns < end->link->heal_ns; /* stamps from before the clock was set */
    uint64_t waited_ns = odd ? dst_rate(&end->link->random, 5, DST_S) : 0;
    enum harp_verdict verdict = harp_session_receive(end->session, clock_of(end, now_ns), waited_ns,
                                                     &h, body, false, &where);
    DST_CHECK(verdict != HARP_PLACE || h.type == HARP_DATA, "placed a control frame", h.type, 0);
    if (verdict == HARP_PLACE)
        place_payload(end, now_ns, flight, &h, &where);
    end->wake_ns = now_ns;
}

void dst_end_receive(struct dst_end *end, uint64_t now_ns, const struct dst_flight *flight)
{
    uint64_t state = flight->forged ? dst_end_state(end) : 0;
    take_frame(end, now_ns, flight);
    DST_CHECK(!flight->forged || state == dst_end_state(end), "a forged frame changed the state",
              flight->bytes_n > 1 ? flight->bytes[1] : 0, flight->at_ns);
}

/* Driving ---------------------------------------------------------------------------------- */

/* Its answers go to an address that did not ask; it must give up by itself. */
static void drive_stranger(struct dst_end *end, struct dst_stranger *stranger, uint64_t now_ns)
{
    struct harp_frame frames[DST_FRAMES];
    size_t n = harp_session_send(stranger->session, clock_of(end, now_ns), frames, DST_FRAMES);
    for (size_t i = 0; i < n; i++)
        stranger->answered_bytes += HARP_HEADER_BYTES + frames[i].header.length;
    DST_CHECK(stranger->answered_bytes <= stranger->heard_bytes, "answers outweigh requests",
              stranger->answered_bytes, stranger->heard_bytes);
    stranger->wake_ns = true_time_of(end, now_ns, harp_session_deadline_ns(stranger->session));
    struct harp_event event;
    harp_session_poll(stranger->session, &event);
    if (event.type == HARP_EVENT_CLOSED) {
        free(stranger->session);
        stranger->session = NULL;
    }
}

static uint64_t drive_strangers(struct dst_end *end, uint64_t now_ns)
{
    uint64_t wake_ns = HARP_NEVER;
    for (int i = 0; i < DST_STRANGERS; i++) {
        struct dst_stranger *stranger = &end->strangers[i];
        if (stranger->session && stranger->wake_ns <= now_ns)
            drive_stranger(end, stranger, now_ns);
        if (stranger->session)
            wake_ns = harp_min(wake_ns, stranger->wake_ns);
    }
    return wake_ns;
}

#define ASKED 32 /* times that a path asks a silent peer at most */

/* No more is in flight than the other end's port holds, but for a few packets of each path that may
 * go all the same, for empty PROBEs that ask a silent peer, and for what was given up and found
 * again. */
static void check_far_buffer(const struct dst_end *end)
{
    uint64_t holds_bytes = end->peer->config.holds_bytes, bytes = 0;
    struct harp_path_info info = {0};
    if (!holds_bytes || !end->app.trusts || harp_session_count(end->session)->spurious)
        return;
    uint8_t paths = 0;
    for (; harp_session_path_info(end->session, paths, &info); paths++) {
        if (info.fragments > 1 || info.spurious)
            return;
        bytes += info.bytes_in_flight;
    }
    uint64_t beside = 4u * paths * (HARP_HEADER_BYTES + (uint64_t)end->config.segment);
    beside += (uint64_t)ASKED * paths * HARP_HEADER_BYTES;
    DST_CHECK(bytes <= holds_bytes + beside, "more in flight than the other end's port holds",
              bytes, holds_bytes);
}

static uint64_t send_frames(struct dst_end *end, uint64_t now_ns)
{
    struct harp_frame frames[DST_FRAMES];
    size_t n, room = 1 + virtual_below(&end->random, DST_FRAMES);
    do {
        n = harp_session_send(end->session, clock_of(end, now_ns), frames, room);
        for (size_t i = 0; i < n; i++)
            transmit_frame(end, now_ns, &frames[i]);
        check_far_buffer(end);
    } while (n == room);
    return true_time_of(end, now_ns, harp_session_deadline_ns(end->session));
}

static uint64_t drive_session(struct dst_end *end, uint64_t now_ns)
{
    dst_app_poll(&end->app, end->session);
    uint64_t act_ns = dst_app_act(&end->app, end->session, now_ns);
    bool full = now_ns >= end->full_from_ns && now_ns < end->full_to_ns;
    uint64_t wake_ns = full ? end->full_to_ns : send_frames(end, now_ns);
    bool more = dst_app_poll(&end->app, end->session);
    return more ? now_ns : harp_min(wake_ns, act_ns);
}

void dst_end_drive(struct dst_end *end, uint64_t now_ns)
{
    end->wake_ns = drive_strangers(end, now_ns);
    if (end->session)
        end->wake_ns = harp_min(end->wake_ns, drive_session(end, now_ns));
    end->idle_turns = now_ns == end->driven_ns ? end->idle_turns + 1 : 0;
    DST_CHECK(end->idle_turns < 5000, "driven over and over without time going on", now_ns,
              end->wake_ns);
    end->driven_ns = now_ns;
}

void dst_end_close(struct dst_end *end, uint64_t now_ns)
{
    end->wake_ns = now_ns;
    harp_session_close(end->session, clock_of(end, now_ns), HARP_REASON_DONE, NULL);
}

void dst_end_prod(struct dst_end *end, uint64_t now_ns)
{
    uint8_t path = (uint8_t)virtual_below(&end->random, DST_PATHS);
    bool on = virtual_chance(&end->random, 500);
    struct harp_path_info info;
    if (!end->session || !harp_session_path_info(end->session, path, &info) || !info.heard)
        return;
    switch (virtual_below(&end->random, 6)) {
    case 0:
    case 1:
        harp_session_path_off_queue(end->session, path, on);
        break;
    case 2:
        harp_session_unreachable(end->session, clock_of(end, now_ns), path);
        break;
    case 3:
        harp_session_path_moved(end->session, path);
        break;
    default:
        harp_session_path_mtu(end->session, clock_of(end, now_ns), path,
                              (uint32_t)virtual_below(&end->random, DST_FRAME_MAX));
    }
    end->wake_ns = now_ns;
}

bool dst_end_skip(struct dst_end *ends, uint64_t now_ns, uint64_t packets)
{
    if (!virtual_session_knows_peer(ends[0].session) ||
        !virtual_session_knows_peer(ends[1].session))
        return false;
    for (int side = 0; side < 2; side++) {
        skip_packets(ends[side].session, packets);
        ends[side].wake_ns = now_ns;
    }
    return true;
}

uint64_t dst_end_in_flight(const struct dst_end *end)
{
    uint64_t packets = 0;
    struct harp_path_info info;
    for (uint8_t p = 0; end->session && harp_session_path_info(end->session, p, &info); p++)
        packets += info.bytes_in_flight / HARP_HEADER_BYTES;
    return packets;
}
