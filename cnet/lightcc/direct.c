#define _GNU_SOURCE
#include "direct.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "base/copy_nontemporal.h"
#include "ports/port_mem.h"

#define RING_BYTES (1 << 20) /* less than a core's cache, and more than a few pieces */
#define NO_HOP (-1)

struct direct_peer {
    int hop; /* number of its link; NO_HOP: it is not reached so */
    bool is_full;
    bool has_first;
    struct direct_record first;
};

struct harp_direct {
    struct mem_port *port;
    uint32_t peers_n, linked_n;
    uint32_t *linked; /* numbers of the peers that are reached */
    struct direct_peer *peers;
};

int harp_direct_open(struct harp_direct **out, uint32_t peers, char *why)
{
    struct harp_direct *direct = calloc(1, sizeof *direct);
    struct harp_port *port = NULL;
    int failed = direct ? 0 : -ENOMEM;
    if (direct) {
        direct->peers_n = peers;
        direct->peers = calloc(peers + 1, sizeof *direct->peers);
        direct->linked = calloc(peers + 1, sizeof *direct->linked);
        failed = direct->peers && direct->linked ? 0 : -ENOMEM;
    }
    if (failed)
        snprintf(why, HARP_WHY_BYTES, "no memory for messages to %u ranks", peers);
    else
        failed =
            harp_port_mem_open(&port, &(struct harp_port_config){.ring_bytes = RING_BYTES}, why);
    if (failed) {
        harp_direct_close(direct);
        return failed;
    }
    direct->port = (struct mem_port *)(void *)port;
    for (uint32_t i = 0; i < peers; i++)
        direct->peers[i].hop = NO_HOP;
    *out = direct;
    return 0;
}

void harp_direct_close(struct harp_direct *direct)
{
    if (!direct)
        return;
    if (direct->port)
        direct->port->port.ops->close(&direct->port->port);
    free(direct->linked);
    free(direct->peers);
    free(direct);
}

const uint8_t *harp_direct_name(const struct harp_direct *direct)
{
    return direct->port->name.ip;
}

int harp_direct_link(struct harp_direct *direct, uint32_t number, const uint8_t *name, char *why)
{
    struct harp_port *port = &direct->port->port;
    struct harp_address address = {.family = HARP_MEM};
    memcpy(address.ip, name, sizeof address.ip);
    mem_look(direct->port); /* who has linked up with this one */
    int hop = port->ops->hop(port, &address, 0, why);
    if (hop < 0)
        return hop;
    direct->peers[number].hop = hop;
    direct->linked[direct->linked_n++] = number;
    return 0;
}

bool direct_reaches(const struct harp_direct *direct, uint32_t peer)
{
    return direct && direct->peers[peer].hop != NO_HOP;
}

static struct mem_link *link_of(const struct harp_direct *direct, uint32_t peer)
{
    return &direct->port->links[direct->peers[peer].hop];
}

bool direct_lives(const struct harp_direct *direct, uint32_t peer)
{
    return link_of(direct, peer)->state == MEM_LINKED;
}

/* ---- Records: behind the room for a header of the wire, which has the message's length ----
 */

/* Room for a record of a message; NULL if there is none now. */
static uint8_t *make_record(struct harp_direct *direct, uint32_t peer, uint32_t bytes,
                            uint32_t whole)
{
    struct harp_port *port = &direct->port->port;
    uint8_t *slot = port->ops->slot(port, direct->peers[peer].hop, HARP_HEADER_BYTES + bytes);
    direct->peers[peer].is_full = !slot;
    if (!slot)
        return NULL;
    memcpy(slot, &whole, sizeof whole);
    return slot + HARP_HEADER_BYTES;
}

static void publish_records(struct harp_direct *direct)
{
    direct->port->port.ops->flush(&direct->port->port, harp_clock_ns());
}

bool direct_write_described(struct harp_direct *direct, uint32_t peer, const uint8_t *said,
                            uint32_t said_bytes, const uint8_t *at, uint32_t bytes)
{
    uint8_t *record = make_record(direct, peer, said_bytes + bytes, said_bytes + bytes);
    if (!record)
        return false;
    if (said_bytes)
        memcpy(record, said, said_bytes);
    if (bytes)
        memcpy(record + said_bytes, at, bytes);
    publish_records(direct);
    return true;
}

