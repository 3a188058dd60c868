"""A job for a Ray cluster: conversations with processes on all nodes, stored in PostgreSQL.

    pip install 'turnwise[postgres]'    on each node
    RAY_ADDRESS=head:6379 python examples/cluster_job.py postgresql://user@host/name    a driver on any node
    ray job submit -- python examples/cluster_job.py postgresql://user@host/name        needs ray[default] on the head
        --packed 2                  sessions share two hosts; without it, each has its own process
        --chroma host:8000          turns are saved in a memory with vectors on this Chroma server
        --recalled text             also searches the turns of earlier jobs for this text

Its engine needs no model. The last line that it prints is JSON, for the program that waits for it.
"""

import argparse
import asyncio
import json
import logging
import os
from collections import Counter

os.environ |= {"RAY_USAGE_STATS_ENABLED": "0"}  # Ray reads it when it is imported: send no statistics

import ray

from turnwise import AsyncSession, AsyncSessionManager, Dedicated, EchoEngine, Packed, VectorMemory
from turnwise.memories import ChromaServer, VectorIndex

QUESTIONS = ("Why do rivers meander?", "What did I ask you first?")


async def converse(manager: AsyncSessionManager, number: int) -> tuple[AsyncSession, int]:
    """Ask both questions in a session, one after the other; return the session and the number of its turns."""
    chat = await manager.open(f"chat-{number}", user_id="sarah")
    for question in QUESTIONS:
        run = await chat.run(question, if_busy="enqueue")
        turn = await run
        assert question in turn.text, turn  # noqa: S101 - here an assertion is what is shown
    return chat, len(await chat.turns())


async def work(options: argparse.Namespace) -> dict[str, object]:
    memory = []
    if options.chroma:
        host, _, port = options.chroma.partition(":")
        vectors = VectorIndex(ChromaServer(host=host, port=int(port)))
        memory = [VectorMemory("said.db", vectors)]  # words stay in a file on this node
    placement = Packed(hosts=options.packed) if options.packed else Dedicated()
    engine = EchoEngine(0.01)
    async with AsyncSessionManager(options.store, engine=engine, memory=memory, placement=placement) as manager:
        conversations = await asyncio.gather(*(converse(manager, number) for number in range(options.chats)))
        nodes = Counter([(await chat.info()).node_id for chat, _ in conversations])
        report: dict[str, object] = {
            "turns": [turns for _, turns in conversations],
            "sessions by node": sorted(nodes.values()),
        }
        if options.recalled:
            await conversations[0][0].memory.wait()
            report["recalled"] = [
                item.text for item in await conversations[0][0].memory.recall(options.recalled, limit=2)
            ]
    return report


def main() -> None:
    parser = argparse.ArgumentParser(description="Conversations on a Ray cluster, kept in PostgreSQL.")
    parser.add_argument("store", help="the URL of a PostgreSQL, or of a Redis")
    parser.add_argument("--chats", type=int, default=3, help="how many conversations there are at once")
    parser.add_argument("--packed", type=int, default=0, metavar="HOSTS", help="how many packed hosts there are")
    parser.add_argument("--chroma", metavar="HOST:PORT", help="a server that `chroma run` started")
    parser.add_argument("--recalled", metavar="TEXT", help="what to look up in memory")
    options = parser.parse_args()
    ray.init(logging_level=logging.ERROR, log_to_driver=False)  # the cluster of RAY_ADDRESS, or of the job
    print(json.dumps(asyncio.run(work(options))))


if __name__ == "__main__":
    main()
