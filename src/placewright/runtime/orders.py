"""What orders to workers and their answers may hold: plain data and these dataclasses."""

from __future__ import annotations

from placewright.graph.graph import TensorSpec
from placewright.graph.program import Const, Instruction, ProgramInput, Ref
from placewright.runtime.connections.codec import Codec
from placewright.runtime.device_group import StepLog
from placewright.runtime.emulation import ShapedLink
from placewright.runtime.host import Host
from placewright.runtime.messages.ways import Driven, Layout
from placewright.runtime.step.partition import Message, Part, Step
from placewright.runtime.step.serial import Action
from placewright.runtime.step.sharing import Share
from placewright.runtime.worker_spec import WorkerSpec

ORDERS = Codec(
    *(Action, Share, Part, Step, Message, Instruction, Ref, Const, ProgramInput, TensorSpec),
    *(StepLog, Host, WorkerSpec, Layout, Driven, ShapedLink),
)
