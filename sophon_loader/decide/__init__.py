"""Decisions: from what was measured to the choice of every sample.

Pure: numpy in, plan out. No torch, no sockets, no clock, no logging; what there is to say stands in
    ``Plan.reason``.
"""

from __future__ import annotations

from sophon_loader.decide.cost import (
    Bottleneck,
    Terms,
    Totals,
    epoch_terms,
    epoch_totals,
    moved,
    terms_without_offloading,
    verdict,
)
from sophon_loader.decide.facts import FILE, Choice, ChoiceTable, Facts, Rates
from sophon_loader.decide.plan import Plan, Prices, spread, uniform_plan
from sophon_loader.decide.policies import POLICIES, Policy, policy_named
from sophon_loader.decide.policies.fastflow import FastFlow, Trial

__all__ = [
    "FILE",
    "POLICIES",
    "Bottleneck",
    "Choice",
    "ChoiceTable",
    "Facts",
    "FastFlow",
    "Plan",
    "Policy",
    "Prices",
    "Rates",
    "Terms",
    "Totals",
    "Trial",
    "epoch_terms",
    "epoch_totals",
    "moved",
    "policy_named",
    "spread",
    "terms_without_offloading",
    "uniform_plan",
    "verdict",
]
