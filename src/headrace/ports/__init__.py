"""The shapes between the parts: what the runtime asks of journals, models, clocks and chance."""

from __future__ import annotations

from headrace.ports.journal import Consumer, Journal, Worker
from headrace.ports.model import LoadedModel, Model
from headrace.ports.observer import BatchReport, Observer, ServerState, Survey, Timing
from headrace.ports.values import (
    FIRST_ATTEMPT,
    Attempt,
    Batch,
    DeadLetter,
    NewEvent,
    Offered,
    OpenState,
    Outcome,
    Receipt,
    Row,
    Settled,
    Subscription,
    TopicInfo,
    VersionInfo,
    VersionOffer,
    Waiting,
)
from headrace.ports.world import (
    FAILPOINTS,
    KAFKA_FAILPOINTS,
    REPLAY_FAILPOINTS,
    Chance,
    Clock,
    Faults,
    NoFaults,
    World,
)

__all__ = [
    "FAILPOINTS",
    "FIRST_ATTEMPT",
    "KAFKA_FAILPOINTS",
    "REPLAY_FAILPOINTS",
    "Attempt",
    "Batch",
    "BatchReport",
    "Chance",
    "Clock",
    "Consumer",
    "DeadLetter",
    "Faults",
    "Journal",
    "LoadedModel",
    "Model",
    "NewEvent",
    "NoFaults",
    "Observer",
    "Offered",
    "OpenState",
    "Outcome",
    "Receipt",
    "Row",
    "ServerState",
    "Settled",
    "Subscription",
    "Survey",
    "Timing",
    "TopicInfo",
    "VersionInfo",
    "VersionOffer",
    "Waiting",
    "Worker",
    "World",
]
