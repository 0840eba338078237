/* Processes: their turns, the times at which ends wake, and the ring of frames in the NIC. */
#include "base/sequence.h"
#include "world.h"

int32_t packet_add_process(packet_world *w, uint32_t ring_frames, int32_t thread)
{
    GROW_ARRAY(w->hosts.processes);
    w->hosts.processes[w->hosts.processes_n] = (struct process){.turn_ns = HARP_NEVER,
                                                                .ring_frames = ring_frames,
                                                                .thread = thread,
                                                                .sending = {NO_PACKET, NO_PACKET},
                                                                .taking = {NO_PACKET, NO_PACKET},
                                                                .ready_first = NO_PACKET,
                                                                .ready_last = NO_PACKET};
    return (int32_t)w->hosts.processes_n++;
}

void turn_process_at(struct packet_world *w, uint32_t number, uint64_t at_ns)
{
    struct process *process = &w->hosts.processes[number];
    at_ns = harp_max(at_ns, process->busy_ns);
    if (at_ns >= process->turn_ns)
        return;
    process->turn_ns = at_ns;
    push_event(w, at_ns, PROCESS_TURNS, number);
}

void append_ready(struct packet_world *w, uint32_t number)
{
    struct end *end = &w->hosts.ends[number];
    struct process *process = &w->hosts.processes[end->process];
    end->ready = true;
    end->next_ready = NO_PACKET;
    if (process->ready_first == NO_PACKET)
        process->ready_first = number;
    else
        w->hosts.ends[process->ready_last].next_ready = number;
    process->ready_last = number;
}

void drive_soon(struct packet_world *w, uint32_t number)
{
    struct end *end = &w->hosts.ends[number];
    if (!end->ready)
        append_ready(w, number);
    turn_process_at(w, (uint32_t)end->process, w->now_ns);
}

void wake_at(struct packet_world *w, uint32_t number, uint64_t at_ns)
{
    struct end *end = &w->hosts.ends[number];
    at_ns = harp_max(at_ns, w->now_ns);
    if (at_ns == HARP_NEVER || at_ns >= end->wake_ns)
        return;
    end->wake_ns = at_ns;
    push_event(w, at_ns, END_WAKES, number);
}

void wake_end(struct packet_world *w, uint32_t number)
{
    if (w->hosts.ends[number].wake_ns != w->now_ns)
        return;
    w->hosts.ends[number].wake_ns = HARP_NEVER;
    if (w->hosts.ends[number].ops->wake)
        w->hosts.ends[number].ops->wake(w, number);
    else
        drive_soon(w, number);
}

void leave_ring(struct packet_world *w, struct packet *packet)
{
    if (packet->process == NOBODY)
        return;
    uint32_t number = (uint32_t)packet->process, end = packet->end ^ 1;
    struct process *process = &w->hosts.processes[number];
    packet->process = NOBODY;
    if (w->hosts.ends[end].ops->left && packet->payload)
        w->hosts.ends[end].ops->left(w, packet);
    /* Half a ring at a time, as a driver wakes a sender that waits for room. */
    if (process->in_ring-- == process->ring_frames / 2 + 1 && process->ready_first != NO_PACKET)
        turn_process_at(w, number, w->now_ns);
}
