/* A set of small numbers: any thread adds to it, and one takes all of them out.
 *
 *     summary   [ ..1..... ]                       bit w: word w may have members
 *                   |
 *     words     [...] [ .1...1.. ] [...]           bit i of word w: 64 w + i is a member
 *
 * So to look whether there are members costs a word for each 4,096 numbers, and to take them out a
 * word for each 64 that have some, however many numbers there are.
 *
 * Use: a producer changes something of number i (puts into its ring), then adds i. The consumer
 * takes i out, then looks at what changed. No change is missed:
 * - The producer adds to the word and then to the summary; the consumer empties the summary's word
 *   and then the words. Members added behind its back are found with the next look.
 * - A producer that finds its bit set does nothing: the consumer has yet to take it out, and looks
 *   after that. Sequential consistency on both sides makes this true: of "I changed, the bit is
 *   set" and "I took the bit, nothing changed" one is false.
 */
#ifndef HARP_READY_SET_H
#define HARP_READY_SET_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

struct harp_ready_set {
    _Atomic uint64_t *words, *summary; /* one piece of memory */
    uint32_t summary_n;
};

/* Where a walk through the set stands; all zero at the beginning. */
struct harp_ready_walk {
    uint64_t words;   /* of the summary's word: to be looked at */
    uint64_t members; /* of `word`: to be handed out */
    uint32_t summary; /* the next */
    uint32_t word;
};

/* An empty set of numbers below `most`; false without memory. */
static inline bool harp_ready_set_open(struct harp_ready_set *set, uint32_t most)
{
    uint32_t words_n = most / 64 + 1;
    set->summary_n = words_n / 64 + 1;
    set->words = calloc(words_n + set->summary_n, sizeof *set->words);
    set->summary = set->words + words_n;
    return set->words != NULL;
}

static inline void harp_ready_set_close(struct harp_ready_set *set)
{
    free(set->words);
    set->words = NULL;
}

/* Any thread. */
static inline void harp_ready_set_add(struct harp_ready_set *set, uint32_t number)
{
    uint32_t word = number / 64;
    uint64_t bit = UINT64_C(1) << number % 64;
    if (atomic_fetch_or(&set->words[word], bit) & bit)
        return;
    atomic_fetch_or(&set->summary[word / 64], UINT64_C(1) << word % 64);
}

/* The consumer: whether there are members, or were a moment ago. */
static inline bool harp_ready_set_any(const struct harp_ready_set *set)
{
    for (uint32_t s = 0; s < set->summary_n; s++)
        if (atomic_load(&set->summary[s]))
            return true;
    return false;
}

/* The consumer: take the next member out; false at the end of the walk. It hands out everything
 * that was a member when it began, in ascending order, and maybe what came since. */
static inline bool harp_ready_set_take(struct harp_ready_set *set, struct harp_ready_walk *walk,
                                       uint32_t *number)
{
    while (!walk->members) {
        while (!walk->words) {
            if (walk->summary == set->summary_n)
                return false;
            uint32_t s = walk->summary++;
            if (atomic_load_explicit(&set->summary[s], memory_order_relaxed))
                walk->words = atomic_exchange(&set->summary[s], 0);
        }
        walk->word = (walk->summary - 1) * 64 + (uint32_t)__builtin_ctzll(walk->words);
        walk->words &= walk->words - 1;
        walk->members = atomic_exchange(&set->words[walk->word], 0);
    }
    *number = walk->word * 64 + (uint32_t)__builtin_ctzll(walk->members);
    walk->members &= walk->members - 1;
    return true;
}

#endif
