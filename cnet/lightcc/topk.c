/* The threshold, which is the least magnitude that is kept, is found as by Floyd and Rivest,
 * "Expected time bounds for selection" (CACM 1975). A sample gives two magnitudes between which the
 * threshold almost surely lies. One pass gathers the values between these two and counts the larger
 * ones; a search by digits finds the threshold among the few that were gathered. A second pass
 * takes all values from the threshold up. If the sample was wrong, or too many values are equal,
 * the search by digits goes over all values: slower, with the same result. */
#include "topk.h"

#include <assert.h>
#include <stdbool.h>
#include <string.h>

#include "half.h"
#include "kernels.h"

#define INFINITE UINT32_C(0x7F800000)
#define LARGEST UINT32_C(0x7FFFFFFF)
#define FLOAT16_MAX 65504.0F
#define SAMPLES_MIN 1024 /* fewer are not representative */
#define SAMPLES_MAX 65536
#define BLOCK 1024 /* elements that stay in the cache from one step to the next */

/* One step of the search by digits. Only magnitudes that begin with `prefix` (their bits from
 * `shift` + `width` up) count. Return the next `width` bits of the `*rank`-th largest of them, and
 * set *rank to its place among those that share these bits. */
static uint32_t find_digit(const float *words, size_t n, uint32_t prefix, uint32_t shift,
                           uint32_t width, size_t *rank)
{
    uint32_t counts[1 << 11] = {0}, mask = (UINT32_C(1) << width) - 1;
    for (size_t i = 0; i < n; i++) {
        uint32_t magnitude = harp_magnitude(&words[i]);
        if (((uint64_t)magnitude >> (shift + width)) == prefix)
            counts[magnitude >> shift & mask]++;
    }
    uint32_t digit = mask;
    while (*rank > counts[digit]) {
        *rank -= counts[digit];
        digit--;
    }
    return digit;
}

/* The magnitude of the `*rank`-th largest; *rank becomes its place among its equals. */
static uint32_t find_magnitude(const float *words, size_t n, size_t *rank)
{
    uint32_t high = find_digit(words, n, 0, 20, 11, rank);
    uint32_t middle = find_digit(words, n, high, 10, 10, rank);
    uint32_t low = find_digit(words, n, high << 10 | middle, 0, 10, rank);
    return high << 20 | middle << 10 | low;
}

/* The magnitudes between which the least one that is kept is thought to lie. */
struct bracket {
    uint32_t low, high;
};

/* A sample of values + error, evenly spread; how many. */
static size_t draw_sample(const float *values, const float *error, size_t n, float *room,
                          size_t room_n)
{
    size_t most = room_n < SAMPLES_MAX ? room_n : SAMPLES_MAX;
    if (most < SAMPLES_MIN || n < 4 * SAMPLES_MIN)
        return 0;
    size_t stride = (n / most + 1) | 1, samples = n / stride;
    for (size_t i = 0; i < samples; i++)
        room[i] = error ? values[i * stride] + error[i * stride] : values[i * stride];
    return samples;
}

static size_t round_up_root(size_t square)
{
    size_t root = 0;
    while (root * root < square)
        root++;
    return root;
}

/* The kept ones among that many samples are `expected` give or take the square root of it; four
 * times that is wrong once in 16,000 times. */
static struct bracket guess_bracket(const float *values, const float *error, size_t n, size_t kept,
                                    float *room, size_t room_n)
{
    size_t samples = draw_sample(values, error, n, room, room_n);
    if (!samples)
        return (struct bracket){LARGEST, LARGEST};
    size_t expected = (size_t)((uint64_t)samples * kept / n), spread = round_up_root(16 * expected);
    spread = spread < 4 ? 4 : spread;
    size_t first = expected > spread ? expected - spread : 0, last = expected + spread;
    struct bracket found = {0, LARGEST};
    if (first)
        found.high = find_magnitude(room, samples, &first);
    if (last <= samples)
        found.low = find_magnitude(room, samples, &last);
    return found;
}

struct gathered {
    size_t above, within; /* of the bracket; `within` may be more than there was room for */
};

/* Add values to the error that their predecessors left, if there is one: the sum, in its place. */
static const float *add_error(const float *values, float *error, size_t count)
{
    if (!error)
        return values;
    harp_reduce *add = harp_kernels()->reduce[HARP_ELEMENT_FLOAT32][HARP_REDUCTION_SUM];
    add((uint8_t *)error, (const uint8_t *)values, count * sizeof *error);
    return error;
}

