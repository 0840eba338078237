/* Messages straight through memory between ranks of a host: whole, in order, and how they end.
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

enum { LINE = 64, LONGEST = DIRECT_BYTES - LINE, TURNS = 20000 };

static char why[HARP_WHY_BYTES];
static uint8_t said[LINE], bytes[1 << 15];

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

/* Send a message that tells its number, with so many bytes behind what is said. */
static bool send_numbered(struct harp_direct *from, uint32_t to, uint8_t number, uint32_t length)
{
    memset(said, number, sizeof said);
    memset(bytes, number + 1, sizeof bytes);
    return direct_send(from, to, said, sizeof said, bytes, length);
}

static void take_numbered(struct harp_direct *at, uint32_t from, uint8_t number, uint32_t length)
{
    struct direct_message *message = direct_first(at, from);
    assert(message && message->bytes == sizeof said + length);
    assert(message->at[0] == number && message->at[sizeof said - 1] == number);
    assert(!length || message->at[sizeof said] == (uint8_t)(number + 1));
    assert((uintptr_t)message->at % LINE == 0);
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
    assert(direct_send(pair[0], 1, NULL, 0, NULL, 0));
    assert(direct_look(pair[1]) && direct_first(pair[1], 0)->bytes == 0);
    close_pair(pair);
}

/* What a rank sends beyond what may be under way is not heard, and what is longer than a message
 * may be is cut, with its length told. */
static void test_a_rank_that_sends_too_much_does_no_harm(void)
{
    struct harp_direct *pair[2];
    open_pair(pair);
    for (uint8_t i = 0; i < DIRECT_INBOX + 3; i++)
        assert(send_numbered(pair[0], 1, i, 8));
    direct_look(pair[1]);
    for (uint8_t i = 0; i < DIRECT_INBOX; i++)
        take_numbered(pair[1], 0, i, 8);
    assert(!direct_first(pair[1], 0));
    assert(send_numbered(pair[0], 1, 9, sizeof bytes));
    assert(send_numbered(pair[0], 1, 7, 8));
    direct_look(pair[1]);
    take_numbered(pair[1], 0, 9, sizeof bytes);
    take_numbered(pair[1], 0, 7, 8);
    while (send_numbered(pair[0], 1, 1, sizeof bytes)) /* nobody reads: it is full at some time */
        ;
    close_pair(pair);
}

static void test_strangers_are_not_heard(void)
{
    struct harp_direct *pair[2], *stranger = open_one(2);
    open_pair(pair);
    link_to(stranger, 0, pair[0]);
    link_to(pair[0], 1, pair[1]); /* which looks who has linked up */
    assert(send_numbered(stranger, 0, 5, 8));
    direct_look(pair[0]);
    assert(!direct_first(pair[0], 0) && !direct_first(pair[0], 1));
    harp_direct_close(stranger);
    close_pair(pair);
}

static void test_what_was_sent_before_the_end_is_heard(void)
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
    direct_drop(pair[1], 0);
    assert(send_numbered(pair[0], 1, 2, 8) && !is_readable(pair[1], 0));
    direct_look(pair[1]);
    direct_drop(pair[1], 0);
    assert(direct_sleep(pair[1]) && !is_readable(pair[1], 0));
    assert(send_numbered(pair[0], 1, 3, 8) && is_readable(pair[1], 0));
    direct_look(pair[1]);
    assert(!is_readable(pair[1], 0));
    take_numbered(pair[1], 0, 3, 8);
    assert(direct_fd(NULL) == -1 && direct_sleep(NULL));
    close_pair(pair);
}

/* ---- Two threads answer each other; now and then one sleeps ---- */

struct side {
    struct harp_direct *direct;
    uint32_t rank;
};

static struct direct_message *await_message(struct side *side)
{
    struct direct_message *message = NULL;
    for (uint32_t looks = 1; !(message = direct_first(side->direct, 1 - side->rank)); looks++) {
        if (direct_look(side->direct))
            continue;
        if (looks % 8 == 0 && direct_sleep(side->direct))
            assert(is_readable(side->direct, 30000));
        else
            sched_yield();
    }
    return message;
}

static void *answer_other(void *argument)
{
    struct side *side = argument;
    for (uint32_t turn = 0; turn < TURNS; turn++) {
        assert(direct_send(side->direct, 1 - side->rank, NULL, 0, (const uint8_t *)&turn,
                           sizeof turn));
        uint32_t heard = 0;
        memcpy(&heard, await_message(side)->at, sizeof heard);
        assert(heard == turn);
        direct_drop(side->direct, 1 - side->rank);
    }
    return NULL;
}

static void test_threads_answer_each_other(void)
{
    struct harp_direct *pair[2];
    pthread_t other;
    open_pair(pair);
    struct side sides[2] = {{pair[0], 0}, {pair[1], 1}};
    assert(pthread_create(&other, NULL, answer_other, &sides[1]) == 0);
    answer_other(&sides[0]);
    pthread_join(other, NULL);
    close_pair(pair);
}

int main(int argc, char **argv)
{
    (void)argv;
    test_threads_answer_each_other();
    if (argc > 1)
        return 0;
    test_messages_of_all_lengths_come_whole_and_in_order();
    test_nothing_at_all_is_a_message_too();
    test_a_rank_that_sends_too_much_does_no_harm();
    test_strangers_are_not_heard();
    test_what_was_sent_before_the_end_is_heard();
    test_nobody_of_that_name();
    test_a_message_wakes_who_sleeps_and_nobody_else();
    return 0;
}
