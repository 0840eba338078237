/* Links that lose what crosses them, or deliver it late. */
#include "world.h"

#define MILLION 1000000

void packet_set_faults(packet_world *w, int32_t link, const struct packet_link_faults *faults)
{
    w->fabric.links[link].faults = *faults;
}

/* Draws only where there is something to decide, so that a world without faults stays as it is. */
static bool has_bad_luck(struct packet_world *w, uint32_t ppm)
{
    return ppm && virtual_below(&w->random, MILLION) < ppm;
}

bool arrives_despite_faults(struct packet_world *w, uint32_t number)
{
    const struct packet *packet = &w->pool.packets[number];
    struct link *link = &w->fabric.links[packet->link];
    const struct packet_link_faults *faults = &link->faults;
    bool too_long = faults->longest_bytes && packet->bytes > faults->longest_bytes;
    if (too_long || has_bad_luck(w, faults->drop_ppm)) {
        drop_packet(w, link, number);
        return false;
    }
    if (!has_bad_luck(w, faults->late_ppm))
        return true;
    push_event(w, w->now_ns + faults->late_ns, PACKET_LATE, number);
    return false;
}
