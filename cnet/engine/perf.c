#define _GNU_SOURCE
#include "engine/perf.h"

#include <sched.h>
#include <string.h>

#include "base/clock.h"

#define BATCH 64
#define TURNS 256 /* between two looks at the clock; if all are idle, others get a chance, too */

static uint8_t *buffer_of(const struct harp_perf *perf, bool out, uint64_t message)
{
    uint64_t slot = message % perf->window + (out ? perf->window : 0);
    return perf->memory + slot * perf->size;
}

static void write_number(const struct harp_perf *perf, uint8_t *bytes, uint64_t message)
{
    if (perf->size >= sizeof message)
        memcpy(bytes, &message, sizeof message);
}

static void check_message(struct harp_perf *perf, const uint8_t *bytes, uint64_t message)
{
    uint64_t value;
    if (perf->size < sizeof value)
        return;
    memcpy(&value, bytes, sizeof value);
    if (value != message)
        perf->failed = HARP_PERF_BAD;
}

static bool send_drafts(struct harp_connection *connection, struct harp_perf *perf)
{
    uint32_t segment = harp_segment(connection);
    uint32_t count = segment && perf->size ? (perf->size - 1) / segment + 1 : 0;
    if (!segment || count > perf->frames_room)
        return false;
    if (perf->frames_n < count)
        perf->frames_n +=
            harp_drafts(connection, perf->frames + perf->frames_n, count - perf->frames_n);
    if (perf->frames_n < count)
        return false;
    if (count)
        write_number(perf, harp_draft_bytes(connection, perf->frames[0]), perf->sent);
    if (!harp_send_frames(connection, perf->frames, perf->size, perf->sent))
        return false;
    perf->frames_n = 0;
    return true;
}

static bool send_one(struct harp_connection *connection, struct harp_perf *perf)
{
    if (perf->drafts && send_drafts(connection, perf)) {
        perf->sent++;
        return true;
    }
    if (perf->drafts)
        return false;
    uint8_t *bytes = buffer_of(perf, true, perf->sent);
    write_number(perf, bytes, perf->sent);
    if (!harp_send(connection, bytes, perf->size, perf->sent))
        return false;
    perf->sent++;
    return true;
}

/* Send and post what the run may have under way now. */
static void hand_over(struct harp_connection *connection, struct harp_perf *perf)
{
    uint64_t due = perf->messages; /* to be sent by now */
    if (perf->role == HARP_PERF_RECEIVE)
        due = 0;
    else if (perf->role == HARP_PERF_PONG)
        due = perf->received;
    else if (perf->role == HARP_PERF_PING)
        due = perf->received < due ? perf->received + 1 : due;
    while (perf->role != HARP_PERF_SEND && !perf->streamed && perf->posted < perf->messages &&
           perf->posted < perf->received + perf->window &&
           harp_receive(connection, buffer_of(perf, false, perf->posted), perf->size, perf->posted))
        perf->posted++;
    while (perf->sent < due && perf->sent < perf->sent_done + perf->window) {
        if (perf->role == HARP_PERF_PING)
            perf->sent_ns = harp_clock_ns();
        if (!send_one(connection, perf))
            break;
    }
}

static void count_received(struct harp_perf *perf, const struct harp_completion *done)
{
    if (!perf->streamed)
        check_message(perf, buffer_of(perf, false, perf->received), perf->received);
    if (done->size != perf->size)
        perf->failed = HARP_PERF_BAD;
    if (perf->role == HARP_PERF_PING)
        perf->samples_ns[perf->received] = harp_clock_ns() - perf->sent_ns;
    perf->received++;
}

/* Take completions; how many there were. */
static size_t take_completions(struct harp_connection *connection, struct harp_perf *perf)
{
    struct harp_completion done[BATCH];
    uint32_t lent[BATCH], lent_n = 0;
    size_t count = harp_poll(connection, done, BATCH);
    for (size_t i = 0; i < count; i++) {
        switch (done[i].type) {
        case HARP_COMPLETION_SENT:
            perf->sent_done++;
            break;
        case HARP_COMPLETION_CHUNK: /* with RECEIVE of a later message, perhaps */
            lent[lent_n++] = done[i].frame;
            if (done[i].offset == 0 && perf->role != HARP_PERF_RECEIVE)
                check_message(perf, done[i].bytes, perf->received);
            break;
        case HARP_COMPLETION_RECEIVED:
            count_received(perf, &done[i]);
            break;
        case HARP_COMPLETION_CLOSED:
            perf->failed = HARP_PERF_CLOSED;
            break;
        default:
            break;
        }
    }
    harp_return(connection, lent, lent_n);
    return count;
}

static bool is_finished(const struct harp_perf *perf)
{
    bool sends = perf->role != HARP_PERF_RECEIVE, receives = perf->role != HARP_PERF_SEND;
    return (!sends || perf->sent_done == perf->messages) &&
           (!receives || perf->received == perf->messages);
}

uint32_t harp_perf_run(struct harp_connection *connection, struct harp_engine *engine,
                       struct harp_perf *perf, uint64_t most_ns)
{
    uint64_t cpu_ns = harp_clock_of_ns(CLOCK_THREAD_CPUTIME_ID), start_ns = harp_clock_ns();
    if (!perf->begin_ns)
        perf->begin_ns = start_ns;
    for (uint32_t turn = 1, busy = 0; !perf->failed && !is_finished(perf); turn++) {
        hand_over(connection, perf);
        busy += harp_engine_drive(engine);
        busy += take_completions(connection, perf) > 0;
        if (!most_ns)
            break;
        if (turn % TURNS)
            continue;
        if (!busy)
            sched_yield();
        if (harp_clock_ns() - start_ns > most_ns)
            break;
        busy = 0;
    }
    perf->end_ns = harp_clock_ns();
    perf->cpu_ns += harp_clock_of_ns(CLOCK_THREAD_CPUTIME_ID) - cpu_ns;
    if (perf->failed)
        return perf->failed;
    return is_finished(perf) ? HARP_PERF_DONE : HARP_PERF_MORE;
}
