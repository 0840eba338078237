// oneCCL's allreduce of float32 on the host, for bench/lightcc/oneccl.py.
//
//   mpiexec -n RANKS oneccl_allreduce BYTES SECONDS     prints {"seconds": ..., "times": ...}

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <vector>

#include "oneapi/ccl.hpp"

// Declared as Intel MPI's library has them: its headers are in none of the registry's packages.
extern "C" {
int MPI_Init(int *, char ***);
int MPI_Finalize(void);
int MPI_Comm_rank(int, int *);
int MPI_Comm_size(int, int *);
int MPI_Bcast(void *, int, int, int, int);
int MPI_Barrier(int);
// What the static library asks of a profiler that is not there.
void *__itt_string_handle_create_ptr__3_0, *__itt_task_begin_ptr__3_0, *__itt_task_end_ptr__3_0,
    *__itt_metadata_add_ptr__3_0, *__itt_domain_create_ptr__3_0, *__itt_event_create_ptr__3_0,
    *__itt_event_start_ptr__3_0, *__itt_event_end_ptr__3_0, *__itt_thread_set_name_ptr__3_0;
}

namespace {

constexpr int WORLD = 0x44000000, BYTE = 0x4c00010d; // MPICH's ABI, which Intel MPI has

double now_s()
{
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
}

void bcast(void *at, size_t bytes)
{
    MPI_Bcast(at, static_cast<int>(bytes), BYTE, 0, WORLD);
}

} // namespace

int main(int argc, char **argv)
{
    if (argc != 3)
        return 2;
    const size_t count = strtoull(argv[1], nullptr, 10) / sizeof(float);
    int rank = 0, ranks = 0;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(WORLD, &rank);
    MPI_Comm_size(WORLD, &ranks);
    ccl::init();
    ccl::kvs::address_type address;
    ccl::shared_ptr_class<ccl::kvs> kvs;
    if (rank == 0) {
        kvs = ccl::create_main_kvs();
        address = kvs->get_address();
    }
    bcast(address.data(), address.size());
    if (rank != 0)
        kvs = ccl::create_kvs(address);
    {
        auto world = ccl::create_communicator(ranks, rank, kvs);
        std::vector<float> data(count);
        auto sum = [&] {
            ccl::allreduce(data.data(), data.data(), count, ccl::reduction::sum, world).wait();
        };
        sum();
        double begun = now_s();
        sum();
        int times = std::max(1, static_cast<int>(strtod(argv[2], nullptr) / (now_s() - begun)));
        bcast(&times, sizeof times);
        MPI_Barrier(WORLD);
        begun = now_s();
        for (int i = 0; i < times; i++)
            sum();
        if (rank == 0)
            printf("{\"seconds\": %.9f, \"times\": %d}\n", now_s() - begun, times);
    }
    MPI_Finalize();
    return 0;
}
