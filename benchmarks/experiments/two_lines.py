"""The two lines put into a program's text by a program: where its model, optimizer, epochs and loader are, from its syntax.

Only text goes in and out. What is not understood is refused in a sentence, and nothing is guessed.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from neuralop_mup.errors import MupError


def with_two_lines(source: str) -> str:
    """A training program with ``nm.parametrize`` after its model is built, and ``nm.MuSOAP`` in its optimizer's place.

    Parameters
    ----------
    source : str
        A program that makes one optimizer by ``optimizer = Class(model.parameters(), …)`` and trains with neuralop's
        Trainer, or in a loop over epochs around a loop over batches.

    Returns
    -------
    str

    Raises
    ------
    MupError
        If the text has not one model, one optimizer, one number of epochs and one loader that can be found.

    Examples
    --------
    >>> source = '''
    ... model = FNO((16, 16), 1, 1, 24)
    ... optimizer = AdamW(model.parameters(), lr=1e-2)
    ... trainer = Trainer(model=model, n_epochs=15)
    ... trainer.train(train_loader, {}, optimizer, scheduler)
    ... '''
    >>> print(with_two_lines(source))
    <BLANKLINE>
    model = FNO((16, 16), 1, 1, 24)
    import neuralop_mup as nm; nm.parametrize(model)
    optimizer = nm.MuSOAP(model, steps=(15) * len(train_loader))
    trainer = Trainer(model=model, n_epochs=15)
    trainer.train(train_loader, {}, optimizer, scheduler)
    <BLANKLINE>
    """
    program = Program(source)
    if "nm" in program.names:
        raise MupError("The program has a name nm of its own, which the two lines would replace: write them by hand.")
    edits = [
        program.after(program.built, f"import neuralop_mup as nm; nm.parametrize({program.model})"),
        (program.optimizer.value, f"nm.MuSOAP({program.model}, steps=({program.epochs}) * len({program.loader}))"),
    ]
    return program.edited(edits)


def with_own_optimizer(source: str, times: float = 1.0, *, cosine: bool = False) -> str:
    """A program with its own optimizer at so many times its learning rate, and, if asked for, a cosine that ends with it."""
    program = Program(source)
    edits: list[Edit] = []
    if times != 1:
        rate = next((k.value for k in program.optimizer.value.keywords if k.arg == "lr"), None)
        if rate is None:
            raise MupError(f"Line {program.optimizer.lineno} gives the optimizer no lr=, so its rate cannot be multiplied.")
        edits.append((rate, f"({ast.get_source_segment(source, rate)}) * {times!r}"))
    if cosine:
        made = "torch.optim.lr_scheduler.CosineAnnealingLR"
        line = f"{program.scheduler_name} = {made}({program.optimizer_name}, T_max={program.epochs})"
        edits.append(program.after(program.scheduled, line))
    return program.edited(edits)


def with_epochs(source: str, epochs: int) -> str:
    """A program that trains for another number of epochs, its schedule as it is."""
    program = Program(source)
    return program.edited([(node, str(epochs)) for node in program.epoch_nodes])


#: What to replace by which text; an empty range is where to insert.
Range = tuple[int, int]
Edit = tuple["ast.expr | Range", str]


@dataclass(frozen=True)
class _Made:
    """An assignment of a call to a name, and the block in which it stands."""

    statement: ast.Assign
    block: list[ast.stmt]


class Program:
    """What the two lines need to know of a program."""

    def __init__(self, source: str) -> None:
        try:
            self._tree = ast.parse(source)
        except SyntaxError as error:
            raise MupError(f"The program is no Python: {error}.") from None
        self._source = source.encode()
        lengths = [len(line) for line in self._source.splitlines(keepends=True)]
        self._starts = [sum(lengths[:number]) for number in range(len(lengths) + 1)]
        self.names = {node.id for node in ast.walk(self._tree) if isinstance(node, ast.Name)}
        made = self._one(list(self._optimizers()), "optimizer = Class(model.parameters(), …)")
        self.optimizer, self._block = made.statement, made.block
        self.optimizer_name = self.optimizer.targets[0].id
        self.model = _parameters_of(self.optimizer.value)
        self.built = self._built()
        self.epoch_nodes = self._epochs()
        self.epochs = self._one(_texts(self.epoch_nodes), "n_epochs=…, or loop over range(…) around the training")
        self.loader = self._one(_texts(self._loaders()), "loader, of Trainer.train or of a loop with optimizer.step()")
        if not isinstance(ast.parse(self.loader, mode="eval").body, (ast.Name, ast.Attribute)):
            raise MupError(
                f"The training runs over {self.loader}, whose length is not known before: write the two lines by hand."
            )
        self._check_known(self.epochs)
        self._check_known(self.loader)

    @property
    def scheduled(self) -> ast.stmt:
        """The last statement of the optimizer's block in which the scheduler is made."""
        return [s for s in self._block if any(self._schedules(node) for node in ast.walk(s))][-1]

    @property
    def scheduler_name(self) -> str:
        """Which name the scheduler has."""
        found = [node.targets[0].id for node in ast.walk(self._tree) if self._schedules(node)]
        return self._one(list(dict.fromkeys(found)), f"scheduler = Class({self.optimizer_name}, …)")

    def after(self, statement: ast.stmt, line: str) -> Edit:
        """The insertion of a line after a statement, as far to the right as it."""
        start, end = self._starts[statement.lineno - 1], self._starts[statement.end_lineno]
        indent = self._source[start : start + statement.col_offset].decode()
        before = "" if self._source[:end].endswith(b"\n") else "\n"
        return (end, end), f"{before}{indent}{line}\n"

    def edited(self, edits: list[Edit]) -> str:
        """The text with these places replaced."""
        text = self._source
        ranges = [(self._range(where), new) for where, new in edits]
        for (start, end), new in sorted(ranges, reverse=True):
            text = text[:start] + new.encode() + text[end:]
        return text.decode()

    def _range(self, where: ast.expr | Range) -> Range:
        if isinstance(where, tuple):
            return where
        start = self._starts[where.lineno - 1] + where.col_offset
        return start, self._starts[where.end_lineno - 1] + where.end_col_offset

    def _optimizers(self) -> Iterator[_Made]:
        """What is given a model's parameters, and then steps or goes to a trainer; weighted losses are given them, too."""
        calls = [node for node in ast.walk(self._tree) if isinstance(node, ast.Call)]
        stepped = {ast.unparse(call.func.value) for call in calls if _name_of(call) == "step" and _is_method(call)}
        trained = set().union(*(_read(call) for call in calls if _name_of(call) == "train"))
        for block in _blocks(self._tree):
            for statement in block:
                if (
                    _makes_a_name(statement)
                    and _parameters_of(statement.value) is not None
                    and statement.targets[0].id in stepped | trained
                ):
                    yield _Made(statement, block)

    def _built(self) -> ast.stmt:
        """The last assignment before the optimizer's that makes the model from something else; ``.to(device)`` moves it."""
        before = self._block[: self._block.index(self.optimizer)]
        found = [
            s for s in before if _makes_a_name(s) and s.targets[0].id == self.model and self.model not in _read(s.value)
        ]
        if not found:
            raise MupError(
                f"No line before the optimizer's ({self.optimizer.lineno}) of the same block makes {self.model}: the two "
                "lines need the model built where its optimizer is made."
            )
        return found[-1]

    def _epochs(self) -> list[ast.expr]:
        """Where a Trainer is told how many, and what loops around the training run over."""
        calls = [node for node in ast.walk(self._tree) if isinstance(node, ast.Call)]
        told = [key.value for call in calls for key in call.keywords if key.arg == "n_epochs" and self._is_trained(call)]
        ranges = [loop.iter for loop in self._loops() if _name_of(loop.iter) == "range"]
        return told or [over.args[0] for over in ranges if len(over.args) == 1]

    def _is_trained(self, call: ast.Call) -> bool:
        return any(key.arg == "model" and ast.unparse(key.value) == self.model for key in call.keywords)

    def _loaders(self) -> list[ast.expr]:
        """What Trainer.train is given, and what the inner loops of a training run over."""
        calls = [node for node in ast.walk(self._tree) if isinstance(node, ast.Call) and _name_of(node) == "train"]
        given = [call for call in calls if self.optimizer_name in _read(call)]
        told = [k.value for call in given for k in call.keywords if k.arg == "train_loader"]
        told += [call.args[0] for call in given if call.args]
        loops = [loop.iter for loop in self._loops() if _name_of(loop.iter) != "range"]
        begun = [call for call in given if all(key.arg != "resume_from_dir" for key in call.keywords)]
        steps = [node for node in ast.walk(self._tree) if self._is_step(node)]
        if len(begun) + len(steps) > 1:
            raise MupError(
                f"{self.optimizer_name} trains in {len(begun) + len(steps)} places, so that epochs times batches are not "
                "its steps: write the two lines by hand."
            )
        return told or [over.args[0] if _name_of(over) in ("enumerate", "tqdm") else over for over in loops]

    def _loops(self) -> list[ast.For]:
        """Loops in which the optimizer steps."""
        loops = [node for node in ast.walk(self._tree) if isinstance(node, ast.For)]
        return [loop for loop in loops if any(self._steps(node) for node in ast.walk(loop))]

    def _steps(self, node: ast.AST) -> bool:
        """Whether it is a step; one under a condition is refused, since how often it happens is not known."""
        if isinstance(node, ast.If) and any(self._is_step(own) for own in ast.walk(node)):
            raise MupError(
                f"Line {node.lineno} makes a step only under a condition, so that epochs times batches are not the steps: "
                "write the two lines by hand."
            )
        return self._is_step(node)

    def _is_step(self, node: ast.AST) -> bool:
        return isinstance(node, ast.Call) and ast.unparse(node.func) == f"{self.optimizer_name}.step"

    def _schedules(self, node: ast.AST) -> bool:
        return (
            isinstance(node, ast.Assign)
            and _makes_a_name(node)
            and any(isinstance(arg, ast.Name) and arg.id == self.optimizer_name for arg in node.value.args)
        )

    def _check_known(self, text: str) -> None:
        """Every name of an expression has to have its value where the optimizer is made."""
        later = [s for s in self._block[self._block.index(self.optimizer) :] if not isinstance(s, ast.FunctionDef)]
        written = {node.id for s in later for node in ast.walk(s) if isinstance(node, ast.Name) and _is_written(node)}
        if unknown := sorted(_read(ast.parse(text)) & written):
            raise MupError(
                f"{text} needs {unknown[0]}, which is set after the optimizer is made (line {self.optimizer.lineno}), so "
                "that the number of steps is not known there."
            )

    @staticmethod
    def _one(found: list, what: str) -> Any:
        if len(found) == 1:
            return found[0]
        told = "none" if not found else f"{len(found)}"
        raise MupError(f"The program should have one {what}, and has {told}: write the two lines by hand.")


