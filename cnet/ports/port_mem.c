#define _GNU_SOURCE
#include "ports/port_mem.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#define RING_BYTES (UINT64_C(2) << 20) /* it stays in the cache that a core has for itself */
#define BURSTS 4 /* parts in which a ring is written and read, so that both sides work at once */
#define STALL_NS UINT64_C(300000000) /* a reader that stands still so long is no reason to wait */
#define FULL_NS UINT64_C(50000)      /* how soon a full ring is looked at again */

/* A trial finds the faster form of writing: this many bytes in each way, four times in
 * turn, and the better one is kept for KEPT_BYTES. A disturbance only makes a trial slower, so
 * the best of each way counts; near is taken unless far is a twentieth faster. */
enum { TRIAL_BYTES = 2 << 20, TRIALS = 8, KEPT_BYTES = 1 << 30 };

static struct mem_port *mem_port_of(struct harp_port *port)
{
    return (struct mem_port *)(void *)port;
}

/* ---- Receive ---- */

void mem_give_up(struct mem_port *port, struct mem_link *link)
{
    link->corrupt = true;
    if (link->state == MEM_LINKED)
        mem_end(port, link);
}

static size_t take_from(struct mem_port *port, struct mem_link *link, struct harp_arrival *arrivals,
                        size_t room)
{
    size_t count = 0;
    uint8_t *bytes;
    uint32_t length;
    enum mem_got got = MEM_NOTHING;
    uint64_t until = link->in.taken + link->in.bytes / BURSTS;
    while (count < room && link->in.taken < until &&
           (got = mem_take(&link->in, &bytes, &length)) == MEM_DATAGRAM) {
        arrivals[count++] = (struct harp_arrival){
            .bytes = bytes, .length = length, .frame = HARP_NO_FRAME, .from = &link->peer};
        port->port.counters.received_bytes += length;
    }
    if (got == MEM_CORRUPT)
        mem_give_up(port, link);
    return count;
}

void mem_wake_up(struct mem_port *port)
{
    port->asleep = false;
    for (uint32_t i = 0; i < port->links_n; i++)
        if (port->links[i].state == MEM_LINKED)
            mem_wake(&port->links[i].in);
    mem_look(port);
}

static size_t mem_port_receive(struct harp_port *base, uint64_t now_ns,
                               struct harp_arrival *arrivals, size_t room)
{
    struct mem_port *port = mem_port_of(base);
    size_t count = 0;
    port->now_ns = now_ns;
    if (port->asleep)
        mem_wake_up(port);
    port->turn = port->turn + 1 < port->links_n ? port->turn + 1 : 0;
    uint32_t at = port->turn;
    for (uint32_t i = 0; i < port->links_n && count < room; i++) {
        struct mem_link *link = &port->links[at];
        at = at + 1 < port->links_n ? at + 1 : 0;
        if ((link->state == MEM_LINKED || link->state == MEM_ENDED) && !link->corrupt)
            count += take_from(port, link, arrivals + count, room - count);
    }
    base->counters.received += count;
    return count;
}

static void mem_port_release(struct harp_port *base, struct harp_arrival *arrivals, size_t count)
{
    struct mem_port *port = mem_port_of(base);
    (void)arrivals;
    (void)count;
    for (uint32_t i = 0; i < port->links_n; i++)
        if (port->links[i].state == MEM_LINKED)
            mem_release(&port->links[i].in);
}

/* ---- Send ---- */

/* At a flush. A trial lasts until its bytes are written. */
static void try_ways(struct mem_link *link, uint64_t now_ns)
{
    struct mem_trial *trial = &link->trial;
    uint64_t bytes = link->out.written - trial->from;
    if (bytes < (trial->n < TRIALS ? TRIAL_BYTES : KEPT_BYTES))
        return;
    if (trial->n < TRIALS && now_ns > trial->from_ns) {
        uint64_t rate = bytes * 1000 / (now_ns - trial->from_ns);
        trial->best[link->nontemporal] =
            rate > trial->best[link->nontemporal] ? rate : trial->best[link->nontemporal];
    }
    if (++trial->n < TRIALS) {
        link->nontemporal = trial->n % 2;
    } else if (trial->n == TRIALS) {
        link->nontemporal = trial->best[1] > trial->best[0] + trial->best[0] / 20;
    } else {
        *trial = (struct mem_trial){0};
        link->nontemporal = false;
    }
    trial->from = link->out.written;
    trial->from_ns = now_ns;
}

/* Bytes that may be written to a link, asking the other side if few are known. */
static uint64_t room_for(struct mem_port *port, struct mem_link *link, uint64_t wanted)
{
    if (mem_room_seen(&link->out) < wanted && !mem_out_refresh(&link->out))
        mem_give_up(port, link);
    return mem_room_seen(&link->out);
}