/* Add `error` to the values, in place, and gather what lies in the bracket. */
static struct gathered gather_within(const float *values, float *error, size_t n,
                                     struct bracket bracket, float *room, size_t room_n)
{
    const struct harp_kernels *kernels = harp_kernels();
    uint32_t indices[BLOCK + HARP_FIND_SLACK];
    struct gathered gathered = {0, 0};
    for (size_t first = 0; first < n; first += BLOCK) {
        size_t count = n - first < BLOCK ? n - first : BLOCK;
        const float *block = add_error(values + first, error ? error + first : NULL, count);
        size_t found = kernels->find(block, count, bracket.low, indices);
        for (size_t i = 0; i < found; i++) {
            const float *value = &block[indices[i]];
            if (harp_magnitude(value) > bracket.high)
                gathered.above++;
            else if (gathered.within++ < room_n)
                room[gathered.within - 1] = *value;
        }
    }
    return gathered;
}

/* The selected values: all with a magnitude above `least`, and the first `equals` that equal it. */
struct selection {
    uint32_t least;
    size_t equals;
};

/* `room` is for `room_n` floats; `error` has the values added when this is over. */
static struct selection find_selection(const float *values, float *error, size_t n, size_t kept,
                                       float *room, size_t room_n)
{
    struct bracket bracket = guess_bracket(values, error, n, kept, room, room_n);
    struct gathered gathered = gather_within(values, error, n, bracket, room, room_n);
    size_t rank = kept - gathered.above;
    if (gathered.above < kept && rank <= gathered.within) {
        if (bracket.low == bracket.high)
            return (struct selection){bracket.low, rank};
        if (gathered.within <= room_n)
            return (struct selection){find_magnitude(room, gathered.within, &rank), rank};
    }
    rank = kept;
    uint32_t least = find_magnitude(error ? error : values, n, &rank);
    return (struct selection){least, rank};
}

/* Write up to HALVES pairs of the values from number `first` on, and leave in `error`, if there is
 * one, what they do not carry. */
static void write_pairs(const float *values, float *error, uint32_t first, const uint32_t *indices,
                        size_t count, uint8_t *pairs, size_t pair_bytes)
{
    union wide wide = {{0}};
    uint8_t halves[HALVES_BYTES];
    for (size_t i = 0; i < count; i++)
        wide.value[i] = values[indices[i]];
    if (pair_bytes == HARP_PAIR_FLOAT16_BYTES) {
        for (size_t i = 0; i < count; i++) { /* the rest is an error like any other */
            if (harp_magnitude(&wide.value[i]) < INFINITE && wide.value[i] > FLOAT16_MAX)
                wide.value[i] = FLOAT16_MAX;
            else if (harp_magnitude(&wide.value[i]) < INFINITE && wide.value[i] < -FLOAT16_MAX)
                wide.value[i] = -FLOAT16_MAX;
        }
        harp_kernels()->narrow_float16(halves, &wide);
        harp_kernels()->widen_float16(&wide, halves);
    }
    for (size_t i = 0; i < count; i++) {
        uint8_t *pair = pairs + i * pair_bytes;
        uint32_t index = first + indices[i];
        if (pair_bytes == HARP_PAIR_FLOAT16_BYTES)
            memcpy(pair, halves + 2 * i, 2);
        else
            memcpy(pair, &wide.value[i], sizeof wide.value[i]);
        memcpy(pair + pair_bytes - sizeof index, &index, sizeof index);
        bool is_finite = harp_magnitude(&values[indices[i]]) < INFINITE;
        if (error)
            error[indices[i]] = is_finite ? values[indices[i]] - wide.value[i] : 0;
    }
}

/* The same for any number of pairs. */
static void write_found(const float *values, float *error, uint32_t first, const uint32_t *indices,
                        size_t count, uint8_t *pairs, size_t pair_bytes)
{
    for (size_t i = 0; i < count; i += HALVES) {
        size_t part = count - i < HALVES ? count - i : HALVES;
        write_pairs(values, error, first, indices + i, part, pairs, pair_bytes);
        pairs += part * pair_bytes;
    }
}

/* Of the indices of a block keep those of the selection, up to `kept`; says how many they are. */
static size_t keep_selected(const float *block, uint32_t *indices, size_t found, size_t kept,
                            struct selection *selection)
{
    size_t taken = 0;
    for (size_t i = 0; i < found && taken < kept; i++) {
        bool is_equal = harp_magnitude(&block[indices[i]]) == selection->least;
        if (is_equal && !selection->equals)
            continue;
        selection->equals -= is_equal;
        indices[taken++] = indices[i];
    }
    return taken;
}

