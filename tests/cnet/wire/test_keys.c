/* The keys of a connection: what each depends on. */
#include "wire/keys.h"

#include <assert.h>

static int keys_are_same(struct harp_key a, struct harp_key b)
{
    return a.low == b.low && a.high == b.high;
}

/* Each key depends on every bit of what it is made of, and no two kinds of key are alike. */
static void keys_depend_on_all(void)
{
    struct harp_key secret = {.low = 3, .high = 4};
    struct harp_end one = {.connection = 5, .epoch = 6}, two = {.connection = 7, .epoch = 8};
    struct harp_key kinds[4] = {harp_key_hello(&secret, 5), harp_key_accept(&secret, 5, &one),
                                harp_key_up(&secret, &one, &two),
                                harp_key_down(&secret, &one, &two)};
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < i; j++)
            assert(!keys_are_same(kinds[i], kinds[j]));

    struct harp_end *ends[2] = {&one, &two};
    for (int end = 0; end < 2; end++) {
        struct harp_end kept = *ends[end];
        for (int bit = 0; bit < 64 + 16 + 128; bit++) {
            if (bit < 64)
                ends[end]->connection ^= UINT64_C(1) << bit;
            else if (bit < 80)
                ends[end]->epoch ^= (uint16_t)(1u << (bit - 64));
            else
                ends[end]->nonce[(bit - 80) / 8] ^= (uint8_t)(1u << bit % 8);
            assert(!keys_are_same(harp_key_up(&secret, &one, &two), kinds[2]));
            assert(!keys_are_same(harp_key_down(&secret, &one, &two), kinds[3]));
            int is_of_accept = end == 0 && (bit < 64 || bit >= 80);
            assert(keys_are_same(harp_key_accept(&secret, 5, &one), kinds[1]) == !is_of_accept);
            *ends[end] = kept;
        }
    }
    assert(keys_are_same(harp_key_up(&secret, &one, &two), kinds[2]));
}

int main(void)
{
    keys_depend_on_all();
    return 0;
}
