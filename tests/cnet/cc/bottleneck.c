#include "bottleneck.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/sequence.h"
#include "bottleneck_queue.h"
#include "virtual/event_heap.h"
#include "virtual/random.h"
#include "virtual/session_ends.h"

#define AHEAD 4                                /* messages under way */
#define ROOM 64                                /* frames per call of harp_session_send */
#define INBOX 8192                             /* frames that may wait at a host */
#define CLOCK_AHEAD_NS UINT64_C(1000000000000) /* of the receivers' clock */
#define CROSS_APART_NS UINT64_C(100000000)

struct bn_flight {
    struct harp_frame frame;
    bool marked;
    uint64_t came_ns; /* to its host */
    struct cross_packet cross;
};

/* An event is a number: its upper half is a host, 2 * flow plus 1 for the receiver, or from CROSS
 * on a TCP flow; its lower half the flight that it learns of, or NO_FLIGHT: the host wants to be
 * driven. */
#define NO_FLIGHT UINT32_MAX
#define CROSS (2 * BN_FLOWS)

struct host {
    struct harp_session *session;
    struct harp_session_config config;
    uint32_t inbox[INBOX];
    uint32_t inbox_n;
    uint64_t wake_ns;   /* of the valid wake-up event */
    uint64_t busy_ns;   /* at its last turn until then; of the first host of a shared core */
    uint64_t hiccup_ns; /* when the next one is due */
    uint64_t rest_ns;   /* has nothing to send until then; 0: it has */
    uint32_t sent;      /* messages of this burst */
};

struct world {
    const struct bn_scene *scene;
    struct host hosts[2 * BN_FLOWS];
    struct virtual_events events;
    uint64_t random, now_ns;
    struct bn_flight *flights;
    uint32_t *idle, idle_n, flights_n;
    struct bn_queue queue;
    bool odd_done;
    struct cross_flow cross[BN_CROSS];
    uint64_t cross_wake_ns[BN_CROSS], cross_delivered; /* at from_ns */
    uint64_t cross_next_ns, cross_back_ns;             /* off their cores then, and until then */
    uint64_t placed[BN_FLOWS];                         /* frames at from_ns */
    uint64_t said[BN_FLOWS];  /* lost packets at from_ns, as the sender counts, */
    uint64_t found[BN_FLOWS]; /* and those that were not */
    uint64_t data, again, lost, marked;
};

static void push_event(struct world *w, uint64_t at_ns, uint32_t host, uint32_t flight)
{
    bool done = virtual_events_push(&w->events, at_ns, (uint64_t)host << 32 | flight);
    assert(done);
}

static uint32_t new_flight(struct world *w)
{
    if (!w->idle_n) {
        uint32_t more = w->flights_n ? w->flights_n : 1024;
        w->flights = realloc(w->flights, (w->flights_n + more) * sizeof *w->flights);
        w->idle = realloc(w->idle, (w->flights_n + more) * sizeof *w->idle);
        while (more--)
            w->idle[w->idle_n++] = w->flights_n++;
    }
    return w->idle[--w->idle_n];
}

static uint64_t rtt_of(const struct world *w, uint32_t flow)
{
    const struct bn_scene *s = w->scene;
    if (!s->rtt_last_ns || s->flows < 2)
        return s->rtt_ns;
    return s->rtt_ns + (s->rtt_last_ns - s->rtt_ns) * flow / (s->flows - 1);
}

/* One-way delay of a flow's frame besides the queue. */
static uint64_t way_ns(const struct world *w, uint32_t flow, enum bn_ways way)
{
    const struct bn_scene *s = w->scene;
    uint64_t longer_ns = w->now_ns >= s->longer.at_ns ? s->longer.by_ns : 0;
    if (s->longer.way == BN_BOTH_WAYS)
        longer_ns /= 2;
    else if (s->longer.way != way)
        longer_ns = 0;
    return rtt_of(w, flow) / 2 + longer_ns;
}

/* The time by a host's own clock, which only the receivers' differs from the world's; and the first
 * time of the world at which that shows `own_ns` or more. */
static uint64_t own_clock_ns(const struct world *w, uint32_t number, uint64_t at_ns)
{
    const struct bn_scene *s = w->scene;
    if (!(number & 1))
        return at_ns;
    int64_t set_ns = s->clock.set_by_ns && at_ns >= s->clock.set_at_ns ? s->clock.set_by_ns : 0;
    int64_t fast_ns = (int64_t)at_ns / 1000000 * s->clock.fast_ppm;
    return CLOCK_AHEAD_NS + at_ns + (uint64_t)(fast_ns + set_ns);
}

