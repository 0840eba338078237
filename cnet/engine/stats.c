#define _GNU_SOURCE
#include "engine/stats.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"

#define FOLDER "/dev/shm"
#define PATH_BYTES (sizeof FOLDER + HARP_STATS_NAME_BYTES)

enum { WORD = sizeof(uint64_t), NUMBERS_MAX = 4096, TRIES_MAX = 1000, KEPT_SECONDS = 600 };

_Static_assert(sizeof(struct harp_stats) % WORD == 0, "copied by words");
_Static_assert(sizeof(struct harp_stats_port) % WORD == 0, "copied by words");
_Static_assert(sizeof(struct harp_stats_connection) % WORD == 0, "copied by words");
_Static_assert(sizeof(struct harp_stats_path) % WORD == 0, "copied by words");
_Static_assert(offsetof(struct harp_stats, recorder) % WORD == 0, "words are aligned");

struct harp_stats_reader {
    const struct harp_stats *stats;
};

/* Whether a file's name is one that create_file gives. */
static bool is_ours(const char *file)
{
    unsigned user, pid, n;
    int length = -1;
    return strlen(file) < HARP_STATS_NAME_BYTES &&
           sscanf(file, "harp-%u-%u-%u%n", &user, &pid, &n, &length) == 3 &&
           (size_t)length == strlen(file);
}

static void path_of(const char *file, char *path)
{
    assert(strlen(file) < HARP_STATS_NAME_BYTES);
    strcpy(path, FOLDER "/");
    strcat(path, file);
}

