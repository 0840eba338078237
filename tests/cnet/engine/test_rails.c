/* Pairs of an engine's ports with the addresses of the other end. */
#include "check.h"
#include "engine/rails.h"

static struct harp_address locals[HARP_RAIL_ENDS], remotes[HARP_RAIL_ENDS];
static struct harp_rail rails[HARP_RAILS_MAX];

static uint32_t read_list(const char *const *texts, struct harp_address *addresses)
{
    uint32_t n = 0;
    for (; texts[n]; n++)
        CHECK(harp_address_parse(texts[n], &addresses[n]), "%s", texts[n]);
    return n;
}

/* Expect these rails, in this order, as "local-remote" numbers. */
static void expect_rails(const char *const *ours, const char *const *theirs, const char *wanted)
{
    char got[8 * HARP_RAILS_MAX] = "";
    uint32_t n = harp_rails_match(locals, read_list(ours, locals), remotes,
                                  read_list(theirs, remotes), rails);
    for (uint32_t i = 0, used = 0; i < n; i++)
        used += (uint32_t)snprintf(got + used, sizeof got - used, "%s%u-%u", i ? " " : "",
                                   rails[i].local, rails[i].remote);
    CHECK(strcmp(got, wanted) == 0, "wanted \"%s\", got \"%s\"", wanted, got);
}

#define LIST(...)                                                                                  \
    (const char *const[])                                                                          \
    {                                                                                              \
        __VA_ARGS__                                                                                \
    }

static void nics_of_one_network_are_paired_whatever_their_order(void)
{
    expect_rails(LIST("10.1.0.1", "10.2.0.1", NULL), LIST("10.1.0.2", "10.2.0.2", NULL), "0-0 1-1");
    expect_rails(LIST("10.1.0.1", "10.2.0.1", NULL), LIST("10.2.0.2", "10.1.0.2", NULL), "0-1 1-0");
    expect_rails(LIST("fd00:1::1", "fd00:2::1", NULL), LIST("fd00:2::2", "fd00:1::2", NULL),
                 "0-1 1-0");
}

static void nobody_is_used_twice_before_all_are_used_once(void)
{
    /* One network for all: 10.0.0.1 and .3 would both prefer .2. */
    expect_rails(LIST("10.0.0.1", "10.0.0.3", NULL), LIST("10.0.0.2", "10.0.0.4", NULL), "1-0 0-1");
    expect_rails(LIST("10.1.0.1", NULL), LIST("10.1.0.2", "10.2.0.2", "10.3.0.2", NULL),
                 "0-0 0-1 0-2");
    expect_rails(LIST("10.1.0.1", "10.2.0.1", "10.3.0.1", NULL), LIST("10.3.0.2", NULL),
                 "2-0 1-0 0-0");
}

static void who_cannot_be_reached_is_left_out(void)
{
    expect_rails(LIST("10.1.0.1", "fd00::1", NULL), LIST("fd00::2", NULL), "1-0");
    expect_rails(LIST("10.1.0.1", NULL), LIST("fd00::2", NULL), "");
    expect_rails(LIST("10.1.0.1", NULL), LIST(NULL), "");
    struct harp_address memory = {.family = HARP_MEM, .ip = {1}};
    struct harp_address both[2] = {memory, locals[0]};
    CHECK(harp_rails_match(both, 2, &memory, 1, rails) == 1 && rails[0].local == 0, "mem");
}

static void the_longest_lists_fit(void)
{
    for (uint32_t i = 0; i < HARP_RAIL_ENDS; i++) {
        locals[i] = remotes[i] = (struct harp_address){.family = HARP_INET, .ip = {[15] = 1}};
        locals[i].ip[14] = remotes[i].ip[14] = (uint8_t)i;
    }
    CHECK(harp_rails_match(locals, HARP_RAIL_ENDS, remotes, HARP_RAIL_ENDS, rails) ==
              HARP_RAIL_ENDS,
          "as many rails as NICs");
    CHECK(harp_rails_match(locals, 1, remotes, HARP_RAIL_ENDS, rails) == HARP_RAIL_ENDS,
          "one to all");
}

int main(void)
{
    nics_of_one_network_are_paired_whatever_their_order();
    nobody_is_used_twice_before_all_are_used_once();
    who_cannot_be_reached_is_left_out();
    the_longest_lists_fit();
    return 0;
}