static uint64_t world_clock_ns(const struct world *w, uint32_t number, uint64_t own_ns)
{
    if (!(number & 1) || own_ns == HARP_NEVER)
        return own_ns;
    uint64_t behind_ns = own_clock_ns(w, number, w->now_ns) - w->now_ns;
    uint64_t at_ns = own_ns > behind_ns ? own_ns - behind_ns : 0;
    while (own_clock_ns(w, number, at_ns) < own_ns)
        at_ns += 1 + (own_ns - own_clock_ns(w, number, at_ns)) / 2;
    return at_ns;
}

static void deliver_frame(struct world *w, uint32_t host, uint64_t at_ns, bool marked,
                          const struct harp_frame *frame)
{
    uint32_t flight = new_flight(w);
    w->flights[flight].frame = *frame;
    w->flights[flight].marked = marked;
    at_ns += way_ns(w, host / 2, host & 1 ? BN_BACK : BN_THERE);
    push_event(w, at_ns, host ^ 1, flight);
}

/* In a ring every other flow's data goes the other way. */
static uint32_t sender_of(const struct bn_scene *scene, uint32_t flow)
{
    return 2 * flow + (scene->ring && flow & 1);
}

/* Frames that are sent as one: all arrive, or none. */
static void transmit_super(struct world *w, uint32_t host, uint64_t now_ns,
                           const struct harp_frame *frames, size_t n)
{
    const struct bn_scene *s = w->scene;
    bool data = frames->header.type == HARP_DATA && host == sender_of(s, host / 2);
    bool marked = false;
    size_t counts = data && now_ns >= s->from_ns ? n : 0;
    uint64_t at_ns = now_ns, bytes = n * (HARP_HEADER_BYTES + (uint64_t)frames->header.length);
    if (virtual_chance(&w->random, s->line.loss))
        at_ns = HARP_NEVER;
    else if (!(host & 1) || s->both || s->ring || s->cross.back)
        at_ns = bn_queue_pass(&w->queue, s, host & 1, now_ns, bytes, &marked);
    w->data += counts;
    for (size_t i = 0; i < n; i++) {
        w->again += counts && frames[i].again;
        if (at_ns != HARP_NEVER)
            deliver_frame(w, host, at_ns, marked, &frames[i]);
    }
    if (at_ns == HARP_NEVER)
        w->lost += counts;
    else if (marked)
        w->marked += counts;
}

static void transmit_frames(struct world *w, uint32_t host, uint64_t now_ns,
                            const struct harp_frame *frames, size_t n)
{
    for (size_t at = 0, whole; at < n; at += whole) {
        whole = w->scene->supers ? bn_queue_joins(frames + at, n - at) : 1;
        transmit_super(w, host, now_ns, frames + at, whole);
    }
}

/* Packets that go through the queue as one; each arrives, or all are lost. */
static void cross_send_super(struct world *w, uint32_t number, uint32_t packets)
{
    struct cross_flow *flow = &w->cross[number];
    bool marked;
    uint32_t way = w->scene->cross.back;
    uint64_t queue_ns = virtual_line_wait_ps(&w->queue.lines[way], w->now_ns) / 1000;
    uint64_t at_ns =
        bn_queue_pass(&w->queue, w->scene, way, w->now_ns, packets * CROSS_BYTES, &marked);
    bool lost = at_ns == HARP_NEVER;
    at_ns = lost ? w->now_ns + queue_ns : at_ns; /* those behind it tell */
    for (uint32_t i = 0; i < packets; i++) {
        uint32_t flight = new_flight(w);
        cross_sent(flow, w->now_ns, &w->flights[flight].cross);
        w->flights[flight].marked = lost;
        push_event(w, at_ns + rtt_of(w, 0), CROSS + number, flight);
    }
}

static void cross_send(struct world *w, uint32_t number)
{
    const struct bn_scene *s = w->scene;
    struct cross_flow *flow = &w->cross[number];
    uint32_t packets;
    while ((packets = cross_may_send(flow, w->now_ns, s->cross.supers)) &&
           !(s->cross.to_ns && w->now_ns > s->cross.to_ns))
        cross_send_super(w, number, packets);
    if (flow->next_ns > w->now_ns && flow->next_ns != w->cross_wake_ns[number]) {
        w->cross_wake_ns[number] = flow->next_ns;
        push_event(w, flow->next_ns, CROSS + number, NO_FLIGHT);
    }
}

