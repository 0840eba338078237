/* A flight recorder: the last events of an engine, still readable after it has crashed.
 *
 *     count -------------------------------v
 *     | event | event | event | event | oldest ... |     HARP_RECORDER_EVENTS of 32 bytes
 *
 * It lies in the engine's statistics (stats.h), so another process can read it while the engine
 * runs, and after it was killed. An event is a number, two values, a connection and a time; what
 * they mean stands in the table below and nowhere else. Recording costs a few stores: it is for
 * what happens to connections, paths and memory, not for every frame.
 *
 * Owner: the engine's thread writes. Anybody reads. Memory order: an event is written before it is
 * counted (release); a reader takes the events and then looks at the count again (acquire): those
 * that may have been overwritten meanwhile do not count.
 */
#ifndef HARP_RECORDER_H
#define HARP_RECORDER_H

#include <stddef.h>
#include <stdint.h>

/* The events: name, what it is called, and how its two values read. An unused value is 0. */
#define HARP_RECORDER_TABLE(EVENT)                                                                 \
    EVENT(PORT, "port opened", "port %" PRIu64 ", payload_max %" PRIu64)                           \
    EVENT(LISTEN, "listens", "listener %" PRIx64)                                                  \
    EVENT(CONNECT, "connects", "%" PRIu64 " paths, segment %" PRIu64)                              \
    EVENT(ACCEPT, "accepts", "%" PRIu64 " paths, segment %" PRIu64)                                \
    EVENT(OPEN, "is open", "segment %" PRIu64 ", handshake took %" PRIu64 " ns")                   \
    EVENT(PATH, "path made", "path %" PRIu64 ", hop %" PRIu64)                                     \
    EVENT(PATH_DIED, "path died", "path %" PRIu64 ", srtt %" PRIu64 " ns")                         \
    EVENT(PATH_BACK, "path is back", "path %" PRIu64 ", srtt %" PRIu64 " ns")                      \
    EVENT(PATH_OFF_QUEUE, "path off its queue there", "path %" PRIu64)                             \
    EVENT(PATH_ON_QUEUE, "path on its queue there", "path %" PRIu64)                               \
    EVENT(PATH_MTU, "path takes other frames", "path %" PRIu64 ", UDP payload %" PRIu64 " bytes")  \
    EVENT(UNREACHABLE, "unreachable, says the network", "path %" PRIu64 ", refused %" PRIu64)      \
    EVENT(BROKEN, "its TCP flow broke", "path %" PRIu64 ", errno %" PRIu64 " (0: closed there)")   \
    EVENT(LOST, "packets given up", "lost so far %" PRIu64 ", found after all %" PRIu64)           \
    EVENT(BAD, "bad frames", "%" PRIu64 " of a wrong tag, %" PRIu64 " of no connection, so far")   \
    EVENT(CLOSED, "is over", "reason %" PRIu64 ", by peer: %" PRIu64)                              \
    EVENT(GONE, "is forgotten", "row %" PRIu64)                                                    \
    EVENT(NO_FRAMES, "refused for want of frames", "%" PRIu64 " wanted, %" PRIu64 " left")         \
    EVENT(TROUBLE, "a port has trouble",                                                           \
          "%" PRIu64 " (1 sending, 2 segmentation offload, 3 a flood of ICMP), errno %" PRIu64)    \
    EVENT(VERSION, "refused a connecting end of another version",                                  \
          "it speaks %" PRIu64 ", this end speaks %" PRIu64)

#define HARP_RECORDER_NAME(name, text, format) HARP_RECORD_##name,
enum harp_recorder_what { HARP_RECORDER_TABLE(HARP_RECORDER_NAME) HARP_RECORD_COUNT };
#undef HARP_RECORDER_NAME

/* cdef: begin */
#define HARP_RECORDER_EVENTS 4096
#define HARP_RECORDER_LINE_BYTES 200

struct harp_recorder_event {
    uint64_t time_ns; /* of the clock that the engine is driven by */
    uint32_t what;
    uint32_t connection; /* the lowest 32 bits of its id; 0: none */
    uint64_t a, b;
};

struct harp_recorder {
    uint64_t count; /* events since the beginning; event i is at i modulo HARP_RECORDER_EVENTS */
    uint64_t zero[7];
    struct harp_recorder_event events[HARP_RECORDER_EVENTS];
};

/* Copy the events that are whole, oldest first, to `out`, which has room for HARP_RECORDER_EVENTS.
 * Returns how many. The engine may go on meanwhile. */
size_t harp_recorder_read(const struct harp_recorder *recorder, struct harp_recorder_event *out);

/* Contents of an event: its name and values. */
void harp_recorder_text(const struct harp_recorder_event *event, char *out, size_t room);

/* One line about an event: its time relative to `zero_ns`, its connection, what it says; without
 * the line's end. */
void harp_recorder_line(const struct harp_recorder_event *event, uint64_t zero_ns, char *out,
                        size_t room);

/* All events as lines to a file descriptor, times relative to the last one. Returns 0 or -errno. */
int harp_recorder_dump(const struct harp_recorder *recorder, int fd);
/* cdef: end */

_Static_assert(sizeof(struct harp_recorder_event) == 32, "two events in a cache line");
_Static_assert((HARP_RECORDER_EVENTS & (HARP_RECORDER_EVENTS - 1)) == 0, "a position by masking");

/* Record an event. */
static inline void harp_recorder_add(struct harp_recorder *recorder, uint64_t now_ns,
                                     enum harp_recorder_what what, uint64_t connection, uint64_t a,
                                     uint64_t b)
{
    uint64_t count = recorder->count;
    struct harp_recorder_event *event = &recorder->events[count & (HARP_RECORDER_EVENTS - 1)];
    /* Release, all of them: a reader of a part of this event sees that the one before it is
     * counted, hence that what lay here is gone. */
    __atomic_store_n(&event->time_ns, now_ns, __ATOMIC_RELEASE);
    __atomic_store_n(&event->what, (uint32_t)what, __ATOMIC_RELEASE);
    __atomic_store_n(&event->connection, (uint32_t)connection, __ATOMIC_RELEASE);
    __atomic_store_n(&event->a, a, __ATOMIC_RELEASE);
    __atomic_store_n(&event->b, b, __ATOMIC_RELEASE);
    __atomic_store_n(&recorder->count, count + 1, __ATOMIC_RELEASE);
}

#endif
