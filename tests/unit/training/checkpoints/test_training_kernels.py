"""Attention is computed strictly where all else is only warned of, and with the same bits."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator

import pytest
import torch
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from sealtrain.training.checkpoints.kernels import deterministic, strict_attention

WARNS, REFUSES = 1, 2
mode = torch.get_deterministic_debug_mode
Attention = Callable[..., torch.Tensor]


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    before = mode()  # of a training, perhaps, that an earlier test left standing
    yield
    assert mode() == before


def plain(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    attention = inspect.unwrap(functional.scaled_dot_product_attention)
    return attention(query, key, value, is_causal=True)  # type: ignore[no-any-return]


@pytest.fixture
def seen() -> list[int]:
    """Modes in which attention was computed, forwards and then backwards."""
    return []


@pytest.fixture
def attended(seen: list[int]) -> Attention:
    def attention(*tensors: torch.Tensor) -> torch.Tensor:
        seen.append(mode())
        found = plain(*tensors)
        if found.grad_fn is not None:
            found.grad_fn.register_prehook(lambda _: seen.append(mode()))
            found.grad_fn.register_hook(lambda *_: seen.append(mode()))
        return found

    return strict_attention(attention)


def given() -> list[torch.Tensor]:
    torch.manual_seed(1)
    return [torch.randn(2, 3, 16, 8, requires_grad=True) for _ in range(3)]


def gradients(compute: Attention) -> list[torch.Tensor]:
    tensors = given()
    (compute(*(2 * one for one in tensors)) ** 2).sum().backward()
    return [one.grad for one in tensors if one.grad is not None]


@pytest.mark.claim("C284")
def test_attention_refuses_in_both_passes_and_nothing_else_does(
    attended: Attention, seen: list[int]
) -> None:
    around: list[int] = []
    with deterministic(lenient=True):
        before = [2 * one for one in given()]
        found = attended(*before)
        around.append(mode())
        found.register_hook(lambda _: around.append(mode()))
        for one in before:
            one.register_hook(lambda _: around.append(mode()))
        found.sum().backward()
        around.append(mode())
    assert seen == [REFUSES, REFUSES, REFUSES]
    assert around == [WARNS] * 6


@pytest.mark.claim("C284")
def test_a_training_on_a_gpu_computes_attention_so() -> None:
    with deterministic(lenient=True):
        strict = functional.scaled_dot_product_attention
        assert inspect.unwrap(strict) is not strict
    with deterministic(lenient=True):
        assert functional.scaled_dot_product_attention is strict


def test_trainings_that_overlap_leave_things_as_the_first_found_them() -> None:
    before = mode()
    first, second, third = (deterministic(lenient=lenient) for lenient in (True, False, True))
    for one in (first, second, third):
        one.__enter__()
    second.__exit__(None, None, None)
    assert mode() == WARNS
    third.__exit__(None, None, None)
    assert mode() == WARNS
    first.__exit__(None, None, None)
    assert mode() == before


def test_without_a_gradient_too(attended: Attention, seen: list[int]) -> None:
    with deterministic(lenient=True), torch.no_grad():
        attended(*given())
        assert mode() == WARNS
    assert seen == [REFUSES]


def test_an_attention_that_fails_leaves_the_mode(attended: Attention) -> None:
    with deterministic(lenient=True):
        query, key, value = given()
        with pytest.raises(RuntimeError):
            attended(query, key[..., :5], value)
        assert mode() == WARNS


def test_outside_of_a_training_it_is_left_alone(attended: Attention, seen: list[int]) -> None:
    before = mode()
    gradients(attended)
    assert seen == [before] * 3


@pytest.mark.parametrize(
    "through",
    [
        lambda attention: attention,
        torch.func.vmap,
        lambda attention: lambda *tensors: checkpoint(attention, *tensors, use_reentrant=False),
    ],
    ids=["alone", "vmap", "checkpoint"],
)
def test_bits_are_those_of_attention_alone(through: Callable[[Attention], Attention]) -> None:
    expected = gradients(through(plain))
    with deterministic(lenient=True):
        assert all(map(torch.equal, gradients(through(strict_attention(plain))), expected))


@pytest.mark.gpu
@pytest.mark.claim("C284")
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_gpu_gives_the_same_gradients_each_time(dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    tensors = [torch.randn(4, 16, 2048, 64, device="cuda", dtype=dtype) for _ in range(3)]
    told = []
    with deterministic():
        for _ in range(5):
            leaves = [one.clone().requires_grad_() for one in tensors]
            functional.scaled_dot_product_attention(
                *leaves, is_causal=True
            ).square().sum().backward()
            told.append([one.grad for one in leaves])
    assert all(torch.equal(a, b) for one in told[1:] for a, b in zip(one, told[0], strict=True))
