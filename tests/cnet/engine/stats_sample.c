/* An engine's statistics to be looked at: goes on by a line of input, ends with its end. */
#include "engine/stats.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

static void go_on(struct harp_stats *stats, uint64_t step)
{
    struct harp_port port = {.counters.sent = 10 * step,
                             .line = "udp: [fd00::1]:7000 [bold]as it is"};
    struct harp_stats_connection connection = {.id = UINT64_C(0xabcd00001234),
                                               .state = HARP_STATS_OPEN,
                                               .paths = 4,
                                               .paths_alive = 3,
                                               .smoothed_ns = 12500,
                                               .message_bytes_sent = 1000000 * step,
                                               .peer = "[fd00::2]:7001"};
    connection.counters.lost = step;
    struct harp_stats_path path = {.connection = connection.id,
                                   .number = 1,
                                   .info = {.alive = true, .sent = 100 * step, .lost = step}};
    bool is_address = harp_address_parse("[fd00::1]:7000", &path.local) &&
                      harp_address_parse("10.0.0.2:7001", &path.remote);
    assert(is_address);
    harp_stats_put_port(stats, 0, &port);
    harp_stats_put_connection(stats, 7, &connection);
    harp_stats_put_path(stats, 7, 1, &path);
    harp_count(&stats->engine.turns, 100);
    harp_count(&stats->engine.busy_turns, 25);
    harp_count(&stats->engine.message_bytes_sent, 1000000);
    harp_count(&stats->engine.bad_tag, 1);
    harp_recorder_add(&stats->recorder, step * 1000000, HARP_RECORD_PATH_DIED, connection.id, step,
                      5000);
}

int main(void)
{
    struct harp_stats_file file;
    char line[80];
    if (harp_stats_create(&file, "sample") != 0 || file.fd < 0)
        return 1;
    for (uint64_t step = 1; step == 1 || fgets(line, sizeof line, stdin); step++) {
        go_on(file.stats, step);
        puts("ready");
        fflush(stdout);
    }
    harp_stats_destroy(&file);
    return 0;
}
