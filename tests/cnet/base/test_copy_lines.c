/* Order of copied bytes for a reader that polls flags: the last 8 of a line come last. */
#define _GNU_SOURCE
#include "base/copy_lines.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

enum { LINES = 1024, ROUNDS = 400, WORDS = HARP_LINE_BYTES / 8 };

static _Alignas(128) uint64_t shared[LINES * WORDS], source[LINES * WORDS];
static uint64_t round_of_reader; /* atomic */

static void *read_lines(void *unused)
{
    (void)unused;
    for (uint64_t round = 1; round <= ROUNDS; round++) {
        for (int line = 0; line < LINES; line++) {
            const uint64_t *at = shared + line * WORDS;
            while (__atomic_load_n(at + WORDS - 1, __ATOMIC_ACQUIRE) != round)
                ;
            for (int word = 0; word < WORDS - 1; word++)
                if (__atomic_load_n(at + word, __ATOMIC_RELAXED) != round) {
                    printf("round %llu: line %d, word %d came after the flag\n",
                           (unsigned long long)round, line, word);
                    exit(1);
                }
        }
        __atomic_store_n(&round_of_reader, round, __ATOMIC_RELEASE);
    }
    return NULL;
}

static void check_bytes(void)
{
    uint8_t from[600], to[600];
    for (size_t i = 0; i < sizeof from; i++)
        from[i] = (uint8_t)(i * 7 + 1);
    for (size_t length = 0; length <= sizeof from; length++) {
        memset(to, 0xee, sizeof to);
        harp_copy_lines(to, from, length);
        if (memcmp(to, from, length) != 0 || (length < sizeof to && to[length] != 0xee)) {
            printf("%zu bytes are not copied as they should be\n", length);
            exit(1);
        }
    }
}

int main(void)
{
    pthread_t thread;
    check_bytes();
    pthread_create(&thread, NULL, read_lines, NULL);
    for (uint64_t round = 1; round <= ROUNDS; round++) {
        for (int word = 0; word < LINES * WORDS; word++)
            source[word] = round;
        harp_copy_lines((uint8_t *)shared, (const uint8_t *)source, sizeof source);
        while (__atomic_load_n(&round_of_reader, __ATOMIC_ACQUIRE) != round)
            ;
    }
    pthread_join(thread, NULL);
    return 0;
}
