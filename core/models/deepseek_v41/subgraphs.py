"""One compiled body for all calls of the same kind: a layer costs its compile time once."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from max.graph import BufferType, BufferValue, Graph, TensorValue, Type, Value, ops

from specdecode.core.kernels import kernel_package

Body = Callable[..., Sequence[TensorValue]]


class Subgraphs:
    """Calls bodies as subgraphs of `graph`; arguments of the same types share one."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._made: dict[tuple[str, str], Graph] = {}

    def call(self, name: str, body: Body, *args: Value[object]) -> list[TensorValue]:
        """Run `body` on `args`, in a subgraph named after `name`."""
        types: list[Type[object]] = [arg.type for arg in args]
        key = (name, repr(types))
        sub = self._made.get(key)
        if sub is None:
            label = f"{name}_{len(self._made)}"
            sub = self._graph.add_subgraph(label, input_types=types, custom_extensions=[kernel_package()])
            with sub:
                inner: list[BufferValue | TensorValue] = [
                    value.buffer if isinstance(kind, BufferType) else value.tensor
                    for value, kind in zip(sub.inputs, types, strict=True)
                ]
                sub.output(*body(*inner))
            self._made[key] = sub
        return [value.tensor for value in ops.call(sub, *args)]
