/* Devices that NCCL fuses of others (makeVDevice), on NICs that this test makes up. */
#include <string.h>

#include "check.h"
#include "nccl/plugin.h"

extern const struct nccl_net_v9 ncclNetPlugin_v9;
extern const struct nccl_net_v12 ncclNetPlugin_v12;

static void be_quiet(enum nccl_log_level level, unsigned long flags, const char *file, int line,
                     const char *format, ...)
{
    (void)level, (void)flags, (void)file, (void)line, (void)format;
}

/* eth0 to eth5 at 100 Gb/s with a PCI address each; the last one is virtual and has none. */
static void make_up_nics(void)
{
    plugin.logger = be_quiet;
    plugin.ready = true;
    plugin.nics_n = 7;
    for (int i = 0; i < plugin.nics_n; i++) {
        struct nic *nic = &plugin.nics[i];
        *nic = (struct nic){.speed_mbps = 100000, .guid = (uint64_t)i + 1};
        snprintf(nic->name, sizeof nic->name, "eth%d", i);
        if (i < 6)
            snprintf(nic->pci, sizeof nic->pci, "/sys/devices/pci0000:00/0000:00:%02d.0", i);
    }
    CHECK(devices_offer() == NCCL_SUCCESS && plugin.devices_n == 7, "a device a NIC");
}

static int fuse_by_v12(int ndevs, const int *devs, int *made)
{
    struct nccl_vdevice_v12 of = {.ndevs = ndevs};
    memcpy(of.devs, devs, (size_t)ndevs * sizeof *devs);
    return (int)ncclNetPlugin_v12.makeVDevice(made, &of);
}

static void a_fused_device_has_the_speed_of_all_its_parts(void)
{
    int made = -1, count;
    struct nccl_properties_v12 found;
    CHECK(fuse_by_v12(2, (int[]){1, 3}, &made) == NCCL_SUCCESS && made == 7, "made %d", made);
    CHECK(ncclNetPlugin_v12.devices(&count) == NCCL_SUCCESS && count == 8, "%d devices", count);
    CHECK(ncclNetPlugin_v12.getProperties(made, &found) == NCCL_SUCCESS, "properties");
    CHECK(strcmp(found.name, "eth1+eth3") == 0 && found.speed == 200000, "%s, %d Mb/s", found.name,
          found.speed);
    CHECK(found.vProps.ndevs == 2 && found.vProps.devs[0] == 1 && found.vProps.devs[1] == 3,
          "parts");
    CHECK(found.guid == 2 && strstr(found.pciPath, "00:01.0"), "where its first part is");
    CHECK(ncclNetPlugin_v12.getProperties(1, &found) == NCCL_SUCCESS && found.vProps.ndevs == 1 &&
              found.vProps.devs[0] == 1,
          "parts stay what they were");
}

static void versions_before_12_have_it_too(void)
{
    int made = -1;
    struct nccl_vdevice_v9 of = {.ndevs = 3, .devs = {0, 2, 4}};
    struct nccl_properties_v9 found;
    CHECK(ncclNetPlugin_v9.makeVDevice(&made, &of) == NCCL_SUCCESS, "made");
    CHECK(ncclNetPlugin_v9.getProperties(made, &found) == NCCL_SUCCESS, "properties");
    CHECK(found.vProps.ndevs == 3 && found.vProps.devs[2] == 4 && found.speed == 300000, "%s",
          found.name);
}

static void the_same_parts_are_the_same_device(void)
{
    int first = -1, again = -1;
    CHECK(fuse_by_v12(2, (int[]){1, 3}, &first) == NCCL_SUCCESS &&
              fuse_by_v12(2, (int[]){1, 3}, &again) == NCCL_SUCCESS && first == again,
          "%d, %d", first, again);
}

static void what_cannot_be_fused_is_refused(void)
{
    int made = -1, before = plugin.devices_n;
    CHECK(fuse_by_v12(5, (int[]){0, 1, 2, 3, 4}, &made) == NCCL_INVALID_USAGE, "too many");
    CHECK(fuse_by_v12(2, (int[]){5, 6}, &made) == NCCL_INVALID_USAGE, "one without PCI address");
    CHECK(fuse_by_v12(2, (int[]){0, 99}, &made) == NCCL_INVALID_ARGUMENT, "no such device");
    CHECK(fuse_by_v12(2, (int[]){0, 7}, &made) == NCCL_INVALID_ARGUMENT, "a fused one");
    CHECK(fuse_by_v12(2, (int[]){0, 0}, &made) == NCCL_INVALID_ARGUMENT, "one twice");
    CHECK(fuse_by_v12(0, (int[]){0}, &made) == NCCL_INVALID_ARGUMENT, "none");
    CHECK(ncclNetPlugin_v12.makeVDevice(&made, NULL) == NCCL_INVALID_ARGUMENT, "NULL");
    CHECK(plugin.devices_n == before, "nothing was made");
}

int main(void)
{
    make_up_nics();
    a_fused_device_has_the_speed_of_all_its_parts();
    versions_before_12_have_it_too();
    the_same_parts_are_the_same_device();
    what_cannot_be_fused_is_refused();
    plugin.ready = false; /* nothing to close */
    return 0;
}
