#define _GNU_SOURCE
#include "table/table_records.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* Chunks of this size fit the 65,530 mappings of a process (vm.max_map_count of the kernel's
 * Documentation/admin-guide/sysctl/vm.rst) up to 1 TiB. */
enum { LEAST_CHUNK_BYTES = 16 << 20, MMU_PAGE = 4096 };

void table_records_open(struct table_records *records, uint32_t floats)
{
    memset(records, 0, sizeof *records);
    size_t bytes = sizeof(struct harp_record) + floats * sizeof(float);
    records->record_bytes = (bytes + 7) / 8 * 8;
    while (records->record_bytes << records->shift < LEAST_CHUNK_BYTES)
        records->shift++;
    records->chunk_bytes =
        ((records->record_bytes << records->shift) + MMU_PAGE - 1) / MMU_PAGE * MMU_PAGE;
}

void table_records_close(struct table_records *records)
{
    for (uint32_t i = 0; i < records->chunk_count; i++)
        munmap(records->chunks[i], records->chunk_bytes);
    free(records->chunks);
    memset(records, 0, sizeof *records);
}

size_t table_records_bytes(const struct table_records *records)
{
    return records->count * records->record_bytes + records->chunk_count * sizeof *records->chunks;
}

static int add_chunk(struct table_records *records)
{
    size_t n = records->chunk_count;
    uint8_t **chunks = realloc(records->chunks, (n + 1) * sizeof *chunks);
    if (!chunks)
        return -ENOMEM;
    records->chunks = chunks;
    void *chunk = mmap(NULL, records->chunk_bytes, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (chunk == MAP_FAILED)
        return -ENOMEM;
    if (n) /* a table that has a chunk full is large: let its pages be large, too */
        madvise(chunk, records->chunk_bytes, MADV_HUGEPAGE);
    chunks[records->chunk_count++] = chunk;
    return 0;
}

int64_t table_records_push(struct table_records *records)
{
    if (records->count >> records->shift == records->chunk_count && add_chunk(records) < 0)
        return -ENOMEM;
    assert(records->count < UINT32_MAX);
    return records->count++;
}

void table_records_pop(struct table_records *records)
{
    assert(records->count);
    records->count--;
    /* A chunk stays in reserve, so that a row that comes and goes does not map one each time. */
    if (records->chunk_count >= 2 && records->count <= (records->chunk_count - 2) << records->shift)
        munmap(records->chunks[--records->chunk_count], records->chunk_bytes);
}

void table_records_trim(struct table_records *records)
{
    for (uint32_t i = records->count >> records->shift; i < records->chunk_count; i++) {
        size_t first = (size_t)i << records->shift, kept = 0;
        if (records->count > first)
            kept = (records->count - first) * records->record_bytes;
        kept = (kept + MMU_PAGE - 1) / MMU_PAGE * MMU_PAGE;
        if (kept < records->chunk_bytes)
            madvise(records->chunks[i] + kept, records->chunk_bytes - kept, MADV_DONTNEED);
    }
}
