#include "kernels.h"

#include <assert.h>
#include <stdatomic.h>
#include <stdbool.h>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

static const struct harp_kernels *forms[3] = {&harp_kernels_portable};
static size_t forms_n = 1;
static _Atomic(const struct harp_kernels *) chosen = &harp_kernels_portable;

#if defined(__x86_64__)
/* clang's __builtin_cpu_supports does not know F16C. */
static bool cpu_has_f16c(void)
{
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && c & bit_F16C;
}

static void find_forms(void)
{
    __builtin_cpu_init(); /* this runs before main */
    if (!__builtin_cpu_supports("avx2") || !cpu_has_f16c())
        return;
    forms[forms_n++] = &harp_kernels_avx2;
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
        forms[forms_n++] = &harp_kernels_avx512;
}
#else
static void find_forms(void) {}
#endif

__attribute__((constructor)) static void choose_form(void)
{
    find_forms();
    harp_kernels_use(forms_n - 1);
}

const struct harp_kernels *harp_kernels(void)
{
    return atomic_load_explicit(&chosen, memory_order_relaxed);
}

const char *harp_kernels_name(size_t index)
{
    return index < forms_n ? forms[index]->name : NULL;
}

void harp_kernels_use(size_t index)
{
    assert(index < forms_n);
    atomic_store_explicit(&chosen, forms[index], memory_order_relaxed);
}
