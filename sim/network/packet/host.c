/* Processes of hosts: what they send into NICs, and what they receive. */
#include "base/sequence.h"
#include "world.h"

/* Frames that a session sends before the next session's turn. */
#define BURST 16

/* ---- sending */

void turn_process(struct packet_world *w, uint32_t number)
{
    struct process *process = &w->hosts.processes[number];
    if (process->turn_ns != w->now_ns)
        return;
    process->turn_ns = HARP_NEVER;
    while (process->ready_first != NO_PACKET && process->in_ring < process->ring_frames) {
        uint32_t end = process->ready_first;
        process->ready_first = w->hosts.ends[end].next_ready;
        w->hosts.ends[end].ready = false;
        uint32_t room = (uint32_t)harp_min(BURST, process->ring_frames - process->in_ring);
        if (w->hosts.ends[end].ops->drive(w, end, room, &process->busy_ns) &&
            !w->hosts.ends[end].ready)
            append_ready(w, end);
        if (process->busy_ns > w->now_ns)
            break;
    }
    if (process->ready_first != NO_PACKET && process->in_ring < process->ring_frames)
        turn_process_at(w, number, w->now_ns);
}

static void hand_to_nic(struct packet_world *w, uint32_t number)
{
    const struct packet *packet = &w->pool.packets[number];
    const struct end *sender = &w->hosts.ends[packet->end ^ 1];
    if (packet->payload && !conforms_to_chain(w, (uint32_t)sender->send_chain, packet->payload))
        drop_policed(w, number);
    else
        put_on_link(w, number);
}

void leave_process(struct packet_world *w, uint32_t number, uint64_t at_ns)
{
    struct packet *packet = &w->pool.packets[number];
    struct process *process = &w->hosts.processes[packet->process];
    process->in_ring++;
    if (at_ns <= w->now_ns && process->sending.first == NO_PACKET) {
        hand_to_nic(w, number);
        return;
    }
    process->sent_ns = packet->at_ns = harp_max(at_ns, process->sent_ns);
    append_due_packet(w, &process->sending, number, PROCESS_SENDS, (size_t)packet->process);
}

void send_from_process(struct packet_world *w, uint32_t number)
{
    struct process *process = &w->hosts.processes[number];
    hand_to_nic(w, remove_due_packet(w, &process->sending, PROCESS_SENDS, number));
}

/* ---- taking in */

void arrive_at_host(struct packet_world *w, uint32_t number)
{
    struct packet *packet = &w->pool.packets[number];
    const struct end *end = &w->hosts.ends[packet->end];
    struct process *process = &w->hosts.processes[end->process];
    packet->came_ns = w->now_ns;
    uint64_t at_ns = w->now_ns;
    if (packet->payload) {
        if (!conforms_to_chain(w, (uint32_t)end->receive_chain, packet->payload)) {
            drop_policed(w, number);
            return;
        }
        w->counts.data++;
        at_ns = pass_chain(w, (uint32_t)end->receive_chain, packet->payload);
    }
    if (at_ns <= w->now_ns && process->taking.first == NO_PACKET) {
        end->ops->take(w, number);
        return;
    }
    process->taken_ns = packet->at_ns = harp_max(at_ns, process->taken_ns);
    append_due_packet(w, &process->taking, number, PROCESS_TAKES, (size_t)end->process);
}

void take_at_process(struct packet_world *w, uint32_t number)
{
    struct process *process = &w->hosts.processes[number];
    uint32_t packet = remove_due_packet(w, &process->taking, PROCESS_TAKES, number);
    w->hosts.ends[w->pool.packets[packet].end].ops->take(w, packet);
}
