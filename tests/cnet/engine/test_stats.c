/* Statistics that another process reads, and the flight recorder in them. */
#define _GNU_SOURCE
#include "engine/stats.h"

#include <assert.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { ENTRIES = 512 };

static const char *base_name(const struct harp_stats_file *file)
{
    return strrchr(file->path, '/') + 1;
}

/* Whether a file is listed, and alive. */
static int is_listed(const char *file)
{
    static struct harp_stats_entry entries[ENTRIES];
    size_t count = harp_stats_list(entries, ENTRIES);
    for (size_t i = 0; i < count; i++)
        if (strcmp(entries[i].file, file) == 0)
            return entries[i].alive ? 2 : 1;
    return 0;
}

static struct harp_stats *take_snapshot(const char *file)
{
    char why[HARP_WHY_BYTES] = "";
    struct harp_stats *out = malloc(sizeof *out);
    struct harp_stats_reader *reader = harp_stats_open(file, why);
    assert(out && reader && !why[0]);
    harp_stats_read(reader, out);
    harp_stats_close(reader);
    return out;
}

static void test_written_files_are_read_back(void)
{
    struct harp_stats_file file, second;
    assert(harp_stats_create(&file, "engine 0") == 0 && file.fd >= 0);
    assert(harp_stats_create(&second, "engine 1") == 0 && strcmp(file.path, second.path) != 0);
    harp_count(&file.stats->engine.turns, 3);
    harp_count(&file.stats->engine.turns, 4);
    struct harp_stats_connection connection = {.id = 77, .state = HARP_STATS_OPEN, .paths = 4};
    strcpy(connection.peer, "10.0.0.1:7000");
    connection.counters.lost = 9;
    harp_stats_put_connection(file.stats, 255, &connection);
    struct harp_port port = {.counters.sent = 5, .line = "mem"};
    harp_stats_put_port(file.stats, 1, &port);
    harp_recorder_add(&file.stats->recorder, 1000, HARP_RECORD_PATH_DIED, 0xabcdef0123, 2, 5000);
    assert(is_listed(base_name(&file)) == 2);
    struct harp_stats *seen = take_snapshot(base_name(&file));
    assert(seen->pid == (uint64_t)getpid() && strcmp(seen->name, "engine 0") == 0);
    assert(seen->engine.turns == 7 && seen->ports[1].counters.sent == 5);
    assert(strcmp(seen->ports[1].line, "mem") == 0);
    assert(seen->connections[255].id == 77 && seen->connections[255].counters.lost == 9);
    assert(strcmp(seen->connections[255].peer, "10.0.0.1:7000") == 0);
    assert(seen->recorder.count == 1 && seen->recorder.events[0].b == 5000);
    char line[HARP_RECORDER_LINE_BYTES];
    harp_recorder_line(&seen->recorder.events[0], 0, line, sizeof line);
    assert(strstr(line, "cdef0123 path died: path 2, srtt 5000 ns"));
    free(seen);
    char gone[HARP_STATS_NAME_BYTES];
    strcpy(gone, base_name(&file));
    harp_stats_destroy(&file);
    harp_stats_destroy(&second);
    assert(is_listed(gone) == 0);
}

static void test_a_killed_engine_is_read_once_more(void)
{
    int pipes[2];
    assert(pipe(pipes) == 0);
    pid_t child = fork();
    if (child == 0) {
        struct harp_stats_file file;
        assert(harp_stats_create(&file, "victim") == 0);
        for (uint64_t i = 0; i < 10000; i++)
            harp_recorder_add(&file.stats->recorder, i * 1000, HARP_RECORD_LOST, 1, i, 2 * i);
        file.stats->connections[3].changes = 1; /* as if it died while it wrote */
        assert(write(pipes[1], base_name(&file), HARP_STATS_NAME_BYTES) > 0);
        for (;;)
            pause();
    }
    char file[HARP_STATS_NAME_BYTES];
    assert(read(pipes[0], file, sizeof file) > 0);
    close(pipes[0]);
    close(pipes[1]);
    assert(is_listed(file) == 2 && !harp_stats_forget(file));
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    assert(is_listed(file) == 1);
    struct harp_stats *seen = take_snapshot(file);
    assert(seen->recorder.count == HARP_RECORDER_EVENTS - 1);
    for (size_t i = 0; i < seen->recorder.count; i++)
        assert(seen->recorder.events[i].a == 10000 - HARP_RECORDER_EVENTS + 1 + i);
    free(seen);
    assert(harp_stats_forget(file) && is_listed(file) == 0);
    char why[HARP_WHY_BYTES] = "";
    assert(!harp_stats_open(file, why) && why[0]);
}

