/* Which path takes the next frame, where ports hold back: links of known rates empty their queues,
 * and what each has carried stands beside what it could. */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

#include "session/path.h"

enum { LINKS = 4, SLOTS = 64, FRAME_BYTES = 65452, MESSAGE_FRAMES = 16 };

struct link {
    struct harp_path *path;
    uint64_t bytes_per_us, delay_ns, free_ns, sent, arrived;
    uint64_t due_ns[SLOTS]; /* when the ACK of each packet in flight comes */
};

static struct harp_path paths[LINKS];
static struct harp_sent slots[LINKS][SLOTS];
static struct link links[LINKS];
static uint64_t now_ns, random_state = 1;

static void open_links(const uint64_t bytes_per_us[LINKS], uint64_t delay_ns)
{
    struct harp_cc_config window = {.initial_bytes = (uint64_t)SLOTS * FRAME_BYTES};
    for (int i = 0; i < LINKS; i++) {
        harp_path_init(&paths[i], slots[i], SLOTS, 0, 0, &harp_cc_none, &window);
        links[i] =
            (struct link){.path = &paths[i], .bytes_per_us = bytes_per_us[i], .delay_ns = delay_ns};
    }
    now_ns = 1;
}

/* As the session does with a frame. */
static void send_frame(struct link *link)
{
    uint64_t packet = link->path->sent.next;
    harp_sent_add(&link->path->sent, now_ns, FRAME_BYTES, FRAME_BYTES);
    if (link->path->sent.in_flight == 1)
        harp_service_begin(&link->path->service, now_ns);
    uint64_t begin_ns = now_ns > link->free_ns ? now_ns : link->free_ns;
    link->free_ns = begin_ns + FRAME_BYTES * UINT64_C(1000) / link->bytes_per_us;
    link->due_ns[packet % SLOTS] = link->free_ns + link->delay_ns;
    link->sent++;
}

/* The next ACK of all links; false if nothing is in flight. */
static bool take_ack(void)
{
    struct link *first = NULL;
    for (int i = 0; i < LINKS; i++) {
        struct link *link = &links[i];
        if (link->path->sent.in_flight &&
            (!first || link->due_ns[link->arrived % SLOTS] < first->due_ns[first->arrived % SLOTS]))
            first = link;
    }
    if (!first)
        return false;
    now_ns = first->due_ns[first->arrived % SLOTS];
    harp_sent_acked(&first->path->sent, harp_sent_at(&first->path->sent, first->arrived++));
    harp_sent_trim(&first->path->sent, 0);
    harp_service_add(&first->path->service, now_ns, FRAME_BYTES);
    return true;
}

static bool try_to_send(int burst)
{
    uint64_t ready_ns;
    int chosen = harp_path_choose(paths, LINKS, FRAME_BYTES, (uint32_t)burst * FRAME_BYTES, now_ns,
                                  &random_state, &ready_ns);
    for (int n = 0; n < burst && chosen >= 0; n++)
        send_frame(&links[chosen]);
    return chosen >= 0;
}

/* Send `messages`, each once all frames of the one before have arrived; how long one takes. Bursts
 * are each link's part of half of what is left. */
static uint64_t send_one_by_one(int messages)
{
    uint64_t took_ns = 0;
    for (int m = 0; m < messages; m++) {
        uint64_t begun_ns = now_ns;
        for (int left = MESSAGE_FRAMES, burst; left; left -= burst) {
            burst = left > 2 * LINKS ? left / (2 * LINKS) : 1;
            assert(try_to_send(burst));
        }
        while (take_ack())
            ;
        took_ns += now_ns - begun_ns;
        now_ns += 1000000; /* an idle time makes no path slower */
    }
    return took_ns / (uint64_t)messages;
}

static double share_of(int link)
{
    uint64_t all = 0;
    for (int i = 0; i < LINKS; i++)
        all += links[i].sent;
    return (double)links[link].sent / (double)all;
}

static void test_messages_alone_are_spread(void)
{
    open_links((const uint64_t[LINKS]){625, 625, 625, 625}, 100000);
    send_one_by_one(200);
    for (int i = 0; i < LINKS; i++)
        assert(share_of(i) > 0.2 && share_of(i) < 0.3);
}

/* A frame alone takes longer on the slowest link than the message on the others: that link is best
 * left out. The bound is the time in which all links together carry the message. */
static void test_slower_links_take_less(void)
{
    const uint64_t delay_ns = 20000;
    open_links((const uint64_t[LINKS]){1250, 1250, 625, 125}, delay_ns);
    uint64_t took_ns = send_one_by_one(400);
    uint64_t bound_ns = UINT64_C(1000) * MESSAGE_FRAMES * FRAME_BYTES / (1250 + 1250 + 625 + 125);
    assert(took_ns < (bound_ns + delay_ns) * 7 / 5);
    assert(share_of(3) < 125.0 / (1250 + 1250 + 625 + 125));
}

/* A link that becomes slower carries less soon, and as much as before when it has recovered. */
static void test_a_change_of_rates_is_followed(void)
{
    open_links((const uint64_t[LINKS]){1250, 1250, 1250, 1250}, 20000);
    send_one_by_one(100);
    links[0].bytes_per_us = 125;
    send_one_by_one(50);
    for (int i = 0; i < LINKS; i++)
        links[i].sent = 0;
    send_one_by_one(100);
    assert(share_of(0) < 0.08);
    links[0].bytes_per_us = 1250;
    send_one_by_one(400);
    for (int i = 0; i < LINKS; i++)
        links[i].sent = 0;
    send_one_by_one(100);
    assert(share_of(0) > 0.18);
}

/* With more to send than the windows hold, every link is full all the time. */
static void test_all_links_are_filled(void)
{
    const uint64_t rates[LINKS] = {1250, 625, 625, 125};
    open_links(rates, 50000);
    do
        while (try_to_send(1))
            ;
    while (take_ack() && now_ns < 1000000000);
    for (int i = 0; i < LINKS; i++)
        assert((double)(links[i].arrived * FRAME_BYTES) > 0.95 * (double)rates[i] * 1e6);
}

static void test_service_time(void)
{
    struct harp_service service = {0};
    assert(harp_service_ns(&service, 1000) == 0);
    uint64_t at_ns = 5000;
    for (int n = 0; n < 1000; n++) { /* 8 ns a byte, with idle times between */
        harp_service_begin(&service, at_ns);
        at_ns += 80000;
        harp_service_add(&service, at_ns, 10000);
        at_ns += 123456;
    }
    assert(harp_service_ns(&service, 1000) == 8000);
    assert(service.bytes < HARP_SERVICE_BYTES);
}

int main(void)
{
    test_service_time();
    test_messages_alone_are_spread();
    test_slower_links_take_less();
    test_a_change_of_rates_is_followed();
    test_all_links_are_filled();
    return 0;
}
