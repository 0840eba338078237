#include "table/table_loops.h"

#include <assert.h>
#include <stdatomic.h>

static const struct table_loops *forms[3] = {&table_loops_portable};
static size_t forms_n = 1;
static _Atomic(const struct table_loops *) chosen = &table_loops_portable;

__attribute__((constructor)) static void choose_form(void)
{
#if defined(__x86_64__)
    __builtin_cpu_init(); /* this runs before main */
    if (__builtin_cpu_supports("avx2")) {
        forms[forms_n++] = &table_loops_avx2;
        if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
            __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
            forms[forms_n++] = &table_loops_avx512;
    }
#endif
    table_loops_use(forms_n - 1);
}

const struct table_loops *table_loops(void)
{
    return atomic_load_explicit(&chosen, memory_order_relaxed);
}

const char *table_loops_name(size_t index)
{
    return index < forms_n ? forms[index]->name : NULL;
}

void table_loops_use(size_t index)
{
    assert(index < forms_n);
    atomic_store_explicit(&chosen, forms[index], memory_order_relaxed);
}
