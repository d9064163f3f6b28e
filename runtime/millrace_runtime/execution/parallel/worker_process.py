"""A worker's process: it loads its part of the model, and runs the plans that the engine sends to all."""

import os
import signal
import socket
import sys
import traceback
from queue import SimpleQueue
from threading import Lock, Semaphore, Thread
from typing import TYPE_CHECKING, NoReturn, TypeVar

import msgspec

from millrace_fit.kv_budget import Budget
from millrace_runtime.execution.errors import ModelError, describe
from millrace_runtime.execution.parallel.channel import Channel, ChannelClosed
from millrace_runtime.execution.parallel.heartbeats import Heartbeats, keep_beating
from millrace_runtime.execution.parallel.messages import (
    Allocate,
    Allocated,
    CacheRoom,
    Done,
    Failed,
    FromWorker,
    Loaded,
    LogLine,
    Masks,
    Measure,
    Recorded,
    Submit,
    ToWorker,
    WorkerArguments,
)
from millrace_runtime.process import end_with_parent, paused_collection
from millrace_runtime.protocol.executor import Forget, Record, Sleep, Wake
from millrace_runtime.protocol.step import StepPlan

if TYPE_CHECKING:  # importing it imports torch, which takes seconds
    from millrace_runtime.execution.local import LocalExecutor

Wanted = TypeVar("Wanted")


class Worker:
    """Answers the engine. One thread submits and another one collects: each may wait for the device."""

    def __init__(self, arguments: WorkerArguments, channel: Channel[ToWorker]) -> None:
        self._arguments, self._channel = arguments, channel
        self._is_sending = Lock()
        self._due: SimpleQueue[None] = SimpleQueue()
        """One item for each step that can be collected, because its masks are there."""
        self._drafted: set[int] = set()
        """The slots whose drafts the newest step verifies."""

    def run(self) -> NoReturn:
        """Load, allocate and serve, until the engine is gone (ChannelClosed). Raises any failure."""
        executor = self._build_executor()
        keep_beating(
            Heartbeats(self._arguments.heartbeats_fd), self._arguments.index, lambda: executor.progress
        )
        room = Semaphore(executor.limits.depth)
        Thread(target=self._collect, args=(executor, room), name="collect", daemon=True).start()
        self._send(Allocated(executor.limits, executor.placement))
        while True:
            for message in self._channel.receive(None):
                self._obey(message, executor, room)

    def fail(self, error: Exception) -> None:
        """Report to the engine why this worker ends. Only a bad model needs no traceback."""
        is_model = isinstance(error, ModelError)
        if not is_model:
            traceback.print_exception(error)
        text = str(error) if is_model else describe(error)
        try:
            self._send(Failed(text, is_model))
        except ChannelClosed:
            sys.stderr.write(f"the engine is gone, so this worker can't report to it: {text}\n")

    def _build_executor(self) -> "LocalExecutor":
        # Here and not above: importing torch takes seconds.
        with paused_collection():
            from millrace_runtime.execution.build import describe_cache, load_model  # noqa: PLC0415

        arguments = self._arguments
        loaded = load_model(arguments.read_settings(), arguments.host, arguments.read_rank(), self._log)
        self._send(Loaded())
        measure = self._await(Measure)
        shape = loaded.choose_cache(Budget(measure.host_bytes, measure.host_source, measure.host_is_shared))
        self._send(CacheRoom(list(shape.num_blocks), shape.max_model_length, describe_cache(loaded, shape)))
        allocate = self._await(Allocate)
        return loaded.allocate(allocate.num_blocks, allocate.max_model_length)

    def _obey(self, message: ToWorker, executor: "LocalExecutor", room: Semaphore) -> None:
        match message:
            case Submit(plan):
                # The engine follows the first worker: this one may still be busy with the step before.
                room.acquire()
                self._await_drafts(plan, executor.limits.depth - 1, room)
                executor.submit(plan)
                if not any(row.is_masked for row in plan.rows):
                    self._due.put(None)
            case Masks(step, masks):
                executor.provide_masks(step, memoryview(masks))
                self._due.put(None)
            case Sleep() | Wake() | Record() | Forget():
                for _ in range(executor.limits.depth):
                    room.acquire()
                executor.control(message)
                room.release(executor.limits.depth)
                if isinstance(message, Record):
                    self._send(Recorded(message.size in executor.recorded))

    def _await_drafts(self, plan: StepPlan, num_others: int, room: Semaphore) -> None:
        """Wait until this worker too knows how much of a draft is in the text that the plan continues."""
        if num_others and not self._drafted.isdisjoint([row.slot for row in plan.rows]):
            for _ in range(num_others):
                room.acquire()
            room.release(num_others)
        self._drafted = {row.slot for row in plan.rows if row.draft}

    def _collect(self, executor: "LocalExecutor", room: Semaphore) -> None:
        try:
            executor.enter_thread()
            while True:
                self._due.get()
                result = executor.collect()
                room.release()
                if self._arguments.index == 0:  # every worker has the same one
                    self._send(Done(result))
        except ChannelClosed:
            os._exit(0)
        except Exception as error:  # noqa: BLE001  the last message of a process that ends
            self.fail(error)
            os._exit(1)

    def _await(self, wanted: type[Wanted]) -> Wanted:
        """Return the next message. Before the first step the engine sends one at a time."""
        messages: list[ToWorker] = []
        while not messages:
            messages = self._channel.receive(None)
        (message,) = messages
        assert isinstance(message, wanted), f"{message} came instead of {wanted.__name__}"
        return message

    def _log(self, line: str) -> None:
        if self._arguments.index == 0:
            self._send(LogLine(line))

    def _send(self, message: FromWorker) -> None:
        with self._is_sending:
            self._channel.send(message)


def main(argument: str) -> int:
    """Run as the engine's child, and return the exit status. Only the engine ends it: it ignores signals."""
    arguments = msgspec.json.decode(argument, type=WorkerArguments)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    end_with_parent(arguments.engine_pid)
    for fd in (arguments.socket_fd, arguments.exchange_fd, arguments.heartbeats_fd):
        os.set_inheritable(fd, False)
    channel: Channel[ToWorker] = Channel(socket.socket(fileno=arguments.socket_fd), ToWorker)  # type: ignore[arg-type]
    worker = Worker(arguments, channel)
    try:
        worker.run()
    except ChannelClosed:
        return 0
    except Exception as error:  # noqa: BLE001  the last message of a process that ends
        worker.fail(error)
        return 1


if __name__ == "__main__":
    status = main(sys.argv[1])
    sys.stderr.flush()
    # Not sys.exit: the teardown of torch and CUDA can hang, and this process has nothing to save.
    os._exit(status)
