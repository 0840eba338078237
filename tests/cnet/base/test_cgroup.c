/* Print the limits of control groups: `test GROUPS MOUNTS` prints CPUs of the quota and the set,
 * and bytes of memory.
 */
#include <stdio.h>

#include "base/cgroup.h"
#include "check.h"

int main(int count, char **arguments)
{
    if (count == 3) {
        struct cgroup_limits limits = cgroup_read(arguments[1], arguments[2]);
        printf("%u %u %llu\n", limits.quota_cpus, limits.cpus,
               (unsigned long long)limits.memory_bytes);
        return 0;
    }
    CHECK(cgroup_cpus_in_list("0-3,8\n") == 5 && cgroup_cpus_in_list("7") == 1, "lists");
    CHECK(!cgroup_cpus_in_list("") && !cgroup_cpus_in_list("3-1") && !cgroup_cpus_in_list("x"),
          "what is no list");
    return 0;
}
