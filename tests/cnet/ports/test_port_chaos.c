/* The chaos port around a port that only takes notes, in virtual time, and around a real udp port.
 *
 * usage: test_port_chaos            all of it
 *        test_port_chaos parse TEXT what harp_chaos_parse says of it
 */
#define _GNU_SOURCE
#include <errno.h>
#include <inttypes.h>

#include "port_pair.h"
#include "ports/port_chaos.h"

/* The port underneath: every datagram that leaves, with the time. */

enum { BYTES = 100, NOTES = 250000, ROOM = 256 };

struct note {
    uint64_t ns, number;
    uint32_t length;
    int hop;
    uint8_t bytes[BYTES];
};

static struct {
    struct harp_port port;
    size_t room; /* until the next flush */
    size_t notes, flushed;
    bool closed, stuck;
    struct note *note;
} below;

static size_t below_room(struct harp_port *port, int hop)
{
    (void)port, (void)hop;
    return below.room;
}

static uint8_t *below_slot(struct harp_port *port, int hop, uint32_t bytes)
{
    (void)port;
    assert(bytes <= BYTES && below.notes < NOTES);
    if (below.room == 0)
        return NULL;
    below.room--;
    below.note[below.notes] = (struct note){.length = bytes, .hop = hop};
    return below.note[below.notes++].bytes;
}

static void below_flush(struct harp_port *port, uint64_t now_ns)
{
    (void)port;
    if (below.stuck)
        return;
    for (; below.flushed < below.notes; below.flushed++) {
        struct note *note = &below.note[below.flushed];
        note->ns = now_ns;
        memcpy(&note->number, note->bytes, note->length < 8 ? note->length : 8);
    }
    below.room = ROOM;
}

static int below_hop(struct harp_port *port, const struct harp_address *to, uint16_t local,
                     char *why)
{
    (void)port, (void)to, (void)why;
    return local;
}

static void below_unhop(struct harp_port *port, int hop)
{
    (void)port, (void)hop;
}

static void below_close(struct harp_port *port)
{
    (void)port;
    below.closed = true;
}

static struct harp_port *wrap_port(const char *text)
{
    static const struct harp_port_ops ops = {
        .name = "below",
        .room = below_room,
        .slot = below_slot,
        .flush = below_flush,
        .hop = below_hop,
        .unhop = below_unhop,
        .close = below_close,
    };
    char why[HARP_WHY_BYTES] = "";
    struct harp_chaos faults;
    struct harp_port *port;
    struct note *notes = below.note ? below.note : malloc(NOTES * sizeof *notes);
    memset(&below, 0, sizeof below);
    below.note = notes;
    below.room = ROOM;
    below.port = (struct harp_port){.ops = &ops, .payload_max = BYTES, .line = "below"};
    if (harp_chaos_parse(text, &faults, why) ||
        harp_port_chaos_open(&port, &below.port, &faults, why))
        fprintf(stderr, "%s: %s\n", text, why);
    assert(!*why);
    return port;
}

static void close_wrapped(struct harp_port *port)
{
    port->ops->close(port);
    assert(below.closed);
}

static bool write_one(struct harp_port *port, int hop, uint64_t number)
{
    uint8_t *slot = port->ops->slot(port, hop, BYTES);
    if (!slot)
        return false;
    memcpy(slot, &number, 8);
    fill_datagram(slot + 8, BYTES - 8, number);
    return true;
}

/* Write `count` numbered datagrams, a batch each microsecond, then let time go on to the end. */
static void write_all(struct harp_port *port, uint64_t count)
{
    uint64_t ns = 1000, written = 0, due_ns;
    for (; written < count; ns += 1000) {
        for (int i = 0; i < 50 && written < count && write_one(port, 0, written); i++)
            written++;
        port->ops->flush(port, ns);
    }
    for (; (due_ns = port->ops->deadline_ns(port)) != UINT64_MAX; ns = due_ns) {
        assert(due_ns > ns - 1000);
        port->ops->flush(port, due_ns);
    }
    assert(below.flushed == below.notes);
}

