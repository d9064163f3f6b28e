"""`python -m benchmarks.http_cost`: CPU time of a replica's HTTP process for a token, without any model.

An engine of no model sends one token a step to each of 32 streams, and a client reads them; each is a process
of its own. Beside it the same bytes leave from 32 bare sockets, which is the part of the kernel.
"""

import argparse
import asyncio
import json
import multiprocessing
import select
import socket
import statistics
import sys
import time
from pathlib import Path

import millrace_runtime
from benchmarks.record import add_output, publish, read_commit, read_date
from benchmarks.runtime.machine import describe_machine
from millrace_runtime.api.settings import ApiSettings
from millrace_runtime.protocol.encoding import FrameDecoder, encode_frame
from millrace_runtime.protocol.messages import (
    FINISH_LENGTH,
    EngineReady,
    Generate,
    SequenceOutput,
    Stats,
    StepOutputs,
    StepTiming,
    ToEngine,
)
from millrace_runtime.protocol.step import Placement
from testing.http_replica import serve_http

NUM_STREAMS = 32
NUM_STEPS = 500
STEP_SECONDS = 0.008
"""Between two steps: the HTTP process rests in between, as beside a model."""
EVENT_BYTES = 205
"""Of a completion's chunk with a short token, as it leaves."""
BODY = {"model": "m", "prompt": "Once", "max_tokens": NUM_STEPS, "ignore_eos": True, "stream": True}
READY = EngineReady(
    max_model_length=4096,
    num_blocks=4096,
    kv_tokens=65_536,
    block_size=16,
    max_sequences=NUM_STREAMS,
    vocabulary_size=4096,
    placement=Placement("cpu", "none", "bfloat16", "FromCheckpoint", 1),
    startup_seconds={},
)
MODEL = Path(millrace_runtime.__file__).parent / "demo" / "stories"
"""Its tokenizer alone is used."""
_SPAWN = multiprocessing.get_context("spawn")


def run_engine(sock: socket.socket) -> None:
    """Wait for all streams, and send each of them a token a step."""
    decoder: FrameDecoder[Generate] = FrameDecoder(ToEngine)  # type: ignore[arg-type]
    sock.sendall(encode_frame(READY))
    numbers: list[int] = []
    while len(numbers) < NUM_STREAMS:
        for message in decoder.feed(sock.recv(1 << 16)):
            numbers += [new.sequence_id for new in message.sequences]
    stats = Stats(0, NUM_STREAMS, 4096, 2048, 0)
    timing = StepTiming(STEP_SECONDS, NUM_STREAMS, NUM_STREAMS, 1000, True)
    for step in range(NUM_STEPS):
        finish = FINISH_LENGTH if step == NUM_STEPS - 1 else None
        outputs = [SequenceOutput(n, [300 + (7 * step + n) % 2000], [], finish, None) for n in numbers]
        sock.sendall(encode_frame(StepOutputs(outputs, stats, timing)))
        time.sleep(STEP_SECONDS)
    sock.recv(1)  # the HTTP process ends it


def run_client(port: int) -> None:
    """Ask for all streams, and read each to its end."""
    body = json.dumps(BODY).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d"
    streams = [socket.create_connection(("127.0.0.1", port)) for _ in range(NUM_STREAMS)]
    for stream in streams:
        stream.sendall(head % len(body) + b"\r\n\r\n" + body)
    read_to_end(streams, b"data: [DONE]")


def read_to_end(streams: list[socket.socket], ending: bytes) -> None:
    """Read from all sockets until each has ended."""
    left = set(streams)
    while left:
        for one in select.select(left, [], [])[0]:
            data = one.recv(1 << 16)
            if not data or ending in data:
                left.discard(one)


def connect_and_read(port: int) -> None:
    """Open all connections, and read each until the peer closes it."""
    read_to_end([socket.create_connection(("127.0.0.1", port)) for _ in range(NUM_STREAMS)], b"\0")


async def measure_http() -> float:
    """Return microseconds of CPU time for a token in the process that serves HTTP."""
    ours, theirs = socket.socketpair()
    engine = _SPAWN.Process(target=run_engine, args=(theirs,))
    engine.start()
    async with serve_http(MODEL, ours, ApiSettings(served_name="m")) as replica:
        await replica.wait_ready()
        client = _SPAWN.Process(target=run_client, args=(int(replica.url.rpartition(":")[2]),))
        client.start()
        generated = replica.state.metrics.inter_token
        while not generated.count:  # noqa: ASYNC110  prompts are read by then, and first tokens written
            await asyncio.sleep(STEP_SECONDS)
        began, before = time.process_time(), generated.count
        await asyncio.to_thread(client.join)
        spent, num_tokens = time.process_time() - began, generated.count - before
    engine.terminate()
    engine.join()
    return spent / num_tokens * 1e6


def measure_sockets() -> float:
    """Return microseconds of CPU time for EVENT_BYTES written to a bare socket."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = _SPAWN.Process(target=connect_and_read, args=(listener.getsockname()[1],))
        client.start()
        streams = [listener.accept()[0] for _ in range(NUM_STREAMS)]
    for stream in streams:
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    event = b"x" * EVENT_BYTES
    began = time.process_time()
    for _ in range(NUM_STEPS):
        for stream in streams:
            stream.send(event)
        time.sleep(STEP_SECONDS)
    spent = time.process_time() - began
    for stream in streams:
        stream.close()
    client.join()
    return spent / (NUM_STEPS * NUM_STREAMS) * 1e6


def main(argv: list[str]) -> int:
    """Measure both in turn; print a line for each round, and one JSON line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.http_cost", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="(default: %(default)s)")
    add_output(parser)
    values = parser.parse_args(argv)
    rounds: list[tuple[float, float]] = []
    for number in range(1, values.rounds + 1):
        rounds.append((asyncio.run(measure_http()), measure_sockets()))
        print(f"round {number}: {rounds[-1][0]:.1f} us a token, of which {rounds[-1][1]:.1f} us to write it")
    http, sockets = (round(statistics.median(each), 1) for each in zip(*rounds, strict=True))
    figures = {"http_us_a_token": http, "write_us": sockets, "rounds": rounds}
    origin = {"benchmark": "http_cost", "date": read_date(), "commit": read_commit()}
    publish(origin | {"machine": describe_machine(), "figures": figures}, values.output)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
