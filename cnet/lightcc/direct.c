#include "direct.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ports/headers.h"
#include "ports/port.h"

#define RING_BYTES (1 << 18) /* the least that a mem port has */
#define ARRIVALS 16
#define NO_HOP (-1)

struct direct_peer {
    struct harp_address name;
    int hop;              /* NO_HOP: it is not reached so */
    uint32_t first, next; /* numbers of messages: the first that is here, and the next to come */
    struct direct_message came[DIRECT_INBOX];
};

struct harp_direct {
    struct harp_port *port;
    uint32_t peers_n, linked_n;
    uint32_t *linked; /* numbers of the peers that are reached */
    struct direct_peer *peers;
};

int harp_direct_open(struct harp_direct **out, uint32_t peers, char *why)
{
    struct harp_direct *direct = calloc(1, sizeof *direct);
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
        failed = harp_port_mem_open(&direct->port,
                                    &(struct harp_port_config){.ring_bytes = RING_BYTES}, why);
    if (failed) {
        harp_direct_close(direct);
        return failed;
    }
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
        direct->port->ops->close(direct->port);
    free(direct->linked);
    free(direct->peers);
    free(direct);
}

const uint8_t *harp_direct_name(const struct harp_direct *direct)
{
    return direct->port->locals[0].ip;
}

int harp_direct_link(struct harp_direct *direct, uint32_t number, const uint8_t *name, char *why)
{
    struct direct_peer *peer = &direct->peers[number];
    peer->name = (struct harp_address){.family = HARP_MEM};
    memcpy(peer->name.ip, name, sizeof peer->name.ip);
    direct->port->ops->tend(direct->port, 0); /* take in who has linked up with this one */
    int hop = direct->port->ops->hop(direct->port, &peer->name, 0, why);
    if (hop < 0)
        return hop;
    peer->hop = hop;
    direct->linked[direct->linked_n++] = number;
    return 0;
}

bool direct_reaches(const struct harp_direct *direct, uint32_t peer)
{
    return direct && direct->peers[peer].hop != NO_HOP;
}

/* ---- Messages ---- */

/* A message lies behind the room for a header of the wire, which aligns it to a line. */
bool direct_send(struct harp_direct *direct, uint32_t peer, const uint8_t *said,
                 uint32_t said_bytes, const uint8_t *at, uint32_t bytes)
{
    struct harp_port *port = direct->port;
    uint8_t *slot =
        port->ops->slot(port, direct->peers[peer].hop, HARP_HEADER_BYTES + said_bytes + bytes);
    if (!slot)
        return false;
    if (said_bytes)
        memcpy(slot + HARP_HEADER_BYTES, said, said_bytes);
    if (bytes)
        memcpy(slot + HARP_HEADER_BYTES + said_bytes, at, bytes);
    port->ops->flush(port, 0);
    return true;
}

static struct direct_peer *find_peer(struct harp_direct *direct, const struct harp_address *name)
{
    for (uint32_t i = 0; i < direct->linked_n; i++)
        if (harp_address_same(&direct->peers[direct->linked[i]].name, name))
            return &direct->peers[direct->linked[i]];
    return NULL;
}

static void keep_message(struct harp_direct *direct, const struct harp_arrival *arrival)
{
    struct direct_peer *peer = find_peer(direct, arrival->from);
    if (!peer || peer->next - peer->first == DIRECT_INBOX || arrival->length < HARP_HEADER_BYTES)
        return;
    struct direct_message *message = &peer->came[peer->next++ % DIRECT_INBOX];
    message->bytes = arrival->length - HARP_HEADER_BYTES;
    memcpy(message->at, arrival->bytes + HARP_HEADER_BYTES,
           message->bytes < DIRECT_BYTES ? message->bytes : DIRECT_BYTES);
}

bool direct_look(struct harp_direct *direct)
{
    struct harp_port *port = direct->port;
    struct harp_arrival arrivals[ARRIVALS];
    size_t n = 0, all = 0;
    do {
        n = port->ops->receive(port, 0, arrivals, ARRIVALS);
        for (size_t i = 0; i < n; i++)
            keep_message(direct, &arrivals[i]);
        if (n)
            port->ops->release(port, arrivals, n);
        all += n;
    } while (n == ARRIVALS);
    return all > 0;
}

struct direct_message *direct_first(struct harp_direct *direct, uint32_t number)
{
    struct direct_peer *peer = &direct->peers[number];
    return peer->next != peer->first ? &peer->came[peer->first % DIRECT_INBOX] : NULL;
}

void direct_drop(struct harp_direct *direct, uint32_t peer)
{
    direct->peers[peer].first++;
}

/* ---- Waiting ---- */

bool direct_sleep(struct harp_direct *direct)
{
    struct harp_notice notice;
    if (!direct)
        return true;
    direct->port->ops->tend(direct->port, 0);
    while (direct->port->ops->notice(direct->port, &notice))
        ; /* of an end that has been heard, nobody is woken any more */
    return direct->port->ops->sleep(direct->port);
}

int direct_fd(const struct harp_direct *direct)
{
    return direct ? direct->port->ops->fd(direct->port) : -1;
}
