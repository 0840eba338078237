/* Pieces straight through memory between ranks of a host: whole, in order, and how they end.
 *
 * usage: test_direct [threads]   with "threads", only what ThreadSanitizer is to see
 */
#define _GNU_SOURCE
#include <assert.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "lightcc/direct.h"
#include "ports/port.h"

enum {
    LINE = 64,
    LONGEST = DIRECT_RECORD_BYTES - LINE, /* behind what is said, in one record */
    LONG = 3 << 20,                       /* more than a ring holds */
    TURNS = 20000,
};

static char why[HARP_WHY_BYTES];
static uint8_t said[LINE], bytes[LONGEST];

static struct harp_direct *open_one(uint32_t peers)
{
    struct harp_direct *direct = NULL;
    int failed = harp_direct_open(&direct, peers, why);
    assert(!failed);
    return direct;
}

static void link_to(struct harp_direct *from, uint32_t peer, const struct harp_direct *to)
{
    int failed = harp_direct_link(from, peer, harp_direct_name(to), why);
    assert(!failed);
}

/* Ranks 0 and 1, which have linked up as ranks do: the second one first. */
static void open_pair(struct harp_direct *pair[2])
{
    for (int rank = 0; rank < 2; rank++)
        pair[rank] = open_one(2);
    link_to(pair[1], 0, pair[0]);
    link_to(pair[0], 1, pair[1]);
    assert(direct_reaches(pair[0], 1) && !direct_reaches(pair[0], 0));
    assert(!direct_reaches(NULL, 1));
}

static void close_pair(struct harp_direct *pair[2])
{
    harp_direct_close(pair[0]);
    harp_direct_close(pair[1]);
}

/* Send a message that carries its number, with `length` bytes behind it. */
static bool send_numbered(struct harp_direct *from, uint32_t to, uint8_t number, uint32_t length)
{
    memset(said, number, sizeof said);
    memset(bytes, number + 1, sizeof bytes);
    return direct_write_described(from, to, said, sizeof said, bytes, length);
}

static void take_numbered(struct harp_direct *at, uint32_t from, uint8_t number, uint32_t length)
{
    const struct direct_record *record = direct_first(at, from);
    assert(record && record->bytes == sizeof said + length && record->whole == record->bytes);
    assert(record->at[0] == number && record->at[sizeof said - 1] == number);
    assert(!length || record->at[sizeof said] == (uint8_t)(number + 1));
    assert((uintptr_t)record->at % LINE == 0);
    direct_drop(at, from);
}

/* Far more than the memory holds, so that its end is passed at all places. */
static void test_messages_of_all_lengths_come_whole_and_in_order(void)
{
    struct harp_direct *pair[2];
    open_pair(pair);
    for (uint32_t i = 0; i < 2000; i++) {
        uint32_t length = i * 37 % (LONGEST + 1), back = LONGEST - length;
        assert(send_numbered(pair[0], 1, (uint8_t)i, length));
        assert(send_numbered(pair[0], 1, (uint8_t)(i + 1), 0));
        assert(send_numbered(pair[1], 0, (uint8_t)(i + 2), back));
        assert(direct_look(pair[1]) && direct_look(pair[0]));
        take_numbered(pair[1], 0, (uint8_t)i, length);
        take_numbered(pair[1], 0, (uint8_t)(i + 1), 0);
        take_numbered(pair[0], 1, (uint8_t)(i + 2), back);
        assert(!direct_first(pair[1], 0) && !direct_look(pair[1]));
    }
    close_pair(pair);
}

static void test_nothing_at_all_is_a_message_too(void)
{
    struct harp_direct *pair[2];
    open_pair(pair);
    assert(direct_write_described(pair[0], 1, NULL, 0, NULL, 0));
    assert(direct_look(pair[1]) && direct_first(pair[1], 0)->bytes == 0);
    close_pair(pair);
}

/* Bytes that tell where they belong. */
static uint8_t *make_long(uint32_t length, uint8_t seed)
{
    uint8_t *made = malloc(length + 1);
    assert(made);
    for (uint32_t i = 0; i < length; i++)
        made[i] = (uint8_t)(i * 7 + i / 255 + seed);
    return made;
}

/* Take a record of a message of `length` bytes; `at` bytes have come before. */
static uint32_t take_part(struct harp_direct *to, uint32_t from, const uint8_t *expected,
                          uint32_t at, uint32_t length)
{
    const struct direct_record *record = direct_first(to, from);
    if (!record)
        return at;
    uint32_t bytes_n = record->bytes;
    assert(record->whole == length && bytes_n <= length - at && (uintptr_t)record->at % LINE == 0);
    assert(!bytes_n || !memcmp(record->at, expected + at, bytes_n));
    direct_drop(to, from);
    return at + bytes_n;
}