/* Clear what is not finite and was not sent, where more was not finite than is sent. */
static void forget_infinite(float *error, size_t n)
{
    for (size_t i = 0; error && i < n; i++)
        if (harp_magnitude(&error[i]) >= INFINITE)
            error[i] = 0;
}

void harp_topk_select(const float *values, float *error, size_t n, uint8_t *pairs, size_t kept,
                      size_t pair_bytes)
{
    uint32_t indices[BLOCK + HARP_FIND_SLACK];
    assert(kept <= n);
    size_t shift = -(uintptr_t)pairs % sizeof(float);
    float *room = (float *)(void *)(pairs + shift);
    struct selection selection =
        find_selection(values, error, n, kept, room, (kept * pair_bytes - shift) / sizeof *room);
    values = error ? error : values;
    for (size_t first = 0; first < n && kept; first += BLOCK) {
        const float *block = values + first;
        size_t count = n - first < BLOCK ? n - first : BLOCK;
        size_t found = harp_kernels()->find(block, count, selection.least, indices);
        found = keep_selected(block, indices, found, kept, &selection);
        write_found(block, error ? error + first : NULL, (uint32_t)first, indices, found, pairs,
                    pair_bytes);
        pairs += found * pair_bytes;
        kept -= found;
    }
    if (selection.least >= INFINITE)
        forget_infinite(error, n);
}

/* The magnitude that only a part of the largest `kept` reach, by a sample; 0: there are too few. */
static uint32_t guess_threshold(const float *values, const float *error, size_t n, size_t kept,
                                float *room, size_t room_n)
{
    size_t samples = draw_sample(values, error, n, room, room_n);
    size_t expected = (size_t)((uint64_t)samples * kept / n), fewer = round_up_root(4 * expected);
    if (expected <= 2 * fewer)
        return 0;
    size_t rank = expected - fewer;
    uint32_t least = find_magnitude(room, samples, &rank);
    return least ? least : 1; /* zeros need not be sent */
}

static void write_nothing(uint8_t *pairs, size_t count, size_t pair_bytes)
{
    for (size_t i = 0; i < count; i++) {
        memset(pairs, 0, pair_bytes);
        memset(pairs + pair_bytes - sizeof(uint32_t), 0xFF, sizeof(uint32_t));
        pairs += pair_bytes;
    }
}

void harp_topk_sample(const float *values, float *error, size_t n, uint8_t *pairs, size_t kept,
                      size_t pair_bytes)
{
    const struct harp_kernels *kernels = harp_kernels();
    uint32_t indices[BLOCK + HARP_FIND_SLACK];
    assert(kept <= n);
    size_t shift = -(uintptr_t)pairs % sizeof(float);
    uint32_t least = guess_threshold(values, error, n, kept, (float *)(void *)(pairs + shift),
                                     (kept * pair_bytes - shift) / sizeof(float));
    if (!least) {
        harp_topk_select(values, error, n, pairs, kept, pair_bytes);
        return;
    }
    for (size_t first = 0; first < n; first += BLOCK) {
        size_t count = n - first < BLOCK ? n - first : BLOCK;
        const float *block = add_error(values + first, error ? error + first : NULL, count);
        size_t found = kept ? kernels->find(block, count, least, indices) : 0;
        found = found < kept ? found : kept;
        write_found(block, error ? error + first : NULL, (uint32_t)first, indices, found, pairs,
                    pair_bytes);
        pairs += found * pair_bytes;
        kept -= found;
    }
    if (!kept)
        forget_infinite(error, n);
    write_nothing(pairs, kept, pair_bytes);
}

void harp_topk_add(float *values, size_t n, const uint8_t *pairs, size_t count, size_t pair_bytes)
{
    memset(values, 0, n * sizeof *values);
    for (size_t first = 0; first < count; first += HALVES) {
        size_t part = count - first < HALVES ? count - first : HALVES;
        union wide wide = {{0}};
        uint8_t halves[HALVES_BYTES] = {0};
        bool is_half = pair_bytes == HARP_PAIR_FLOAT16_BYTES;
        for (size_t i = 0; i < part; i++)
            memcpy(is_half ? (void *)(halves + 2 * i) : (void *)&wide.value[i],
                   pairs + (first + i) * pair_bytes, pair_bytes - sizeof(uint32_t));
        if (is_half)
            harp_kernels()->widen_float16(&wide, halves);
        for (size_t i = 0; i < part; i++) {
            uint32_t index;
            memcpy(&index, pairs + (first + i + 1) * pair_bytes - sizeof index, sizeof index);
            if (index < n)
                values[index] += wide.value[i];
        }
    }
}
