/* State that all files of the plugin share: how long it waits, and for which comms. */
#include "check.h"
#include "nccl/plugin.h"

static void test_the_time_limit_is_in_nanoseconds(void)
{
    plugin.settings.timeout_s = 86400; /* the longest that can be set */
    CHECK(plugin_timeout_ns() == UINT64_C(86400000000000), "a day");
    plugin.settings.timeout_s = 1;
    CHECK(plugin_timeout_ns() == 1000000000, "a second");
}

/* After a fork, or another init, nobody may touch the engine of a comm that was made before. */
static void test_a_comm_lives_in_the_life_that_it_was_made_in(void)
{
    struct harp_connection *connection = (struct harp_connection *)&plugin; /* never looked at */
    struct comm comm = {.life = plugin.life};
    CHECK(!comm_lives(&comm), "it has no connection yet");
    comm.connection = connection;
    CHECK(comm_lives(&comm), "it has one");
    plugin.life++;
    CHECK(!comm_lives(&comm), "it is of the life before");
}

int main(void)
{
    test_the_time_limit_is_in_nanoseconds();
    test_a_comm_lives_in_the_life_that_it_was_made_in();
    return 0;
}
