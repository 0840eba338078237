/* Any NCCL network plugin, of any version of its table from 6 to 12, behind one set of calls.
 *
 * The calls are those of version 12; what an older table lacks is left out (a context, a handle for
 * the profiler) or, where a size does not fit an int, refused with NCCL_INVALID_ARGUMENT. Nothing
 * is checked or retried here: what the plugin said is what the caller gets.
 */
#ifndef TEST_NCCL_PLUGIN_H
#define TEST_NCCL_PLUGIN_H

#include "nccl/abi.h"

#include <stdbool.h>

enum { PLUGIN_OLDEST = 6, PLUGIN_NEWEST = 12, PLUGIN_CONTEXTS = 11 };

/* The same functions stand at the same places in every table; their arguments differ. */
union plugin_table {
    struct nccl_net_v6 v6;
    struct nccl_net_v7 v7;
    struct nccl_net_v8 v8;
    struct nccl_net_v9 v9;
    struct nccl_net_v10 v10;
    struct nccl_net_v11 v11;
    struct nccl_net_v12 v12;
};

struct plugin {
    void *library;
    int version;
    int traffic_class; /* that NCCL is configured with */
    const union plugin_table *table;
};

/* Load it; `version` 0 takes the newest that it has. False, and a sentence in `why`. */
bool plugin_load(struct plugin *plugin, const char *path, int version, char *why, size_t room);
void plugin_unload(struct plugin *plugin);
const char *plugin_name(const struct plugin *plugin);

enum nccl_result plugin_init(const struct plugin *plugin, void **context, uint64_t communicator,
                             nccl_logger logger, nccl_profiler profiler);
enum nccl_result plugin_devices(const struct plugin *plugin, int *count);

/* Fields that the plugin does not write show as bytes of PLUGIN_POISON. Fields that its version
 * does not have get what NCCL takes for them. */
enum { PLUGIN_POISON = 0xbd };
enum nccl_result plugin_properties(const struct plugin *plugin, int device,
                                   struct nccl_properties_v12 *properties);
enum nccl_result plugin_listen(const struct plugin *plugin, void *context, int device, void *handle,
                               void **listening);
enum nccl_result plugin_connect(const struct plugin *plugin, void *context, int device,
                                void *handle, void **sending);
enum nccl_result plugin_accept(const struct plugin *plugin, void *listening, void **receiving);
enum nccl_result plugin_register(const struct plugin *plugin, void *comm, void *data, size_t bytes,
                                 int type, void **memory);
enum nccl_result plugin_deregister(const struct plugin *plugin, void *comm, void *memory);
enum nccl_result plugin_send(const struct plugin *plugin, void *comm, void *data, size_t bytes,
                             int tag, void *memory, void *parent, void **request);
enum nccl_result plugin_receive(const struct plugin *plugin, void *comm, int n, void **data,
                                const size_t *bytes, int *tags, void **memories, void **parents,
                                void **request);
enum nccl_result plugin_test(const struct plugin *plugin, void *request, int *done, int *sizes);
enum nccl_result plugin_close_send(const struct plugin *plugin, void *comm);
enum nccl_result plugin_close_receive(const struct plugin *plugin, void *comm);
enum nccl_result plugin_close_listen(const struct plugin *plugin, void *listening);

/* Nothing before version 11. */
enum nccl_result plugin_finalize(const struct plugin *plugin, void *context);

#endif
