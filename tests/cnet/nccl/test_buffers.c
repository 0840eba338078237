/* Memory that NCCL registers: whether anybody reads it while a message comes. */
#define _GNU_SOURCE
#include <stdlib.h>

#include "check.h"
#include "nccl/plugin.h"

/* NCCL 2.30's buffers: Simple's is the only one that nobody reads early. */
static void test_which_memory_is_watched(void)
{
    CHECK(buffers_watched(524288) && buffers_watched(4915200), "LL's and LL128's buffers");
    CHECK(!buffers_watched(4194304), "Simple's buffer");
    CHECK(buffers_watched(4194304 - 1) && buffers_watched(8388608), "memory of another size");
    setenv("NCCL_BUFFSIZE", "8388608", 1);
    CHECK(!buffers_watched(8388608) && buffers_watched(4194304),
          "Simple's buffer, as the user sets it");
    setenv("NCCL_LL128_BUFFSIZE", "8388608", 1);
    CHECK(buffers_watched(8388608), "a size that both have");
    CHECK(buffers_read_early_most() == 1048576, "a step of LL128, as the user sets it");
    unsetenv("NCCL_BUFFSIZE");
    unsetenv("NCCL_LL128_BUFFSIZE");
    CHECK(buffers_read_early_most() == 614400, "a step of LL128");
}

int main(void)
{
    test_which_memory_is_watched();
    return 0;
}