/* When the TCP flows' hosts look at what happens now: at once, or when they are back on their
 * cores. */
static uint64_t cross_sees_ns(struct world *w)
{
    const struct bn_scene *s = w->scene;
    if (s->cross.away_ns && w->now_ns >= w->cross_next_ns) {
        w->cross_back_ns = w->now_ns + virtual_below(&w->random, s->cross.away_ns);
        w->cross_next_ns = w->cross_back_ns + virtual_below(&w->random, 2 * s->cross.gap_ns);
    }
    return harp_max(w->now_ns, w->cross_back_ns);
}

/* A TCP flow begins (its kind is unset until then), may send again, or learns of a packet. */
static void cross_event(struct world *w, uint32_t number, uint32_t flight)
{
    struct cross_flow *flow = &w->cross[number];
    uint64_t sees_ns = cross_sees_ns(w);
    if (sees_ns > w->now_ns) {
        push_event(w, sees_ns, CROSS + number, flight);
        return;
    }
    if (flight == NO_FLIGHT && !flow->cc.window)
        cross_begin(flow, w->scene->cross.kind, w->now_ns);
    if (flight != NO_FLIGHT) {
        const struct bn_flight *at = &w->flights[flight];
        (at->marked ? cross_lost : cross_acked)(flow, w->now_ns, &at->cross);
        w->idle[w->idle_n++] = flight;
    }
    cross_send(w, number);
}

static uint64_t cross_delivered(const struct world *w)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < w->scene->cross.flows; i++)
        sum += w->cross[i].delivered;
    return sum;
}

static uint64_t *busy_of(struct world *w, uint32_t number)
{
    return &w->hosts[w->scene->shared_hosts ? number % 2 : number].busy_ns;
}

static void wake_at(struct world *w, uint32_t number, uint64_t at_ns)
{
    struct host *host = &w->hosts[number];
    at_ns = harp_max(at_ns, *busy_of(w, number));
    if (at_ns >= host->wake_ns)
        return;
    host->wake_ns = at_ns;
    push_event(w, at_ns, number, NO_FLIGHT);
}

/* How long the frame has waited in its host, as far as its time stamp tells. */
static uint64_t stamped_wait_ns(struct world *w, uint32_t number, const struct bn_flight *flight)
{
    const struct harp_frame *frame = &flight->frame;
    bool odd = w->scene->clock.odd_ns && !w->odd_done && w->now_ns >= w->scene->clock.odd_at_ns &&
               !(number & 1) && frame->header.type == HARP_ACK;
    w->odd_done |= odd;
    if (odd)
        return w->scene->clock.odd_ns;
    return w->scene->sockets ? w->now_ns - flight->came_ns : 0;
}

static void take_frame(struct world *w, uint32_t number, uint64_t now_ns, uint32_t flight)
{
    struct host *host = &w->hosts[number];
    const struct harp_frame *frame = &w->flights[flight].frame;
    struct harp_place place;
    uint64_t own_ns = own_clock_ns(w, number, now_ns);
    if (!host->session) {
        host->session = virtual_session_accept(&host->config, own_ns, &frame->header, frame->body);
        assert(host->session);
    } else if (harp_session_receive(host->session, own_ns,
                                    stamped_wait_ns(w, number, &w->flights[flight]), &frame->header,
                                    frame->body, w->flights[flight].marked, &place) == HARP_PLACE) {
        harp_session_placed(host->session, true);
    }
    w->idle[w->idle_n++] = flight;
}

static uint32_t message_bytes(const struct host *host)
{
    return 1024u * host->config.segment;
}

static void send_message(struct host *host)
{
    harp_session_message(host->session, NULL, message_bytes(host), 0);
}

static bool host_sends_data(const struct bn_scene *scene, uint32_t number)
{
    return scene->both || number == sender_of(scene, number / 2);
}

/* A message is there: the next one follows, or a burst is over and its sender rests. */
static void note_sent(struct world *w, struct host *host)
{
    if (!w->scene->rest_ns)
        send_message(host);
    else if (++host->sent == AHEAD)
        host->rest_ns = w->now_ns + w->scene->rest_ns;
}

static void begin_burst(struct host *host)
{
    host->rest_ns = host->sent = 0;
    for (int i = 0; i < AHEAD; i++)
        send_message(host);
}

