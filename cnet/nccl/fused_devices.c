/* Several NICs as one device: a connection on it has paths over all of them (engine/rails.h).
 *
 *     HARP_RAILS=eth1,eth2;eth3,eth4     HARP offers two devices: eth1+eth2, eth3+eth4
 *     NCCL_NET_MERGE_LEVEL,              HARP offers each NIC, NCCL 2.24 and newer asks for devices
 *     NCCL_NET_FORCE_MERGE               made of them (makeVDevice)
 */
#define _GNU_SOURCE
#include <net/if.h>
#include <stdio.h>
#include <string.h>

#include "plugin.h"

#define LIST_BYTES 400

/* Add a NIC to a device; false if it has as many as it may. */
static bool add_nic(struct device *device, struct nic *nic)
{
    size_t used = strlen(device->name);
    if (device->nics_n == PLUGIN_RAILS)
        return false;
    bool known = nic->speed_mbps && (device->speed_mbps || !device->nics_n);
    snprintf(device->name + used, sizeof device->name - used, "%s%s", used ? "+" : "", nic->name);
    device->speed_mbps = known ? device->speed_mbps + nic->speed_mbps : 0;
    device->nics[device->nics_n++] = nic;
    return true;
}

/* ---- HARP_RAILS ---- */

static struct nic *find_nic(const char *name)
{
    for (int i = 0; i < plugin.nics_n; i++)
        if (strcmp(plugin.nics[i].name, name) == 0)
            return &plugin.nics[i];
    return NULL;
}

static bool is_in_use(const struct nic *nic)
{
    for (int d = 0; d < plugin.devices_n; d++)
        for (uint32_t i = 0; i < plugin.devices[d].nics_n; i++)
            if (plugin.devices[d].nics[i] == nic)
                return true;
    return false;
}

static enum nccl_result refuse_name(const char *name)
{
    char list[LIST_BYTES] = "";
    size_t used = 0;
    for (int i = 0; i < plugin.nics_n && used + IF_NAMESIZE + 1 < sizeof list; i++)
        used += (size_t)snprintf(list + used, sizeof list - used, " %s", plugin.nics[i].name);
    return plugin_fail(NCCL_INVALID_USAGE,
                       "HARP_RAILS names \"%.15s\", which no device is: there are%s", name, list);
}

static enum nccl_result add_named(struct device *device, const char *name)
{
    struct nic *nic = find_nic(name);
    if (!nic && !if_nametoindex(name))
        return refuse_name(name);
    if (!nic) {
        plugin_warn("HARP_RAILS names %s, which is down, has no address or is left out by "
                    "HARP_IFNAME: its rail is not used",
                    name);
        return NCCL_SUCCESS;
    }
    for (uint32_t i = 0; i < device->nics_n; i++)
        if (device->nics[i] == nic)
            return plugin_fail(NCCL_INVALID_USAGE, "HARP_RAILS names %s twice", name);
    if (is_in_use(nic))
        return plugin_fail(NCCL_INVALID_USAGE, "HARP_RAILS names %s twice", name);
    if (!add_nic(device, nic))
        return plugin_fail(NCCL_INVALID_USAGE, "HARP_RAILS: a group has at most %d NICs",
                           PLUGIN_RAILS);
    return NCCL_SUCCESS;
}

/* One group, up to the ';'. */
static enum nccl_result offer_group(char *group)
{
    struct device device = {.nics_n = 0};
    char *rest = NULL;
    for (char *name = strtok_r(group, ",", &rest); name; name = strtok_r(NULL, ",", &rest)) {
        enum nccl_result result = add_named(&device, name);
        if (result != NCCL_SUCCESS)
            return result;
    }
    if (device.nics_n)
        plugin.devices[plugin.devices_n++] = device;
    return NCCL_SUCCESS;
}

