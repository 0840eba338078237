/* Statistics of an engine, in a file of shared memory that any process of its user can read while
 * it runs: `harp top`, a test, a debugger after a crash.
 *
 *     /dev/shm/harp-<uid>-<pid>-<n>
 *     | who it is | engine | ports | connections, a row each | their paths | flight recorder |
 *
 * - **Life.** The engine creates the file, whole and locked (flock), and removes it when it closes.
 *   The kernel drops the lock when the process dies, however it dies. The file of a dead process
 *   stays until somebody forgets it, or an engine of the same user starts ten minutes later. This
 *   works across pid namespaces.
 * - **Without /dev/shm**, or when it is full, the statistics lie in ordinary memory: the engine
 *   works, nobody else sees in; `line` says so.
 * - **Fork.** The child does not inherit the memory and must not count. The engine destroys its
 *   statistics there at once, which only forgets them: a child that held the file would keep it
 *   locked after the parent's end.
 *
 * Owner: the engine's thread writes, others only read. Memory order: engine counters are single
 * 64-bit words, each right by itself. A row of a port, connection or path is a sequence lock:
 * `changes` is odd while it is written; the reader tries again until it is even and the same before
 * and after.
 *
 * The layout is fixed by `layout`; a reader refuses another one. All in it that comes from another
 * process is only shown, never used as an index.
 */
#ifndef HARP_STATS_H
#define HARP_STATS_H

#include <stdbool.h>

#include "base/recorder.h"
#include "ports/port.h"
#include "session/session.h"

#define HARP_STATS_MAGIC UINT64_C(0x5354415450524148) /* "HARPSTAT" */
#define HARP_STATS_LAYOUT 4

/* cdef: begin */
#define HARP_STATS_PORTS 16
#define HARP_STATS_CONNECTIONS 256
#define HARP_STATS_PATHS 8 /* of a connection, its first ones */
#define HARP_STATS_NAME_BYTES 64
#define HARP_STATS_LINE_BYTES 200

/* The engine adds to these as things happen, by harp_count. */
struct harp_engine_counters {
    uint64_t turns;      /* rounds of its loop */
    uint64_t busy_turns; /* in which something came or went */
    uint64_t tended_ns;  /* when it last looked after slow work, by its clock */
    uint64_t sleeps;
    uint64_t arrivals;                                               /* datagrams */
    uint64_t bad_short, bad_version, bad_tag, bad_header, strangers; /* of these, refused */
    uint64_t visits;  /* of connections, to drive them or to publish their rows: what turns cost */
    uint64_t no_room; /* times that a connection waited for room in a port */
    uint64_t connections_opened, connections; /* since the beginning; now */
    uint64_t messages_sent, message_bytes_sent;
    uint64_t messages_received, message_bytes_received;
};

struct harp_stats_port {
    uint64_t changes;
    struct harp_port_counters counters;
    char line[HARP_STATS_LINE_BYTES];
};

enum harp_stats_state {
    HARP_STATS_UNUSED, /* of a row */
    HARP_STATS_CONNECTING,
    HARP_STATS_ACCEPTING,
    HARP_STATS_OPEN,
    HARP_STATS_CLOSING,
    HARP_STATS_CLOSED,
};

struct harp_stats_connection {
    uint64_t changes;
    uint64_t id;
    uint64_t peer_id;  /* the other end's; 0 while it is not known */
    uint64_t since_ns; /* by the engine's clock */
    uint32_t state;    /* enum harp_stats_state */
    uint16_t paths, paths_alive;
    uint32_t segment;
    uint32_t reason;      /* CLOSED: why */
    uint64_t smoothed_ns; /* of the path that is best */
    uint64_t window_bytes, bytes_in_flight;
    uint64_t messages_sent, message_bytes_sent;
    uint64_t messages_received, message_bytes_received;
    char peer[HARP_STATS_NAME_BYTES]; /* its address */
    struct harp_session_counters counters;
};

struct harp_stats_path {
    uint64_t changes;
    uint64_t connection; /* its id; 0: the row is unused */
    uint32_t number;     /* of the path */
    uint32_t port;       /* row of its port */
    struct harp_address local, remote;
    struct harp_path_info info;
};

struct harp_stats {
    uint64_t magic;
    uint32_t layout;
    uint32_t bytes; /* of this struct */
    uint64_t pid;
    uint64_t started_ns;      /* by the engine's clock, CLOCK_MONOTONIC */
    uint64_t started_unix_ns; /* by the calendar */
    char name[HARP_STATS_NAME_BYTES];
    struct harp_engine_counters engine;
    struct harp_stats_port ports[HARP_STATS_PORTS];
    struct harp_stats_connection connections[HARP_STATS_CONNECTIONS];
    struct harp_stats_path paths[HARP_STATS_CONNECTIONS * HARP_STATS_PATHS];
    struct harp_recorder recorder;
};

struct harp_stats_entry {
    char file[HARP_STATS_NAME_BYTES]; /* what harp_stats_open takes */
    bool alive;                       /* its process has it open */
};

/* The statistics of engines that this process may read. Returns how many it wrote, at most `room`.
 */
size_t harp_stats_list(struct harp_stats_entry *entries, size_t room);

/* Remove the statistics of an engine if its process is dead; false if it lives. */
bool harp_stats_forget(const char *file);

/* Open one for reading. NULL, and one sentence in `why` (HARP_WHY_BYTES), if that cannot be. */
struct harp_stats_reader *harp_stats_open(const char *file, char *why);

/* Copy what stands there now, each row consistent in itself. */
void harp_stats_read(const struct harp_stats_reader *reader, struct harp_stats *out);

void harp_stats_close(struct harp_stats_reader *reader);
/* cdef: end */

/* Resources that the engine holds. */
struct harp_stats_file {
    struct harp_stats *stats;
    int fd;    /* holds the lock; -1: ordinary memory */
    int owner; /* process that created it */
    char path[HARP_STATS_NAME_BYTES];
    char line[HARP_STATS_LINE_BYTES]; /* for a log */
};

/* Create the statistics of an engine: its identity, and zeros. Returns 0 or -ENOMEM. */
int harp_stats_create(struct harp_stats_file *file, const char *name);

/* Remove them. */
void harp_stats_destroy(struct harp_stats_file *file);

/* Replace a row; `changes` of the new one is not looked at. */
void harp_stats_put_port(struct harp_stats *stats, uint32_t row, const struct harp_port *port);
void harp_stats_put_connection(struct harp_stats *stats, uint32_t row,
                               const struct harp_stats_connection *connection);
/* `path` is below HARP_STATS_PATHS. */
void harp_stats_put_path(struct harp_stats *stats, uint32_t connection_row, uint32_t path,
                         const struct harp_stats_path *row);

/* Add to a counter that others read. */
static inline void harp_count(uint64_t *counter, uint64_t by)
{
    __atomic_store_n(counter, *counter + by, __ATOMIC_RELAXED);
}

#endif