static void run_application(struct world *w, uint32_t number)
{
    struct host *host = &w->hosts[number];
    struct harp_event event;
    int eager;
    if (host->rest_ns && w->now_ns >= host->rest_ns)
        begin_burst(host);
    for (;;) {
        harp_session_poll(host->session, &event);
        if (event.type == HARP_EVENT_NONE)
            return;
        assert(event.type != HARP_EVENT_CLOSED);
        bool begin = event.type == HARP_EVENT_CONNECTED;
        bool posts =
            event.type == HARP_EVENT_RECEIVED || (begin && host_sends_data(w->scene, number ^ 1));
        for (int i = begin ? 0 : AHEAD - 1; posts && i < AHEAD; i++)
            harp_session_post(host->session, NULL, message_bytes(host), 0, &eager);
        if (begin && host_sends_data(w->scene, number))
            begin_burst(host);
        if (event.type == HARP_EVENT_SENT)
            note_sent(w, host);
    }
}

static uint64_t pay_for_frames(struct world *w, struct host *host, uint64_t now_ns, uint64_t frames)
{
    const struct bn_host *cost = &w->scene->host;
    now_ns += frames * cost->frame_ns;
    if (cost->hiccup_gap_ns && now_ns >= host->hiccup_ns) {
        now_ns += virtual_below(&w->random, cost->hiccup_ns);
        host->hiccup_ns = now_ns + virtual_below(&w->random, 2 * (uint64_t)cost->hiccup_gap_ns);
    }
    return now_ns;
}

/* Take frames in; returns how many. From sockets, those that came on the path of the first. */
static uint32_t take_inbox(struct world *w, uint32_t number, uint64_t now_ns)
{
    struct host *host = &w->hosts[number];
    uint32_t taken = 0, left = 0;
    uint8_t path = host->inbox_n ? w->flights[host->inbox[0]].frame.path : 0;
    for (uint32_t i = 0; i < host->inbox_n; i++) {
        uint32_t flight = host->inbox[i];
        bool takes = !w->scene->sockets || (w->flights[flight].frame.path == path && taken < ROOM);
        if (takes)
            take_frame(w, number, now_ns, flight);
        else
            host->inbox[left++] = flight;
        taken += takes;
    }
    host->inbox_n = left;
    return taken;
}

/* One turn of the host's loop. */
static void turn_host(struct world *w, uint32_t number, uint64_t now_ns)
{
    struct host *host = &w->hosts[number];
    struct harp_frame frames[ROOM];
    size_t n;
    uint32_t taken = take_inbox(w, number, now_ns);
    now_ns = pay_for_frames(w, host, now_ns + w->scene->host.turn_ns, taken);
    if (!host->session)
        return;
    run_application(w, number);
    uint32_t calls = w->scene->host.frame_ns ? 1 : UINT32_MAX;
    do {
        n = harp_session_send(host->session, own_clock_ns(w, number, now_ns), frames, ROOM);
        transmit_frames(w, number, now_ns, frames, n);
        now_ns = pay_for_frames(w, host, now_ns, n);
    } while (n == ROOM && --calls);
    run_application(w, number);
    *busy_of(w, number) = now_ns;
    uint64_t due_ns = world_clock_ns(w, number, harp_session_deadline_ns(host->session));
    if (host->rest_ns)
        due_ns = harp_min(due_ns, host->rest_ns);
    uint64_t again_ns = n == ROOM || host->inbox_n ? now_ns : due_ns;
    if (w->scene->shared_hosts) /* after those that wait for the core already */
        again_ns = harp_max(again_ns, now_ns + 1);
    wake_at(w, number, again_ns);
}

static void prepare_host(struct world *w, uint32_t number)
{
    const struct bn_scene *s = w->scene;
    struct host *host = &w->hosts[number];
    host->wake_ns = HARP_NEVER;
    struct harp_session_config *config = &host->config;
    harp_session_defaults(config, s->segment ? s->segment : 1408, s->paths ? s->paths : 1);
    config->connection = number + 1;
    config->listener = 99;
    config->seed = s->seed + number;
    config->epoch = 1;
    if (s->cc)
        config->cc = s->cc;
    if (s->fixed_bytes)
        config->window.initial_bytes = s->fixed_bytes;
    if (number & 1)
        return;
    uint64_t start_ns = s->start_ns + number / 2 * s->stagger_ns + virtual_below(&w->random, 10000);
    host->session = virtual_session_connect(config, start_ns);
    wake_at(w, number, start_ns);
}

static uint64_t count_placed(const struct world *w, uint32_t flow)
{
    const struct harp_session *session = w->hosts[sender_of(w->scene, flow) ^ 1].session;
    return session ? harp_session_count(session)->placed : 0;
}

