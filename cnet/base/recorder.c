#include "base/recorder.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct meaning {
    const char *name, *format;
};

#define MEANING(name, text, format) [HARP_RECORD_##name] = {text, format},
static const struct meaning meanings[] = {HARP_RECORDER_TABLE(MEANING)};

size_t harp_recorder_read(const struct harp_recorder *recorder, struct harp_recorder_event *out)
{
    uint64_t end = __atomic_load_n(&recorder->count, __ATOMIC_ACQUIRE);
    uint64_t begin = end > HARP_RECORDER_EVENTS ? end - HARP_RECORDER_EVENTS : 0;
    for (uint64_t i = begin; i < end; i++) {
        const struct harp_recorder_event *from = &recorder->events[i % HARP_RECORDER_EVENTS];
        struct harp_recorder_event *to = &out[i - begin];
        to->time_ns = __atomic_load_n(&from->time_ns, __ATOMIC_ACQUIRE);
        to->what = __atomic_load_n(&from->what, __ATOMIC_ACQUIRE);
        to->connection = __atomic_load_n(&from->connection, __ATOMIC_ACQUIRE);
        to->a = __atomic_load_n(&from->a, __ATOMIC_ACQUIRE);
        to->b = __atomic_load_n(&from->b, __ATOMIC_ACQUIRE);
    }
    /* Event `now` may be half written, in the place of now - HARP_RECORDER_EVENTS. */
    uint64_t now = __atomic_load_n(&recorder->count, __ATOMIC_ACQUIRE);
    uint64_t whole = now >= HARP_RECORDER_EVENTS ? now - HARP_RECORDER_EVENTS + 1 : 0;
    if (whole <= begin)
        return (size_t)(end - begin);
    if (whole >= end)
        return 0;
    memmove(out, out + (whole - begin), (size_t)(end - whole) * sizeof *out);
    return (size_t)(end - whole);
}

void harp_recorder_text(const struct harp_recorder_event *event, char *out, size_t room)
{
    static const struct meaning unknown = {"an event that this version does not know",
                                           "%" PRIu64 ", %" PRIu64};
    const struct meaning *meaning =
        event->what < HARP_RECORD_COUNT ? &meanings[event->what] : &unknown;
    int n = snprintf(out, room, "%s: ", meaning->name);
    if ((size_t)n < room)
        snprintf(out + n, room - (size_t)n, meaning->format, event->a, event->b);
}

void harp_recorder_line(const struct harp_recorder_event *event, uint64_t zero_ns, char *out,
                        size_t room)
{
    char text[HARP_RECORDER_LINE_BYTES - 40], who[20] = "";
    harp_recorder_text(event, text, sizeof text);
    if (event->connection)
        snprintf(who, sizeof who, "%08" PRIx32 " ", event->connection);
    double seconds = ((double)event->time_ns - (double)zero_ns) * 1e-9;
    snprintf(out, room, "%+14.6f s  %s%s", seconds, who, text);
}

static int write_all(int fd, const char *bytes, size_t length)
{
    while (length > 0) {
        ssize_t done = write(fd, bytes, length);
        if (done < 0 && errno != EINTR)
            return -errno;
        if (done > 0) {
            bytes += done;
            length -= (size_t)done;
        }
    }
    return 0;
}

int harp_recorder_dump(const struct harp_recorder *recorder, int fd)
{
    struct harp_recorder_event *events = malloc(HARP_RECORDER_EVENTS * sizeof *events);
    if (!events)
        return -ENOMEM;
    size_t count = harp_recorder_read(recorder, events);
    int failed = 0;
    for (size_t i = 0; i < count && !failed; i++) {
        char line[HARP_RECORDER_LINE_BYTES];
        harp_recorder_line(&events[i], events[count - 1].time_ns, line, sizeof line - 1);
        strcat(line, "\n");
        failed = write_all(fd, line, strlen(line));
    }
    free(events);
    return failed;
}
