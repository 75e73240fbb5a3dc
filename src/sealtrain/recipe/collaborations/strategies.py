"""Flower's strategies as a recipe names them (spec/recipe.md §2.14), with Flower's own names.

Only settings: a machine that locks or verifies a recipe needs no Flower. Names, arguments and
defaults are those of ``flwr.serverapp.strategy``; ``engine`` makes the real objects of them. The
strategies here merge in numpy alone. Others of Flower's need trees, callables or a loss of each
party, or add noise that nothing here accounts for: a recipe that names one is refused.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import AllowInfNan, Field

from sealtrain.base.models import StrictModel

RULE: Final = "flower"
"""``aggregation`` of a recipe that names a strategy."""
ENGINE_ARGUMENTS: Final = frozenset({
    "fraction_evaluate", "min_evaluate_nodes", "weighted_by_key", "arrayrecord_key",
    "configrecord_key", "train_metrics_aggr_fn", "evaluate_metrics_aggr_fn", "selection_rule",
})  # fmt: skip
"""Arguments of Flower's that no recipe names: records and evaluation are the lead's own."""

_Nodes = Annotated[int, Field(ge=1, le=256)]
_Share = Annotated[float, AllowInfNan(False), Field(ge=0, lt=1)]
_Rate = Annotated[float, AllowInfNan(False), Field(gt=0, le=1e6)]
_Faulty = Annotated[int, Field(ge=0, le=126)]


class StrategySettings(StrictModel):
    """Arguments that every strategy has.

    Attributes:
        memory: Attributes of the strategy that hold what it remembers of earlier rounds.
        needed_per_faulty: Updates that a round needs for each faulty party, and besides them.
    """

    memory: ClassVar[tuple[str, ...]] = ()
    needed_per_faulty: ClassVar[tuple[int, int]] = (0, 0)

    fraction_train: Annotated[float, AllowInfNan(False), Field(gt=0, le=1)] = Field(
        default=1.0, description="Share of the parties that are present to ask in a round."
    )
    min_train_nodes: _Nodes = Field(default=2, description="Parties to ask at least.")
    min_available_nodes: _Nodes = Field(
        default=2, description="Parties that have to be present before a round begins."
    )

    @property
    def samples(self) -> bool:
        """Whether a round may ask fewer parties than are present."""
        return self.fraction_train < 1

    @property
    def needed(self) -> int:
        """Parties that have to be present before the strategy can choose some of them."""
        return max(self.min_available_nodes, self.min_train_nodes)

    def misfit(self, *, holders: int, min_parties: int, half_precision: bool) -> str | None:
        """Why a recipe cannot use it; ``None`` if it can.

        Args:
            holders: Owners with data to train on.
            min_parties: Updates that a round needs.
            half_precision: Parties train with scaled losses (``trainer.fp16``).
        """
        if self.needed > holders:
            return "min_train_nodes or min_available_nodes is above the number of parties"
        if self.samples and self.min_train_nodes < min_parties:
            return "min_train_nodes is below collaboration.min_parties"
        per, besides = self.needed_per_faulty
        faulty = getattr(self, "num_malicious_nodes", 0)
        if min_parties < per * faulty + besides:
            return (
                f"num_malicious_nodes: {faulty} needs collaboration.min_parties of at least "
                f"{per * faulty + besides}"
            )
        return self._own_misfit(min_parties, half_precision)

    def _own_misfit(self, min_parties: int, half_precision: bool) -> str | None:
        return None


class FedAvg(StrategySettings):
    """Mean weighted by records (McMahan et al. 2017)."""

    name: Literal["FedAvg"]


class FedAvgM(StrategySettings):
    """FedAvg with momentum at the lead (Hsu et al. 2019)."""

    memory: ClassVar[tuple[str, ...]] = ("momentum_vector",)

    name: Literal["FedAvgM"]
    server_learning_rate: _Rate = Field(default=1.0, description="Of the mean change.")
    server_momentum: _Share = Field(default=0.0, description="Share of the change before.")


class _Adaptive(StrategySettings):
    """A step of an adaptive optimizer at the lead (Reddi et al. 2021)."""

    memory: ClassVar[tuple[str, ...]] = ("m_t", "v_t")

    eta: _Rate = Field(default=0.1, description="Learning rate of the lead's step.")
    eta_l: _Rate = Field(
        default=0.1, description="Learning rate of the parties; no strategy reads it."
    )
    tau: _Rate = Field(default=0.001, description="Added to the root of the second moment.")


class FedAdagrad(_Adaptive):
    """Adagrad at the lead."""

    name: Literal["FedAdagrad"]


class FedAdam(_Adaptive):
    """Adam at the lead."""

    name: Literal["FedAdam"]
    beta_1: _Share = Field(default=0.9, description="Decay of the first moment.")
    beta_2: _Share = Field(default=0.99, description="Decay of the second moment.")


class FedYogi(_Adaptive):
    """Yogi at the lead."""

    name: Literal["FedYogi"]
    eta: _Rate = Field(default=0.01, description="Learning rate of the lead's step.")
    eta_l: _Rate = Field(
        default=0.0316, description="Learning rate of the parties; no strategy reads it."
    )
    beta_1: _Share = Field(default=0.9, description="Decay of the first moment.")
    beta_2: _Share = Field(default=0.99, description="Decay of the second moment.")


class FedProx(StrategySettings):
    """FedAvg of parties whose loss keeps them near the merged adapter (Li et al. 2020)."""

    name: Literal["FedProx"]
    proximal_mu: Annotated[float, AllowInfNan(False), Field(ge=0, le=1e6)] = Field(
        default=0.0, description="Weight of half the squared distance in each party's loss."
    )

    def _own_misfit(self, min_parties: int, half_precision: bool) -> str | None:
        return "FedProx does not go together with trainer.fp16" if half_precision else None


class FedMedian(StrategySettings):
    """Middle of every number (Yin et al. 2018)."""

    name: Literal["FedMedian"]


class FedTrimmedAvg(StrategySettings):
    """Mean of every number without the ends (Yin et al. 2018)."""

    name: Literal["FedTrimmedAvg"]
    beta: Annotated[float, AllowInfNan(False), Field(ge=0, lt=0.5)] = Field(
        default=0.2, description="Share of the values left out at either end."
    )


class Krum(StrategySettings):
    """The update that is nearest to the others (Blanchard et al. 2017)."""

    needed_per_faulty: ClassVar[tuple[int, int]] = (2, 3)

    name: Literal["Krum"]
    num_malicious_nodes: _Faulty = Field(default=0, description="Parties that may be faulty.")


class MultiKrum(StrategySettings):
    """Mean of the updates that are nearest to the others (Blanchard et al. 2017)."""

    needed_per_faulty: ClassVar[tuple[int, int]] = (2, 3)

    name: Literal["MultiKrum"]
    num_malicious_nodes: _Faulty = Field(default=0, description="Parties that may be faulty.")
    num_nodes_to_select: _Nodes = Field(default=1, description="Updates that are merged.")

    def _own_misfit(self, min_parties: int, half_precision: bool) -> str | None:
        if self.num_nodes_to_select > min_parties:
            return "num_nodes_to_select is above collaboration.min_parties"
        return None


class Bulyan(StrategySettings):
    """Krum's choice, then values near the median of each number (El Mhamdi et al. 2018)."""

    needed_per_faulty: ClassVar[tuple[int, int]] = (4, 3)

    name: Literal["Bulyan"]
    num_malicious_nodes: _Faulty = Field(default=0, description="Parties that may be faulty.")


Strategy = Annotated[
    FedAvg
    | FedAvgM
    | FedAdagrad
    | FedAdam
    | FedYogi
    | FedProx
    | FedMedian
    | FedTrimmedAvg
    | Krum
    | MultiKrum
    | Bulyan,
    Field(discriminator="name"),
]


def arguments_of(settings: StrategySettings) -> dict[str, Any]:
    """Arguments for the class of Flower's that the settings name."""
    return {name: value for name, value in settings.to_dict().items() if name != "name"}