static size_t mem_port_room(struct harp_port *base, int hop)
{
    struct mem_link *link = &mem_port_of(base)->links[hop];
    uint64_t each = mem_stride(MEM_PAYLOAD_MAX);
    if (link->state != MEM_LINKED)
        return HARP_BATCH; /* it is dropped */
    uint64_t burst = link->out.bytes / BURSTS, begun = link->out.written - link->out.published;
    uint64_t bytes = room_for(mem_port_of(base), link, burst > each ? burst : each);
    if (bytes < each && link->full_since_ns == 0)
        link->full_since_ns = mem_port_of(base)->now_ns;
    if (bytes < each)
        return link->stalled ? HARP_BATCH : 0;
    if (begun >= burst)
        return 0;
    bytes = bytes < burst - begun ? bytes : burst - begun;
    return bytes < each ? 1 : (size_t)(bytes / each);
}

static uint8_t *mem_port_slot(struct harp_port *base, int hop, uint32_t bytes)
{
    struct mem_link *link = &mem_port_of(base)->links[hop];
    uint64_t stride = mem_stride(bytes);
    assert(bytes <= MEM_PAYLOAD_MAX);
    if (link->state != MEM_LINKED || room_for(mem_port_of(base), link, stride) < stride) {
        base->counters.dropped++;
        return NULL;
    }
    base->nontemporal = link->nontemporal;
    base->counters.sent++;
    base->counters.sent_bytes += bytes;
    return mem_write(&link->out, bytes);
}

static void mem_port_flush(struct harp_port *base, uint64_t now_ns)
{
    struct mem_port *port = mem_port_of(base);
    port->now_ns = now_ns;
    for (uint32_t i = 0; i < port->links_n; i++) {
        struct mem_link *link = &port->links[i];
        if (link->state != MEM_LINKED || link->out.written == link->out.published)
            continue;
        try_ways(link, now_ns);
        if (!mem_publish(&link->out))
            continue;
        /* If there is no room for a byte, enough of them wait there to wake anybody. */
        (void)send(link->socket, "", 1, MSG_DONTWAIT | MSG_NOSIGNAL);
        base->counters.send_calls++;
    }
}

/* ---- Slow work ---- */

/* Whether a ring is full for long because nobody reads it. */
static void watch_stall(struct mem_port *port, struct mem_link *link)
{
    uint64_t each = mem_stride(MEM_PAYLOAD_MAX);
    if (link->full_since_ns == 0)
        return;
    uint64_t seen = link->out.consumed_seen;
    if (room_for(port, link, each) >= each || link->out.consumed_seen != seen) {
        link->full_since_ns = 0;
        link->stalled = false;
    } else if (port->now_ns - link->full_since_ns > STALL_NS) {
        link->stalled = true;
    }
}

/* An ended link's ring has been received to its end. */
static bool has_drained(const struct mem_link *link)
{
    return link->corrupt || link->in.taken == atomic_load(&link->in.control->produced);
}

static void free_link(struct mem_port *port, struct mem_link *link)
{
    struct harp_address peer = link->peer;
    uint32_t hops = link->hops;
    mem_free(port, link);
    link->state = MEM_DEAD;
    link->peer = peer;
    link->hops = hops;
}

static void mem_port_tend(struct harp_port *base, uint64_t now_ns)
{
    struct mem_port *port = mem_port_of(base);
    port->now_ns = now_ns;
    mem_look(port);
    for (uint32_t i = 0; i < port->links_n; i++) {
        struct mem_link *link = &port->links[i];
        if (link->state == MEM_LINKED)
            watch_stall(port, link);
        if (link->state == MEM_ENDED && has_drained(link))
            free_link(port, link);
    }
}

static bool mem_port_notice(struct harp_port *base, struct harp_notice *out)
{
    struct mem_port *port = mem_port_of(base);
    for (uint32_t i = 0; i < port->links_n; i++) {
        struct mem_link *link = &port->links[i];
        if (link->state != MEM_DEAD || link->noticed)
            continue;
        *out = (struct harp_notice){.type = HARP_NOTICE_GONE, .about = link->peer};
        link->noticed = true;
        if (link->hops == 0)
            mem_free(port, link);
        return true;
    }
    return false;
}

/* ---- Hops ---- */

static int mem_port_hop(struct harp_port *base, const struct harp_address *to, uint16_t local,
                        char *why)
{
    struct mem_port *port = mem_port_of(base);
    assert(local == 0);
    if (to->family != HARP_MEM) {
        char text[64];
        harp_address_format(to, text, sizeof text);
        snprintf(why, HARP_WHY_BYTES, "%s is no mem port; a mem port reaches no other kind", text);
        return -EAFNOSUPPORT;
    }
    int number = -1;
    for (uint32_t i = 0; i < port->links_n && number < 0; i++)
        if (port->links[i].state == MEM_LINKED && harp_address_same(&port->links[i].peer, to))
            number = (int)i;
    if (number < 0)
        number = mem_connect(port, to, why);
    if (number >= 0)
        port->links[number].hops++;
    return number;
}

