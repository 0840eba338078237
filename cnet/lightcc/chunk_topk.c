/* Selection: one pass lists the places of what is at least as large as a guess, and the list, a
 * little longer than what is wanted, is selected from. Chunks of one vector are alike, so the guess
 * is a little below the least value that was kept of the chunk before.
 */
#include "lightcc/chunk_topk.h"

#include "lightcc/kernels.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

#define LEVEL_BITS 8              /* at most, of what is no float */
#define AHEAD 64                  /* places that are read ahead, so that misses of caches overlap */
#define SLACK (UINT32_C(1) << 19) /* of a float's bits: a sixteenth of a power of two */

/* ---- Streams of bits ---- */

struct bit_writer {
    uint8_t *to;
    uint64_t held; /* the bits that are not written yet, the last one lowest */
    uint32_t held_n;
};

/* Write 32 bits at most. */
static void put_bits(struct bit_writer *writer, uint32_t value, uint32_t bits)
{
    writer->held = writer->held << bits | value;
    writer->held_n += bits;
    if (writer->held_n >= 32) {
        writer->held_n -= 32;
        uint32_t word = __builtin_bswap32((uint32_t)(writer->held >> writer->held_n));
        memcpy(writer->to, &word, sizeof word);
        writer->to += sizeof word;
    }
}

static void end_bits(struct bit_writer *writer)
{
    uint32_t word = __builtin_bswap32((uint32_t)(writer->held << (32 - writer->held_n)));
    uint32_t bytes = (writer->held_n + 7) / 8;
    memcpy(writer->to, &word, bytes);
    writer->to += bytes;
    writer->held_n = 0;
}

/* Bits of a stream of `bytes` from number `first` on, 32 at most. */
static uint32_t read_bits(const uint8_t *stream, size_t bytes, size_t first, uint32_t bits)
{
    uint64_t window = 0;
    if (bytes - first / 8 >= sizeof window)
        memcpy(&window, stream + first / 8, sizeof window);
    else
        memcpy(&window, stream + first / 8, bytes - first / 8);
    return (uint32_t)(__builtin_bswap64(window) << first % 8 >> (64 - bits));
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
    return stream + (rule->bits <= LEVEL_BITS ? sizeof(float) : 0);
}

size_t harp_chunk_bytes(size_t n, const struct harp_chunk_rule *rule)
{
    return (n + rule->chunk - 1) / rule->chunk * bytes_of_chunk(rule);
}

