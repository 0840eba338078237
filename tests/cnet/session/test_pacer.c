/* The pacer: times between bursts. */
#include "session/pacer.h"

static void test_pacer(void)
{
    struct harp_pacer pacer = {.next_ns = 1000};
    harp_pacer_spend(&pacer, 1000, 1000, 4000, 10000);
    assert(pacer.next_ns == 1000 + 2000);
    harp_pacer_spend(&pacer, 9000, 1000, 4000, 10000); /* late: may catch up by one burst */
    assert(pacer.next_ns == 9000 - 2000 + 2000);
    harp_pacer_spend(&pacer, 9000, 1000, 4000, 0);
    assert(pacer.next_ns <= 9000);
}

int main(void)
{
    test_pacer();
    return 0;
}