static void test_a_child_of_fork_removes_nothing(void)
{
    struct harp_stats_file file;
    assert(harp_stats_create(&file, "parent") == 0);
    pid_t child = fork();
    if (child == 0) {
        harp_stats_destroy(&file);
        _exit(0);
    }
    int status;
    waitpid(child, &status, 0);
    assert(status == 0 && is_listed(base_name(&file)) == 2);
    harp_stats_destroy(&file);
}

static void test_other_files_are_refused(void)
{
    char why[HARP_WHY_BYTES];
    const char *names[] = {"harp-", "harp-1-2-3x", "../harp-0-1-1", "harp-4294967295-1-1", ""};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        why[0] = 0;
        assert(!harp_stats_open(names[i], why) && why[0]);
    }
}

/* A reader in another thread sees whole rows and whole events only. */
static struct harp_stats_file shared;
enum { ROUNDS = 20000 };

static void *write_on(void *stop)
{
    for (uint64_t i = 1; !__atomic_load_n((int *)stop, __ATOMIC_RELAXED); i++) {
        struct harp_stats_connection connection = {.id = i, .window_bytes = i, .peer = "x"};
        connection.counters.paths_returned = i;
        harp_stats_put_connection(shared.stats, 0, &connection);
        harp_recorder_add(&shared.stats->recorder, i, (enum harp_recorder_what)(i & 15), i, i, i);
    }
    return NULL;
}

static void test_a_reader_sees_whole_things(void)
{
    int stop = 0;
    pthread_t writer;
    assert(harp_stats_create(&shared, "shared") == 0);
    struct harp_recorder_event *events = calloc(HARP_RECORDER_EVENTS, sizeof *events);
    struct harp_stats *seen = malloc(sizeof *seen);
    char why[HARP_WHY_BYTES];
    struct harp_stats_reader *reader = harp_stats_open(base_name(&shared), why);
    assert(events && seen && reader);
    pthread_create(&writer, NULL, write_on, &stop);
    for (int round = 0; round < ROUNDS / 100; round++) {
        harp_stats_read(reader, seen);
        const struct harp_stats_connection *row = &seen->connections[0];
        assert(row->changes % 2 == 1 ||
               (row->id == row->window_bytes && row->id == row->counters.paths_returned));
        size_t count = harp_recorder_read(&shared.stats->recorder, events);
        for (size_t i = 0; i < count; i++) {
            assert(events[i].a == events[0].a + i && events[i].time_ns == events[i].a);
            assert(events[i].b == events[i].a && events[i].what == (events[i].a & 15));
        }
    }
    __atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
    pthread_join(writer, NULL);
    harp_stats_close(reader);
    free(events);
    free(seen);
    harp_stats_destroy(&shared);
}

static void test_a_dump_reads(void)
{
    struct harp_stats_file file;
    FILE *out = tmpfile();
    assert(harp_stats_create(&file, "dump") == 0 && out);
    for (uint32_t what = 0; what <= HARP_RECORD_COUNT; what++)
        harp_recorder_add(&file.stats->recorder, what * UINT64_C(1000000),
                          (enum harp_recorder_what)what, 1, 2, 3);
    assert(harp_recorder_dump(&file.stats->recorder, fileno(out)) == 0);
    rewind(out);
    char line[HARP_RECORDER_LINE_BYTES];
    int lines = 0;
    for (; fgets(line, sizeof line, out); lines++)
        fputs(line, stdout);
    assert(lines == HARP_RECORD_COUNT + 1);
    fclose(out);
    harp_stats_destroy(&file);
}

int main(void)
{
    test_written_files_are_read_back();
    test_a_killed_engine_is_read_once_more();
    test_a_child_of_fork_removes_nothing();
    test_other_files_are_refused();
    test_a_reader_sees_whole_things();
    test_a_dump_reads();
    return 0;
}