static void check_whole(const struct note *note)
{
    assert(note->length == BYTES);
    check_datagram(note->bytes + 8, BYTES - 8, note->number);
}

static void check_between(uint64_t value, uint64_t least, uint64_t most)
{
    if (value < least || value > most)
        fprintf(stderr, "%" PRIu64 " is not between %" PRIu64 " and %" PRIu64 "\n", value, least,
                most);
    assert(value >= least && value <= most);
}

/* The tests. */

static void nothing_happens(void)
{
    struct harp_port *port = wrap_port("");
    write_all(port, 1000);
    assert(below.notes == 1000);
    for (size_t i = 0; i < below.notes; i++) {
        assert(below.note[i].number == i);
        check_whole(&below.note[i]);
    }
    close_wrapped(port);
}

static uint64_t lost_numbers(const char *text, uint64_t count, uint64_t *hash)
{
    struct harp_port *port = wrap_port(text);
    write_all(port, count);
    uint64_t last = 0;
    *hash = 0;
    for (size_t i = 0; i < below.notes; i++) {
        check_whole(&below.note[i]);
        assert(i == 0 || below.note[i].number > last); /* in order */
        last = below.note[i].number;
        *hash = (*hash ^ last) * UINT64_C(0x100000001b3);
    }
    uint64_t lost = count - below.notes;
    assert(harp_port_chaos_count(port)->dropped == lost && port->counters.dropped == lost);
    close_wrapped(port);
    return lost;
}

static void some_are_dropped(void)
{
    uint64_t one, two, other;
    check_between(lost_numbers("drop=10%,seed=7", 100000, &one), 9500, 10500);
    lost_numbers("drop=10%,seed=7", 100000, &two);
    check_between(lost_numbers("drop=10%,seed=8", 100000, &other), 9500, 10500);
    assert(one == two && one != other);
    /* The way through memory of its own loses the same ones. */
    lost_numbers("drop=10%,seed=7,delay=1us", 100000, &two);
    assert(one == two);
    assert(lost_numbers("drop=100%", 1000, &one) == 1000);
    assert(lost_numbers("drop=0%", 1000, &one) == 0);
}

static void bursts_are_long(void)
{
    struct harp_port *port = wrap_port("burst=0.1%,burst_length=20,seed=3");
    write_all(port, 100000);
    uint64_t runs = 0, next = 0;
    for (size_t i = 0; i < below.notes; i++) {
        uint64_t gap = below.note[i].number - next;
        assert(gap == 0 || gap >= 20);
        runs += gap > 0;
        next = below.note[i].number + 1;
    }
    check_between(runs, 60, 140);
    close_wrapped(port);
}

static void test_delays(void)
{
    struct harp_port *port = wrap_port("delay=1ms");
    write_one(port, 0, 0);
    port->ops->flush(port, 5000);
    write_one(port, 1, 1);
    port->ops->flush(port, 6000);
    assert(port->ops->deadline_ns(port) == 1005000 && below.notes == 0);
    port->ops->flush(port, 1004999);
    assert(below.notes == 0);
    port->ops->flush(port, 1005000);
    assert(below.flushed == 1 && below.note[0].hop == 0);
    assert(port->ops->deadline_ns(port) == 1006000);
    port->ops->flush(port, 2000000);
    assert(below.flushed == 2 && below.note[1].hop == 1);
    assert(port->ops->deadline_ns(port) == UINT64_MAX);
    check_whole(&below.note[0]);
    check_whole(&below.note[1]);
    close_wrapped(port);
}

static uint64_t late_ones(const char *text, uint64_t count)
{
    struct harp_port *port = wrap_port(text);
    uint64_t late = 0, highest = 0;
    static uint8_t seen[100000];
    assert(count <= sizeof seen);
    memset(seen, 0, sizeof seen);
    write_all(port, count);
    for (size_t i = 0; i < below.notes; i++) {
        const struct note *note = &below.note[i];
        check_whole(note);
        assert(!seen[note->number]++);
        late += note->number < highest;
        highest = note->number > highest ? note->number : highest;
    }
    assert(below.notes == count);
    close_wrapped(port);
    return late;
}

