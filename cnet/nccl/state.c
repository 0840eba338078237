#include "plugin.h"

struct plugin plugin = {.lock = PTHREAD_MUTEX_INITIALIZER};

uint64_t plugin_timeout_ns(void)
{
    return plugin.settings.timeout_s * 1000000000;
}

bool comm_lives(const struct comm *comm)
{
    return comm->connection && comm->life == plugin.life;
}
