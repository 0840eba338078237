/* The magnitude of a float32, seen as an integer, is its order. So the least magnitude that is kept
 * is found digit by digit, by counting: three passes over the values, of 11, 10 and 10 bits. */
#include "topk.h"

#include <stdbool.h>
#include <string.h>

#include "half.h"

#define MAGNITUDE UINT32_C(0x7FFFFFFF)
#define INFINITE UINT32_C(0x7F800000)
#define FLOAT16_MAX 65504.0F

static uint32_t magnitude_of(const float *value)
{
    uint32_t bits;
    memcpy(&bits, value, sizeof bits);
    return bits & MAGNITUDE;
}

/* Of the values whose magnitude has `prefix` above `shift` + `width` bits, find the digit of the
 * one that is the `*rank`-th largest, and make *rank its place among those with this digit. */
static uint32_t find_digit(const float *values, size_t n, uint32_t prefix, uint32_t shift,
                           uint32_t width, size_t *rank)
{
    uint32_t counts[1 << 11] = {0}, mask = (UINT32_C(1) << width) - 1;
    for (size_t i = 0; i < n; i++) {
        uint32_t magnitude = magnitude_of(&values[i]);
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

/* The magnitude of the `kept`-th largest value; *equals says how many of its equals are kept. */
static uint32_t find_least(const float *values, size_t n, size_t kept, size_t *equals)
{
    uint32_t high = find_digit(values, n, 0, 20, 11, &kept);
    uint32_t middle = find_digit(values, n, high, 10, 10, &kept);
    uint32_t low = find_digit(values, n, high << 10 | middle, 0, 10, &kept);
    *equals = kept;
    return high << 20 | middle << 10 | low;
}

/* Write up to HALVES pairs, and leave in `error` what they do not carry. */
static void write_pairs(const float *values, float *error, const uint32_t *indices, size_t count,
                        uint8_t *pairs, size_t pair_bytes)
{
    union wide wide = {{0}};
    struct halves halves;
    for (size_t i = 0; i < count; i++)
        wide.value[i] = values[indices[i]];
    if (pair_bytes == HARP_PAIR_FLOAT16_BYTES) {
        for (size_t i = 0; i < count; i++) { /* the rest is an error like any other */
            if (magnitude_of(&wide.value[i]) < INFINITE && wide.value[i] > FLOAT16_MAX)
                wide.value[i] = FLOAT16_MAX;
            else if (magnitude_of(&wide.value[i]) < INFINITE && wide.value[i] < -FLOAT16_MAX)
                wide.value[i] = -FLOAT16_MAX;
        }
        narrow_float16(&halves, &wide);
        widen_float16(&wide, &halves);
    }
    for (size_t i = 0; i < count; i++) {
        uint8_t *pair = pairs + i * pair_bytes;
        if (pair_bytes == HARP_PAIR_FLOAT16_BYTES)
            memcpy(pair, &halves.word[i], sizeof halves.word[i]);
        else
            memcpy(pair, &wide.value[i], sizeof wide.value[i]);
        memcpy(pair + pair_bytes - sizeof *indices, &indices[i], sizeof *indices);
        if (error)
            error[indices[i]] = values[indices[i]] - wide.value[i];
    }
}

void harp_topk_select(float *values, float *error, size_t n, uint8_t *pairs, size_t kept,
                      size_t pair_bytes)
{
    uint32_t indices[HALVES];
    size_t held = 0, equals;
    for (size_t i = 0; error && i < n; i++)
        error[i] = values[i] += error[i];
    if (!kept || kept > n)
        return;
    uint32_t least = find_least(values, n, kept, &equals);
    for (size_t i = 0; i < n && kept; i++) {
        uint32_t magnitude = magnitude_of(&values[i]);
        if (magnitude < least || (magnitude == least && !equals))
            continue;
        equals -= magnitude == least;
        indices[held++] = (uint32_t)i;
        if (held == HALVES || held == kept) {
            write_pairs(values, error, indices, held, pairs, pair_bytes);
            pairs += held * pair_bytes;
            kept -= held;
            held = 0;
        }
    }
}

void harp_topk_add(float *values, size_t n, const uint8_t *pairs, size_t count, size_t pair_bytes)
{
    memset(values, 0, n * sizeof *values);
    for (size_t first = 0; first < count; first += HALVES) {
        size_t part = count - first < HALVES ? count - first : HALVES;
        union wide wide = {{0}};
        struct halves halves = {{0}};
        bool is_half = pair_bytes == HARP_PAIR_FLOAT16_BYTES;
        for (size_t i = 0; i < part; i++)
            memcpy(is_half ? (void *)&halves.word[i] : (void *)&wide.value[i],
                   pairs + (first + i) * pair_bytes, pair_bytes - sizeof(uint32_t));
        if (is_half)
            widen_float16(&wide, &halves);
        for (size_t i = 0; i < part; i++) {
            uint32_t index;
            memcpy(&index, pairs + (first + i + 1) * pair_bytes - sizeof index, sizeof index);
            if (index < n)
                values[index] += wide.value[i];
        }
    }
}