size_t harp_chunk_scratch_words(const struct harp_chunk_rule *rule)
{
    return 3 * (size_t)rule->chunk + HARP_FIND_SLACK;
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

/* Share of the scale that each level stands for. */
struct shares {
    float of[1U << LEVEL_BITS];
};

static void fill_shares(struct shares *shares, uint32_t bits)
{
    for (uint32_t level = 0; bits <= LEVEL_BITS && level < 1U << bits; level++)
        shares->of[level] = 2.0F * (float)level / (float)((1U << bits) - 1) - 1.0F;
}

/* Value of a level. */
static float value_of(uint32_t level, float scale, uint32_t bits, const struct shares *shares)
{
    return bits > LEVEL_BITS ? float_of(level) : scale * shares->of[level];
}

static uint32_t level_of(float value, float scale, uint32_t bits)
{
    if (bits > LEVEL_BITS)
        return bits_of(value);
    float steps = (float)((1U << bits) - 1);
    float share = scale > 0.0F && isfinite(scale) ? value / scale : 0.0F;
    return (uint32_t)rintf((share + 1.0F) / 2.0F * steps);
}

/* ---- Selection ---- */

/* A magnitude that `keep` values or a few more reach: more only where some equal it. All are `from`
 * or more. Its bits are found from the highest on that differs. */
static uint32_t find_least(const uint32_t *magnitudes, uint32_t of, uint32_t from, uint32_t keep)
{
    uint32_t differ = 0, reach = of;
    for (uint32_t i = 0; i < of; i++)
        differ |= magnitudes[i] ^ from;
    uint32_t bit = differ ? UINT32_C(1) << (31 - __builtin_clz(differ)) : 0;
    uint32_t least = bit ? from & ~(2 * bit - 1) : from;
    for (; bit && reach > keep; bit >>= 1) {
        uint32_t count = 0;
        for (uint32_t i = 0; i < of; i++) /* signed, since SSE2 compares no other words */
            count += (int32_t)magnitudes[i] >= (int32_t)(least | bit);
        if (count >= keep) {
            least |= bit;
            reach = count;
        }
    }
    return least;
}

/* Select the places of the `keep` largest of a chunk, to the front of `places`. *guess: a magnitude
 * that few are above; the one for the next chunk. `scratch` has room for one more list. */
static void select_places(const float *values, const struct harp_chunk_rule *rule, uint32_t *guess,
                          uint32_t *places, uint32_t *scratch)
{
    const struct harp_kernels *kernels = harp_kernels();
    size_t listed = kernels->find(values, rule->chunk, *guess, places);
    for (uint32_t lower = SLACK; listed < rule->keep; lower *= 2) {
        *guess = *guess > lower && lower < UINT32_C(1) << 30 ? *guess - lower : 0;
        listed = kernels->find(values, rule->chunk, *guess, places);
    }
    for (size_t i = 0; i < listed; i++)
        scratch[i] = harp_magnitude(&values[places[i]]);
    uint32_t least = find_least(scratch, (uint32_t)listed, *guess, rule->keep);
    uint32_t above = 0, reach = 0;
    for (size_t i = 0; i < listed; i++) {
        above += (int32_t)scratch[i] > (int32_t)least;
        reach += (int32_t)scratch[i] >= (int32_t)least;
    }
    /* Of equals the first ones are kept: what comes after those has to be above. */
    uint32_t equals = rule->keep - above, kept = 0;
    for (size_t i = 0; i < listed; i++) {
        places[kept] = places[i];
        kept += scratch[i] >= least;
        if (reach > rule->keep && scratch[i] == least && !--equals)
            least++;
    }
    *guess = least > SLACK ? least - SLACK : 0;
}

/* ---- Chunks ---- */

static uint8_t *write_chunk(float *values, const struct harp_chunk_rule *rule,
                            const struct shares *shares, const uint32_t *places, uint8_t *message)
{
    struct bit_writer writer = {.to = message};
    uint32_t wide = index_bits(rule), peak = 0;
    for (uint32_t i = 0; i < rule->keep; i++) {
        uint32_t magnitude = harp_magnitude(&values[places[i]]);
        peak = magnitude > peak ? magnitude : peak;
    }
    float scale = float_of(peak);
    bool is_finite = isfinite(scale);
    if (rule->bits <= LEVEL_BITS) {
        memcpy(message, &scale, sizeof scale);
        writer.to += sizeof scale;
    }
    for (uint32_t i = 0; i < rule->keep; i++) {
        float *value = &values[places[i]];
        uint32_t level = level_of(*value, scale, rule->bits);
        put_bits(&writer, places[i], wide);
        put_bits(&writer, level, rule->bits);
        *value = is_finite ? *value - value_of(level, scale, rule->bits, shares) : 0;
    }
    for (uint32_t i = 0; !is_finite && i < rule->chunk; i++)
        values[i] = isfinite(values[i]) ? values[i] : 0;
    end_bits(&writer);
    return writer.to;
}

void harp_chunk_take(float *error, size_t n, const struct harp_chunk_rule *rule, uint8_t *message,
                     uint32_t *scratch)
{
    uint32_t *places = scratch, *list = places + rule->chunk + HARP_FIND_SLACK, guess = 0;
    float *filled = (float *)(list + rule->chunk);
    struct shares shares;
    fill_shares(&shares, rule->bits);
    for (size_t first = 0; first < n; first += rule->chunk) {
        size_t here = n - first < rule->chunk ? n - first : rule->chunk;
        float *values = error + first;
        if (here < rule->chunk) {
            memset(filled, 0, rule->chunk * sizeof *filled);
            memcpy(filled, values, here * sizeof *filled);
            values = filled;
        }
        select_places(values, rule, &guess, places, list);
        message = write_chunk(values, rule, &shares, places, message);
        if (values == filled)
            memcpy(error + first, filled, here * sizeof *filled);
    }
}

/* An element of a message: a place and its value. */
struct said {
    size_t place;
    float value;
};

static void add_said(float *total, float *weights, const struct said *said, float weight)
{
    total[said->place] += weight * said->value;
    if (weights)
        weights[said->place] += weight;
}

void harp_chunk_add(float *total, float *weights, size_t n, const struct harp_chunk_rule *rule,
                    const uint8_t *message, float weight)
{
    uint32_t wide = index_bits(rule), pair = wide + rule->bits;
    size_t bytes = bytes_of_chunk(rule), head = rule->bits <= LEVEL_BITS ? sizeof(float) : 0;
    struct said said[AHEAD];
    size_t read_n = 0, added_n = 0;
    struct shares shares;
    fill_shares(&shares, rule->bits);
    for (size_t first = 0; first < n; first += rule->chunk, message += bytes) {
        const uint8_t *stream = message + head;
        float scale = 0;
        memcpy(&scale, message, head);
        for (uint32_t i = 0; i < rule->keep; i++) {
            size_t at = (size_t)i * pair;
            size_t place = first + read_bits(stream, bytes - head, at, wide);
            uint32_t level = read_bits(stream, bytes - head, at + wide, rule->bits);
            if (place >= n)
                continue;
            if (read_n - added_n == AHEAD)
                add_said(total, weights, &said[added_n++ % AHEAD], weight);
            __builtin_prefetch(&total[place], 1);
            said[read_n++ % AHEAD] =
                (struct said){place, value_of(level, scale, rule->bits, &shares)};
        }
    }
    while (added_n < read_n)
        add_said(total, weights, &said[added_n++ % AHEAD], weight);
}