/* What the sender of a flow counts; zeros before it begins. */
static struct harp_session_counters sender_counts(const struct world *w, uint32_t flow)
{
    const struct harp_session *session = w->hosts[sender_of(w->scene, flow)].session;
    return session ? *harp_session_count(session) : (struct harp_session_counters){0};
}

static struct bn_result judge_world(struct world *w)
{
    const struct bn_scene *s = w->scene;
    const struct bn_queue *queue = &w->queue;
    double sum = 0, squares = 0, least = 1e300, said = 0, found = 0, died = 0;
    for (uint32_t f = 0; f < s->flows; f++) {
        double got = (double)(count_placed(w, f) - w->placed[f]);
        sum += got, squares += got * got, least = got < least ? got : least;
        const struct harp_session_counters counts = sender_counts(w, f);
        said += (double)counts.lost - (double)w->said[f];
        found += (double)(counts.spurious - w->found[f]);
        died += (double)counts.paths_died;
    }
    double frame_bits = 8.0 * (HARP_HEADER_BYTES + w->hosts[0].config.segment);
    double line_bits = (double)s->line.rate_mbps / 1000 * (double)(s->to_ns - s->from_ns);
    if (s->ring) /* a line each way */
        line_bits *= 2;
    struct bn_result r = {
        .use = sum * frame_bits / line_bits,
        .cross = (double)(cross_delivered(w) - w->cross_delivered) * 8 * CROSS_BYTES / line_bits,
        .jain = sum ? sum * sum / (s->flows * squares) : 0,
        .least = sum ? least / sum * s->flows : 0,
        .queue_ns = (double)queue->wait_sum_ns / (double)(queue->waits + !queue->waits),
        .queue_p99_ns = bn_queue_p99_ns(queue),
        .queue_max_ns = (double)queue->wait_max_ns,
        .again = (double)w->again / (double)(w->data + !w->data),
        .lost = (double)w->lost / (double)(w->data + !w->data),
        .said = said / (double)(w->data + !w->data),
        .found = found / (double)(w->data + !w->data),
        .died = died,
        .marked = (double)w->marked / (double)(w->data + !w->data)};
    return r;
}

static void run_events(struct world *w)
{
    const struct bn_scene *s = w->scene;
    bool measuring = false;
    while (virtual_events_next_ns(&w->events) < s->to_ns) {
        struct virtual_event event = virtual_events_take(&w->events);
        uint32_t number = (uint32_t)(event.what >> 32), flight = (uint32_t)event.what;
        w->now_ns = event.at_ns;
        if (!measuring && w->now_ns >= s->from_ns) {
            measuring = true;
            w->cross_delivered = cross_delivered(w);
            for (uint32_t f = 0; f < s->flows; f++) {
                w->placed[f] = count_placed(w, f);
                w->said[f] = sender_counts(w, f).lost;
                w->found[f] = sender_counts(w, f).spurious;
            }
        }
        if (number >= CROSS) {
            cross_event(w, number - CROSS, flight);
            continue;
        }
        struct host *host = &w->hosts[number];
        if (flight != NO_FLIGHT) {
            if (host->inbox_n < INBOX)
                w->flights[flight].came_ns = w->now_ns, host->inbox[host->inbox_n++] = flight;
            else
                w->idle[w->idle_n++] = flight;
            wake_at(w, number, w->now_ns);
        } else if (event.at_ns == host->wake_ns) {
            host->wake_ns = HARP_NEVER;
            if (w->now_ns < *busy_of(w, number)) /* another session has the core */
                wake_at(w, number, w->now_ns);
            else
                turn_host(w, number, w->now_ns);
        }
    }
}

struct bn_result bn_measure(const struct bn_scene *scene)
{
    struct world *w = calloc(1, sizeof *w);
    w->scene = scene;
    w->random = scene->seed;
    bn_queue_init(&w->queue, scene);
    assert(scene->flows <= BN_FLOWS && scene->cross.flows <= BN_CROSS);
    for (uint32_t h = 0; h < 2 * scene->flows; h++)
        prepare_host(w, h);
    for (uint32_t i = 0; i < scene->cross.flows; i++)
        push_event(w, scene->cross.from_ns + i * CROSS_APART_NS, CROSS + i, NO_FLIGHT);
    run_events(w);
    struct bn_result r = judge_world(w);
    for (uint32_t h = 0; h < 2 * scene->flows; h++)
        free(w->hosts[h].session);
    free(w->flights), free(w->idle), virtual_events_close(&w->events), free(w);
    return r;
}