static void mem_port_unhop(struct harp_port *base, int hop)
{
    struct mem_port *port = mem_port_of(base);
    struct mem_link *link = &port->links[hop];
    assert(link->hops > 0);
    link->hops--;
    if (link->hops == 0 && link->state == MEM_DEAD && link->noticed)
        mem_free(port, link);
}

static uint32_t mem_port_hop_payload_max(const struct harp_port *base, int hop)
{
    (void)base;
    (void)hop;
    return MEM_PAYLOAD_MAX;
}

/* ---- Waiting ---- */

static int mem_port_fd(const struct harp_port *base)
{
    return ((const struct mem_port *)(const void *)base)->epoll;
}

static bool mem_port_sleep(struct harp_port *base)
{
    struct mem_port *port = mem_port_of(base);
    bool quiet = true;
    for (uint32_t i = 0; i < port->links_n; i++) {
        struct mem_link *link = &port->links[i];
        if (link->state == MEM_LINKED)
            quiet &= mem_sleep(&link->in);
        else if (link->state == MEM_ENDED || (link->state == MEM_DEAD && !link->noticed))
            quiet = false;
    }
    port->asleep = true;
    if (!quiet)
        mem_wake_up(port);
    return quiet;
}

static uint64_t mem_port_deadline_ns(const struct harp_port *base)
{
    const struct mem_port *port = (const struct mem_port *)(const void *)base;
    for (uint32_t i = 0; i < port->links_n; i++)
        if (port->links[i].state == MEM_LINKED && port->links[i].full_since_ns)
            return port->now_ns + FULL_NS;
    return UINT64_MAX;
}

/* ---- Open and close ---- */

static void mem_port_close(struct harp_port *base)
{
    struct mem_port *port = mem_port_of(base);
    bool child = port->owner != getpid();
    if (port->epoll >= 0)
        close(port->epoll);
    port->epoll = -1; /* it is the parent's, too: nothing is taken off it */
    for (uint32_t i = 0; i < port->links_n; i++) {
        if (child)
            port->links[i].base = NULL; /* it was not inherited */
        if (port->links[i].state != MEM_FREE)
            mem_free(port, &port->links[i]);
    }
    if (port->listener >= 0)
        close(port->listener);
    if (port->listener >= 0 && !child)
        mem_name_remove(&port->name);
    free(port);
}

static const struct harp_port_ops mem_ops = {
    .name = "mem",
    .receive = mem_port_receive,
    .release = mem_port_release,
    .room = mem_port_room,
    .slot = mem_port_slot,
    .flush = mem_port_flush,
    .tend = mem_port_tend,
    .notice = mem_port_notice,
    .hop = mem_port_hop,
    .unhop = mem_port_unhop,
    .hop_payload_max = mem_port_hop_payload_max,
    .fd = mem_port_fd,
    .sleep = mem_port_sleep,
    .deadline_ns = mem_port_deadline_ns,
    .close = mem_port_close,
};

/* The size of rings: a power of two; 0 if what is asked for cannot be. */
static uint64_t ring_bytes(uint64_t asked)
{
    uint64_t bytes = MEM_RING_LEAST;
    if (asked == 0)
        return RING_BYTES;
    while (bytes < asked)
        bytes *= 2;
    return bytes <= MEM_RING_MOST ? bytes : 0;
}

int harp_port_mem_open(struct harp_port **out, const struct harp_port_config *config, char *why)
{
    uint64_t ring = ring_bytes(config->ring_bytes);
    if (ring == 0) {
        snprintf(why, HARP_WHY_BYTES, "mem: ring_bytes is %u; the most is %d", config->ring_bytes,
                 MEM_RING_MOST);
        return -EINVAL;
    }
    struct mem_port *port = calloc(1, sizeof *port);
    if (!port) {
        snprintf(why, HARP_WHY_BYTES, "mem: %s", strerror(ENOMEM));
        return -ENOMEM;
    }
    port->owner = getpid();
    port->ring_bytes = ring;
    port->listener = port->epoll = -1;
    port->name.family = HARP_MEM;
    port->port = (struct harp_port){.ops = &mem_ops,
                                    .locals = &port->name,
                                    .locals_n = 1,
                                    .payload_max = MEM_PAYLOAD_MAX,
                                    .holds_back = true};
    int failed = getrandom(port->name.ip, sizeof port->name.ip, 0) < 0 ? -errno : mem_listen(port);
    if (failed) {
        snprintf(why, HARP_WHY_BYTES, "mem: no socket in /dev/shm to be found by: %s",
                 strerror(-failed));
        mem_port_close(&port->port);
        return failed;
    }
    snprintf(port->port.line, sizeof port->port.line, "mem: rings of %llu KiB",
             (unsigned long long)ring / 1024);
    *out = &port->port;
    return 0;
}
