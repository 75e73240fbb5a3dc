"""Whether the weights that a recipe starts from are numbers: read once, before owners approve.

A NaN in one row of a base model turns each adapter beside it to NaN, and a merged model holds it in
any case; the guest then stops, after every owner approved. Only floating-point numbers are read. A
NaN is refused anywhere. An infinity is refused in a ``weight`` or ``bias``: buffers that mask may
hold some. Weights in four bits or packed integers are not looked into.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, NamedTuple

from sealtrain.base.extras import require_extras
from sealtrain.recipe.basemodel import header_of
from sealtrain.recipe.errors import ModelInvalid
from sealtrain.recipe.fields import resolve_inside
from sealtrain.recipe.modelspec import ModelFromFolder
from sealtrain.recipe.recipe import PhaseRecipe

_READ_BYTES: Final = 1 << 20
_AT_A_TIME: Final = 4
"""Files."""
_PARAMETERS: Final = ("weight", "bias")


class _Form(NamedTuple):
    """Bits of a floating-point number.

    Attributes:
        kind: Of an unsigned integer of the same length, for numpy.
        special: Bits that are all set in NaN and infinities.
        sign: The sign's bit.
        infinities: There are some: with no other bit set.
    """

    kind: str
    special: int
    sign: int
    infinities: bool = True


_FORMS: Final = {
    "F64": _Form("<u8", 0x7FF << 52, 1 << 63),
    "F32": _Form("<u4", 0xFF << 23, 1 << 31),
    "F16": _Form("<u2", 0x1F << 10, 1 << 15),
    "BF16": _Form("<u2", 0xFF << 7, 1 << 15),
    "F8_E5M2": _Form("u1", 0x1F << 2, 1 << 7),
    "F8_E4M3": _Form("u1", 0x7F, 1 << 7, infinities=False),
}
"""By the names that safetensors gives them."""


def require_sound_weights(recipe: PhaseRecipe, base_dir: Path) -> None:
    """Read the weights of each model that the recipe names by a folder.

    Args:
        recipe: Names the models.
        base_dir: Folder that its paths start from.

    Raises:
        ModelInvalid: A weight is not a finite number, or a file is no safetensors file; the error
            names file and tensor.
        ExtraMissing: numpy is not installed.
    """
    models = (recipe.model, *recipe.further_models.values())
    folders = {model.path for model in models if isinstance(model, ModelFromFolder)}
    files = [
        file
        for path in sorted(folders)
        for file in sorted(resolve_inside(base_dir, path).rglob("*.safetensors"))
    ]
    if not files:
        return
    require_extras("reading weights", "seal")
    with ThreadPoolExecutor(_AT_A_TIME, thread_name_prefix="sealtrain-weights") as threads:
        try:
            for _ in threads.map(_require_sound, files):
                pass
        finally:
            threads.shutdown(cancel_futures=True)


def _require_sound(path: Path) -> None:
    begin, tensors = header_of(path)
    try:
        with path.open("rb", buffering=0) as file:
            for name, tensor in sorted(tensors.items(), key=lambda item: _span(item[1])):
                form = _FORMS.get(tensor["dtype"])
                if form is not None and not _is_sound(file, begin, tensor, form, name):
                    raise ModelInvalid(
                        "the base model holds a weight that is not a finite number",
                        check="weights",
                        got=f"{path.name}: {name[:200]}",
                        expected="finite numbers",
                        hint="take a sound copy of the base model: no training mends it",
                    )
    except (OSError, KeyError, TypeError, ValueError):
        raise ModelInvalid(f"{path.name} is not a safetensors file") from None


def _span(tensor: Any) -> tuple[int, int]:
    begin, end = tensor["data_offsets"]
    return int(begin), int(end)


def _is_sound(file: Any, begin: int, tensor: Any, form: _Form, name: str) -> bool:
    import numpy as np

    start, end = _span(tensor)
    file.seek(begin + start)
    left = end - start
    while left > 0:
        block = file.read(min(_READ_BYTES, left))
        if not block:
            raise ValueError("the file ends before its tensors")
        left -= len(block)
        bits = np.frombuffer(block, form.kind)
        if not bits.size or int((bits & form.special).max()) != form.special:
            continue
        special = bits[(bits & form.special) == form.special] & ~np.array(form.sign, form.kind)
        if not form.infinities or (special != form.special).any():
            return False
        if name.rpartition(".")[2] in _PARAMETERS:
            return False
    return True
