"""Decisions: from measurements to the choice of every sample.

Pure: numpy in, plan out. No torch, no sockets, no clock, no logging; explanations are in `Plan.reason`.
"""

from __future__ import annotations

from sophon_loader.decide.cost import (
    Bottleneck,
    EpochTime,
    EpochWork,
    epoch_time,
    epoch_work,
    moved,
    time_without_offloading,
)
from sophon_loader.decide.facts import FILE, Choice, ChoiceTable, Facts, Rates
from sophon_loader.decide.plan import Plan, spread, uniform_plan
from sophon_loader.decide.policies import POLICIES, policy_named
from sophon_loader.decide.policies.fastflow import FastFlow
from sophon_loader.decide.policy import Policy, PricingPolicy, Trial, TryingPolicy
from sophon_loader.decide.tariff import Part, Prices, Tariff, Traffic

__all__ = [
    "FILE",
    "POLICIES",
    "Bottleneck",
    "Choice",
    "ChoiceTable",
    "EpochTime",
    "EpochWork",
    "Facts",
    "FastFlow",
    "Part",
    "Plan",
    "Policy",
    "Prices",
    "PricingPolicy",
    "Rates",
    "Tariff",
    "Traffic",
    "Trial",
    "TryingPolicy",
    "epoch_time",
    "epoch_work",
    "moved",
    "policy_named",
    "spread",
    "time_without_offloading",
    "uniform_plan",
]
