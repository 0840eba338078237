#!/bin/sh
# VGG16 on synthetic images by torch's DDP over HARP. On each host, with the first one's address:
#
#   NODES=2 NODE=0 MASTER=10.0.0.1 deploy/examples/torchrun.sh     # on the first
#   NODES=2 NODE=1 MASTER=10.0.0.1 deploy/examples/torchrun.sh     # on the second
#
# Arguments go to benchmark.py in their place: --model=resnet50 --batch-size=64
set -eu
here=$(dirname "$0")
[ $# -gt 0 ] || set -- --model=vgg16 --batch-size=128

NCCL_NET_PLUGIN=${NCCL_NET_PLUGIN:-$(harp plugin-path)}
export NCCL_NET_PLUGIN
export NCCL_NET="${NCCL_NET-HARP}"
# As Tencent's commands do; a table of HARP_TUNER chooses by itself.
[ -n "${HARP_TUNER-}" ] || export NCCL_ALGO="${NCCL_ALGO-RING}"
export NCCL_DEBUG="${NCCL_DEBUG-INFO}"
export NCCL_SOCKET_IFNAME="${NCCL_SOCKET_IFNAME-eth0}"

exec torchrun --nnodes="${NODES:-1}" --node-rank="${NODE:-0}" --nproc-per-node="${GPUS:-gpu}" \
    --master-addr="${MASTER:-127.0.0.1}" --master-port="${MASTER_PORT:-29500}" \
    "$here/benchmark.py" "$@"
