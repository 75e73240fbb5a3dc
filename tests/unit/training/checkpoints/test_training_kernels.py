"""Attention goes backwards strictly where all else is only warned of, and with the same bits."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from collecting import COLLECTING

from sealtrain.training.checkpoints.kernels import deterministic

if not COLLECTING:
    import torch
    from torch.autograd.graph import saved_tensors_hooks
    from torch.nn import functional
    from torch.utils.checkpoint import checkpoint

WARNS, REFUSES = 1, 2
if not COLLECTING:
    ORIGINAL = functional.scaled_dot_product_attention
    mode = torch.get_deterministic_debug_mode
    Attention = Callable[..., torch.Tensor]
pytestmark = pytest.mark.claim("C284")


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    before = mode()  # of a training, perhaps, that an earlier test left standing
    yield
    assert mode() == before


@pytest.fixture
def seen() -> list[int]:
    """Modes while attention went backwards: each time it took up a tensor that it had kept."""
    return []


@pytest.fixture
def attended(seen: list[int]) -> Attention:
    def unpack(kept: torch.Tensor) -> torch.Tensor:
        seen.append(mode())
        return kept

    def attention(*tensors: torch.Tensor) -> torch.Tensor:
        with saved_tensors_hooks(lambda one: one, unpack):
            return functional.scaled_dot_product_attention(*tensors, is_causal=len(tensors) == 3)

    return attention


def given() -> list[torch.Tensor]:
    torch.manual_seed(1)
    return [torch.randn(2, 3, 16, 8, requires_grad=True) for _ in range(3)]


def gradients(compute: Attention) -> list[torch.Tensor]:
    tensors = given()
    (compute(*(2 * tensor for tensor in tensors)) ** 2).sum().backward()
    return [tensor.grad for tensor in tensors if tensor.grad is not None]


def test_attention_refuses_backwards_and_nothing_else_does(
    attended: Attention, seen: list[int]
) -> None:
    around: list[int] = []
    with deterministic(lenient=True):
        before = [2 * argument for argument in given()]
        found = attended(*before)
        around.append(mode())
        for item in (found, *before):
            item.register_hook(lambda _: around.append(mode()))
        found.sum().backward()
        around.append(mode())
    assert set(seen) == {REFUSES}
    assert around == [WARNS] * 6


def vmapped(attention: Attention) -> Attention:
    return torch.func.vmap(attention)


def checkpointed(attention: Attention) -> Attention:
    return lambda *tensors: checkpoint(attention, *tensors, use_reentrant=False)


def again(attention: Attention) -> Attention:
    return lambda *tensors: checkpoint(attention, *tensors, use_reentrant=True)


@pytest.mark.parametrize("through", [checkpointed, again])
def test_also_where_it_is_computed_again(
    attended: Attention, seen: list[int], through: Callable[[Attention], Attention]
) -> None:
    with deterministic(lenient=True):
        found = gradients(through(attended))
        assert mode() == WARNS
    assert set(seen) == {REFUSES}
    assert all(map(torch.equal, found, gradients(causal)))


def causal(*tensors: torch.Tensor) -> torch.Tensor:
    return ORIGINAL(*tensors, is_causal=True)


def test_bits_are_those_of_attention_alone_also_under_vmap(attended: Attention) -> None:
    expected = gradients(vmapped(causal))
    with deterministic(lenient=True):
        assert all(map(torch.equal, gradients(vmapped(attended)), expected))
        assert mode() == WARNS


def test_heads_that_are_padded(
    attended: Attention, seen: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU they are padded to a multiple of eight, and the result is cut."""

    def padded(*tensors: torch.Tensor, **named: bool) -> torch.Tensor:
        return ORIGINAL(*(functional.pad(tensor, (0, 3)) for tensor in tensors), **named)[..., :8]

    monkeypatch.setattr(functional, "scaled_dot_product_attention", padded)
    with deterministic(lenient=True):
        attended(*given()).sum().backward()
        assert mode() == WARNS
    assert REFUSES in seen


@pytest.mark.parametrize("alone", [True, False])
def test_a_mask_that_learns(attended: Attention, alone: bool) -> None:
    mask = torch.zeros(16, 16, requires_grad=True)
    with deterministic(lenient=True):
        tensors = [argument.detach() if alone else argument for argument in given()]
        (learned,) = torch.autograd.grad(attended(*tensors, mask).square().sum(), mask)
        assert mode() == WARNS
    assert learned.any()


