/* Hosts: servers and chains of them, and the processes that drive sessions. */
#include "base/sequence.h"
#include "world.h"

/* Frames that a session sends before it is another's turn. */
#define BURST 16

int32_t packet_add_bucket(packet_world *w, double ps_per_byte, double burst, uint64_t bytes)
{
    w->server_free_ps =
        grow_array(w->server_free_ps, w->servers_n, &w->servers_room, sizeof *w->server_free_ps);
    w->buckets = grow_array(w->buckets, w->servers_n, &w->buckets_room, sizeof *w->buckets);
    w->server_free_ps[w->servers_n] = 0;
    w->buckets[w->servers_n] = (struct bucket){.size = bytes,
                                               .tokens = bytes,
                                               .at_ps = w->now_ns * 1000,
                                               .ps_per_byte_q16 = ps_q16(ps_per_byte),
                                               .burst_q16 = ps_q16(ps_per_byte * burst)};
    return (int32_t)w->servers_n++;
}

int32_t packet_add_server(packet_world *w)
{
    return packet_add_bucket(w, 0, 0, 0);
}

int32_t packet_add_chain(packet_world *w, int32_t n, const int32_t *server,
                         const double *ps_per_byte)
{
    w->chains = grow_array(w->chains, w->chains_n, &w->chains_room, sizeof *w->chains);
    struct chain chain = {.n = (uint32_t)n, .stops = zeroed_array((size_t)n, sizeof *chain.stops)};
    for (int32_t i = 0; i < n; i++)
        chain.stops[i] = (struct stop_on_chain){(uint32_t)server[i], ps_q16(ps_per_byte[i])};
    for (int32_t i = 0; i < n; i++)
        chain.is_policed |= w->buckets[server[i]].polices;
    w->chains[w->chains_n] = chain;
    return (int32_t)w->chains_n++;
}

void packet_set_pace(packet_world *w, int32_t chain, int32_t place, double ps_per_byte)
{
    w->chains[chain].stops[place].ps_per_byte_q16 = ps_q16(ps_per_byte);
}

int32_t packet_add_process(packet_world *w, uint32_t ring_frames, int32_t thread)
{
    w->processes =
        grow_array(w->processes, w->processes_n, &w->processes_room, sizeof *w->processes);
    w->processes[w->processes_n] = (struct process){.turn_ns = HARP_NEVER,
                                                    .ring_frames = ring_frames,
                                                    .thread = thread,
                                                    .sending = {NO_PACKET, NO_PACKET},
                                                    .taking = {NO_PACKET, NO_PACKET},
                                                    .ready_first = NO_PACKET,
                                                    .ready_last = NO_PACKET};
    return (int32_t)w->processes_n++;
}

void refill_bucket(struct bucket *bucket, uint64_t now_ps)
{
    uint64_t passed = now_ps > bucket->at_ps ? now_ps - bucket->at_ps : 0;
    uint64_t came = (passed << 16) / bucket->ps_per_byte_q16;
    if (bucket->tokens + came >= bucket->size) {
        bucket->tokens = bucket->size;
        bucket->at_ps = now_ps;
    } else { /* only whole tokens count; the rest of the time is kept */
        bucket->tokens += came;
        bucket->at_ps += came * bucket->ps_per_byte_q16 >> 16;
    }
}

/* When a server's next `bytes` are done that begin at `start_ps`: they wait for their tokens, and
 * then take the time of a burst. */
static uint64_t take_tokens(struct bucket *bucket, uint64_t start_ps, uint64_t bytes)
{
    refill_bucket(bucket, start_ps);
    if (bucket->tokens < bytes) {
        start_ps = bucket->at_ps + ((bytes - bucket->tokens) * bucket->ps_per_byte_q16 >> 16);
        bucket->tokens = bytes;
        bucket->at_ps = start_ps;
    }
    bucket->tokens -= bytes;
    return start_ps + (bytes * bucket->burst_q16 >> 16);
}

/* All servers of a chain work on the bytes at once, each when it is free: the chain takes as long
 * as the one that is done last, and no server waits idly for another. */
uint64_t pass_chain(struct packet_world *w, uint32_t number, uint64_t bytes)
{
    const struct chain *chain = &w->chains[number];
    uint64_t now_ps = w->now_ns * 1000, end_ps = now_ps;
    for (uint32_t i = 0; i < chain->n; i++) {
        uint32_t server = chain->stops[i].server;
        uint64_t *free_ps = &w->server_free_ps[server];
        if (w->buckets[server].polices)
            continue;
        w->buckets[server].passed += bytes;
        /* A server that was busy until this very nanosecond goes on without a gap. */
        if (*free_ps + 1000 <= now_ps)
            *free_ps = now_ps;
        if (w->buckets[server].size)
            *free_ps = take_tokens(&w->buckets[server], *free_ps, bytes);
        else
            *free_ps += bytes * chain->stops[i].ps_per_byte_q16 >> 16;
        end_ps = harp_max(end_ps, *free_ps);
    }
    return (end_ps + 999) / 1000;
}

