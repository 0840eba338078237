"""The rank of a process and the size of its job, from the launcher's environment.

One parser for ``harp run``, torchrun, horovodrun, Open MPI, MPICH and Slurm. Values that a launcher
does not set stay empty: the ranks of a host are then counted when the ranks have met
(`harp.lightcc.horovod.world`).

>>> read_place({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "4"}).rank
1
"""

from __future__ import annotations

import contextlib
import os
import re
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True)
class _Names:
    """The names of a launcher's variables."""

    launcher: str
    rank: str
    size: str
    local_rank: str
    local_size: str
    job: str = ""
    """The variable that identifies the job; Hydra's is `_job_of_hydra`."""


_LAUNCHERS = (
    _Names("horovodrun or harp run", "HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK",
           "HOROVOD_LOCAL_SIZE"),
    _Names("torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    _Names("Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
           "OMPI_COMM_WORLD_LOCAL_SIZE", "PMIX_NAMESPACE"),
    _Names("MPICH", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    _Names("Slurm", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "", "SLURM_JOB_ID"),
)
"""In order of precedence: a launcher within another one's job comes first."""


@dataclass(frozen=True)
class Place:
    """The place of a process in its job."""

    rank: int = 0
    size: int = 1
    local_rank: int | None = None
    local_size: int | None = None
    launcher: str = ""


def read_place(env: Mapping[str, str]) -> Place:
    """Read the launcher's variables. Without a launcher a process is alone.

    Raises:
        ValueError: in one sentence, where a variable is missing or is no valid number.

    """
    for names in _LAUNCHERS:
        if names.rank not in env and names.size not in env:
            continue
        if names.launcher == "Slurm" and "SLURM_STEP_ID" not in env:
            continue  # a shell of salloc or sbatch, not a task of srun
        rank, size = _read_count(env, names.rank), _read_count(env, names.size)
        if size < 1 or rank >= size:
            raise ValueError(f"{names.rank} is {rank} and {names.size} is {size}; ranks are 0 to "
                             f"{names.size} - 1")
        local = [_read_count(env, name) if env.get(name) else None
                 for name in (names.local_rank, names.local_size)]
        return Place(rank, size, local[0], local[1], names.launcher)
    return Place()


def read_master(env: Mapping[str, str]) -> tuple[str, int]:
    """Return the address and TCP port of rank 0.

    They are MASTER_ADDR and MASTER_PORT; else the first host of a Slurm job, or this host if all
    ranks are here, and a port that is computed from the job's identity.
    """
    place = read_place(env)
    address = env.get("MASTER_ADDR")
    if address is None and "SLURM_STEP_NODELIST" in env:
        address = first_host(env["SLURM_STEP_NODELIST"])
    if address is None and place.size == place.local_size:
        address = "127.0.0.1"
    if address is None:
        raise ValueError("MASTER_ADDR is not set; with ranks on several hosts it must name the "
                         "host of rank 0")
    if "MASTER_PORT" in env:
        return address, _read_count(env, "MASTER_PORT")
    job = next((env[names.job] for names in _LAUNCHERS if names.job in env), None)
    if job is None and place.size == place.local_size:
        job = _job_of_hydra()
    if job is None:
        raise ValueError("MASTER_PORT is not set; it must be a free TCP port of the host of rank 0")
    return address, 15000 + zlib.crc32(job.encode()) % 10000  # below Linux's ephemeral ports


def torch_variables(env: Mapping[str, str]) -> dict[str, str]:
    """Return torch.distributed's variables, translated from the launcher's."""
    place = read_place(env)
    if not place.launcher or "RANK" in env:
        return {}
    variables: dict[str, int | str | None] = {
        "RANK": place.rank, "WORLD_SIZE": place.size,
        "LOCAL_RANK": place.local_rank, "LOCAL_WORLD_SIZE": place.local_size}
    with contextlib.suppress(ValueError):  # torch says which of the two it misses
        variables["MASTER_ADDR"], variables["MASTER_PORT"] = read_master(env)
    return {name: str(value) for name, value in variables.items()
            if value is not None and name not in env}


def _job_of_hydra() -> str | None:
    """Return the process of MPICH's launcher, the parent of all ranks of a job on this host."""
    process = os.getpid()
    while process > 1:
        try:
            name, _, rest = Path(f"/proc/{process}/stat").read_text().rpartition(")")
        except OSError:
            return None
        if name.endswith("(hydra_pmi_proxy"):
            return f"hydra {process}"
        process = int(rest.split()[1])  # its parent: proc_pid_stat(5)
    return None


def first_host(nodes: str) -> str:
    """Give the first host of a list as Slurm writes it.

    >>> first_host("gpu[007-009,12],cpu3")
    'gpu007'
    """
    found = re.match(r"([^\[,]+)(?:\[(\d+)[^\]]*\]([^,\[]*))?", nodes)
    if not found:
        raise ValueError(f"a list of hosts is {nodes!r}; it must begin with a host's name")
    return "".join(part or "" for part in found.groups())


def _read_count(env: Mapping[str, str], name: str) -> int:
    text = env.get(name)
    if text is None:
        raise ValueError(f"{name} is not set, though other variables of its launcher are")
    if not re.fullmatch(r"\d+", text):
        raise ValueError(f"{name} is {text!r}; allowed is a whole number, 0 or more")
    return int(text)