enum nccl_result devices_offer(void)
{
    char groups[SETTINGS_TEXT_BYTES], *rest = NULL;
    plugin.devices_n = 0;
    snprintf(groups, sizeof groups, "%s",
             plugin.settings.port == PORT_MEM ? "" : plugin.settings.rails);
    for (char *group = strtok_r(groups, ";", &rest); group; group = strtok_r(NULL, ";", &rest)) {
        enum nccl_result result = offer_group(group);
        if (result != NCCL_SUCCESS)
            return result;
    }
    for (int i = 0; i < plugin.nics_n; i++) {
        struct device device = {.nics_n = 0};
        if (is_in_use(&plugin.nics[i]))
            continue;
        add_nic(&device, &plugin.nics[i]);
        plugin.devices[plugin.devices_n++] = device;
    }
    return NCCL_SUCCESS;
}

/* ---- makeVDevice ---- */

static enum nccl_result add_part(struct device *device, int number)
{
    if (number < 0 || number >= plugin.devices_n || plugin.devices[number].parts_n)
        return plugin_fail(NCCL_INVALID_ARGUMENT, "makeVDevice: device %d cannot be a part",
                           number);
    const struct device *part = &plugin.devices[number];
    for (int i = 0; i < device->parts_n; i++)
        if (device->parts[i] == number)
            return plugin_fail(NCCL_INVALID_ARGUMENT, "makeVDevice: %s twice", part->name);
    /* NCCL finds all NICs without a PCI address near one another. */
    if (!*part->nics[0]->pci)
        return plugin_fail(NCCL_INVALID_USAGE,
                           "%s has no PCI address, so NCCL does not know where it is: HARP_RAILS "
                           "fuses NICs by their names",
                           part->name);
    for (uint32_t i = 0; i < part->nics_n; i++)
        if (!add_nic(device, part->nics[i]))
            return plugin_fail(NCCL_INVALID_USAGE, "a device has at most %d NICs", HARP_PORTS_MAX);
    device->parts[device->parts_n++] = number;
    return NCCL_SUCCESS;
}

static int find_made(const struct device *device)
{
    for (int i = 0; i < plugin.devices_n; i++)
        if (plugin.devices[i].parts_n && strcmp(plugin.devices[i].name, device->name) == 0)
            return i;
    return -1;
}

static enum nccl_result make_device(int *made, const int *parts, int parts_n)
{
    struct device device = {.nics_n = 0};
    if (parts_n > PLUGIN_PARTS)
        return plugin_fail(NCCL_INVALID_USAGE, "makeVDevice: at most %d devices make one",
                           PLUGIN_PARTS);
    for (int i = 0; i < parts_n; i++) {
        enum nccl_result result = add_part(&device, parts[i]);
        if (result != NCCL_SUCCESS)
            return result;
    }
    *made = find_made(&device);
    if (*made >= 0)
        return NCCL_SUCCESS;
    if (plugin.devices_n == sizeof plugin.devices / sizeof plugin.devices[0])
        return plugin_fail(NCCL_INVALID_USAGE, "makeVDevice: there are %d devices already",
                           plugin.devices_n);
    for (int i = 0; i < parts_n; i++)
        plugin.devices[parts[i]].is_part = true;
    *made = plugin.devices_n;
    plugin.devices[plugin.devices_n++] = device;
    plugin_info("device %d is %s", *made, device.name);
    return NCCL_SUCCESS;
}

enum nccl_result plugin_make_device(int *made, const int *parts, int parts_n)
{
    if (!made || !parts || parts_n < 1)
        return plugin_fail(NCCL_INVALID_ARGUMENT, "makeVDevice: no devices to make one of");
    pthread_mutex_lock(&plugin.lock);
    enum nccl_result result =
        plugin.ready ? make_device(made, parts, parts_n)
                     : plugin_fail(NCCL_INVALID_USAGE, "makeVDevice: no init came before");
    pthread_mutex_unlock(&plugin.lock);
    return result;
}
