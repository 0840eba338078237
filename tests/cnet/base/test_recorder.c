/* The flight recorder: the latest events, oldest first, and what is said of them. */
#define _GNU_SOURCE
#include "base/recorder.h"

#include <errno.h>
#include <string.h>

#include "check.h"

static struct harp_recorder recorder;
static struct harp_recorder_event events[HARP_RECORDER_EVENTS];

static void record_numbers(uint64_t n)
{
    memset(&recorder, 0, sizeof recorder);
    for (uint64_t i = 0; i < n; i++)
        harp_recorder_add(&recorder, 1000 * i, HARP_RECORD_LOST, i, i, 2 * i);
}

/* All of them, or as many of the latest as have their places; the next one's may be half written.
 */
static void test_the_latest_events_are_kept_in_order(uint64_t n)
{
    const uint64_t room = HARP_RECORDER_EVENTS;
    record_numbers(n);
    uint64_t kept = n < room ? n : room - 1;
    size_t got = harp_recorder_read(&recorder, events);
    CHECK(got == kept, "%zu of %llu events", got, (unsigned long long)n);
    for (uint64_t i = 0; i < got; i++) {
        uint64_t number = n - kept + i;
        CHECK(events[i].a == number && events[i].b == 2 * number, "event %zu", (size_t)i);
        CHECK(events[i].time_ns == 1000 * number && events[i].what == HARP_RECORD_LOST, "what");
    }
}

static void check_line(uint64_t time_ns, enum harp_recorder_what what, uint64_t id,
                       const char *wanted)
{
    char line[HARP_RECORDER_LINE_BYTES];
    memset(&recorder, 0, sizeof recorder);
    harp_recorder_add(&recorder, time_ns, what, id, 7, 9);
    CHECK(harp_recorder_read(&recorder, events) == 1, "one event");
    harp_recorder_line(&events[0], 2000000000, line, sizeof line);
    CHECK(strcmp(line, wanted) == 0, "\"%s\" is not \"%s\"", line, wanted);
}

static void test_a_line_names_time_connection_and_event(void)
{
    check_line(3500000000, HARP_RECORD_CLOSED, 0xffabcdef01,
               "     +1.500000 s  abcdef01 is over: reason 7, by peer: 9");
    check_line(500000000, HARP_RECORD_LISTEN, 0, "     -1.500000 s  listens: listener 7");
    check_line(2000000000, HARP_RECORD_COUNT, 0,
               "     +0.000000 s  an event that this version does not know: 7, 9");
}

static void test_text_is_cut_to_its_room(void)
{
    char text[20];
    memset(text, 'x', sizeof text);
    struct harp_recorder_event event = {.what = HARP_RECORD_PATH_DIED, .a = UINT64_MAX};
    for (size_t room = 1; room < sizeof text; room++) {
        harp_recorder_text(&event, text, room);
        CHECK(strlen(text) == room - 1 && text[room] == 'x', "room for %zu", room);
        CHECK(strncmp("path died: path 18446744073709551615", text, room - 1) == 0, "%s", text);
    }
}

static void test_a_dump_has_a_line_for_each_event(void)
{
    char line[HARP_RECORDER_LINE_BYTES];
    FILE *out = tmpfile();
    CHECK(out, "no file");
    record_numbers(300);
    CHECK(harp_recorder_dump(&recorder, fileno(out)) == 0, "dump");
    rewind(out);
    uint64_t lines = 0;
    for (; fgets(line, sizeof line, out); lines++) {
        char wanted[60];
        snprintf(wanted, sizeof wanted, "lost so far %llu, found after all %llu\n",
                 (unsigned long long)lines, (unsigned long long)(2 * lines));
        CHECK(strstr(line, wanted), "%s", line);
    }
    CHECK(lines == 300 && strncmp(line, "     +0.000000 s", 16) == 0, "last of %s", line);
    fclose(out);
    CHECK(harp_recorder_dump(&recorder, -1) == -EBADF, "no file, no error");
}

int main(void)
{
    test_the_latest_events_are_kept_in_order(0);
    test_the_latest_events_are_kept_in_order(1);
    test_the_latest_events_are_kept_in_order(HARP_RECORDER_EVENTS - 1);
    test_the_latest_events_are_kept_in_order(HARP_RECORDER_EVENTS);
    test_the_latest_events_are_kept_in_order(3 * HARP_RECORDER_EVENTS + 5);
    test_a_line_names_time_connection_and_event();
    test_text_is_cut_to_its_room();
    test_a_dump_has_a_line_for_each_event();
    return 0;
}
