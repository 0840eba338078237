/* Links: packets one after the other, a queue of those that wait, marks and drops. */
#include "base/sequence.h"
#include "world.h"

static uint64_t rate_q16(double bits_per_s)
{
    return bits_per_s > 0 ? ps_q16(8e12 / bits_per_s) : 0;
}

int32_t packet_add_link(packet_world *w, int32_t switch_number, double bits_per_s,
                        uint64_t latency_ns, uint64_t buffer_bytes, uint64_t mark_bytes)
{
    w->links = grow_array(w->links, w->links_n, &w->links_room, sizeof *w->links);
    w->links[w->links_n] = (struct link){.ps_per_byte_q16 = rate_q16(bits_per_s),
                                         .latency_ns = latency_ns,
                                         .buffer_bytes = buffer_bytes,
                                         .mark_bytes = mark_bytes,
                                         .urgent = {NO_PACKET, NO_PACKET},
                                         .waiting = {NO_PACKET, NO_PACKET},
                                         .flying = {NO_PACKET, NO_PACKET},
                                         .switch_number = switch_number};
    return (int32_t)w->links_n++;
}

int32_t packet_add_route(packet_world *w, int32_t n, const int32_t *link)
{
    w->routes = grow_array(w->routes, w->routes_n, &w->routes_room, sizeof *w->routes);
    w->routes[w->routes_n] = (uint32_t)w->hops_n;
    for (int32_t i = 0; i <= n; i++) {
        w->hops = grow_array(w->hops, w->hops_n, &w->hops_room, sizeof *w->hops);
        w->hops[w->hops_n++] = i < n ? (uint32_t)link[i] : NO_HOP;
    }
    return (int32_t)w->routes_n++;
}

static void drop_packet(struct packet_world *w, struct link *link, uint32_t number)
{
    link->counts.dropped++;
    w->counts.lost++;
    leave_ring(w, &w->packets[number]);
    give_packet_back(w, number);
}

/* The packet begins to leave. Those that wait follow one another without a gap, though the clock is
 * coarser than the link. */
static void begin_sending(struct packet_world *w, uint32_t which, uint32_t number,
                          uint64_t start_ps)
{
    struct link *link = &w->links[which];
    struct packet *packet = &w->packets[number];
    link->free_ps = start_ps + (packet->bytes * link->ps_per_byte_q16 >> 16);
    packet->at_ns = (link->free_ps + 999) / 1000 + link->latency_ns;
    link->counts.packets++;
    link->counts.bytes += packet->bytes;
    if (link->flying.first == NO_PACKET)
        push_event(w, packet->at_ns, LINK_DELIVERS, which);
    append_packet(w, &link->flying, number);
    leave_ring(w, packet);
}

/* The queue before a NIC lets frames without payload go first, as fq_codel does with flows that
 * have little to send (RFC 8290, section 4.2). */
static struct row *queue_of(struct link *link, const struct packet *packet)
{
    bool first = link->switch_number == NOBODY && packet->header.type != HARP_DATA;
    return first ? &link->urgent : &link->waiting;
}

static struct row *next_queue(struct link *link)
{
    return link->urgent.first != NO_PACKET ? &link->urgent : &link->waiting;
}

static bool nothing_waits(const struct link *link)
{
    return link->urgent.first == NO_PACKET && link->waiting.first == NO_PACKET;
}

void put_on_link(struct packet_world *w, uint32_t number)
{
    struct packet *packet = &w->packets[number];
    uint32_t which = w->hops[packet->hop];
    struct link *link = &w->links[which];
    if (!link->ps_per_byte_q16) {
        drop_packet(w, link, number);
        return;
    }
    if (nothing_waits(link) && link->free_ps <= w->now_ns * 1000) {
        begin_sending(w, which, number, w->now_ns * 1000);
        return;
    }
    if (link->buffer_bytes && link->waiting_bytes + packet->bytes > link->buffer_bytes) {
        drop_packet(w, link, number);
        return;
    }
    if (link->mark_bytes && link->waiting_bytes > link->mark_bytes) {
        packet->marked = true;
        link->counts.marked++;
    }
    link->waiting_bytes += packet->bytes;
    link->counts.most_bytes = harp_max(link->counts.most_bytes, link->waiting_bytes);
    if (nothing_waits(link))
        push_event(w, (link->free_ps + 999) / 1000, LINK_SENDS, which);
    append_packet(w, queue_of(link, packet), number);
}

void send_from_link(struct packet_world *w, uint32_t which)
{
    struct link *link = &w->links[which];
    /* A link that was down in between has events of its time before, too. */
    if (nothing_waits(link) || link->free_ps > w->now_ns * 1000)
        return;
    uint32_t number = remove_first_packet(w, next_queue(link));
    link->waiting_bytes -= w->packets[number].bytes;
    begin_sending(w, which, number, link->free_ps);
    if (!nothing_waits(link))
        push_event(w, (link->free_ps + 999) / 1000, LINK_SENDS, which);
}

void deliver_from_link(struct packet_world *w, uint32_t which)
{
    struct link *link = &w->links[which];
    uint32_t number = remove_first_packet(w, &link->flying);
    if (link->flying.first != NO_PACKET)
        push_event(w, w->packets[link->flying.first].at_ns, LINK_DELIVERS, which);
    struct packet *packet = &w->packets[number];
    if (w->hops[++packet->hop] == NO_HOP)
        arrive_at_host(w, number);
    else
        put_on_link(w, number);
}

void packet_set_rate(packet_world *w, int32_t which, double bits_per_s)
{
    struct link *link = &w->links[which];
    link->ps_per_byte_q16 = rate_q16(bits_per_s);
    while (!link->ps_per_byte_q16 && !nothing_waits(link)) {
        uint32_t number = remove_first_packet(w, next_queue(link));
        link->waiting_bytes -= w->packets[number].bytes;
        drop_packet(w, link, number);
    }
}

void packet_link_counts(const packet_world *w, int32_t link, struct packet_link_counts *counts)
{
    *counts = w->links[link].counts;
    counts->waiting_bytes = w->links[link].waiting_bytes;
}