static void order_is_lost(void)
{
    check_between(late_ones("reorder=1%,seed=1", 100000), 800, 1200);
    check_between(late_ones("reorder=1%,reorder_delay=10us,seed=1", 100000), 800, 1200);
    check_between(late_ones("delay=1ms,jitter=100us,seed=1", 10000), 5000, 10000);
    assert(late_ones("delay=1ms", 10000) == 0);
}

static void some_come_twice(void)
{
    struct harp_port *port = wrap_port("duplicate=5%,seed=9");
    write_all(port, 100000);
    check_between(below.notes, 104600, 105400);
    for (size_t i = 0; i < below.notes; i++)
        check_whole(&below.note[i]);
    assert(harp_port_chaos_count(port)->duplicated == below.notes - 100000);
    close_wrapped(port);
}

static void some_are_cut(void)
{
    struct harp_port *port = wrap_port("truncate=10%,seed=2");
    write_all(port, 10000);
    uint64_t cut = 0;
    assert(below.notes == 10000);
    for (size_t i = 0; i < below.notes; i++) {
        struct note *note = &below.note[i];
        assert(note->length >= 1 && note->length <= BYTES);
        cut += note->length < BYTES;
        if (note->length > 8)
            check_datagram(note->bytes + 8, note->length - 8, i);
    }
    check_between(cut, 800, 1200);
    assert(harp_port_chaos_count(port)->truncated == cut);
    close_wrapped(port);
}

static void some_have_a_wrong_bit(void)
{
    struct harp_port *port = wrap_port("corrupt=10%,seed=2");
    write_all(port, 10000);
    uint64_t wrong = 0;
    uint8_t places[BYTES] = {0};
    assert(below.notes == 10000);
    for (uint64_t i = 0; i < below.notes; i++) {
        uint8_t right[BYTES];
        int bits = 0;
        memcpy(right, &i, 8);
        fill_datagram(right + 8, BYTES - 8, i);
        for (int k = 0; k < BYTES; k++) {
            int differ = __builtin_popcount(right[k] ^ below.note[i].bytes[k]);
            bits += differ;
            places[k] |= differ > 0;
        }
        assert(bits <= 1);
        wrong += (uint64_t)bits;
    }
    check_between(wrong, 850, 1150);
    for (int k = 0; k < BYTES; k++)
        assert(places[k]);
    close_wrapped(port);
}

/* 1 Gbit/s is 1,000 of these datagrams in 800 us; a policer lets its bucket through beside that. */
static void test_rates(void)
{
    struct harp_port *port = wrap_port("rate=1Gbit,bucket=10000");
    for (uint64_t us = 1; us <= 800; us++) {
        for (uint64_t i = 0; i < 10; i++)
            write_one(port, 0, us);
        port->ops->flush(port, us * 1000);
    }
    check_between(below.flushed, 1050, 1110);
    assert(harp_port_chaos_count(port)->limited == 8000 - below.flushed);
    assert(port->ops->deadline_ns(port) == UINT64_MAX);
    close_wrapped(port);

    port = wrap_port("rate=1Gbit,queue=50000");
    uint64_t ns;
    for (uint64_t i = 0; i < 600; i++)
        write_one(port, 0, i);
    port->ops->flush(port, 1000);
    assert(harp_port_chaos_count(port)->limited == 100 && below.notes == 0);
    while ((ns = port->ops->deadline_ns(port)) != UINT64_MAX)
        port->ops->flush(port, ns);
    assert(below.notes == 500);
    for (uint64_t i = 0; i < 500; i++)
        assert(below.note[i].number == i && below.note[i].ns == 1000 + 800 * (i + 1));
    close_wrapped(port);
}

