/* Selection: what is at least as large as a guess is listed in one pass, in which most
 * blocks have nothing, and the list, a little longer than what is wanted, is selected from. Chunks
 * of one vector are alike, so the guess is a little below the least value that was kept of the
 * chunk before.
 */
#include "lightcc/chunk_topk.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

#define MAGNITUDE UINT32_C(0x7fffffff)
#define BLOCK 8
#define SLACK (UINT32_C(1) << 19) /* of a float's bits: a sixteenth of a power of two */

/* ---- Streams of bits ---- */

struct bit_writer {
    uint8_t *to;
    uint64_t held; /* the bits that are not written yet, the last one lowest */
    uint32_t held_n;
};

static void put_bits(struct bit_writer *writer, uint32_t value, uint32_t bits)
{
    writer->held = writer->held << bits | value;
    writer->held_n += bits;
    while (writer->held_n >= 8) {
        writer->held_n -= 8;
        *writer->to++ = (uint8_t)(writer->held >> writer->held_n);
    }
}

static void end_bits(struct bit_writer *writer)
{
    if (writer->held_n)
        *writer->to++ = (uint8_t)(writer->held << (8 - writer->held_n));
    writer->held_n = 0;
}

struct bit_reader {
    const uint8_t *from;
    uint64_t held;
    uint32_t held_n;
};

static uint32_t get_bits(struct bit_reader *reader, uint32_t bits)
{
    while (reader->held_n < bits) {
        reader->held = reader->held << 8 | *reader->from++;
        reader->held_n += 8;
    }
    reader->held_n -= bits;
    return (uint32_t)(reader->held >> reader->held_n & ((UINT64_C(1) << bits) - 1));
}

/* ---- Messages ---- */

static uint32_t index_bits(const struct harp_chunk_rule *rule)
{
    uint32_t bits = 0;
    while ((rule->chunk - 1) >> bits)
        bits++;
    return bits;
}

static size_t bytes_of_chunk(const struct harp_chunk_rule *rule)
{
    size_t stream = ((size_t)rule->keep * (index_bits(rule) + rule->bits) + 7) / 8;
    return stream + (rule->bits < 32 ? sizeof(float) : 0);
}

size_t harp_chunk_bytes(size_t n, const struct harp_chunk_rule *rule)
{
    return (n + rule->chunk - 1) / rule->chunk * bytes_of_chunk(rule);
}

