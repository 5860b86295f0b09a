"""What `--devices` of a benchmark names, held against what there is."""

from __future__ import annotations

import re

from specdecode.core.errors import DeviceError, UsageError


def place(name: str) -> str:
    """The device to load on, as `open_place` spells it.

    `cpu` and `gpu:N` are themselves, a number is that many GPUs, `gpu:0,1` are these, `cpux8` or `cpu×8` eight shards
    on the CPU.

    Raises:
        UsageError: it is none of these.
        DeviceError: a GPU that it needs is not there, or it asks for several devices, which nothing here runs on yet.
    """
    if re.fullmatch(r"cpu|gpu:\d+", name):
        return name
    if match := re.fullmatch(r"cpu[x×*](\d+)", name):
        if int(match[1]) == 1:
            return "cpu"
        raise DeviceError(f"--devices {name} asks for {match[1]} shards of one model. {_ONE} Use --devices cpu.")
    numbers = _gpus(name)
    missing = [number for number in numbers if number >= _count()]
    if missing:
        names = ", ".join(f"gpu:{number}" for number in missing[:4]) + (" …" if len(missing) > 4 else "")
        found = {0: "no GPU", 1: "one GPU, gpu:0"}.get(_count(), f"{_count()} GPUs, gpu:0 to gpu:{_count() - 1}")
        raise DeviceError(
            f"--devices {name} needs {len(numbers)} GPU{'s' * (len(numbers) > 1)}, and MAX finds {found}: {names} "
            f"{'is' if len(missing) == 1 else 'are'} missing. Use what is there, or --devices cpu."
        )
    if len(numbers) == 1:
        return f"gpu:{numbers[0]}"
    raise DeviceError(f"--devices {name}: the {len(numbers)} GPUs are there. {_ONE} Use one of them, as gpu:0.")


_ONE = "A model runs on one device so far; weights can be cut into shards, but no graph runs them together."


def _gpus(name: str) -> list[int]:
    if re.fullmatch(r"[1-9]\d{0,2}", name):
        return list(range(int(name)))
    if match := re.fullmatch(r"gpu:(\d+(?:,\d+)+)", name):
        return sorted(set(map(int, match[1].split(","))))
    raise UsageError(
        f"--devices {name} is not possible. Use cpu, gpu:0, or a number of GPUs; several are a list: cpu,gpu:0."
    )


def _count() -> int:
    from max.driver import accelerator_count

    return int(accelerator_count())