static int open_file(const char *file)
{
    char path[PATH_BYTES];
    path_of(file, path);
    int fd = open(path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    return fd < 0 ? -errno : fd;
}

/* Whether no process has the file open as its engine's. */
static bool is_dead(int fd)
{
    return flock(fd, LOCK_SH | LOCK_NB) == 0;
}

/* A file without a name, locked, becomes one with a name in a single step: nobody ever sees it
 * unlocked while its owner lives, and nothing is left if the owner dies in between. */
static int create_file(struct harp_stats_file *file)
{
    int fd = open(FOLDER, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (fd < 0)
        return -errno;
    char self[40];
    snprintf(self, sizeof self, "/proc/self/fd/%d", fd);
    int failed = posix_fallocate(fd, 0, sizeof(struct harp_stats));
    if (!failed && flock(fd, LOCK_EX | LOCK_NB) < 0)
        failed = errno;
    for (int n = 0; !failed && n < NUMBERS_MAX; n++) {
        snprintf(file->path, sizeof file->path, FOLDER "/harp-%u-%d-%d", geteuid(), file->owner, n);
        if (linkat(AT_FDCWD, self, AT_FDCWD, file->path, AT_SYMLINK_FOLLOW) == 0)
            return fd;
        failed = errno == EEXIST ? 0 : errno;
    }
    close(fd);
    return failed ? -failed : -EEXIST;
}

/* Files of processes that died long ago and that nobody has forgotten. */
static void remove_leftovers(void)
{
    struct stat about;
    time_t old = time(NULL) - KEPT_SECONDS;
    DIR *folder = opendir(FOLDER);
    if (!folder)
        return;
    for (struct dirent *found; (found = readdir(folder));)
        if (is_ours(found->d_name) && fstatat(dirfd(folder), found->d_name, &about, 0) == 0 &&
            about.st_ctime < old)
            harp_stats_forget(found->d_name);
    closedir(folder);
}

int harp_stats_create(struct harp_stats_file *file, const char *name)
{
    *file = (struct harp_stats_file){.owner = getpid()};
    remove_leftovers();
    file->fd = create_file(file);
    int flags = file->fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED;
    struct harp_stats *stats = mmap(NULL, sizeof *stats, PROT_READ | PROT_WRITE,
                                    flags | MAP_POPULATE, file->fd < 0 ? -1 : file->fd, 0);
    if (stats == MAP_FAILED || madvise(stats, sizeof *stats, MADV_DONTFORK) < 0) {
        if (stats != MAP_FAILED)
            munmap(stats, sizeof *stats);
        if (file->fd >= 0) {
            unlink(file->path);
            close(file->fd);
        }
        *file = (struct harp_stats_file){.fd = -1};
        return -ENOMEM;
    }
    if (file->fd < 0) {
        snprintf(file->line, sizeof file->line,
                 "statistics: not to be seen from outside, as " FOLDER " takes no file: %s",
                 strerror(-file->fd));
        file->fd = -1;
    } else {
        snprintf(file->line, sizeof file->line, "statistics: %s", file->path);
    }
    stats->bytes = sizeof *stats;
    stats->pid = (uint64_t)file->owner;
    stats->started_ns = harp_clock_ns();
    stats->started_unix_ns = harp_clock_of_ns(CLOCK_REALTIME);
    snprintf(stats->name, sizeof stats->name, "%s", name);
    stats->layout = HARP_STATS_LAYOUT;
    /* Release: a reader that sees the magic sees the rest. */
    __atomic_store_n(&stats->magic, HARP_STATS_MAGIC, __ATOMIC_RELEASE);
    file->stats = stats;
    return 0;
}

void harp_stats_destroy(struct harp_stats_file *file)
{
    bool own = file->stats && file->owner == getpid();
    if (own && file->fd >= 0)
        unlink(file->path);
    if (own)
        munmap(file->stats, sizeof *file->stats);
    if (file->stats && file->fd >= 0)
        close(file->fd);
    *file = (struct harp_stats_file){.fd = -1};
}

/* Write a row but for its first word, which is `changes`. */
static void put_row(uint64_t *row, const uint64_t *from, size_t bytes)
{
    uint64_t changes = row[0];
    assert(changes % 2 == 0);
    /* Release, all of them: a reader of a new word reads `changes` as odd, or later, after it. */
    __atomic_store_n(&row[0], changes + 1, __ATOMIC_RELAXED);
    for (size_t i = 1; i < bytes / WORD; i++)
        __atomic_store_n(&row[i], from[i], __ATOMIC_RELEASE);
    __atomic_store_n(&row[0], changes + 2, __ATOMIC_RELEASE);
}

void harp_stats_put_port(struct harp_stats *stats, uint32_t row, const struct harp_port *port)
{
    union {
        struct harp_stats_port port;
        uint64_t words[sizeof(struct harp_stats_port) / WORD];
    } new = {.port = {.counters = port->counters}};
    assert(row < HARP_STATS_PORTS);
    memcpy(new.port.line, port->line, sizeof new.port.line);
    put_row((uint64_t *)(void *)&stats->ports[row], new.words, sizeof new.port);
}

void harp_stats_put_connection(struct harp_stats *stats, uint32_t row,
                               const struct harp_stats_connection *connection)
{
    assert(row < HARP_STATS_CONNECTIONS);
    put_row((uint64_t *)(void *)&stats->connections[row],
            (const uint64_t *)(const void *)connection, sizeof *connection);
}

void harp_stats_put_path(struct harp_stats *stats, uint32_t connection_row, uint32_t path,
                         const struct harp_stats_path *row)
{
    assert(connection_row < HARP_STATS_CONNECTIONS && path < HARP_STATS_PATHS);
    put_row((uint64_t *)(void *)&stats->paths[connection_row * HARP_STATS_PATHS + path],
            (const uint64_t *)(const void *)row, sizeof *row);
}

static void copy_words(void *to, const void *from, size_t bytes)
{
    for (size_t i = 0; i < bytes / WORD; i++)
        ((uint64_t *)to)[i] = __atomic_load_n((const uint64_t *)from + i, __ATOMIC_ACQUIRE);
}

/* A row whose owner died while it wrote stays odd: then it is taken as it is. */
static void read_row(void *to, const void *row, size_t bytes)
{
    for (int tries = 0; tries < TRIES_MAX; tries++) {
        copy_words(to, row, bytes);
        uint64_t before = *(const uint64_t *)to;
        if (before % 2 == 0 && __atomic_load_n((const uint64_t *)row, __ATOMIC_RELAXED) == before)
            return;
    }
    *(uint64_t *)to |= 1; /* it was written all the time: not whole either */
}

size_t harp_stats_list(struct harp_stats_entry *entries, size_t room)
{
    size_t count = 0;
    DIR *folder = opendir(FOLDER);
    if (!folder)
        return 0;
    for (struct dirent *found; count < room && (found = readdir(folder));) {
        int fd = is_ours(found->d_name) ? open_file(found->d_name) : -1;
        if (fd < 0)
            continue;
        entries[count].alive = !is_dead(fd);
        memcpy(entries[count++].file, found->d_name, strlen(found->d_name) + 1);
        close(fd);
    }
    closedir(folder);
    return count;
}

bool harp_stats_forget(const char *file)
{
    char path[PATH_BYTES];
    int fd = is_ours(file) ? open_file(file) : -1;
    if (fd < 0)
        return false;
    path_of(file, path);
    bool removed = is_dead(fd) && unlink(path) == 0;
    close(fd);
    return removed;
}

struct harp_stats_reader *harp_stats_open(const char *file, char *why)
{
    int fd = is_ours(file) ? open_file(file) : -EINVAL;
    struct stat about;
    if (fd < 0 || fstat(fd, &about) < 0) {
        snprintf(why, HARP_WHY_BYTES, "%.60s: %s", file, strerror(fd < 0 ? -fd : errno));
        if (fd >= 0)
            close(fd);
        return NULL;
    }
    const struct harp_stats *stats = MAP_FAILED;
    if ((size_t)about.st_size == sizeof *stats)
        stats = mmap(NULL, sizeof *stats, PROT_READ, MAP_SHARED, fd, 0);
    close(fd);
    struct harp_stats_reader *reader = malloc(sizeof *reader);
    if (stats == MAP_FAILED || !reader ||
        __atomic_load_n(&stats->magic, __ATOMIC_ACQUIRE) != HARP_STATS_MAGIC ||
        stats->layout != HARP_STATS_LAYOUT || stats->bytes != sizeof *stats) {
        snprintf(why, HARP_WHY_BYTES,
                 "%.60s: not statistics of layout %d; read them with the version that wrote them",
                 file, HARP_STATS_LAYOUT);
        if (stats != MAP_FAILED)
            munmap((void *)(uintptr_t)stats, sizeof *stats);
        free(reader);
        return NULL;
    }
    reader->stats = stats;
    return reader;
}

void harp_stats_read(const struct harp_stats_reader *reader, struct harp_stats *out)
{
    const struct harp_stats *stats = reader->stats;
    copy_words(out, stats, offsetof(struct harp_stats, ports));
    for (size_t i = 0; i < HARP_STATS_PORTS; i++) {
        read_row(&out->ports[i], &stats->ports[i], sizeof out->ports[i]);
        out->ports[i].line[sizeof out->ports[i].line - 1] = 0;
    }
    for (size_t i = 0; i < HARP_STATS_CONNECTIONS; i++) {
        read_row(&out->connections[i], &stats->connections[i], sizeof out->connections[i]);
        out->connections[i].peer[sizeof out->connections[i].peer - 1] = 0;
    }
    for (size_t i = 0; i < HARP_STATS_CONNECTIONS * HARP_STATS_PATHS; i++)
        read_row(&out->paths[i], &stats->paths[i], sizeof out->paths[i]);
    out->name[sizeof out->name - 1] = 0;
    memset(&out->recorder, 0, sizeof out->recorder);
    out->recorder.count = harp_recorder_read(&stats->recorder, out->recorder.events);
}

void harp_stats_close(struct harp_stats_reader *reader)
{
    munmap((void *)(uintptr_t)reader->stats, sizeof *reader->stats);
    free(reader);
}
