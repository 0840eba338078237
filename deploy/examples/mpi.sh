#!/bin/sh
# Horovod's synthetic benchmark on VGG16 over MPI and HARP, as Tencent's TACO Train documents it.
#
#   HOSTS=gpu1:8,gpu2:8 deploy/examples/mpi.sh
#   HOSTS=gpu1:8,gpu2:8 deploy/examples/mpi.sh all_reduce_perf -b 8 -e 1G -f 2     # another program
#
# HOSTS: hosts with their numbers of GPUs. BOOTSTRAP: the interface over which ranks find each other
# (eth0). HARP lies at the same path on all hosts. What is set here as NCCL_, HOROVOD_ or LIGHT_
# goes to all ranks, and overrides what stands below.
set -eu
hosts=${HOSTS:-gpu1:8,gpu2:8}
bootstrap=${BOOTSTRAP:-eth0}
[ $# -gt 0 ] || set -- python3 /mnt/pytorch_synthetic_benchmark.py --model=vgg16 --batch-size=128

ranks=0
for slots in $(echo "$hosts" | tr ',' '\n' | sed -n 's/.*:\([0-9]\{1,\}\)$/\1/p'); do
    ranks=$((ranks + slots))
done
if [ "$ranks" = 0 ]; then
    echo "HOSTS is \"$hosts\": hosts with numbers of GPUs are wanted, as gpu1:8,gpu2:8" >&2
    exit 2
fi

NCCL_NET_PLUGIN=${NCCL_NET_PLUGIN:-$(harp plugin-path)}
export NCCL_NET_PLUGIN
export NCCL_NET="${NCCL_NET-HARP}"
# As Tencent's commands do; a table of HARP_TUNER chooses by itself.
[ -n "${HARP_TUNER-}" ] || export NCCL_ALGO="${NCCL_ALGO-RING}"
export NCCL_DEBUG="${NCCL_DEBUG-INFO}"
export NCCL_SOCKET_IFNAME="${NCCL_SOCKET_IFNAME-$bootstrap}"
export HOROVOD_MPI_THREADS_DISABLE="${HOROVOD_MPI_THREADS_DISABLE-1}"
export HOROVOD_FUSION_THRESHOLD="${HOROVOD_FUSION_THRESHOLD-0}"
export HOROVOD_CYCLE_TIME="${HOROVOD_CYCLE_TIME-0}"
export LIGHT_2D_ALLREDUCE="${LIGHT_2D_ALLREDUCE-1}"
export LIGHT_INTRA_SIZE="${LIGHT_INTRA_SIZE-8}"
export LIGHT_TOPK_ALLREDUCE="${LIGHT_TOPK_ALLREDUCE-1}"
export LIGHT_TOPK_THRESHOLD="${LIGHT_TOPK_THRESHOLD-2097152}"

for name in $(env | sed -n 's/^\(\(HARP\|NCCL\|HOROVOD\|LIGHT\)_[A-Z0-9_]*\)=.*/\1/p'); do
    set -- -x "$name" "$@"
done
exec mpirun -np "$ranks" -H "$hosts" --allow-run-as-root -bind-to none -map-by slot \
    -mca btl_tcp_if_include "$bootstrap" -x LD_LIBRARY_PATH -x PATH "$@"
