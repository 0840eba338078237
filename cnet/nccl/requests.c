/* Requests: what NCCL asks about by test. A receive has a part for each of its buffers.
 *
 * Owner: the thread that NCCL runs the comm on.
 */
#include "plugin.h"

struct request *request_take(struct comm *comm, uint32_t n)
{
    struct request *request = &comm->requests[comm->free[--comm->free_n]];
    request->left = request->n = n;
    return request;
}

void request_give_back(struct request *request)
{
    struct comm *comm = request->comm;
    request->n = 0; /* so that a second test of it is seen */
    comm->free[comm->free_n++] = (uint16_t)(request - comm->requests);
}

void request_begin_part(struct request *request, uint32_t part, struct memory *memory, void *parent,
                        uint64_t bytes)
{
    request->memory[part] = memory;
    request->events[part] = NULL;
    if (memory)
        atomic_fetch_add_explicit(&memory->used, 1, memory_order_relaxed);
    if (parent && plugin.profiler)
        plugin.profiler(&request->events[part], NCCL_PROFILER_START, parent, PLUGIN_PROFILER_ID,
                        &bytes);
}

void request_end_part(struct comm *comm, uint64_t context, uint32_t bytes)
{
    struct request *request = &comm->requests[context >> PART_BITS];
    uint32_t part = context & ((1 << PART_BITS) - 1);
    request->sizes[part] = (int)bytes;
    request->left--;
    if (request->memory[part])
        /* Release: who sees it at 0 sees that HARP is done with the memory. */
        atomic_fetch_sub_explicit(&request->memory[part]->used, 1, memory_order_release);
    if (request->events[part])
        plugin.profiler(&request->events[part], NCCL_PROFILER_STOP, NULL, PLUGIN_PROFILER_ID, NULL);
}