def test_a_backward_pass_that_fails(attended: Attention) -> None:
    def fails(_: object) -> torch.Tensor:
        raise MemoryError

    with deterministic(lenient=True):
        with saved_tensors_hooks(lambda one: one, fails):
            found = functional.scaled_dot_product_attention(*given())
        with pytest.raises(MemoryError):
            found.sum().backward()
        assert mode() == REFUSES  # until the training ends, which it does
    with deterministic(lenient=True):
        assert mode() == WARNS


def test_a_backward_pass_after_the_training_changes_nothing(attended: Attention) -> None:
    before = mode()
    with deterministic(lenient=True):
        found = attended(*given())
    found.sum().backward()
    assert mode() == before


def test_what_needs_no_gradient_can_be_added_to(attended: Attention) -> None:
    added = torch.ones(8, requires_grad=True)
    with deterministic(lenient=True):
        found = attended(*(argument.detach() for argument in given()))
        found += added
        found.sum().backward()
    assert added.grad is not None


def test_compiled_attention_is_one_graph_still() -> None:
    def attention(tensor: torch.Tensor) -> torch.Tensor:
        return functional.scaled_dot_product_attention(tensor, tensor, tensor) + 1

    with deterministic(lenient=True):
        first = torch.compile(attention, fullgraph=True, backend="eager")
        first(given()[0]).sum().backward()
        assert mode() == WARNS
    torch.compiler.reset()
    torch.compile(attention, fullgraph=True, backend="eager")(given()[0])


def test_two_threads_at_once(attended: Attention, seen: list[int]) -> None:
    """One is inside attention while the other goes through its own, and leaves."""
    inside, gone = threading.Event(), threading.Event()

    def waits(kept: torch.Tensor) -> torch.Tensor:
        seen.append(mode())
        inside.set()
        assert gone.wait(60)
        seen.append(mode())
        return kept

    def first() -> torch.Tensor:
        with deterministic(lenient=True):
            with saved_tensors_hooks(lambda one: one, waits):
                found = functional.scaled_dot_product_attention(*given())
            found.sum().backward()
        return found

    before = mode()
    with ThreadPoolExecutor(1) as threads:
        ends = threads.submit(first)
        assert inside.wait(60)
        with deterministic(lenient=True):
            gradients(attended)
        gone.set()
        assert ends.result(60).shape == given()[0].shape
    assert set(seen) == {REFUSES}
    assert mode() == before


def test_trainings_that_overlap_leave_things_as_the_first_found_them() -> None:
    before, attention = mode(), functional.scaled_dot_product_attention
    first, second, third = (deterministic(lenient=lenient) for lenient in (True, False, True))
    for item in (first, second, third):
        item.__enter__()
    with deterministic(lenient=False):
        assert mode() == REFUSES
    assert mode() == WARNS
    first.__exit__(None, None, None)
    assert mode() == WARNS
    third.__exit__(None, None, None)
    assert mode() == REFUSES
    second.__exit__(None, None, None)
    assert mode() == before
    assert functional.scaled_dot_product_attention is attention


def test_cudnn_computes_no_attention() -> None:
    before = torch.backends.cuda.cudnn_sdp_enabled()
    with deterministic(lenient=True):
        assert not torch.backends.cuda.cudnn_sdp_enabled()
    assert torch.backends.cuda.cudnn_sdp_enabled() is before


@pytest.mark.gpu
@pytest.mark.usefixtures("cuda")
@pytest.mark.parametrize("size", [64, 60])
@pytest.mark.parametrize("name", ["bfloat16", "float32"])
def test_a_gpu_gives_the_same_gradients_each_time(
    attended: Attention, seen: list[int], name: str, size: int
) -> None:
    dtype = getattr(torch, name)
    torch.manual_seed(1)
    tensors = [torch.randn(4, 16, 2048, size, device="cuda", dtype=dtype) for _ in range(3)]
    told = []
    with deterministic():
        for _ in range(5):
            leaves = [tensor.clone().requires_grad_() for tensor in tensors]
            attended(*leaves).square().sum().backward()
            told.append([leaf.grad for leaf in leaves])
    assert all(
        torch.equal(a, b) for answer in told[1:] for a, b in zip(answer, told[0], strict=True)
    )
    assert set(seen) == {REFUSES}
