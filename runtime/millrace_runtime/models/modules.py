"""Reads a decoder's modules from a checkpoint: the family names their tensors, the shard cuts them."""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from millrace_fit.declaration.family import Names, name_experts, name_part
from millrace_fit.families.registry import Declared
from millrace_fit.modules import Module, Role, list_layer, list_outer
from millrace_fit.shape import LayerShape
from millrace_fit.shard import Shard
from millrace_fit.tensors import list_unread
from millrace_kernels.weights import Experts, Matrix
from millrace_runtime.models.model import Rows, Weights


@dataclass(frozen=True, slots=True)
class Modules:
    """The modules of one layer, or those outside of layers, by their roles."""

    weights: Weights
    names: Names
    shard: Shard
    layer: int | None
    modules: Mapping[Role, Module]

    def vector(self, role: Role) -> Tensor:
        """Read a norm's scale, or sinks."""
        (rows,) = self._list_rows(role).values()
        return self.weights.vector(self._name(role), rows, is_float=self.modules[role].is_float)

    def matrix(self, role: Role) -> Matrix:
        """Read this worker's part of one or several projections, as one matrix."""
        module = self.modules[role]
        assert module.columns is not None, "a vector is no matrix"
        columns, has_bias = module.columns.cut(self.shard), self._has_bias(module)
        rows = self._list_rows(role)
        if not module.is_gated:
            return self.weights.matrix(rows, columns, has_bias=has_bias)
        (gate, own), (up, _) = rows.items()
        return self.weights.gated_matrix(gate, up, own.cut, columns.size, has_bias=has_bias)

    def router(self, role: Role) -> Matrix:
        """Read a router, which every worker has whole."""
        module = self.modules[role]
        assert module.columns is not None, "a vector is no router"
        rows, inputs = module.parts[0].rows.size, module.columns.size
        return self.weights.router(self._name(role), rows, inputs, has_bias=module.has_bias)

    def experts(self, role: Role) -> Experts:
        """Read this worker's part of each expert."""
        module = self.modules[role]
        assert module.columns is not None, "a vector is no expert"
        rows, columns = module.parts[0].rows.cut(self.shard), module.columns.cut(self.shard)
        names, has_bias = name_experts(self.names, module, self.layer), self._has_bias(module)
        if module.is_gated:
            pairs = [(gate, up) for gate, up in names]
            return self.weights.gated_experts(pairs, rows, columns.size, has_bias=has_bias)
        changed = Rows(rows, factor=module.factor)
        return self.weights.experts([name for (name,) in names], changed, columns, has_bias=has_bias)

    def table(self, role: Role) -> Matrix:
        """Read this worker's rows of a table."""
        module = self.modules[role]
        assert module.columns is not None, "a vector is no table"
        rows = module.parts[0].rows.cut(self.shard)
        read = self.weights.head if role is Role.HEAD else self.weights.table
        return read(self._name(role), rows, module.columns.size)

    def _has_bias(self, module: Module) -> bool:
        """Whether this worker reads a module's biases. Those that only another one adds are left out."""
        has_bias = module.adds_bias(self.shard)
        if module.has_bias and not has_bias:
            for names in name_experts(self.names, module, self.layer):
                for name in names:
                    self.weights.skip(f"{name}.bias")
        return has_bias

    def _list_rows(self, role: Role) -> dict[str, Rows]:
        """Return this worker's rows of each part of a module, by the part's name in files."""
        module = self.modules[role]
        return {
            name_part(self.names, part, self.layer): Rows(
                part.rows.cut(self.shard), part.order, module.factor, module.addend
            )
            for part in module.parts
        }

    def _name(self, role: Role) -> str:
        return name_part(self.names, self.modules[role].parts[0], self.layer)


@dataclass(frozen=True, slots=True)
class DecoderModules:
    """All modules of a checkpoint."""

    declared: Declared
    weights: Weights
    shard: Shard

    @property
    def outer(self) -> Modules:
        """The modules outside of layers."""
        modules = {module.role: module for module in list_outer(self.declared.shape)}
        return Modules(self.weights, self.declared.family.names, self.shard, None, modules)

    def layer(self, number: int, kind: LayerShape) -> Modules:
        """Return the modules of a layer."""
        modules = {module.role: module for module in list_layer(self.declared.shape, kind)}
        return Modules(self.weights, self.declared.family.names, self.shard, number, modules)

    def skip_unread(self) -> None:
        """Leave out what a checkpoint may have and the model does not use."""
        family, shape, _ = self.declared
        for name in list_unread(family, shape):
            self.weights.skip(name)
        if shape.is_tied:
            embedding, head = (f"{family.names[part]}.weight" for part in ("embedding", "head"))
            self.weights.skip_copy(head, embedding)
        for name in self.weights.names:
            if name.startswith(family.beside):
                self.weights.skip(name)