/* In both ways of writing, which a link tries in turn. */
static void test_a_message_longer_than_a_ring_is_written_while_it_is_read(void)
{
    struct harp_direct *pair[2];
    open_pair(pair);
    const uint32_t lengths[] = {LONG,      0,       1, DIRECT_RECORD_BYTES, DIRECT_RECORD_BYTES + 1,
                                LONG + 17, LINE - 1};
    for (size_t i = 0; i < 4 * sizeof lengths / sizeof *lengths; i++) {
        uint32_t length = lengths[i % (sizeof lengths / sizeof *lengths)], done = 0, came = 0;
        uint8_t *sent = make_long(length, (uint8_t)i);
        bool all = direct_write(pair[0], 1, sent, length, &done);
        assert(all == (length < LONG) && (length == 0 || done > 0));
        while (direct_first(pair[1], 0)) {
            came = take_part(pair[1], 0, sent, came, length);
            all = all || direct_write(pair[0], 1, sent, length, &done);
        }
        assert(all && done == length && came == length);
        free(sent);
    }
    close_pair(pair);
}

static void test_a_full_ring_takes_nothing_and_loses_nothing(void)
{
    struct harp_direct *pair[2];
    uint8_t sent = 0;
    open_pair(pair);
    while (send_numbered(pair[0], 1, sent, LONGEST))
        sent++;
    assert(sent > 16); /* four pieces of 256 KiB */
    take_numbered(pair[1], 0, 0, LONGEST);
    assert(send_numbered(pair[0], 1, sent, LONGEST) && !send_numbered(pair[0], 1, 0, LONGEST));
    for (uint8_t i = 1; i <= sent; i++)
        take_numbered(pair[1], 0, i, LONGEST);
    assert(!direct_first(pair[1], 0));
    close_pair(pair);
}

/* One that writes what is no record of ours is not read any more, and harms nobody. */
static void test_a_peer_that_breaks_the_rules_is_ignored(void)
{
    struct harp_direct *direct = open_one(2);
    struct harp_port *port = NULL;
    struct harp_address name = {.family = HARP_MEM};
    int failed = harp_port_mem_open(&port, &(struct harp_port_config){.ring_bytes = 1 << 18}, why);
    assert(!failed);
    memcpy(name.ip, harp_direct_name(direct), sizeof name.ip);
    int hop = port->ops->hop(port, &name, 0, why);
    assert(hop >= 0);
    failed = harp_direct_link(direct, 1, port->locals[0].ip, why);
    assert(!failed && direct_lives(direct, 1));
    assert(port->ops->slot(port, hop, 8)); /* shorter than any header */
    port->ops->flush(port, 0);
    direct_look(direct);
    assert(!direct_first(direct, 1) && !direct_lives(direct, 1));
    assert(!send_numbered(direct, 1, 1, 8) && direct_sleep(direct));
    port->ops->close(port);
    harp_direct_close(direct);
}

static void test_strangers_are_not_heard(void)
{
    struct harp_direct *pair[2], *stranger = open_one(2);
    open_pair(pair);
    link_to(stranger, 0, pair[0]);
    link_to(pair[0], 1, pair[1]); /* which looks who has linked up */
    assert(send_numbered(stranger, 0, 5, 8));
    direct_look(pair[0]);
    assert(!direct_first(pair[0], 1));
    harp_direct_close(stranger);
    close_pair(pair);
}

static void test_messages_sent_before_the_end_are_received(void)
{
    struct harp_direct *pair[2];
    open_pair(pair);
    assert(send_numbered(pair[0], 1, 3, 8));
    harp_direct_close(pair[0]);
    assert(!direct_sleep(pair[1]));
    direct_look(pair[1]);
    take_numbered(pair[1], 0, 3, 8);
    assert(direct_sleep(pair[1])); /* the end has been heard, and wakes nobody any more */
    assert(!send_numbered(pair[1], 0, 3, 8) && !direct_look(pair[1]));
    harp_direct_close(pair[1]);
}

static void test_nobody_of_that_name(void)
{
    struct harp_direct *direct = open_one(2);
    const uint8_t name[HARP_DIRECT_NAME_BYTES] = {1};
    assert(harp_direct_link(direct, 1, name, why) < 0 && why[0] != 0);
    assert(!direct_reaches(direct, 1));
    harp_direct_close(direct);
}

static bool is_readable(const struct harp_direct *direct, int most_ms)
{
    struct pollfd fd = {.fd = direct_fd(direct), .events = POLLIN};
    return poll(&fd, 1, most_ms) == 1;
}

static void test_a_message_wakes_who_sleeps_and_nobody_else(void)
{
    struct harp_direct *pair[2];
    open_pair(pair);
    assert(send_numbered(pair[0], 1, 1, 8));
    assert(!direct_sleep(pair[1]));
    direct_look(pair[1]);
    take_numbered(pair[1], 0, 1, 8);
    assert(send_numbered(pair[0], 1, 2, 8) && !is_readable(pair[1], 0));
    direct_look(pair[1]);
    take_numbered(pair[1], 0, 2, 8);
    assert(direct_sleep(pair[1]) && !is_readable(pair[1], 0));
    assert(send_numbered(pair[0], 1, 3, 8) && is_readable(pair[1], 0));
    direct_look(pair[1]);
    assert(!is_readable(pair[1], 0));
    take_numbered(pair[1], 0, 3, 8);
    assert(direct_fd(NULL) == -1 && direct_sleep(NULL));
    close_pair(pair);
}

