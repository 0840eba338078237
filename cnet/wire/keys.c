#include "wire/keys.h"

#include <assert.h>

#include "base/bytes.h"

enum { LABEL_BYTES = 8, CONTEXT_MAX = 52 };

static struct harp_key derive_key(const struct harp_key *secret, const char *label,
                                  const uint8_t *context, size_t context_bytes)
{
    assert(strlen(label) == LABEL_BYTES);
    assert(context_bytes <= CONTEXT_MAX);
    uint8_t input[LABEL_BYTES + 1 + CONTEXT_MAX];
    size_t input_bytes = LABEL_BYTES + 1 + context_bytes;
    memcpy(input, label, LABEL_BYTES);
    memcpy(input + LABEL_BYTES + 1, context, context_bytes);
    struct harp_key key;
    input[LABEL_BYTES] = 0;
    key.low = harp_siphash(secret, input, input_bytes);
    input[LABEL_BYTES] = 1;
    key.high = harp_siphash(secret, input, input_bytes);
    return key;
}

struct harp_key harp_key_hello(const struct harp_key *secret, uint64_t listener)
{
    uint8_t context[8];
    harp_store64(context, listener);
    return derive_key(secret, "harp-hi1", context, sizeof context);
}

struct harp_key harp_key_accept(const struct harp_key *secret, uint64_t listener,
                                const struct harp_end *connecting)
{
    uint8_t context[32];
    harp_store64(context, listener);
    harp_store64(context + 8, connecting->connection);
    memcpy(context + 16, connecting->nonce, 16);
    return derive_key(secret, "harp-hi2", context, sizeof context);
}

static struct harp_key of_both(const struct harp_key *secret, const char *label,
                               const struct harp_end *connecting, const struct harp_end *listening)
{
    uint8_t context[CONTEXT_MAX];
    harp_store64(context, connecting->connection);
    harp_store64(context + 8, listening->connection);
    harp_store16(context + 16, connecting->epoch);
    harp_store16(context + 18, listening->epoch);
    memcpy(context + 20, connecting->nonce, 16);
    memcpy(context + 36, listening->nonce, 16);
    return derive_key(secret, label, context, sizeof context);
}

struct harp_key harp_key_up(const struct harp_key *secret, const struct harp_end *connecting,
                            const struct harp_end *listening)
{
    return of_both(secret, "harp-up1", connecting, listening);
}

struct harp_key harp_key_down(const struct harp_key *secret, const struct harp_end *connecting,
                              const struct harp_end *listening)
{
    return of_both(secret, "harp-dn1", connecting, listening);
}
