/* One thread closes the ends of its connection at two engines that it drives itself, one after the
 * other. Nobody else drives them: the helpers would come after an hour, and end all the same.
 */
#include "engine_two.h"

#define SECOND_NS UINT64_C(1000000000)

int main(void)
{
    quiet_ns_of_two = 3600 * SECOND_NS;
    connect_two(HARP_PROGRESS_INLINE, -1, harp_port_udp_open);
    harp_connection_close(connections[0]);
    CHECK(harp_engine_drain(engines[0], 4 * SECOND_NS), "the other end has not heard of it");
    for (int i = 0; i < 2; i++)
        harp_engine_close(engines[i]);
    return 0;
}
