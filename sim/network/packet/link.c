/* Links: packets one after the other, a queue of those that wait, marks and drops. */
#include "base/sequence.h"
#include "world.h"

static uint64_t rate_q16(double bits_per_s)
{
    return bits_per_s > 0 ? ps_q16(8e12 / bits_per_s) : 0;
}

int32_t packet_add_link(packet_world *w, int32_t from, int32_t to, double bits_per_s,
                        uint64_t latency_ns, uint64_t mark_bytes)
{
    GROW_ARRAY(w->fabric.links);
    w->fabric.links[w->fabric.links_n] = (struct link){.ps_per_byte_q16 = rate_q16(bits_per_s),
                                                       .latency_ns = latency_ns,
                                                       .mark_bytes = mark_bytes,
                                                       .urgent = {NO_PACKET, NO_PACKET},
                                                       .waiting = {NO_PACKET, NO_PACKET},
                                                       .propagating = {NO_PACKET, NO_PACKET},
                                                       .from = from,
                                                       .to = to};
    return (int32_t)w->fabric.links_n++;
}

void packet_share_buffers(packet_world *w, int32_t switches, uint64_t bytes, double alpha)
{
    free(w->buffers.used);
    w->buffers.used = zeroed_array((size_t)switches, sizeof *w->buffers.used);
    w->buffers.switches = switches;
    w->buffers.bytes = bytes;
    w->buffers.alpha_q8 = (uint64_t)(alpha * 256 + 0.5);
}

void drop_packet(struct packet_world *w, struct link *link, uint32_t number)
{
    link->counts.dropped++;
    w->counts.lost++;
    leave_ring(w, &w->pool.packets[number]);
    give_packet_back(w, number);
}

/* The packet begins to leave. Those that wait follow one another without a gap, though the clock is
 * coarser than the link. */
static void begin_sending(struct packet_world *w, uint32_t which, uint32_t number,
                          uint64_t start_ps)
{
    struct link *link = &w->fabric.links[which];
    struct packet *packet = &w->pool.packets[number];
    link->free_ps = start_ps + (packet->bytes * link->ps_per_byte_q16 >> 16);
    packet->at_ns = (link->free_ps + 999) / 1000 + link->latency_ns;
    link->counts.packets++;
    link->counts.bytes += packet->bytes;
    if (w->capture.file && w->capture.link == which)
        capture_packet(w, packet);
    append_due_packet(w, &link->propagating, number, LINK_DELIVERS, which);
    leave_ring(w, packet);
}

void packet_put_acks_first(packet_world *w)
{
    w->fabric.acks_first = true;
}

/* The queue before a NIC lets frames without payload go first, as fq_codel does with flows that
 * have little to send (RFC 8290, section 4.2). */
static struct row *queue_of(const struct packet_world *w, struct link *link,
                            const struct packet *packet)
{
    bool first = !packet->payload && (link->from == NOBODY || w->fabric.acks_first);
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

/* The queue at a link, and in its switch, has grown or shrunk by a packet. */
static void count_waiting(struct packet_world *w, struct link *link, const struct packet *packet,
                          bool more)
{
    uint64_t bytes = more ? packet->bytes : -(uint64_t)packet->bytes;
    link->waiting_bytes += bytes;
    if (!w->buffers.used || link->from == NOBODY)
        return;
    w->buffers.used[link->from] += bytes;
    if (w->pfc.is_on)
        count_for_pause(w, packet, more);
}

static bool fits_in_buffer(const struct packet_world *w, const struct link *link,
                           const struct packet *packet)
{
    if (!w->buffers.used || link->from == NOBODY)
        return true;
    if (w->pfc.is_on)
        return fits_with_pauses(w, packet);
    uint64_t bytes = packet->bytes;
    uint64_t used = w->buffers.used[link->from];
    uint64_t free_bytes = w->buffers.bytes - harp_min(used, w->buffers.bytes);
    return bytes <= free_bytes &&
           link->waiting_bytes + bytes <= free_bytes * w->buffers.alpha_q8 / 256;
}

void put_on_link(struct packet_world *w, uint32_t number)
{
    struct packet *packet = &w->pool.packets[number];
    uint32_t which = packet->link;
    struct link *link = &w->fabric.links[which];
    if (!link->ps_per_byte_q16) {
        drop_packet(w, link, number);
        return;
    }
    if (nothing_waits(link) && !link->is_paused && link->free_ps <= w->now_ns * 1000) {
        begin_sending(w, which, number, w->now_ns * 1000);
        return;
    }
    if (!fits_in_buffer(w, link, packet)) {
        drop_packet(w, link, number);
        return;
    }
    if (link->mark_bytes && link->waiting_bytes > link->mark_bytes && packet->can_mark) {
        packet->marked = true;
        link->counts.marked++;
    }
    count_waiting(w, link, packet, true);
    link->counts.most_bytes = harp_max(link->counts.most_bytes, link->waiting_bytes);
    if (nothing_waits(link) && !link->is_paused) /* resume_link does it then */
        push_event(w, (link->free_ps + 999) / 1000, LINK_SENDS, which);
    append_packet(w, queue_of(w, link, packet), number);
}

void send_from_link(struct packet_world *w, uint32_t which)
{
    struct link *link = &w->fabric.links[which];
    uint64_t now_ps = w->now_ns * 1000;
    /* A link that was down or paused in between has events of its time before, too. */
    if (nothing_waits(link) || link->is_paused || link->free_ps > now_ps)
        return;
    uint32_t number = remove_first_packet(w, next_queue(link));
    count_waiting(w, link, &w->pool.packets[number], false);
    begin_sending(w, which, number, link->free_ps + 1000 > now_ps ? link->free_ps : now_ps);
    if (!nothing_waits(link))
        push_event(w, (link->free_ps + 999) / 1000, LINK_SENDS, which);
}

void packet_set_rate(packet_world *w, int32_t which, double bits_per_s)
{
    struct link *link = &w->fabric.links[which];
    link->ps_per_byte_q16 = rate_q16(bits_per_s);
    while (!link->ps_per_byte_q16 && !nothing_waits(link)) {
        uint32_t number = remove_first_packet(w, next_queue(link));
        count_waiting(w, link, &w->pool.packets[number], false);
        drop_packet(w, link, number);
    }
}

void packet_link_counts(const packet_world *w, int32_t link, struct packet_link_counts *counts)
{
    *counts = w->fabric.links[link].counts;
    counts->waiting_bytes = w->fabric.links[link].waiting_bytes;
}
