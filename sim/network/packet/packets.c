/* Packets and bodies of frames, which are taken and given back, and rows of packets. */
#include "world.h"

uint32_t take_packet(struct packet_world *w)
{
    uint32_t number = w->idle_packet;
    if (number != NO_PACKET) {
        w->idle_packet = w->packets[number].next;
        return number;
    }
    w->packets = grow_array(w->packets, w->packets_n, &w->packets_room, sizeof *w->packets);
    return (uint32_t)w->packets_n++;
}

void give_packet_back(struct packet_world *w, uint32_t number)
{
    struct packet *packet = &w->packets[number];
    if (packet->body != NO_PACKET) {
        w->idle_body =
            grow_array(w->idle_body, w->idle_bodies_n, &w->idle_bodies_room, sizeof *w->idle_body);
        w->idle_body[w->idle_bodies_n++] = packet->body;
    }
    packet->next = w->idle_packet;
    w->idle_packet = number;
}

uint32_t take_body(struct packet_world *w)
{
    if (w->idle_bodies_n)
        return w->idle_body[--w->idle_bodies_n];
    w->bodies = grow_array(w->bodies, w->bodies_n, &w->bodies_room, sizeof *w->bodies);
    return (uint32_t)w->bodies_n++;
}

void append_packet(struct packet_world *w, struct row *row, uint32_t number)
{
    w->packets[number].next = NO_PACKET;
    if (row->first == NO_PACKET)
        row->first = number;
    else
        w->packets[row->last].next = number;
    row->last = number;
}

uint32_t remove_first_packet(struct packet_world *w, struct row *row)
{
    uint32_t number = row->first;
    row->first = w->packets[number].next;
    return number;
}

void append_due_packet(struct packet_world *w, struct row *row, uint32_t number,
                       enum event_kind kind, size_t of)
{
    if (row->first == NO_PACKET)
        push_event(w, w->packets[number].at_ns, kind, of);
    append_packet(w, row, number);
}

uint32_t remove_due_packet(struct packet_world *w, struct row *row, enum event_kind kind, size_t of)
{
    uint32_t number = remove_first_packet(w, row);
    if (row->first != NO_PACKET)
        push_event(w, w->packets[row->first].at_ns, kind, of);
    return number;
}