static void memory_is_bounded(void)
{
    struct harp_port *port = wrap_port("delay=1s");
    size_t room = port->ops->room(port, 0), written = 0;
    while (write_one(port, 0, written))
        written++;
    assert(written == room && port->ops->room(port, 0) == 0);
    port->ops->flush(port, 1);
    assert(!port->ops->slot(port, 0, 1));
    below.stuck = true; /* the port underneath takes ROOM and no more for now */
    port->ops->flush(port, 1000000001);
    assert(below.notes == ROOM && port->ops->room(port, 0) == ROOM);
    uint64_t again_ns = port->ops->deadline_ns(port);
    assert(again_ns > 1000000001 && again_ns < 1001000000);
    below.stuck = false;
    port->ops->flush(port, again_ns);
    assert(below.flushed == written && port->ops->room(port, 0) == room);
    for (size_t i = 0; i < written; i++)
        assert(below.note[i].number == i);
    close_wrapped(port);
}

static void what_goes_nowhere_is_forgotten(void)
{
    struct harp_port *port = wrap_port("delay=1ms");
    for (uint64_t i = 0; i < 20; i++)
        write_one(port, i % 2, i);
    port->ops->flush(port, 1);
    for (uint64_t i = 20; i < 40; i++)
        write_one(port, i % 2, i);
    port->ops->unhop(port, 0);
    port->ops->flush(port, 2);
    port->ops->flush(port, 2000000);
    assert(below.flushed == 20);
    for (size_t i = 0; i < 20; i++)
        assert(below.note[i].hop == 1 && below.note[i].number == 2 * i + 1);
    close_wrapped(port);
}

/* Around a real port: what is not hit arrives, byte by byte. */
static void over_udp(void)
{
    enum { COUNT = 20000 };
    struct end a = {.ip = "127.0.0.1", .space = "-"}, b = a;
    struct harp_chaos faults;
    char why[HARP_WHY_BYTES];
    open_end(&a, 1);
    open_end(&b, 1);
    assert(harp_chaos_parse("drop=10%,duplicate=5%,delay=50us,seed=5", &faults, why) == 0);
    assert(harp_port_chaos_open(&a.port, a.port, &faults, why) == 0);
    printf("%s\n", a.port->line);
    int hop = hop_to(&a, &b.port->locals[0], 0);
    const struct harp_chaos_counters *counts = harp_port_chaos_count(a.port);
    uint64_t sent = 0, got = 0, end_ns = now_ns() + PATIENCE_NS;
    while (sent < COUNT || got < COUNT + counts->duplicated - counts->dropped) {
        for (int i = 0; i < 50 && sent < COUNT && a.port->ops->room(a.port, hop) > 0; i++)
            assert(put_numbered(a.port, hop, 1400, sent++));
        a.port->ops->flush(a.port, now_ns());
        struct harp_arrival in[HARP_BATCH];
        size_t n = b.port->ops->receive(b.port, now_ns(), in, HARP_BATCH);
        for (size_t i = 0; i < n; i++) {
            assert(in[i].length == 1400 && harp_address_same(in[i].from, &a.port->locals[0]));
            assert(check_numbered(in[i].bytes, in[i].length) < sent);
        }
        got += n;
        b.port->ops->release(b.port, in, n);
        assert(now_ns() < end_ns);
    }
    check_between(counts->dropped, 1800, 2200);
    check_between(counts->duplicated, 750, 1100);
    assert(a.port->counters.sent == got);
    a.port->ops->close(a.port);
    b.port->ops->close(b.port);
}

static int parse_faults(const char *text)
{
    struct harp_chaos f;
    char why[HARP_WHY_BYTES];
    if (harp_chaos_parse(text, &f, why)) {
        puts(why);
        return 1;
    }
    const uint64_t *field = (const uint64_t *)&f;
    for (size_t i = 0; i < sizeof f / sizeof *field; i++)
        printf("%" PRIu64 " ", field[i]);
    return 0;
}

int main(int count, char **words)
{
    if (count == 3)
        return parse_faults(words[2]);
    nothing_happens();
    some_are_dropped();
    bursts_are_long();
    test_delays();
    order_is_lost();
    some_come_twice();
    some_are_cut();
    some_have_a_wrong_bit();
    test_rates();
    memory_is_bounded();
    what_goes_nowhere_is_forgotten();
    over_udp();
    free(below.note);
    return 0;
}
