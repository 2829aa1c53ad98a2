"""What orders to workers and their answers may hold: plain data and these dataclasses."""

from __future__ import annotations

from placewright.execute.connections.codec import Codec
from placewright.execute.crew import StepLog
from placewright.execute.emulation import ShapedLink
from placewright.execute.host import Host
from placewright.execute.messages.ways import Driven, Layout
from placewright.execute.step.partition import Message, Part, Step
from placewright.execute.step.serial import Action
from placewright.execute.step.sharing import Share
from placewright.execute.worker_spec import WorkerSpec
from placewright.graph.graph import TensorSpec
from placewright.graph.program import Const, Instruction, ProgramInput, Ref

ORDERS = Codec(
    *(Action, Share, Part, Step, Message, Instruction, Ref, Const, ProgramInput, TensorSpec),
    *(StepLog, Host, WorkerSpec, Layout, Driven, ShapedLink),
)
