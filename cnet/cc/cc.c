#include <string.h>

#include "cc/cc.h"

const struct harp_cc_ops *harp_cc_by_name(const char *name)
{
    static const struct harp_cc_ops *const all[] = {&harp_cc_swift, &harp_cc_fixed};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (strcmp(all[i]->name, name) == 0)
            return all[i];
    return NULL;
}