static uint32_t bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static float float_of(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* Value of a level. */
static float value_of(uint32_t level, float scale, uint32_t bits)
{
    if (bits == 32)
        return float_of(level);
    return scale * (2.0F * (float)level / (float)((1U << bits) - 1) - 1.0F);
}

static uint32_t level_of(float value, float scale, uint32_t bits)
{
    if (bits == 32)
        return bits_of(value);
    float steps = (float)((1U << bits) - 1);
    float share = scale > 0.0F && isfinite(scale) ? value / scale : 0.0F;
    return (uint32_t)rintf((share + 1.0F) / 2.0F * steps);
}

/* ---- Selection ---- */

/* Move the n-th largest, counted from 0, to its place among `of` values, and larger ones before it
 * (Hoare's selection). */
static uint32_t select_nth(uint32_t *values, uint32_t of, uint32_t n)
{
    uint32_t first = 0, last = of - 1;
    while (first < last) {
        uint32_t pivot = values[first + (last - first) / 2], i = first, j = last;
        for (;;) {
            while (values[i] > pivot)
                i++;
            while (values[j] < pivot)
                j--;
            if (i >= j)
                break;
            uint32_t swapped = values[i];
            values[i++] = values[j];
            values[j--] = swapped;
        }
        if (n <= j)
            last = j;
        else
            first = j + 1;
    }
    return values[n];
}

/* Whether a magnitude of a block is at least as large. Signed, since SSE2 compares no other words.
 */
static bool has_large(const float *values, int32_t least)
{
    int32_t any = 0;
    for (uint32_t i = 0; i < BLOCK; i++)
        any |= (int32_t)(bits_of(values[i]) & MAGNITUDE) >= least;
    return any;
}

/* The places of all magnitudes of at least `least`, which rise. */
static uint32_t list_places(const float *values, uint32_t n, uint32_t least, uint32_t *places)
{
    uint32_t found = 0;
    for (uint32_t first = 0; first < n; first += BLOCK) {
        if (n - first >= BLOCK && !has_large(values + first, (int32_t)least))
            continue;
        for (uint32_t i = first; i < n && i < first + BLOCK; i++) {
            places[found] = i;
            found += (bits_of(values[i]) & MAGNITUDE) >= least;
        }
    }
    return found;
}

/* Select the places of the `keep` largest of a chunk, to the front of `places`. *guess: a magnitude
 * that few are above; the one for the next chunk. `scratch` has room for one more list. */
static void select_places(const float *values, const struct harp_chunk_rule *rule, uint32_t *guess,
                          uint32_t *places, uint32_t *scratch)
{
    uint32_t listed = list_places(values, rule->chunk, *guess, places);
    for (uint32_t lower = SLACK; listed < rule->keep; lower *= 2) {
        *guess = *guess > lower && lower < UINT32_C(1) << 30 ? *guess - lower : 0;
        listed = list_places(values, rule->chunk, *guess, places);
    }
    for (uint32_t i = 0; i < listed; i++)
        scratch[i] = bits_of(values[places[i]]) & MAGNITUDE;
    uint32_t least = select_nth(scratch, listed, rule->keep - 1), above = 0, kept = 0;
    for (uint32_t i = 0; i < listed; i++)
        above += (bits_of(values[places[i]]) & MAGNITUDE) > least;
    uint32_t equals = rule->keep - above;
    for (uint32_t i = 0; i < listed; i++) {
        uint32_t magnitude = bits_of(values[places[i]]) & MAGNITUDE;
        bool is_equal = magnitude == least && equals > 0;
        equals -= is_equal;
        places[kept] = places[i];
        kept += magnitude > least || is_equal;
    }
    *guess = least > SLACK ? least - SLACK : 0;
}

/* ---- Chunks ---- */

static uint8_t *write_chunk(float *values, const struct harp_chunk_rule *rule,
                            const uint32_t *places, uint8_t *message)
{
    struct bit_writer writer = {.to = message};
    uint32_t wide = index_bits(rule), peak = 0;
    for (uint32_t i = 0; i < rule->keep; i++) {
        uint32_t magnitude = bits_of(values[places[i]]) & MAGNITUDE;
        peak = magnitude > peak ? magnitude : peak;
    }
    float scale = float_of(peak);
    bool is_finite = isfinite(scale);
    if (rule->bits < 32) {
        memcpy(message, &scale, sizeof scale);
        writer.to += sizeof scale;
    }
    for (uint32_t i = 0; i < rule->keep; i++) {
        float *value = &values[places[i]];
        uint32_t level = level_of(*value, scale, rule->bits);
        put_bits(&writer, places[i], wide);
        put_bits(&writer, level, rule->bits);
        *value = is_finite ? *value - value_of(level, scale, rule->bits) : 0;
    }
    for (uint32_t i = 0; !is_finite && i < rule->chunk; i++)
        values[i] = isfinite(values[i]) ? values[i] : 0;
    end_bits(&writer);
    return writer.to;
}

void harp_chunk_take(float *error, size_t n, const struct harp_chunk_rule *rule, uint8_t *message,
                     uint32_t *scratch)
{
    uint32_t *places = scratch, *list = scratch + rule->chunk, guess = 0;
    float *filled = (float *)(scratch + 2 * (size_t)rule->chunk);
    for (size_t first = 0; first < n; first += rule->chunk) {
        size_t here = n - first < rule->chunk ? n - first : rule->chunk;
        float *values = error + first;
        if (here < rule->chunk) {
            memset(filled, 0, rule->chunk * sizeof *filled);
            memcpy(filled, values, here * sizeof *filled);
            values = filled;
        }
        select_places(values, rule, &guess, places, list);
        message = write_chunk(values, rule, places, message);
        if (values == filled)
            memcpy(error + first, filled, here * sizeof *filled);
    }
}

void harp_chunk_add(float *total, float *weights, size_t n, const struct harp_chunk_rule *rule,
                    const uint8_t *message, float weight)
{
    uint32_t wide = index_bits(rule);
    size_t bytes = bytes_of_chunk(rule);
    for (size_t first = 0; first < n; first += rule->chunk, message += bytes) {
        struct bit_reader reader = {.from = message};
        float scale = 0;
        if (rule->bits < 32) {
            memcpy(&scale, message, sizeof scale);
            reader.from += sizeof scale;
        }
        for (uint32_t i = 0; i < rule->keep; i++) {
            size_t place = first + get_bits(&reader, wide);
            float value = value_of(get_bits(&reader, rule->bits), scale, rule->bits);
            if (place >= n)
                continue;
            total[place] += weight * value;
            if (weights)
                weights[place] += weight;
        }
    }
}
