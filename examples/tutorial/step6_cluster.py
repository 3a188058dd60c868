"""Step 6 of the tutorial: conversations on a cluster of two nodes, which outlive each of them.

    pip install 'turnwise[postgres]'
    python step6_cluster.py postgresql://postgres@127.0.0.1/postgres

Its page is docs/tutorial/cluster.md.
"""

import sys
from collections import Counter

from turnwise import EchoEngine, Packed, SessionConfig, SessionManager

config = SessionConfig(on_lost="resume")
engine = EchoEngine(token_delay_s=0.2)
with SessionManager(sys.argv[1], engine=engine, placement=Packed(hosts=2), config=config) as manager:
    chats = [manager.open(f"chat-{number}", user_id="sarah") for number in range(8)]
    runs = [chat.run("Count with me: one two three four five six seven eight nine ten.") for chat in chats]
    print("Conversations on each node:", *Counter(chat.info().node_id for chat in chats).values(), flush=True)
    print("Answers:", Counter(run.wait(120.0).text for run in runs))
