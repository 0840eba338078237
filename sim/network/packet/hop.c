/* Next hop of a packet that has crossed a link. */
#include "world.h"

void deliver_from_link(struct packet_world *w, uint32_t which)
{
    struct link *link = &w->fabric.links[which];
    uint32_t number = remove_due_packet(w, &link->propagating, LINK_DELIVERS, which);
    if (arrives_despite_faults(w, number))
        pass_on_packet(w, number);
}

void pass_on_packet(struct packet_world *w, uint32_t number)
{
    struct link *link = &w->fabric.links[w->pool.packets[number].link];
    w->pool.packets[number].came_by = w->pool.packets[number].link;
    enum way way = choose_next_link(w, &w->pool.packets[number]);
    if (way == WAY_ENDS)
        arrive_at_host(w, number);
    else if (way == WAY_GOES_ON)
        put_on_link(w, number);
    else
        drop_packet(w, link, number);
}