/* A record that it cannot use yet keeps nobody awake; the one behind it wakes. */
static void test_a_receiver_that_leaves_a_message_for_later_may_sleep(void)
{
    struct harp_direct *pair[2];
    open_pair(pair);
    assert(send_numbered(pair[0], 1, 1, 8));
    direct_look(pair[1]);
    assert(direct_first(pair[1], 0) && direct_sleep(pair[1]) && !is_readable(pair[1], 0));
    assert(send_numbered(pair[0], 1, 2, 8) && is_readable(pair[1], 0));
    assert(direct_look(pair[1]));
    take_numbered(pair[1], 0, 1, 8);
    take_numbered(pair[1], 0, 2, 8);
    close_pair(pair);
}

static void test_room_wakes_who_could_not_write(void)
{
    struct harp_direct *pair[2];
    uint8_t *sent = make_long(LONG, 0);
    uint32_t done = 0, came = 0;
    open_pair(pair);
    assert(!direct_write(pair[0], 1, sent, LONG, &done));
    assert(direct_sleep(pair[0]) && !is_readable(pair[0], 0));
    came = take_part(pair[1], 0, sent, came, LONG);
    assert(is_readable(pair[0], 0));
    direct_look(pair[0]);
    assert(!is_readable(pair[0], 0) && !direct_sleep(pair[0])); /* there is room */
    assert(!direct_write(pair[0], 1, sent, LONG, &done));
    while (came < done)
        came = take_part(pair[1], 0, sent, came, LONG);
    direct_write(pair[0], 1, sent, LONG, &done);
    free(sent);
    close_pair(pair);
}

/* ---- Two threads answer each other; now and then one sleeps ---- */

struct side {
    struct harp_direct *direct;
    uint32_t rank;
};

static void await_more(struct side *side, uint32_t looks)
{
    if (direct_look(side->direct))
        return;
    if (looks % 8 == 0 && direct_sleep(side->direct))
        assert(is_readable(side->direct, 30000));
    else
        sched_yield();
}

static void *answer_other(void *argument)
{
    struct side *side = argument;
    const struct direct_record *record;
    for (uint32_t turn = 0, looks = 1; turn < TURNS; turn++) {
        uint32_t heard = 0;
        assert(direct_write_described(side->direct, 1 - side->rank, NULL, 0, (const uint8_t *)&turn,
                                      sizeof turn));
        while (!(record = direct_first(side->direct, 1 - side->rank)))
            await_more(side, looks++);
        memcpy(&heard, record->at, sizeof heard);
        assert(heard == turn);
        direct_drop(side->direct, 1 - side->rank);
    }
    return NULL;
}

/* Long messages both ways at once; one is read more slowly than it is written. */
static void *exchange_long(void *argument)
{
    struct side *side = argument;
    uint32_t other = 1 - side->rank, looks = 1;
    for (uint8_t turn = 0; turn < 8; turn++) {
        uint8_t *out = make_long(LONG, turn), *in = make_long(LONG, turn);
        uint32_t done = 0, came = 0;
        while (done < LONG || came < LONG) {
            uint32_t before = done + came;
            if (done < LONG)
                direct_write(side->direct, other, out, LONG, &done);
            if (came < LONG)
                came = take_part(side->direct, other, in, came, LONG);
            if (done + came == before)
                await_more(side, looks++);
        }
        free(out);
        free(in);
    }
    return NULL;
}

static void test_threads(void *(*work)(void *))
{
    struct harp_direct *pair[2];
    pthread_t other;
    open_pair(pair);
    struct side sides[2] = {{pair[0], 0}, {pair[1], 1}};
    int failed = pthread_create(&other, NULL, work, &sides[1]);
    assert(!failed);
    work(&sides[0]);
    pthread_join(other, NULL);
    close_pair(pair);
}

int main(int argc, char **argv)
{
    (void)argv;
    test_threads(answer_other);
    test_threads(exchange_long);
    if (argc > 1)
        return 0;
    test_messages_of_all_lengths_come_whole_and_in_order();
    test_nothing_at_all_is_a_message_too();
    test_a_message_longer_than_a_ring_is_written_while_it_is_read();
    test_a_full_ring_takes_nothing_and_loses_nothing();
    test_a_peer_that_breaks_the_rules_is_ignored();
    test_strangers_are_not_heard();
    test_messages_sent_before_the_end_are_received();
    test_nobody_of_that_name();
    test_a_message_wakes_who_sleeps_and_nobody_else();
    test_a_receiver_that_leaves_a_message_for_later_may_sleep();
    test_room_wakes_who_could_not_write();
    return 0;
}
