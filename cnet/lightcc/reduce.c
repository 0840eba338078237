#include "reduce.h"

#include "kernels.h"

harp_reduce *harp_reduce_find(enum harp_element element, enum harp_reduction reduction)
{
    if ((unsigned)element >= HARP_ELEMENTS || (unsigned)reduction >= HARP_REDUCTIONS)
        return NULL;
    return harp_kernels()->reduce[element][reduction];
}

harp_average *harp_average_find(enum harp_element element)
{
    return (unsigned)element < HARP_ELEMENTS ? harp_kernels()->average[element] : NULL;
}
