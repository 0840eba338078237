/* Packets and bodies of frames, which are taken and given back, and rows of packets. */
#include "world.h"

uint32_t take_packet(struct packet_world *w)
{
    uint32_t number = w->pool.idle_packet;
    if (number != NO_PACKET) {
        w->pool.idle_packet = w->pool.packets[number].next;
        return number;
    }
    GROW_ARRAY(w->pool.packets);
    return (uint32_t)w->pool.packets_n++;
}

void give_packet_back(struct packet_world *w, uint32_t number)
{
    struct packet *packet = &w->pool.packets[number];
    if (packet->body != NO_PACKET) {
        GROW_ARRAY(w->pool.idle_bodies);
        w->pool.idle_bodies[w->pool.idle_bodies_n++] = packet->body;
    }
    packet->next = w->pool.idle_packet;
    w->pool.idle_packet = number;
}

uint32_t take_body(struct packet_world *w)
{
    if (w->pool.idle_bodies_n)
        return w->pool.idle_bodies[--w->pool.idle_bodies_n];
    GROW_ARRAY(w->pool.bodies);
    return (uint32_t)w->pool.bodies_n++;
}

void append_packet(struct packet_world *w, struct row *row, uint32_t number)
{
    w->pool.packets[number].next = NO_PACKET;
    if (row->first == NO_PACKET)
        row->first = number;
    else
        w->pool.packets[row->last].next = number;
    row->last = number;
}

uint32_t remove_first_packet(struct packet_world *w, struct row *row)
{
    uint32_t number = row->first;
    row->first = w->pool.packets[number].next;
    return number;
}

void append_due_packet(struct packet_world *w, struct row *row, uint32_t number,
                       enum event_kind kind, size_t of)
{
    if (row->first == NO_PACKET)
        push_event(w, w->pool.packets[number].at_ns, kind, of);
    append_packet(w, row, number);
}

uint32_t remove_due_packet(struct packet_world *w, struct row *row, enum event_kind kind, size_t of)
{
    uint32_t number = remove_first_packet(w, row);
    if (row->first != NO_PACKET)
        push_event(w, w->pool.packets[row->first].at_ns, kind, of);
    return number;
}