uint64_t handle_message(struct packet_world *w, uint32_t number, uint64_t cost_ns)
{
    struct process *process = &w->processes[number];
    if (!cost_ns)
        return w->now_ns;
    if (process->thread == NOBODY)
        return process->message_ns = harp_max(w->now_ns, process->message_ns) + cost_ns;
    uint64_t *free_ps = &w->server_free_ps[process->thread];
    *free_ps = harp_max(*free_ps, w->now_ns * 1000) + cost_ns * 1000;
    return (*free_ps + 999) / 1000;
}

/* ---- sending */

static void turn_at(struct packet_world *w, uint32_t number, uint64_t at_ns)
{
    struct process *process = &w->processes[number];
    at_ns = harp_max(at_ns, process->busy_ns);
    if (at_ns >= process->turn_ns)
        return;
    process->turn_ns = at_ns;
    push_event(w, at_ns, PROCESS_TURNS, number);
}

static void append_ready(struct packet_world *w, uint32_t number)
{
    struct end *end = &w->ends[number];
    struct process *process = &w->processes[end->process];
    end->ready = true;
    end->next_ready = NO_PACKET;
    if (process->ready_first == NO_PACKET)
        process->ready_first = number;
    else
        w->ends[process->ready_last].next_ready = number;
    process->ready_last = number;
}

void drive_soon(struct packet_world *w, uint32_t number)
{
    struct end *end = &w->ends[number];
    if (!end->ready)
        append_ready(w, number);
    turn_at(w, (uint32_t)end->process, w->now_ns);
}

void wake_at(struct packet_world *w, uint32_t number, uint64_t at_ns)
{
    struct end *end = &w->ends[number];
    at_ns = harp_max(at_ns, w->now_ns);
    if (at_ns == HARP_NEVER || at_ns >= end->wake_ns)
        return;
    end->wake_ns = at_ns;
    push_event(w, at_ns, END_WAKES, number);
}

void wake_end(struct packet_world *w, uint32_t number)
{
    if (w->ends[number].wake_ns != w->now_ns)
        return;
    w->ends[number].wake_ns = HARP_NEVER;
    if (w->ends[number].ops->wake)
        w->ends[number].ops->wake(w, number);
    else
        drive_soon(w, number);
}

void turn_process(struct packet_world *w, uint32_t number)
{
    struct process *process = &w->processes[number];
    if (process->turn_ns != w->now_ns)
        return;
    process->turn_ns = HARP_NEVER;
    while (process->ready_first != NO_PACKET && process->in_ring < process->ring_frames) {
        uint32_t end = process->ready_first;
        process->ready_first = w->ends[end].next_ready;
        w->ends[end].ready = false;
        uint32_t room = (uint32_t)harp_min(BURST, process->ring_frames - process->in_ring);
        if (w->ends[end].ops->drive(w, end, room, &process->busy_ns) && !w->ends[end].ready)
            append_ready(w, end);
        if (process->busy_ns > w->now_ns)
            break;
    }
    if (process->ready_first != NO_PACKET && process->in_ring < process->ring_frames)
        turn_at(w, number, w->now_ns);
}

void leave_ring(struct packet_world *w, struct packet *packet)
{
    if (packet->process == NOBODY)
        return;
    uint32_t number = (uint32_t)packet->process, end = packet->end ^ 1;
    struct process *process = &w->processes[number];
    packet->process = NOBODY;
    if (w->ends[end].ops->left && packet->payload)
        w->ends[end].ops->left(w, packet);
    /* Half a ring at a time, as a driver wakes who waits for room. */
    if (process->in_ring-- == process->ring_frames / 2 + 1 && process->ready_first != NO_PACKET)
        turn_at(w, number, w->now_ns);
}

static void hand_to_nic(struct packet_world *w, uint32_t number)
{
    const struct packet *packet = &w->packets[number];
    const struct end *sender = &w->ends[packet->end ^ 1];
    if (packet->payload && !conforms_to_chain(w, (uint32_t)sender->send_chain, packet->payload))
        drop_policed(w, number);
    else
        put_on_link(w, number);
}

void leave_process(struct packet_world *w, uint32_t number, uint64_t at_ns)
{
    struct packet *packet = &w->packets[number];
    struct process *process = &w->processes[packet->process];
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
    struct process *process = &w->processes[number];
    hand_to_nic(w, remove_due_packet(w, &process->sending, PROCESS_SENDS, number));
}

/* ---- taking in */

void arrive_at_host(struct packet_world *w, uint32_t number)
{
    struct packet *packet = &w->packets[number];
    const struct end *end = &w->ends[packet->end];
    struct process *process = &w->processes[end->process];
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
    struct process *process = &w->processes[number];
    uint32_t packet = remove_due_packet(w, &process->taking, PROCESS_TAKES, number);
    w->ends[w->packets[packet].end].ops->take(w, packet);
}
