/* Pages by io_uring. Usage: test_ring_io FOLDER */
#define _GNU_SOURCE
#include "page_io.h"

int main(int argc, char **argv)
{
    CHECK(argc == 2, "usage: %s FOLDER", argv[0]);
    test_what_was_written_is_read(&page_io_ring, argv[1]);
    test_failures_are_results_of_their_requests(&page_io_ring, argv[1]);
    return 0;
}