def _blocks(tree: ast.AST) -> Iterator[list[ast.stmt]]:
    for node in ast.walk(tree):
        for field in ("body", "orelse", "finalbody"):
            if isinstance(block := getattr(node, field, None), list):
                yield block


def _makes_a_name(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Assign)
        and len(node.targets) == 1
        and isinstance(node.targets[0], ast.Name)
        and isinstance(node.value, ast.Call)
    )


def _parameters_of(call: ast.Call) -> str | None:
    """Whose parameters a call is given first, by ``model.parameters()``."""
    first = call.args[0] if call.args else next((k.value for k in call.keywords if k.arg == "params"), None)
    if not isinstance(first, ast.Call) or _name_of(first) != "parameters" or first.args or first.keywords:
        return None
    owner = first.func.value if isinstance(first.func, ast.Attribute) else None
    return owner.id if isinstance(owner, ast.Name) else None


def _name_of(node: ast.AST) -> str | None:
    """What is called: the last part of its name."""
    if not isinstance(node, ast.Call):
        return None
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", None)


def _is_method(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Attribute)


def _read(node: ast.AST) -> set[str]:
    return {own.id for own in ast.walk(node) if isinstance(own, ast.Name)}


def _is_written(node: ast.Name) -> bool:
    return isinstance(node.ctx, ast.Store)


def _texts(nodes: list[ast.expr]) -> list[str]:
    return list(dict.fromkeys(map(ast.unparse, nodes)))
