/* The settings of a user: HARP_ names in the environment and in a file.
 *
 *     environment  >  file of HARP_CONF_FILE, else /etc/harp/harp.conf  >  defaults
 *
 * The file has lines NAME=value; empty ones and those that begin with # are passed over. An empty
 * value counts as not set. docs/use/nccl.md lists the names; settings.c is the list that counts.
 */
#ifndef HARP_NCCL_SETTINGS_H
#define HARP_NCCL_SETTINGS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SETTINGS_TEXT_BYTES 512
#define SETTINGS_CPUS 256
#define SETTINGS_FILE "/etc/harp/harp.conf"

/* The last two: by trial, whichever of both is faster with a peer. */
enum settings_port {
    PORT_AUTO,
    PORT_XDP,
    PORT_UDP,
    PORT_TCP,
    PORT_MEM,
    PORT_XDP_OR_TCP,
    PORT_UDP_OR_TCP
};
enum settings_progress { PROGRESS_AUTO, PROGRESS_THREADS, PROGRESS_INLINE };
enum settings_xdp { XDP_BEST, XDP_COPY };

struct settings_cpus {
    uint32_t n; /* 0: any */
    uint16_t cpu[SETTINGS_CPUS];
};

struct settings {
    char interfaces[SETTINGS_TEXT_BYTES]; /* "": all that are fit */
    char rails[SETTINGS_TEXT_BYTES];      /* groups of NICs to fuse, "eth1,eth2;eth3,eth4" */
    char dump[SETTINGS_TEXT_BYTES];       /* file for flight recorders; "": none */
    char plan[SETTINGS_TEXT_BYTES];       /* file of a path plan; "": none */
    char tuner[SETTINGS_TEXT_BYTES];      /* file of a tuning table; "": that of the plan, if any */
    char faults[SETTINGS_TEXT_BYTES];     /* as port_chaos.h reads them; "": none */
    uint64_t port, progress, xdp;         /* of the enums above */
    uint64_t engines;                     /* a device; 0: by what the host is */
    uint64_t speed_mbps;                  /* for NICs if the driver reports no speed; 0: unknown */
    uint64_t paths;                       /* a connection */
    uint64_t sockets;                     /* a connection by tcp; 0: by what the host is */
    uint64_t crc;                         /* enum harp_crc */
    uint64_t cc;                          /* index into settings_cc */
    uint64_t mtu;                         /* 0: the interface's */
    uint64_t traffic_class;               /* where NCCL asks for none */
    uint64_t timeout_s;
    uint64_t busy_poll_us;
    uint64_t stats; /* say what a connection did when it is closed */
    struct settings_cpus cpus;
};

extern const char *const settings_cc[], *const settings_ports[];

/* Defaults, then the file, then the environment. False, and one sentence in `why`, if a value is
 * wrong or a file that was asked for cannot be read. `warn` gets names that do not exist. */
bool settings_read(struct settings *settings, void (*warn)(const char *format, ...), char *why,
                   size_t room);

/* cdef: begin */
/* Whether a setting may have a value; if not, one sentence in `why`. Names that no setting has may
 * have any. */
bool settings_allow(const char *name, const char *value, char *why, size_t room);
/* cdef: end */

/* Whether a list as NCCL_SOCKET_IFNAME takes it names this interface: prefixes separated by commas;
 * "=" before them: whole names; "^" before that: all but these. "" names all. */
bool settings_match(const char *list, const char *interface);

#endif