static bool write_record(struct harp_direct *direct, uint32_t peer, const uint8_t *from,
                         uint32_t bytes, uint32_t whole)
{
    uint8_t *record = make_record(direct, peer, bytes, whole);
    if (!record)
        return false;
    if (direct->port->port.nontemporal)
        harp_copy_nontemporal(record, from, bytes);
    else if (bytes)
        memcpy(record, from, bytes);
    publish_records(direct);
    return true;
}

bool direct_write(struct harp_direct *direct, uint32_t peer, const uint8_t *at, uint32_t bytes,
                  uint32_t *done)
{
    do {
        uint32_t left = bytes - *done;
        uint32_t next = left < DIRECT_RECORD_BYTES ? left : DIRECT_RECORD_BYTES;
        if (!write_record(direct, peer, at + *done, next, bytes))
            return false;
        *done += next;
    } while (*done < bytes);
    return true;
}

static bool may_read(const struct mem_link *link)
{
    return (link->state == MEM_LINKED || link->state == MEM_ENDED) && !link->corrupt;
}

bool direct_look(struct harp_direct *direct)
{
    bool came = false;
    if (direct->port->asleep)
        mem_wake_up(direct->port);
    for (uint32_t i = 0; i < direct->linked_n; i++) {
        struct mem_link *link = link_of(direct, direct->linked[i]);
        uint64_t seen = link->in.produced_seen;
        if (!may_read(link))
            continue;
        if (!mem_in_refresh(&link->in))
            mem_give_up(direct->port, link);
        came |= link->in.produced_seen != seen;
    }
    return came;
}

static bool take_record(struct harp_direct *direct, struct mem_link *link,
                        struct direct_record *record)
{
    uint32_t length = 0;
    uint8_t *datagram = NULL;
    enum mem_got got = may_read(link) ? mem_take(&link->in, &datagram, &length) : MEM_NOTHING;
    if (got == MEM_CORRUPT || (got == MEM_DATAGRAM && length < HARP_HEADER_BYTES))
        mem_give_up(direct->port, link);
    if (got != MEM_DATAGRAM || link->corrupt)
        return false;
    *record = (struct direct_record){.at = datagram + HARP_HEADER_BYTES,
                                     .bytes = length - HARP_HEADER_BYTES};
    memcpy(&record->whole, datagram, sizeof record->whole);
    return true;
}

const struct direct_record *direct_first(struct harp_direct *direct, uint32_t number)
{
    struct direct_peer *peer = &direct->peers[number];
    if (!peer->has_first)
        peer->has_first = take_record(direct, link_of(direct, number), &peer->first);
    return peer->has_first ? &peer->first : NULL;
}

void direct_drop(struct harp_direct *direct, uint32_t peer)
{
    struct mem_link *link = link_of(direct, peer);
    assert(direct->peers[peer].has_first);
    direct->peers[peer].has_first = false;
    if (mem_release_to_sleeper(&link->in, &link->out) && link->socket >= 0)
        (void)send(link->socket, "", 1, MSG_DONTWAIT | MSG_NOSIGNAL);
}

/* ---- Waiting ---- */

static bool sleep_on_link(struct mem_link *link, bool is_full)
{
    return is_full ? mem_sleep_for_room(&link->in, &link->out,
                                        mem_stride(HARP_HEADER_BYTES + DIRECT_RECORD_BYTES))
                   : mem_sleep_on(&link->in);
}

bool direct_sleep(struct harp_direct *direct)
{
    bool quiet = true;
    if (!direct)
        return true;
    for (uint32_t i = 0; i < direct->linked_n; i++) {
        uint32_t peer = direct->linked[i];
        struct mem_link *link = link_of(direct, peer);
        bool is_full = direct->peers[peer].is_full && direct_lives(direct, peer);
        if (may_read(link))
            quiet &= sleep_on_link(link, is_full);
    }
    direct->port->asleep = true;
    if (!quiet)
        mem_wake_up(direct->port);
    return quiet;
}

int direct_fd(const struct harp_direct *direct)
{
    return direct ? direct->port->epoll : -1;
}
