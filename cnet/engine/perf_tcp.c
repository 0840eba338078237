#define _GNU_SOURCE
#include "engine/perf_tcp.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>

#include "base/clock.h"

static uint8_t *buffer_of(const struct harp_perf_tcp *perf)
{
    return perf->memory + perf->done % perf->window * perf->size;
}

static void write_number(const struct harp_perf_tcp *perf)
{
    if (perf->size >= sizeof perf->done)
        memcpy(buffer_of(perf), &perf->done, sizeof perf->done);
}

static bool number_is_due(const struct harp_perf_tcp *perf)
{
    uint64_t value = perf->done;
    if (perf->size >= sizeof value)
        memcpy(&value, buffer_of(perf), sizeof value);
    return value == perf->done;
}

static bool sends_now(const struct harp_perf_tcp *perf)
{
    switch (perf->role) {
    case HARP_PERF_SEND:
        return true;
    case HARP_PERF_RECEIVE:
        return false;
    default:
        return (perf->role == HARP_PERF_PING) != perf->answering;
    }
}

/* Move what one system call moves of the message. Returns an enum harp_perf_state; DONE is the
 * message's. */
static uint32_t move_bytes(int fd, struct harp_perf_tcp *perf)
{
    uint8_t *bytes = buffer_of(perf) + perf->moved;
    size_t rest = perf->size - perf->moved;
    ssize_t n =
        sends_now(perf) ? send(fd, bytes, rest, MSG_NOSIGNAL) : recv(fd, bytes, rest, MSG_WAITALL);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return HARP_PERF_MORE;
    if (n <= 0) {
        perf->error = n ? errno : 0;
        return HARP_PERF_CLOSED;
    }
    perf->moved += (uint32_t)n;
    return perf->moved == perf->size ? HARP_PERF_DONE : HARP_PERF_MORE;
}

static uint32_t move_message(int fd, struct harp_perf_tcp *perf)
{
    bool sends = sends_now(perf);
    if (sends && !perf->moved && perf->role != HARP_PERF_PONG) {
        write_number(perf);
        perf->sent_ns = perf->role == HARP_PERF_PING ? harp_clock_ns() : 0;
    }
    uint32_t state = move_bytes(fd, perf);
    if (state != HARP_PERF_DONE)
        return state;
    perf->moved = 0;
    if (!sends && !number_is_due(perf))
        return HARP_PERF_BAD;
    bool echoed = perf->role == HARP_PERF_PING || perf->role == HARP_PERF_PONG;
    perf->answering = echoed && !perf->answering;
    if (perf->answering)
        return HARP_PERF_MORE;
    if (perf->role == HARP_PERF_PING)
        perf->samples_ns[perf->done] = harp_clock_ns() - perf->sent_ns;
    perf->done++;
    return HARP_PERF_MORE;
}

/* Bytes that the kernel has taken have not arrived yet: the receiver answers the last message
 * with a byte, and only then is the run over. */
static uint32_t confirm_arrival(int fd, struct harp_perf_tcp *perf)
{
    uint8_t byte = 0;
    if (perf->role == HARP_PERF_PING || perf->role == HARP_PERF_PONG)
        return HARP_PERF_DONE;
    ssize_t n =
        perf->role == HARP_PERF_RECEIVE ? send(fd, &byte, 1, MSG_NOSIGNAL) : recv(fd, &byte, 1, 0);
    if (n == 1)
        return HARP_PERF_DONE;
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return HARP_PERF_MORE;
    perf->error = n ? errno : 0;
    return HARP_PERF_CLOSED;
}

uint32_t harp_perf_tcp_run(int fd, struct harp_perf_tcp *perf, uint64_t most_ns)
{
    uint64_t cpu_from = harp_clock_of_ns(CLOCK_THREAD_CPUTIME_ID), from = harp_clock_ns();
    uint32_t state = HARP_PERF_MORE;
    if (!perf->begin_ns)
        perf->begin_ns = from;
    do
        state = perf->done < perf->messages ? move_message(fd, perf) : confirm_arrival(fd, perf);
    while (state == HARP_PERF_MORE && harp_clock_ns() - from < most_ns);
    perf->end_ns = harp_clock_ns();
    perf->cpu_ns += harp_clock_of_ns(CLOCK_THREAD_CPUTIME_ID) - cpu_from;
    return state;
}
