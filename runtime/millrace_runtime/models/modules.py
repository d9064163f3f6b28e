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
        """Read a norm's scale."""
        (rows,) = self._list_rows(role).values()
        return self.weights.vector(self._name(role), rows)

    def matrix(self, role: Role) -> Matrix:
        """Read this worker's part of one or several projections, as one matrix."""
        module = self.modules[role]
        assert module.columns is not None, "a vector is no matrix"
        has_bias, columns = module.adds_bias(self.shard), module.columns.cut(self.shard)
        if module.has_bias and not has_bias:
            for part in module.parts:
                self.weights.skip(f"{name_part(self.names, part, self.layer)}.bias")
        rows = self._list_rows(role)
        if not module.is_gated:
            return self.weights.matrix(rows, columns, has_bias=has_bias)
        (gate, own), (up, _) = rows.items()
        return self.weights.gated_matrix(gate, up, own.cut, columns.size, has_bias=has_bias)

    def router(self, role: Role) -> Matrix:
        """Read a router, which every worker has whole."""
        module = self.modules[role]
        assert module.columns is not None, "a vector is no router"
        return self.weights.router(self._name(role), module.parts[0].rows.size, module.columns.size)

    def experts(self, role: Role) -> Experts:
        """Read this worker's part of each expert."""
        module = self.modules[role]
        assert module.columns is not None, "a vector is no expert"
        rows, columns = module.parts[0].rows.cut(self.shard), module.columns.cut(self.shard)
        names = name_experts(self.names, module, self.layer)
        if module.is_gated:
            return self.weights.gated_experts([(gate, up) for gate, up in names], rows, columns.size)
        return self.weights.experts([name for (name,) in names], Rows(rows, factor=module.factor), columns)

    def table(self, role: Role) -> Matrix:
        """Read this worker's rows of a table."""
        module = self.modules[role]
        assert module.columns is not None, "a vector is no table"
        rows = module.parts[0].rows.cut(self.shard)
        read = self.weights.head if role is Role.HEAD else self.weights.table
        return read(self._name(role), rows, module.columns.size)

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
